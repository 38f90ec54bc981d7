//! Webhooks: events for other people's servers, signed, guarded and delivered until they arrive.
//!
//! [`Webhooks::send`] queues an event and returns; a [worker](Webhooks::worker) delivers it on a
//! [schedule](Schedule) of up to a day, across restarts. Each target has its own lane, so that one
//! that hangs does not delay the others. An event that can't be delivered becomes a
//! [dead letter](super::dead_letter).
//!
//! The receiver's URL comes from a user, so a delivery proves who sends it ([`Signer`]), never
//! enters the sender's own network ([`guard`](super::guard)), spares a receiver that is down
//! ([`Schedule`]), and reports no word of the reply ([`DeliveryFailure`]). A receiver checks the
//! signature with [`verify`], and drops repetitions with an
//! [`EventDedupLayer`](crate::server::idempotency::events::EventDedupLayer).
//!
//! # When to use it
//!
//! For events to servers of others, whose addresses users give. Use [`Sender`] alone for one delivery
//! without a journal.
//!
//! Not for calls whose reply matters: replies are read for their status and `Retry-After` only.
//!
//! # Defaults
//!
//! | setting of [`WebhooksBuilder`] | default |
//! | --- | --- |
//! | [`queue`](WebhooksBuilder::queue) | `webhooks` |
//! | [`guard`](WebhooksBuilder::guard) | public addresses, `https` |
//! | [`sender`](WebhooksBuilder::sender) | 5 s to connect, 15 s for a delivery, Mozilla's certificate authorities |
//! | [`schedule`](WebhooksBuilder::schedule) | that of the policy: five deliveries within a day |
//! | [`keep`](WebhooksBuilder::keep) | dead letters for 30 days |
//! | [`disable_after`](WebhooksBuilder::disable_after) | off: endpoints are disabled by hand only |
//! | [`rate`](WebhooksBuilder::rate), [`rate_of`](WebhooksBuilder::rate_of) | none |
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::{
//!     delivery::{guard::Guard, webhooks::{Signer, Webhook, Webhooks}},
//!     store::{MemoryStore, journal::{Journal, Status}},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let app = axum::Router::new().route("/orders", axum::routing::post(|| async {}));
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let url = format!("http://{}/orders", listener.local_addr()?);
//! # tokio::spawn(async move { axum::serve(listener, app).await });
//! let journal = MemoryStore::new();
//! let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
//! let webhooks = Webhooks::builder(journal.clone(), signer)
//!     .guard(Guard::new().allow_http().allow("127.0.0.1")?) // a receiver on this machine
//!     .build()?;
//! let worker = webhooks.worker().start()?;
//!
//! let event = Webhook::new(url, r#"{"event":"order.paid"}"#).label("order.paid");
//! let id = webhooks.send(event).await?;
//! # while journal.find(id).await?.is_some_and(|entry| !entry.status.is_over()) {
//! #     tokio::time::sleep(Duration::from_millis(1)).await;
//! # }
//! assert_eq!(journal.find(id).await?.map(|entry| entry.status), Some(Status::Completed));
//! worker.shutdown(Duration::from_secs(10)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Operation
//!
//! | task | by |
//! | --- | --- |
//! | one event for all endpoints that listen to it | [`Webhooks::send_many`]: a few commits, and the body is stored once |
//! | an endpoint was down: deliver again what failed since then, and nothing else | [`Webhooks::recover`] |
//! | an endpoint is dead for days: stop, and tell somebody | [`WebhooksBuilder::disable_after`]; the notice is an [alert](super::dead_letter::Alert) for a letter in the queue `webhooks.disabled` |
//! | stop or go on by hand, ask for the state | [`Webhooks::disable`], [`Webhooks::enable`], [`Webhooks::disabled_since`] |
//! | spare a small server | [`WebhooksBuilder::rate_of`] |
//! | events of one invoice in order | [`Webhook::order`] |
//!
//! An [`Endpoint`] is an owner's URL. Its state is in the journal, and so survives restarts and holds for
//! all processes; another process may deliver to an endpoint for a minute after it was disabled. Lanes,
//! rates and retry budgets are those of a server, by scheme and authority.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | a queued event is delivered at least once, or is a dead letter | once: the receiver drops duplicates by `webhook-id` |
//! | no delivery enters a private network or follows a redirect, and no reply is shown to anybody | an order among events of one target, but for those with a [key](Webhook::order) |
//! | one that hangs, or fails, delays no other target | that an event arrives within a day of an outage: it is a dead letter then |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | no worker runs | events wait | [`Webhooks::worker`] in some process |
//! | no worker of [alerts](super::dead_letter::DeadLetters::alerts) | nobody hears of dead letters, and alerts pile up in the journal | one in some process |
//! | a receiver that works before it answers | it answers too late, and gets the event again | answer first, and drop duplicates by `webhook-id` |
//! | credentials among [`UserHeaders`] | they are refused | a [sealed](crate::store::journal::Journal::is_sealed) journal |
//! | [`Guard::allow`](super::guard::Guard::allow) of a private network for tests that reaches production | a user's URL can reach it | a guard by configuration, and none in production |

mod alert;
mod builder;
mod endpoint;
mod error;
mod handler;
mod headers;
mod key;
mod outcome;
mod queue;
mod schedule;
mod send;
mod sign;
pub mod verify;
mod webhook;

pub use self::{
    alert::WebhookAlert,
    builder::WebhooksBuilder,
    endpoint::Endpoint,
    error::SendError,
    handler::WebhookHandler,
    headers::UserHeaders,
    outcome::{DeliveryFailure, DeliveryOutcome},
    queue::Webhooks,
    schedule::Schedule,
    send::{Delivery, Sender, SenderBuilder},
    sign::{MessageId, SignedHeaders, Signer},
    webhook::Webhook,
};
