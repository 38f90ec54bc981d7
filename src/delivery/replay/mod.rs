//! Requests that can't be served now, kept and replayed when they can.
//!
//! During maintenance, or when a handler's own dependency is down, the usual reply is 503, and the
//! caller has to come back. That is a poor answer to an order or a payment, which must happen in the end:
//! callers give up, or come back all at once. [`ReplayLayer`] writes such a request down and answers 202
//! with an id. When the service is back, a worker executes the requests in order, a few at first, through
//! the [idempotency](crate::server::idempotency) layer, and calls the caller's webhook.
//!
//! # When to use it
//!
//! For requests that must happen in the end and whose caller need not see the result at once: orders,
//! payments, notifications.
//!
//! Not for reads and searches, whose result is worthless later. Not where the caller decides by the reply
//! what to do next, unless it can follow the `location` or takes a callback.
//!
//! # Defaults
//!
//! | setting | default |
//! | --- | --- |
//! | which requests | those that ask for it by the `replay` header ([`replay_by_default`](ReplayBuilder::replay_by_default): all) |
//! | [`methods`](ReplayBuilder::methods) | POST, PUT, PATCH, DELETE |
//! | [`journaled_statuses`](ReplayBuilder::journaled_statuses) | 429, 502, 503, 504, if nothing was done |
//! | [`ttl`](ReplayBuilder::ttl) | a day, at most seven |
//! | [`attempts`](ReplayBuilder::attempts), [`timeout`](ReplayBuilder::timeout) | 3, of 30 s each |
//! | [`target`](ReplayBuilder::target) | one for all |
//! | [`order`](ReplayBuilder::order), [`concurrency`](ReplayBuilder::concurrency) | in order within a scope; 8 side by side |
//! | [`request_limit`](ReplayBuilder::request_limit), [`response_limit`](ReplayBuilder::response_limit) | 1 MiB each |
//! | [`max_queued`](ReplayBuilder::max_queued) | a million, 100,000 of one scope |
//! | [`keep`](ReplayBuilder::keep) | a day; failed ones 30 days |
//!
//! ```
//! use std::time::Duration;
//! use axum::{Router, body::Body, routing::post};
//! use http::{Request, StatusCode};
//! use tower::ServiceExt;
//! use tower_reprise::{IdempotencyLayer, delivery::replay::Replay, server::dialect::Scope, store::{MemoryStore, CrashPolicy}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new(); // or SQLite, PostgreSQL, Redis
//! let scope = Scope::new(|_| Some("shop"));
//! let idempotency = IdempotencyLayer::builder(store.clone())
//!     .scope(scope)
//!     .crash_policy(CrashPolicy::Reexecute)
//!     .build()?;
//! let replay = Replay::before(store, &idempotency).location("/replays").build()?;
//!
//! let orders = Router::new().route("/orders", post(|| async { "ordered" })).layer(idempotency);
//! let worker = replay.worker::<Body, _>(orders.clone()).start()?;
//! let app = orders.layer(replay.layer()).nest_service("/replays", replay.routes());
//!
//! replay.maintenance().on(None);
//! let order = Request::post("/orders").header("idempotency-key", "7").header("replay", "true");
//! let accepted = app.clone().oneshot(order.body(Body::empty())?).await?;
//! assert_eq!(accepted.status(), StatusCode::ACCEPTED);
//! let location = accepted.headers()["location"].to_str()?.to_owned();
//!
//! replay.maintenance().off();
//! # let reply = loop {
//! #     let asked = Request::get(format!("{location}/reply")).body(Body::empty())?;
//! #     let reply = app.clone().oneshot(asked).await?;
//! #     if reply.status() == StatusCode::OK { break reply; }
//! #     tokio::time::sleep(Duration::from_millis(1)).await;
//! # };
//! // A moment later, GET {location}/reply:
//! assert_eq!(axum::body::to_bytes(reply.into_body(), 100).await?, "ordered");
//! worker.shutdown(Duration::from_secs(10)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # What is journaled
//!
//! A request is journaled if its [method](ReplayBuilder::methods) can be replayed, it asks for replay (by
//! the headers below), and one of these holds:
//!
//! - [maintenance](Maintenance::on) is on;
//! - the service answers 503 or 429, or sheds load;
//! - the service answers 502 or 504 and nothing was done ([`journaled_statuses`](ReplayBuilder::journaled_statuses));
//! - a [breaker](crate::client::circuit_breaker) refuses, or the service cannot connect to its own dependency;
//! - the handler asks for it by [`ReplayLater`].
//!
//! It is not journaled if an earlier attempt [may have had an effect](crate::call::RetryOutcome::in_doubt),
//! whatever the last attempt met. The request is committed to the journal before the 202 is sent. If that
//! fails, the reply is 503.
//!
//! In maintenance, a request that does not ask for replay is refused with 503 and `Retry-After`, except
//! for reads or whatever else is [served in maintenance](ReplayBuilder::served_in_maintenance).
//!
//! A repeat with the same idempotency key gets the same replay: 202 while it waits, 200 and its document
//! once it has succeeded, and a problem with the code `REPLAY_FAILED` (409) if it has failed for good. If a
//! repeat was served at once meanwhile, all later ones get that reply.
//!
//! | request header | |
//! | --- | --- |
//! | `replay` | `true` or `false`; any of the others means `true` |
//! | `replay-ttl` | how long it may wait, in seconds |
//! | `replay-priority` | `high`, `normal` or `low` |
//! | `replay-callback` | a URL to be told how it ended: `replay.completed`, `replay.failed` or `replay.expired` |
//! | `replay-callback-header` | a header for that, `name: value`; credentials need a [sealed](crate::store::journal::Journal::is_sealed) journal |
//!
//! These headers are for plain HTTP. Another [dialect](crate::server::dialect) has its own: forrst's
//! options are in its envelopes.
//!
//! Credentials are not written down: headers whose names suggest one (`x-access-key`, `x-session-id`),
//! and values that are marked as [sensitive](http::HeaderValue::set_sensitive), as tower-http's
//! `SetSensitiveRequestHeadersLayer` does. The query is written down. The owner is written down, too, and
//! the replayed request carries it as [`Replayed`], an extension that no caller can forge. Let your
//! authentication layer accept it, or supply fresh credentials with [`Replay::worker_with`].
//!
//! # Replays
//!
//! Requests of one owner are replayed one after the other, by priority and then by arrival ([`ReplayOrder`]
//! has other choices). Those of several owners run side by side, up to the worker's concurrency; after
//! an outage the worker starts with one at a time. While the service answers 503 the worker pauses, and
//! that counts as no attempt. In front of several services, [`ReplayBuilder::target`] keeps them apart.
//!
//! A failure that may be transient is attempted three times in all, with growing pauses, under the same
//! key. The idempotency layer keeps only the last failure as the reply, unless the handler marks an
//! earlier one as [`Committed`](crate::server::idempotency::HandlerOutcome::Committed). Until then, a
//! request of the caller's own with that key gets 409. A request that fails for good is a
//! [dead letter](crate::delivery::dead_letter), which can be
//! [redriven](crate::delivery::dead_letter::DeadLetters::redrive).
//!
//! If a worker dies, the next one takes over its request, and the idempotency layer prevents a second
//! execution. A request that three workers died of is given up; whether it took effect is then
//! unknown. A replay that is cancelled, expires, or fails for good without a reply between two attempts
//! leaves its key to the layer's [crash policy](crate::store::CrashPolicy).
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | 202 means that the request is in the journal; if it can't be written, the reply is 503 | an order among lanes, or against direct requests |
//! | it ends in exactly one of `completed`, `failed`, `expired` and `cancelled`, whatever dies meanwhile | that it ends before its time to live is over |
//! | it is never started after its time to live | that a handler without an idempotency layer runs once |
//! | requests of one lane are replayed in order, one at a time | that credentials of the caller are there: bring fresh ones |
//! | the callback is queued in one commit with the result, and sent at least once | that a callback arrives once: its receiver drops duplicates by id |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | no worker runs | requests are accepted and wait until they expire | [`Replay::worker`] in some process that reaches the journal |
//! | no idempotency layer behind it | a worker that dies leaves a request that is executed again | [`Replay::before`] an [`IdempotencyLayer`] |
//! | a journal in memory | a restart loses what was accepted with 202 | SQLite, PostgreSQL or Redis |
//! | handlers that read the caller's token | replays have none: credentials are not journaled | the principal of [`Replayed`], or [`Replay::worker_with`] |
//! | nobody looks at dead letters | requests that failed for good are deleted after 30 days | an [alert](crate::delivery::dead_letter) |

