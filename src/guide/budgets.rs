//! Why retries need a budget.
//!
//! A retry helps if the failure was an accident. When one call in a thousand fails, a retry almost
//! always succeeds, and adds a thousandth to the load. When every call fails, three retries make
//! four requests of each call while the server can serve none, and an outage of a second lasts for
//! minutes because of the retries.
//!
//! A longer backoff only moves these requests to a later time, and fewer attempts give up successes
//! on a good day. A budget limits retries to a share of the traffic, across all calls to a
//! dependency:
//!
//! | | one call in 1,000 fails | half of them fail | all fail |
//! | --- | --- | --- | --- |
//! | 3 retries | 1.001 × the load | 1.9 × | 4 × |
//! | 3 retries, budget of 20 % | 1.001 × | 1.2 × | 1.2 ×, with the breaker 0.1 × |
//!
//! # Accounting
//!
//! A budget belongs to a [dependency](crate::dependency), not to a call and not to a layer: every
//! client in the process that calls it through the same [`Dependencies`](crate::dependency::Dependencies) shares
//! it. In any 30 s, retries are at most [a fifth](crate::policy::PolicyBuilder::budget_ratio) of the
//! original calls that went out, or [as many as one call may make](crate::policy::PolicyBuilder::budget_floor),
//! whichever is more. Without this floor, a client that makes three calls in a minute could never
//! retry. A client that has just started has the floor; then successes earn it, half a retry each, so
//! that in an outage a quiet client soon stops to retry.
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
//! let deps = Dependencies::new(Policy::http().build()?);
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
//! # Hedges
//!
//! A [hedge](crate::client::hedge) is a request more, like a retry, and comes out of the same budget.
//! It makes a call faster, where a retry makes it succeed. So hedges use at most half of what the budget
//! allows, and nothing of the floor: a client of less than five calls in 30 s does not hedge.
//!
//! They are beside the retries of a call, unless its policy
//! [counts](crate::policy::PolicyBuilder::count_hedges) them.
//!
//! # Tokens
//!
//! The AWS SDKs bound retries by tokens: 500 of them, of which a retry takes 14, and 5 after throttling. A
//! [quota](crate::policy::PolicyBuilder::retry_quota) does so beside the budget, which holds all the same:
//! a burst of failures uses the tokens up, and each success gives one back. The
//! [table](crate::backoff#the-standard-mode-of-the-aws-sdks) has each case of theirs.
//!
//! A suppressed retry delays nothing. A loop that calls again in any case, such as a long poll, waits for
//! [`RetryOutcome::poll_after`](crate::RetryOutcome::poll_after) first.
//!
//! # Many small clients
//!
//! The floor is per process: a thousand processes that each make a call in 30 s have a thousand
//! floors. That is why successes have to earn it. Of 1,000 clients with a call in 30 s each:
//!
//! | | requests a call, outage of 30 s | of 10 min | succeed when 10 % fail |
//! | --- | --- | --- | --- |
//! | 3 retries, no budget | 4.00 × | 4.00 × | 100 % |
//! | the whole stack, with the defaults | 1.70 × | 1.05 × | 99.9 % |
//! | `budget_floor(0)`: a pure share | 1.00 × | 1.01 × | 90 %, as without retries |
//! | one budget for clients of one process | 1.20 × | 1.19 × | 100 % |
//!
//! Clients of one process should share clones of one
//! [`Dependencies`](crate::dependency::Dependencies), which costs no success. An [`inbound`] budget is
//! one on the server, which all clients share, in any language. The figures come from
//! `cargo run --release --example simulate -- --only crowd`.
//!
//! # Chains
//!
//! When A calls B calls C and each makes three attempts, one call can become 27 at C. Only the hop
//! next to the failure should retry: a hop that gave up replies with `x-should-retry: false`, a
//! `Retry-After` or gRPC's pushback, which the client layers obey. An [`inbound`] budget on each
//! server bounds the retries of clients that do not.
//!
//! # Limits
//!
//! A budget bounds retries, not calls: against an overload by originals use `tower::limit` and
//! `tower::load_shed`. It also does not decide whether a request may be sent again: see
//! [`safety`](super::safety).
//!
//! [`inbound`]: crate::InboundBudgetLayer
