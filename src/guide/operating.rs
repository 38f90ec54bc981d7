//! Operation: maintenance, metrics, backlogs, dead letters, policies, shutdown.
//!
//! # A planned maintenance
//!
#![cfg_attr(feature = "delivery", doc = "```")]
#![cfg_attr(not(feature = "delivery"), doc = "```rust,ignore")]
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
//! // Orders with `replay: true` get 202, all others 503 with Retry-After. Reads are served, unless
//! // `served_in_maintenance` excludes them. Migrate. Then:
//! replay.maintenance().off();
//! // The backlog drains: one at a time first, then as many as `concurrency` allows.
//!
//! worker.shutdown(Duration::from_secs(30)).await; // before the process ends
//! # drop(app);
//! # Ok(())
//! # }
//! ```
//!
//! The switch belongs to one process. Behind a load balancer switch each, or let a handler decide
//! ([`ReplayLater`](crate::delivery::replay::ReplayLater), or a 503).
//!
//! # Metrics
//!
//! | metric | kind | labels |
//! | --- | --- | --- |
//! | `retry_attempts_total` | counter | service, dependency, attempt_number |
//! | `retry_exhausted_total`, `retry_suppressed` | counter | service, dependency |
//! | `retry_backoff_duration_seconds` | histogram | service, dependency |
//! | `retry_budget_utilization_ratio`, `circuit_breaker_open` | gauge | service, dependency |
//! | `calls_refused_total` | counter | service, dependency, by |
//! | `hedges_total` | counter | service, dependency, result: won, lost, failed, cancelled |
//! | `hedges_suppressed_total` | counter | service, dependency, reason: not_idempotent, off, not_replayable, slow, breaker, throttle, retry_after, budget, deadline, not_ready, refused |
//! | `idempotency_requests_total` | counter | outcome |
//! | `idempotency_store_errors_total`, `journal_errors_total` | counter | verb, kind |
//! | `idempotency_unsettled` | gauge | |
//! | `dlq_messages_total`, `journal_outcomes_total` | counter | queue, outcome |
//! | `journal_entries`, `journal_oldest_age_seconds`, `journal_lag_seconds` | gauge, histogram | queue, status |
//!
//! # Alerts
//!
//! | metric | alert when |
//! | --- | --- |
//! | `retry_exhausted_total` by dependency | it rises: retries no longer help |
//! | `retry_budget_utilization_ratio` | it stays near 1: many calls to the dependency fail |
//! | `hedges_suppressed_total` with the reason `slow` or `budget` | it rises: many calls are late, which second attempts do not help |
//! | `circuit_breaker_open` | 1 for longer than a deployment takes |
//! | `idempotency_store_errors_total` | any: with the store down, keyed requests are refused |
//! | `idempotency_unsettled` | more than 0 for minutes: ended executions wait in memory for the store, and are orphans if the process ends |
//! | `journal_oldest_age_seconds` of a queue | above what callers were promised |
//! | `dlq_messages_total` | any: each is accepted work that was not done |
//!
//! # A backlog
//!
//! A queue grows because the service fails or no worker runs, which `journal_entries` by status
//! tells apart: all `queued` and none `processing` means no worker, or a pause after a 503, which
//! ends by itself. Entries of a worker that was killed stay `processing` until their lease expires.
//! `GET /replays/{id}` shows the state of one, `DELETE` cancels one that has not started; see
//! [`replay`](crate::delivery::replay) for all routes.
//!
//! # Dead letters
//!
//! An entry that fails for good stays in its queue with its payload and history, for as long as
//! [`keep`](crate::delivery::replay::ReplayBuilder::keep) says, and an alert is sent. Inspect one,
//! fix the cause, then redrive one, then all of them at a bounded rate.
//!
#![cfg_attr(feature = "delivery", doc = "```")]
#![cfg_attr(not(feature = "delivery"), doc = "```rust,ignore")]
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
//! // Counts the letters of one kind.
//! let which = || Redrive::queue("replay").label("POST /orders");
//! let would = letters.redrive_all(which().dry_run()).await?;
//! // Redrives them, ten a second.
//! let done = letters.redrive_all(which().per_second(10)).await?;
//! # let _ = (would, done);
//! # Ok(())
//! # }
//! ```
//!
//! A redriven replay is first called under its own idempotency key, so that an operation which has
//! succeeded meanwhile is not executed again. If the stored reply is the failure that made it a dead
//! letter, it is executed again, once for each redrive, under a key of that redrive: check first
//! whether the failure left something half done, since the handler starts anew. The check depends on
//! the records of [`IdempotencyLayer`](crate::server::idempotency::IdempotencyLayer), which are kept
//! for a day by default: a letter redriven later is executed in any case.
//! See [`redrive`](crate::delivery::dead_letter::DeadLetters::redrive).
//!
//! # Unknown outcomes
//!
//! With [`CrashPolicy::Unknown`](crate::store::CrashPolicy) an operation whose server died in the middle
//! is not executed again: repeats get 409 `outcome-unknown`, and a log line at WARN has the key of the
//! record. Find out how it ended, then say so before the record expires:
//!
//! ```text
//! reprise keys list                                  # key, since when, until when, note
//! reprise keys resolve KEY --reply 201 --body FILE   # it took effect: repeats get this reply
//! reprise keys resolve KEY --no-reply                # it took effect: repeats are told that it was executed
//! reprise keys resolve KEY --no-effect               # it did not: the next repeat is executed
//! reprise keys release KEY                           # the next repeat is executed, whatever happened
//! ```
//!
//! Each asks a gateway's admin port, or with `--store` a store. The console has the same, and Rust code
//! [`UnknownOutcomes`](crate::server::idempotency::UnknownOutcomes). An operation that runs can't be
//! resolved, and an owner that comes back after one was resolved has lost the record. `--token` resolves
//! only what was shown, if a repeat could have come between.
//!
//! # Policy changes without a restart
//!
//! Policies live in a file that a test of yours checks, and that the service reads again on demand:
//!
#![cfg_attr(feature = "serde", doc = "```")]
#![cfg_attr(not(feature = "serde"), doc = "```rust,ignore")]
//! use tower_reprise::{Dependencies, policy::{Policies, assert_compliant}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("reprise-guide-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("policy.toml");
//! # std::fs::write(&path, "[default]\nprofile = 'synchronous'\n")?;
//! let policies = Policies::open(&path)?;
//! assert_compliant(&policies); // in a test of yours
//!
//! let deps = Dependencies::new(policies);
//! // On SIGHUP, for example. A file that can't be read, or is not allowed, changes nothing.
//! match Policies::open(&path) {
//!     Ok(policies) => deps.reload(policies),
//!     Err(error) => eprintln!("the old policies stay: {error}"),
//! }
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! Calls in flight keep the policy they began with; budgets, breakers and gates keep their state.
//! `examples/policy.toml` documents every field.
//!
//! `reprise audit` is the gate for services in any language: `--gate merge` fails for what blocks a
//! merge (R-1, R-4, R-6), `--gate deploy` also for what blocks a deployment (R-7, R-8) or was not
//! approved (R-2, R-3). `--admin 127.0.0.1:8081` audits the policies that a gateway runs with.
//!
//! ```yaml
//! # .github/workflows/policy.yml
//! on: [pull_request]
//! jobs:
//!   audit:
//!     runs-on: ubuntu-latest
//!     permissions: { contents: read, security-events: write }
//!     steps:
//!       - uses: actions/checkout@v4
//!       - run: cargo install tower-reprise --features cli
//!       - run: reprise audit policy.toml --gate merge --format sarif > audit.sarif
//!       - if: always()
//!         uses: github/codeql-action/upload-sarif@v3
//!         with: { sarif_file: audit.sarif }
//! ```
//!
//! # Stores
//!
//! Expired records are removed as others come in. A full store refuses new operations and drops
//! nothing: size SQLite's disk, Redis's `maxmemory` and the memory store's bounds for a day's keys
//! at peak, about half a kilobyte each plus the replies. Back up SQLite with `VACUUM INTO`, never by
//! copying the file. [`Sealed`](crate::store::Sealed) describes how its keys are rotated.
//!
//! # Shutting down
//!
//! Stop accepting, let requests in flight end (axum's `with_graceful_shutdown`), then
//! [`shutdown`](crate::delivery::worker::WorkerHandle::shutdown) the workers: they lease no more
//! entries and finish those they have. Entries not finished in time are aborted and released for
//! another worker; if the release fails for two seconds, they wait for the end of their lease. A
//! kill at any moment loses nothing that was acknowledged, and delays it by at most a lease.