mod accept;
mod attempt;
mod builder;
pub(crate) mod callback;
mod control;
mod cursor;
#[cfg_attr(not(feature = "forrst"), allow(dead_code, reason = "HTTP says less"))]
pub(crate) mod dialect;
pub(crate) mod document;
mod enqueue;
mod handler;
mod http_dialect;
mod layer;
pub(crate) mod maintenance;
mod options;
mod request;
mod routes;
mod served;
mod slow_start;

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Serialize, Serializer};

use self::{
    builder::Settings,
    control::MOST,
    dialect::ReplayFormat,
    slow_start::{Paces, SlowStart},
};
pub use self::{
    builder::{ReplayBuilder, ReplayOrder},
    control::{ReplayError, ReplayFilter, ReplayPage},
    document::ReplayStatus,
    handler::ReplayHandler,
    layer::{ReplayFuture, ReplayLayer, ReplayService},
    maintenance::Maintenance,
    routes::ReplayRoutes,
};
use crate::{
    delivery::{
        webhooks::Webhooks,
        worker::{WorkerBuilder, WorkerNotifier},
    },
    dependency::Dependencies,
    server::{
        dialect::{Dialect, Scope},
        idempotency::IdempotencyLayer,
    },
    store::{
        IdempotencyStore,
        journal::{EntryId, InvalidEntryId, Journal},
    },
};

