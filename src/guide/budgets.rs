//! Why budgets.
//!
//! A retry is a bet that the failure was bad luck. When one call in a thousand fails it is: the
//! retry succeeds, and costs a thousandth of the load. When every call fails it is not, and three
//! retries make four calls of each, just when the server can serve none. Servers that were down for
//! a second are kept down for minutes by those who want them back.
//!
//! Waiting longer between the attempts does not help for long: it moves the same calls to a later
//! time. Fewer attempts help a little, in good times and in bad ones alike. What helps is to bet
//! less when the bets are lost, and that takes memory beyond a single call:
//!
//! | | one call in 1,000 fails | half of them fail | all fail |
//! | --- | --- | --- | --- |
//! | 3 retries | 1.001 × the load | 1.9 × | 4 × |
//! | 3 retries, budget of 20 % | 1.001 × | 1.2 × | 1.2 ×, and then the breaker: next to none |
//!
//! # What is counted
//!
//! A budget belongs to a [dependency](crate::dependency), not to a call and not to a layer: every
//! client in the process that calls it through the same [`Dependencies`](crate::dependency::Dependencies) shares
//! it. In any 30 s, retries are at most [a fifth](crate::policy::PolicyBuilder::budget_ratio) of the
//! original calls, or [ten](crate::policy::PolicyBuilder::budget_floor), whichever is more. The ten
//! are there because a client that makes three calls in a minute could never retry otherwise.
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::{Dependencies, Policy, RetryLayer, error::BoxError};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! static SENT: AtomicU32 = AtomicU32::new(0);
//! let down = service_fn(|_: Request<()>| async {
//!     SENT.fetch_add(1, Ordering::Relaxed);
//!     Ok::<_, BoxError>(Response::builder().status(503).body(())?)
//! });
//!
//! let deps = Dependencies::new(Policy::synchronous().build()?);
//! let client = ServiceBuilder::new().layer(RetryLayer::new(deps)).service(down);
//! let calls = (0..100).map(|_| {
//!     let request = Request::get("http://stock.example/").body(()).unwrap();
//!     client.clone().oneshot(request)
//! });
//! for call in calls.map(tokio::spawn).collect::<Vec<_>>() { // all at once
//!     assert_eq!(call.await??.status(), 503);
//! }
//! let sent = SENT.load(Ordering::Relaxed);
//! assert!(sent <= 120, "{sent}"); // not 400
//! # Ok(())
//! # }
//! ```
//!
//! # Many small clients
//!
//! The floor is per process. A thousand processes that each make a call in 30 s have a thousand
//! floors, and in a full outage each may use its own up. If your fleet is like that, say so:
//!
//! | 1,000 clients, a call in 30 s each | requests a call, outage of 30 s | of 10 min | succeed when 10 % fail |
//! | --- | --- | --- | --- |
//! | 3 retries, no budget | 4.00 × | 4.00 × | 100 % |
//! | budgets with the floor of 10 | 3.94 × | 3.85 × | 100 % |
//! | the whole stack: the breaker opens after five failures | 2.94 × | 1.06 × | 100 % |
//! | `budget_floor(1)` | 1.62 × | 1.50 × | 98 % |
//! | `budget_floor(0)`: a pure share | 1.00 × | 1.01 × | 90 %, as without retries |
//! | one budget for clients of one process | 1.20 × | 1.19 × | 100 % |
//!
//! So where the clients live in one process, give them clones of one
//! [`Dependencies`](crate::dependency::Dependencies): nothing is lost by it. Where they do not, and 1.5 × is as
//! much as the server bears, `budget_floor(0)` is what keeps it below, at the price of retries on a
//! good day; on the server, [`inbound`] is a budget that all clients share, whatever they are written
//! in. The figures are of the simulator: `cargo run --release --example simulate -- --only crowd`.
//!
//! # Chains
//!
//! When A calls B calls C and each makes three attempts, C gets 27 calls for one. Two things keep a
//! chain short: only the hop next to the failure retries, since a hop that gave up says so
//! (`x-should-retry: false`, a `Retry-After`, or gRPC's pushback, all of which the client layers
//! obey); and each server has an [`inbound`] budget for what comes in anyway.
//!
//! # What it is not
//!
//! A budget bounds retries, not calls: for a server that is overloaded by originals there is
//! `tower::limit` and `tower::load_shed`. And it does not know
//! whether a call may be repeated at all: that is [`safety`](super::safety).
//!
//! [`inbound`]: crate::InboundBudgetLayer
