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
//! Install a recorder of the `metrics` facade, then call
#![cfg_attr(
    feature = "metrics",
    doc = "[`telemetry::describe`](crate::telemetry::describe)"
)]
#![cfg_attr(not(feature = "metrics"), doc = "`telemetry::describe`")]
//! once. `examples/observability.rs` shows what you see then. With
//! [`recorder_installed`](crate::dependency::DependenciesBuilder::recorder_installed) a call that succeeds
//! does not look its counter up.
//!
//! | metric | type | labels | help |
//! | --- | --- | --- | --- |
//! | `calls_total` | counter | dependency, outcome, service | Calls of retry loops that ended, by outcome |
//! | `retry_attempts_total` | counter | attempt_number, dependency, service | Retries that went out, by number |
//! | `retry_exhausted_total` | counter | dependency, service | Calls that failed after their last retry, or for want of time |
//! | `retry_suppressed` | counter | dependency, service | Retries that the budget refused |
//! | `retry_backoff_duration_seconds` | histogram | dependency, service | Waits before retries |
//! | `retry_budget_utilization_ratio` | gauge | dependency, service | Share of the retry budget that is used, 0 to 1 |
//! | `circuit_breaker_open` | gauge | dependency, service | 1 while the breaker refuses calls, else 0 |
//! | `calls_refused_total` | counter | by, dependency, service | Calls and retries that a layer refused before they were sent, by layer |
//! | `hedges_total` | counter | dependency, result, service | Second attempts of calls that were late, by result |
//! | `hedges_suppressed_total` | counter | dependency, reason, service | Calls that were late and got no second attempt, by reason |
//! | `idempotency_requests_total` | counter | outcome | Requests with an idempotency key, by outcome |
//! | `idempotency_store_errors_total` | counter | kind, verb | Failures of the idempotency store, by operation and kind |
//! | `idempotency_unsettled` | gauge | | Executions that ended and wait for the store to take their outcome |
//! | `idempotency_leases_lost_total` | counter | | Executions whose lease another execution took over |
//! | `idempotency_store_fill` | gauge | | Share of the limits of the store in memory that is used, 0 to 1 |
//! | `postgres_connections_busy` | gauge | | Share of the connections to PostgreSQL that are in use, 0 to 1 |
//! | `store_batch_transitions` | histogram | | Transitions that share a round trip to PostgreSQL or Redis |
//! | `dlq_messages_total` | counter | queue | Dead letters |
//! | `journal_outcomes_total` | counter | outcome, queue | Attempts of queue entries that were settled, by outcome |
//! | `journal_errors_total` | counter | kind, verb | Failures of the journal, by operation and kind |
//! | `journal_entries` | gauge | queue, status | Entries of a queue, by status |
//! | `journal_oldest_age_seconds` | gauge | queue | Age of the oldest entry of a queue that waits or runs |
//! | `journal_lag_seconds` | histogram | queue | Time from when an entry is due to when a worker leases it |
//!
//! Every label has few values. `service` is the policy's name for the caller. `dependency` is bounded
//! by the registry's [capacity](crate::dependency::DependenciesBuilder::capacity): past it all share
//! `overflow`. `queue` is a name of yours. `outcome` of `calls_total` is `success`,
//! `success_after_retry`, `not_ready` or a [`StopReason`](crate::call::StopReason); `not_retryable` is
//! mostly a reply that the caller asked for, a 404 say. A call that the caller drops is not counted.
//! `result` of `hedges_total` is `won`, `lost`, `failed` or `cancelled`; `reason` of
//! `hedges_suppressed_total` is `not_idempotent`, `off`, `not_replayable`, `slow`, `breaker`, `throttle`,
//! `retry_after`, `budget`, `deadline`, `not_ready` or `refused`.
//! The gauges fall by themselves: that of a budget when calls succeed and its window moves, both when
//! the registry forgets the dependency.
//!
//! The gateway has these, and its own:
//!
//! | metric | type | labels | help |
//! | --- | --- | --- | --- |
//! | `gateway_bytes_total` | counter | direction | Bytes of bodies, from callers and to them |
//! | `gateway_connections` | gauge | | Connections of callers that are open |
//! | `gateway_executing` | gauge | | Operations with a key that this process executes |
//! | `gateway_replies_total` | counter | status | Replies to callers by the class of their status |
//! | `gateway_request_seconds` | histogram | | Time from a request's head to its reply's head |
//!
//! # Log
//!
//! All events have the target `tower_reprise`. One call is one warning at most, which needs no other
//! line to be understood.
//!
//! | level | message | fields | when |
//! | --- | --- | --- | --- |
//! | INFO | `retry 1 of 3` | correlation_id, dependency, attempt, max_attempts, backoff_ms, error_type, idempotency_key | a retry goes out |
//! | WARN | `gave up` | correlation_id, dependency, attempts, reason, error_type | a call failed for good |
//! | DEBUG | `gave up` | the same | the reply is one that no retry would change |
//! | WARN | `call refused` | dependency, by | a layer without a retry loop above it refused a call; below one it is DEBUG, and the loop gives up |
//! | WARN | `circuit breaker opened` | dependency, reason, error_type | nothing succeeds; error_type is that of the last failure |
//! | INFO | `circuit breaker closed` | dependency, reason | a probe succeeded, or it was closed by hand |
//! | DEBUG | `retry suppressed: budget used up` | dependency | the budget refused a retry |
//! | WARN | `retry not sent` | dependency, why | the hook that prepares a retry failed |
//! | WARN | `policy approved beyond a rule` | service, rule, reason | a policy with an approval was built |
//! | WARN | `idempotency store failed`, `journal failed` | verb, error_type | a store returned an error |
//! | WARN | `idempotency lease lost to another execution`, `lease lost to another worker` | record; queue, entry | an owner was too slow, and its result is dropped |
//! | ERROR | `outcome not stored, operation orphaned` | record | an execution ended, and the store did not take its outcome |
//! | ERROR | `execution takes too long, lease no longer renewed` | record | an execution hangs |
//! | ERROR | `dead letter` | queue, entry, label, cause | an alert of a dead letter, by [`LogAlert`] |
//!
//! The same is in the registry's hook, for what logs are too slow for:
//! [`on_event`](crate::dependency::DependenciesBuilder::on_event) is told of every retry, every call
//! that is given up, and every change of a breaker ([`Event`](crate::dependency::Event)).
//!
#![cfg_attr(
    feature = "delivery",
    doc = "[`LogAlert`]: crate::delivery::dead_letter::LogAlert"
)]
#![cfg_attr(not(feature = "delivery"), doc = "[`LogAlert`]: super#features")]
//!
//! # Traces
//!
//! [`stacks::traced`](crate::stacks) is [`stacks::client`](crate::stacks::client()) with a client span for
//! each attempt, under the names of OpenTelemetry: `http.request.resend_count` is absent in the first,
//! then 1, 2, …. A propagator of yours gives each its own `traceparent`. `client::attempt_span` has the
//! fields. Without it there are no spans.
//!
//! # When to be woken
//!
//! `examples/operate/alerts.yml` has these as rules for Prometheus, and `examples/operate/dashboard.json`
//! and `gateway_dashboard.json` are for Grafana. A test of the crate compares them with what is
//! exported. A prefix that you chose has to be put before their names.
//!
//! | alert | when | why that much | then |
//! | --- | --- | --- | --- |
//! | CallsGiveUp, page | 5 % of calls for 5 minutes, from one call in ten seconds on | the budget mends up to a sixth of failing calls, so callers notice 5 % only if much more than that fails; fewer calls are too few for a share | `outcome` says why: `breaker` and `exhausted` are the dependency's, `deadline` is a time limit that is too short |
//! | RetryBudgetUsedUp, ticket | above 0.8 for 10 minutes | retries hide the failures, and a little more of them exhausts the budget; one blip is over in the 30 s that it looks back | look at the dependency before callers do |
//! | CircuitBreakerOpen, page | open for 2 minutes | a deployment or a failover takes less, and a breaker closes within a second of recovery | `error_type` of the warning has the cause; [`force_closed`](crate::dependency::Dependency::force_closed) overrides it |
//! | IdempotencyStoreFails, JournalFails, page | any, for a minute | while the store is down requests with a key get 503; single errors are repeated | mend the store |
//! | OutcomesNotStored, page | any for 2 minutes | ended executions are in memory only, and orphaned if the process ends | mend the store, and do not restart |
//! | ExecutionsOrphaned, ticket | any | an operation may have been executed twice, or its outcome is unknown | look at what the handler left |
//! | QueueIsLate, ticket | 15 minutes | set it to what your callers were promised | see below |
//! | DeadLetters, ticket | any | each is accepted work that was not done | see below |
//! | GatewayRepliesFail, page | 5 % for 5 minutes | as CallsGiveUp, for a gateway in front of everything | |
//! | GatewayIsSlow, ticket | p99 above 2.5 s for 10 minutes | a call with two retries at the default backoff takes about that long | many retries, or a slow upstream |
//!
//! A counter begins with its first increment, which `increase` does not see, so the rules for rare
//! events also ask for a series that is new.
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
//!     delivery::dead_letter::{DeadLetters, Selection},
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
//! let which = || Selection::queue("replay").label("POST /orders");
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
//! Letters that nobody needs are gone after their time; `reprise letters purge`, or
//! [`purge_all`](crate::delivery::dead_letter::DeadLetters::purge_all), removes them before.
//!
//! # Erasing a customer
//!
//! Entries have an owner: `reprise erase --owner NAME`, or
//! [`Journal::erase`](crate::store::journal::Journal::erase), removes all that a queue has of one: what
//! waits is not executed any more, dead letters, results and histories go. What is being processed is
//! left to end, so repeat it until nothing is left. `--dry-run` counts. An owner that has no entry in any
//! of the queues is an error, with exit status 1.
//!
//! NAME is the column `owner` of `reprise replays list` and `reprise letters list`. The gateway's owners
//! begin with its `scope-header`: `x-customer:ada`; callers without one are `anonymous/NAME`. Of a
//! credential there is only a digest, `authorization:sha256:…`, so a person is one owner for each
//! credential that was used: erase them all, or use a header with the person's name.
//!
//! These queues are erased unless `--queue` names others:
//!
//! | queue | entries |
//! | --- | --- |
//! | `replay` | replays; their idempotency keys are freed |
//! | `webhooks` | deliveries, callbacks of replays too |
//! | `webhooks.failing`, `webhooks.disabled` | endpoints that fail, and those that were disabled for it: to erase the latter enables the endpoint |
//! | `reprise.alerts` | notices of dead letters |
//!
//! A queue of your own name is `--queue`, and for webhooks so are `NAME.failing` and `NAME.disabled`. In
//! Rust, [`Replay::erase`](crate::delivery::replay::Replay::erase) is for replays. With `--store` instead
//! of a gateway's admin port, the key of a replay that waits between two attempts stays held until the
//! replay's time is over.
//!
//! Idempotency records are found by a digest of scope and key alone, so those of an owner can't be
//! listed: they go with their retention. A database keeps removed bytes for a while where this crate
//! does not reach: in free pages, in its log, in backups.
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