/// A handler's wish, on its response's extensions: do not answer with this, but journal the
/// request and replay it later. The reason is shown to the caller.
///
/// It says that nothing was done. An [`IdempotencyLayer`] below needs to
/// know that too: answer 503, or mark the response as
/// [`NoEffect`](crate::server::idempotency::HandlerOutcome::NoEffect).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayLater(pub &'static str);

/// On the extensions of a request that is being replayed: whose it is, since its credentials were
/// not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// Which replay it is.
    pub id: ReplayId,
    /// The owner of the request.
    pub owner: String,
    /// Which attempt this is, from 1.
    pub attempt: u32,
}

/// The name of a replay: `rpl_` and 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReplayId(pub(crate) EntryId);

impl ReplayId {
    /// The entry of the journal.
    #[must_use]
    pub fn entry(self) -> EntryId {
        self.0
    }
}

impl From<EntryId> for ReplayId {
    fn from(entry: EntryId) -> Self {
        Self(entry)
    }
}

impl fmt::Display for ReplayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rpl_{}", self.0)
    }
}

impl FromStr for ReplayId {
    type Err = InvalidEntryId;

    fn from_str(text: &str) -> Result<Self, InvalidEntryId> {
        let id = text.strip_prefix("rpl_").ok_or(InvalidEntryId)?;
        id.parse().map(Self)
    }
}

impl Serialize for ReplayId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A journal of requests, and what is done with it. See the [module docs](self).
///
/// # Clone
///
/// Clones share the journal and the maintenance switch.
pub struct Replay<J> {
    journal: J,
    state: Arc<ReplayState<J>>,
    maintenance: Maintenance,
}

