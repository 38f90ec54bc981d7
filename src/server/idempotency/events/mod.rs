//! For consumers of events: each event is processed once, however often it is delivered.
//!
//! Brokers deliver at least once: after a rebalance, a timeout or a crash the same event comes
//! again. [`EventDedupLayer`] knows an event by its id and drops what was processed before, for at
//! least seven days, on the same [stores](crate::store) as requests.
//!
//! # When to use it
//!
//! In consumers of queues and logs that deliver at least once, and behind
//! [verified webhooks](crate::delivery::webhooks::verify).
//!
//! Not where processing an event twice does no harm. Not where a transaction of yours can keep the ids of
//! events together with their effect: that is exact, and this is not after a crash.
//!
//! # Defaults
//!
//! The [`id`](EventDedupBuilder::id) and the [`crash_policy`](EventDedupBuilder::crash_policy) have none:
//! they have to be chosen.
//!
//! | setting | default |
//! | --- | --- |
//! | [`window`](EventDedupBuilder::window) | 7 days |
//! | [`lease`](EventDedupBuilder::lease), [`max_execution`](EventDedupBuilder::max_execution) | 30 s, renewed for 15 min |
//! | [`store_timeout`](EventDedupBuilder::store_timeout) | 5 s, or a third of the lease |
//! | an event without an id | an error: [`NotConsumed::NoId`] |
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{error::BoxError, server::idempotency::events::{Consumed, EventDedupLayer}, store::{MemoryStore, CrashPolicy}};
//!
//! #[derive(Clone)]
//! struct Paid { id: String, cents: u64 }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let layer = EventDedupLayer::builder(MemoryStore::new(), "ledger")
//!     .id(|event: &Paid| Some(event.id.clone()))
//!     .crash_policy(CrashPolicy::Reexecute)
//!     .build()?;
//! let mut consumer = ServiceBuilder::new()
//!     .layer(layer)
//!     .service(service_fn(|event: Paid| async move { Ok::<_, BoxError>(event.cents) }));
//!
//! let event = Paid { id: "evt-1".into(), cents: 100 };
//! let first = consumer.ready().await?.call(event.clone()).await?;
//! let again = consumer.ready().await?.call(event).await?;
//! assert_eq!((first, again), (Consumed::Processed(100), Consumed::Duplicate));
//! # Ok(())
//! # }
//! ```
//!
//! Acknowledge an event after `Ok`, and let the broker deliver it again after `Err`. An event whose
//! consumer returned an error, or a response that says that it failed ([`EventResponse`]), was not
//! processed, and the next delivery is. One that is being processed elsewhere is an error too
//! ([`NotConsumed`]): were it acknowledged, and the other consumer then failed, it would be lost.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | an event that was processed is not processed again for 7 days or longer | that a failed attempt had no effect: the next delivery is processed whatever the consumer did before its error |
//! | of concurrent deliveries one is processed, the others are errors | an order among events |
//! | an event whose consumer died follows the crash policy | that a consumer past its `max_execution` is stopped: it is no longer waited for |
//! | events of other consumers, and of no id, are told apart from this one's | that ids differ between producers: put the producer into the id |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | an event is acknowledged after an error | it is lost | acknowledge after `Ok` only, and let the broker deliver again |
//! | ids that two producers share | the second one's events are dropped | put the producer into the id |
//! | an id that is drawn at each delivery | nothing is recognised | the id that the producer gave it |
//! | two consumers of one name in one store | the second one sees duplicates only | a name for each consumer |

mod failure;
mod layer;
mod service;

pub use self::{
    failure::{EventFailure, EventResponse},
    layer::{EventDedupBuilder, EventDedupLayer},
    service::{Consumed, EventDedup, EventDedupFuture, NotConsumed},
};
