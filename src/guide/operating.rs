//! Operating it: maintenance, replays, dead letters, policies.
//!
//! # A planned maintenance
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use axum::{Router, body::Body, routing::post};
//! use tower_reprise::{delivery::replay::Replay, server::dialect::Scope, store::MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = MemoryStore::new();
//! # let app = Router::new().route("/orders", post(|| async {}));
//! let replay = Replay::builder(store, Scope::new(|_| Some("shop"))).build()?;
//! let worker = replay.worker::<Body, _>(app.clone()).start()?;
//! let app: Router = app.layer(replay.layer());
//!
//! replay.maintenance().on(Some(SystemTime::now() + Duration::from_secs(1800)));
//! // Orders that ask for it (`replay: true`) get 202, all others 503 with Retry-After; what only
//! // reads is served, unless `served_in_maintenance` says otherwise. Migrate. Then:
//! replay.maintenance().off();
//! // The backlog drains: one at a time first, then as many as `concurrency` allows.
//!
//! worker.shutdown(Duration::from_secs(30)).await; // before the process ends
//! # drop(app);
//! # Ok(())
//! # }
//! ```
//!
//! The switch is of one process; behind a balancer, switch each, or let a handler or the readiness
//! of a dependency decide ([`ReplayLater`](crate::delivery::replay::ReplayLater), a 503).
//!
//! # What there is to see
//!
//! | metric | kind | labels |
//! | --- | --- | --- |
//! | `retry_attempts_total` | counter | service, dependency, attempt_number |
//! | `retry_exhausted_total`, `retry_suppressed` | counter | service, dependency |
//! | `retry_backoff_duration_seconds` | histogram | service, dependency |
//! | `retry_budget_utilization_ratio`, `circuit_breaker_open` | gauge | service, dependency |
//! | `calls_refused_total` | counter | service, dependency, by |
//! | `idempotency_requests_total` | counter | outcome |
//! | `idempotency_store_errors_total`, `journal_errors_total` | counter | verb, kind |
//! | `dlq_messages_total`, `journal_outcomes_total` | counter | queue, outcome |
//! | `journal_entries`, `journal_oldest_age_seconds`, `journal_lag_seconds` | gauge, histogram | queue, status |
//!
//! # What to watch
//!
//! | metric | alert when |
//! | --- | --- |
//! | `retry_exhausted_total` by dependency | it rises: retries do not help any more |
//! | `retry_budget_utilization_ratio` | it stays near 1: the dependency fails for many |
//! | `circuit_breaker_open` | 1 for longer than a deployment takes |
//! | `idempotency_store_errors_total` | any: with the store down, keyed requests are refused |
//! | `journal_oldest_age_seconds` of a queue | above what callers were promised |
//! | `dlq_messages_total` | any: each is something that was promised and not done |
//!
//! # A backlog
//!
//! A queue that grows has a service that can't serve or a worker that does not run.
//! `journal_entries` by status tells which: all `queued` and none `processing` means no worker, or a
//! pause after a 503, which ends by itself. A worker that was killed leaves entries `processing`
//! until their lease runs out. `GET /replays/{id}` says where one stands; `DELETE` cancels one that
//! has not started; see [`replay`](crate::delivery::replay) for all routes.
//!
//! # Dead letters
//!
//! What fails for good stays in its queue with its payload and history, for as long as
//! [`keep`](crate::delivery::replay::ReplayBuilder::keep) says, and an alert is sent. Look at one, mend the
//! cause, then redrive: one first, then all, slowly enough.
//!
//! ```
//! use tower_reprise::{
//!     delivery::dead_letter::{DeadLetters, Redrive},
//!     store::MemoryStore,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = MemoryStore::new();
//! let letters = DeadLetters::new(store);
//! for entry in letters.list("replay", None, 20).await? {
//!     if let Some(letter) = letters.get(entry.id).await? {
//!         println!("{} {}: {}", letter.id, entry.label, letter.reason);
//!     }
//! }
//! // How many would it be, of one kind only?
//! let which = || Redrive::queue("replay").label("POST /orders");
//! let would = letters.redrive_all(which().dry_run()).await?;
//! // Then in earnest, ten a second.
//! let done = letters.redrive_all(which().per_second(10)).await?;
//! # let _ = (would, done);
//! # Ok(())
//! # }
//! ```
//!
//! A redriven replay is first called under the idempotency key that it has: what succeeded
//! meanwhile, by its caller or by an attempt that nobody waited for, is not done twice. If what is
//! kept there is the failure that it died of, it is executed again, once for each redrive, under a
//! key of that redrive. So look whether the failure left something half done before you redrive:
//! a handler that failed in the middle begins anew. This is known for as long as your
//! [`IdempotencyLayer`](crate::server::idempotency::IdempotencyLayer) keeps its records, a day unless told otherwise:
//! what is redriven later is executed whatever happened before, so check that first.
//! [`redrive`](crate::delivery::dead_letter::DeadLetters::redrive) has the rest.
//!
//! # Another policy, without a restart
//!
//! Policies live in a file that is checked where your tests run, and read again when you say so:
//!
//! ```
//! use tower_reprise::{Dependencies, policy::{Policies, assert_compliant}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("reprise-guide-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("policy.toml");
//! # std::fs::write(&path, "[default]\nprofile = 'synchronous'\n")?;
//! let policies = Policies::open(&path)?;
//! assert_compliant(&policies); // in a test of yours: what the standard forbids fails it
//!
//! let deps = Dependencies::new(policies);
//! // On SIGHUP, say. A file that can't be read, or is not allowed, changes nothing.
//! match Policies::open(&path) {
//!     Ok(policies) => deps.reload(policies),
//!     Err(error) => eprintln!("the old policies stay: {error}"),
//! }
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! Calls under way end by the policy they began with; budgets, breakers and gates keep what they
//! know. `examples/policy.toml` has every field.
//!
//! # Stores
//!
//! Records past their time are removed as others come in. A store that is full refuses new
//! operations and drops nothing: give SQLite's disk, Redis's `maxmemory` and the memory store's
//! bounds room for a day's keys at peak, about half a kilobyte each and the replies.
//! Back up SQLite by its own means (`VACUUM INTO`), never by copying the file. Rotate the keys of
//! [`Sealed`](crate::store::Sealed) as its page says.
//!
//! # Shutting down
//!
//! Stop accepting, let requests in flight end (axum's `with_graceful_shutdown`), then
//! [`shutdown`](crate::delivery::worker::WorkerHandle::shutdown) the workers: they lease nothing more and
//! finish what they began, and what is not finished in time is broken off and given back at once,
//! for another worker to attempt. If the journal can't be told so within two more seconds, that
//! worker has to wait until the lease runs out. A kill at any moment loses nothing that was
//! acknowledged; it only costs the length of a lease.