struct ReplayState<J> {
    settings: Settings,
    scope: Scope,
    webhooks: Option<Webhooks<J>>,
    paces: Arc<Paces>,
    wake: WorkerNotifier,
    /// The retry budgets of its workers' targets.
    dependencies: Dependencies,
}

impl<J> ReplayState<J> {
    /// Returns the pace at which a lane is drained: its target's, or that of all lanes.
    fn pace(&self, lane: &str) -> Arc<SlowStart> {
        self.paces
            .of(self.settings.target_of(lane).unwrap_or_default())
    }
}

impl<J: Journal + Clone> Replay<J> {
    /// Journals requests that this idempotency layer, or a clone of it, executes: with its scope, its
    /// dialect, and the header that its keys are in.
    #[allow(private_bounds, reason = "dialects are sealed")]
    pub fn before<St, D>(journal: J, idempotency: &IdempotencyLayer<St, D>) -> ReplayBuilder<J>
    where
        St: IdempotencyStore,
        D: Dialect + ReplayFormat + Clone,
    {
        let (scope, dialect) = idempotency.scope_and_dialect();
        let builder = ReplayBuilder::new(journal, scope.clone()).dialect(dialect.clone());
        builder.abandons(idempotency.abandon())
    }

    /// Journals requests of known owners. The idempotency layer below, if there is one, needs the same
    /// [`Scope`] and [dialect](ReplayBuilder::dialect): [`before`](Self::before) takes them from it.
    /// The key of a replay that is cancelled or fails between two attempts is then taken until the
    /// replay's time is over; `before` frees it at once.
    pub fn builder(journal: J, scope: Scope) -> ReplayBuilder<J> {
        ReplayBuilder::new(journal, scope)
    }

    /// Returns the layer that journals. It belongs outside of the idempotency layer.
    pub fn layer(&self) -> ReplayLayer<J> {
        ReplayLayer::new(self.clone())
    }

    /// Returns the routes by which callers follow their replays.
    pub fn routes(&self) -> ReplayRoutes<J> {
        ReplayRoutes::new(self.clone())
    }

    /// Returns the maintenance switch.
    #[must_use]
    pub fn maintenance(&self) -> &Maintenance {
        &self.maintenance
    }

    /// Returns a worker that replays into a service: the one that the layer was put around. Name
    /// the body of one that takes any, as an axum router does.
    ///
    /// Each replay that fails for good queues an alert: start a worker of
    /// [alerts](crate::delivery::dead_letter::DeadLetters::alerts) too.
    pub fn worker<B, S>(&self, service: S) -> WorkerBuilder<J, ReplayHandler<J, S, B>>
    where
        ReplayHandler<J, S, B>: crate::delivery::worker::Handler,
    {
        self.worker_with(service, ())
    }

    /// Returns a worker with a hook that prepares each request before it is replayed: with fresh
    /// credentials for its owner, say.
    pub fn worker_with<B, S, H>(
        &self,
        service: S,
        prepare: H,
    ) -> WorkerBuilder<J, ReplayHandler<J, S, B, H>>
    where
        ReplayHandler<J, S, B, H>: crate::delivery::worker::Handler,
    {
        let settings = &self.state.settings;
        let handler = ReplayHandler::new(self.clone(), service, prepare);
        WorkerBuilder::new(self.journal.clone(), settings.queue.clone(), handler)
            .concurrency(settings.concurrency)
            .in_order()
            .dependencies(&self.state.dependencies)
            .notifier(self.state.wake.clone())
    }
}

impl<J: Clone> Clone for Replay<J> {
    fn clone(&self) -> Self {
        Self {
            journal: self.journal.clone(),
            state: Arc::clone(&self.state),
            maintenance: self.maintenance.clone(),
        }
    }
}

opaque_debug! { Replay<J>, self, queue = self.state.settings.queue, maintenance = self.maintenance }
