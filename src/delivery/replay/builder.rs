use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use http::{Method, Request, StatusCode};

use super::{Maintenance, Replay, ReplayState, dialect::ReplayFormat, slow_start::Paces};
use crate::{
    delivery::{dead_letter::KEEP, redact, webhooks::Webhooks, worker::WorkerNotifier},
    dependency::Dependencies,
    error::ConfigError,
    policy::Policy,
    server::{
        dialect::{Dialect, HttpDialect, Scope},
        idempotency::Abandon,
    },
    store::journal::{Journal, QueueBounds},
};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST_TARGET: usize = 128;

/// Decides whether a request is served in maintenance.
pub(super) type Served = Box<dyn Fn(&Request<()>) -> bool + Send + Sync>;

pub(super) struct Settings {
    pub(super) dialect: Arc<dyn ReplayFormat>,
    pub(super) queue: Cow<'static, str>,
    pub(super) order: ReplayOrder,
    pub(super) target: Option<NameOf>,
    pub(super) methods: Vec<Method>,
    pub(super) statuses: Vec<StatusCode>,
    pub(super) by_default: bool,
    pub(super) served: Option<Served>,
    pub(super) function: NameOf,
    pub(super) ttl: Duration,
    pub(super) longest_ttl: Duration,
    pub(super) attempts: u32,
    pub(super) timeout: Duration,
    pub(super) request_limit: usize,
    pub(super) response_limit: usize,
    pub(super) keep: Duration,
    pub(super) keep_failed: Duration,
    pub(super) concurrency: usize,
    pub(super) bounds: QueueBounds,
    pub(super) location: Option<String>,
    /// The names of dependencies, which are looked up each time: a registry forgets, and is reloaded.
    pub(super) paced_by: Vec<(Dependencies, String)>,
    /// The registries with a dependency of each target's name.
    pub(super) targets_paced_by: Vec<Dependencies>,
    /// Ends what the idempotency layer holds for a replay that is over.
    pub(super) abandon: Option<Abandon>,
}

/// The requests that are replayed one after the other, in the order in which they came. Others are
/// replayed side by side with them.
#[derive(Clone)]
#[non_exhaustive]
pub enum ReplayOrder {
    /// Those of one owner.
    PerScope,
    /// All.
    Whole,
    /// Those of one owner for which this returns the same: of one account, say.
    Per(NameOf),
}

/// Names something of a request: its function, its target, its lane among those of its owner.
pub(super) type NameOf = Arc<dyn Fn(&Request<()>) -> String + Send + Sync>;

impl ReplayOrder {
    /// Requests of one owner for which `key` returns the same.
    pub fn per(key: impl Fn(&Request<()>) -> String + Send + Sync + 'static) -> Self {
        Self::Per(Arc::new(key))
    }

    /// Returns the lane of a request.
    pub(super) fn lane(&self, owner: &str, head: &Request<()>) -> String {
        match self {
            Self::PerScope => owner.to_owned(),
            Self::Whole => String::new(),
            Self::Per(key) => redact::cut(&format!("{} {}", key(head), owner)),
        }
    }
}

impl Settings {
    /// Returns the lane of a request, which begins with its target if there are targets.
    pub(super) fn lane(&self, owner: &str, head: &Request<()>) -> String {
        let lane = self.order.lane(owner, head);
        let Some(target) = &self.target else {
            return lane;
        };
        let plain = |c: char| if c.is_whitespace() { '_' } else { c };
        let target = redact::cut(&target(head));
        let target: String = target.chars().take(LONGEST_TARGET).map(plain).collect();
        format!("{target} {lane}")
    }

    /// Returns the target of a lane, if there are targets.
    pub(super) fn target_of<'a>(&self, lane: &'a str) -> Option<&'a str> {
        let (target, _) = lane.split_once(' ').unwrap_or((lane, ""));
        self.target.is_some().then_some(target)
    }
}

impl fmt::Debug for ReplayOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PerScope => "PerScope",
            Self::Whole => "Whole",
            Self::Per(_) => "Per",
        })
    }
}

/// Builds a [`Replay`].
#[must_use]
pub struct ReplayBuilder<J> {
    journal: J,
    scope: Scope,
    webhooks: Option<Webhooks<J>>,
    settings: Settings,
}

impl<J: Journal + Clone> ReplayBuilder<J> {
    pub(super) fn new(journal: J, scope: Scope) -> Self {
        Self {
            journal,
            scope,
            webhooks: None,
            settings: Settings {
                dialect: Arc::new(HttpDialect::new()),
                queue: "replay".into(),
                order: ReplayOrder::PerScope,
                target: None,
                methods: vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE],
                statuses: vec![
                    StatusCode::TOO_MANY_REQUESTS,
                    StatusCode::BAD_GATEWAY,
                    StatusCode::SERVICE_UNAVAILABLE,
                    StatusCode::GATEWAY_TIMEOUT,
                ],
                by_default: false,
                served: None,
                function: Arc::new(|head| format!("{} {}", head.method(), head.uri().path())),
                ttl: DAY,
                longest_ttl: 7 * DAY,
                attempts: 3,
                timeout: Duration::from_secs(30),
                request_limit: 1 << 20,
                response_limit: 1 << 20,
                keep: DAY,
                keep_failed: KEEP,
                concurrency: 8,
                bounds: QueueBounds {
                    in_all: 1_000_000,
                    per_owner: 100_000,
                },
                location: None,
                paced_by: Vec::new(),
                targets_paced_by: Vec::new(),
                abandon: None,
            },
        }
    }

    pub(super) fn abandons(mut self, abandon: Abandon) -> Self {
        self.settings.abandon = Some(abandon);
        self
    }

    /// Sets the queue, instead of `replay`.
    pub fn queue(mut self, queue: impl Into<Cow<'static, str>>) -> Self {
        self.settings.queue = queue.into();
        self
    }

    /// Sets which requests are replayed in order, one after the other: those of one owner by default.
    /// One that waits for its next attempt holds up those that came after it, of its priority or a
    /// lower one.
    pub fn order(mut self, order: ReplayOrder) -> Self {
        self.settings.order = order;
        self
    }

    /// Names the service that a request goes to, where this is in front of several. Each is a target with a
    /// pace and a retry budget of its own, so that one that is down or recovers slows the replays of no
    /// other, and requests to different ones are replayed side by side whatever the
    /// [order](Self::order). Spaces in a name become `_`, and 128 characters are kept.
    pub fn target(mut self, name: impl Fn(&Request<()>) -> String + Send + Sync + 'static) -> Self {
        self.settings.target = Some(Arc::new(name));
        self
    }

    /// Sets the dialect in which requests ask for replay and are answered: that of the idempotency
    /// layer below, an [`HttpDialect`] or `forrst::Forrst`.
    #[allow(private_bounds, reason = "dialects are sealed")]
    pub fn dialect<D: Dialect + ReplayFormat>(mut self, dialect: D) -> Self {
        self.settings.dialect = Arc::new(dialect);
        self
    }

    /// Tells callers' webhooks how their replays ended. Without this, requests that name a
    /// callback are rejected.
    ///
    /// The webhooks have to be of the same journal: a callback is queued there in one step with the
    /// result of its replay.
    ///
    /// A callback that a process with other settings accepted, and that this one can't send, is a
    /// [dead letter](crate::delivery::dead_letter) in the queue of webhooks, and can be redriven.
    pub fn callbacks(mut self, webhooks: Webhooks<J>) -> Self {
        self.webhooks = Some(webhooks);
        self
    }

    /// Sets the methods that can be replayed: POST, PUT, PATCH and DELETE by default.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.settings.methods = methods.into_iter().collect();
        self
    }

    /// Sets the statuses for which a request is journaled: 429, 502, 503 and 504 by default. 503 and
    /// 429 are believed to say that nothing was done; any other one is journaled only if its response
    /// says so, by [`HandlerOutcome::NoEffect`](crate::server::idempotency::HandlerOutcome::NoEffect) or
    /// as the answer of a layer of this crate.
    pub fn journaled_statuses(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.settings.statuses = statuses.into_iter().collect();
        self
    }

    /// Replays also requests that do not ask for it. They can still opt out.
    pub fn replay_by_default(mut self) -> Self {
        self.settings.by_default = true;
        self
    }

    /// Sets which requests are served in [maintenance](super::Maintenance) as at any other time: by
    /// default those of safe methods (GET, HEAD, OPTIONS) that can't be journaled. All others are
    /// journaled if they ask for it, and rejected with 503 and `Retry-After` if not.
    pub fn served_in_maintenance(
        mut self,
        served: impl Fn(&Request<()>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.served = Some(Box::new(served));
        self
    }

    /// Sets the name of what a request calls, for lists and logs, where the dialect does not know:
    /// method and path by default. It should hold no secrets.
    pub fn function(
        mut self,
        function: impl Fn(&Request<()>) -> String + Send + Sync + 'static,
    ) -> Self {
        self.settings.function = Arc::new(function);
        self
    }

    /// Sets how long a request may wait unless it says so, and the longest that it may say: a day
    /// and seven by default. A longer time is cut.
    pub fn ttl(mut self, ttl: Duration, longest: Duration) -> Self {
        (self.settings.ttl, self.settings.longest_ttl) = (ttl, longest);
        self
    }

    /// Sets how often a request is attempted: 3 times by default, 1 to 5.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.settings.attempts = attempts;
        self
    }

    /// Sets how long one attempt may take: 30 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Sets the largest request body, in bytes: 1 MiB by default. A larger request is served but
    /// never journaled, or rejected if it does not announce its size.
    pub fn request_limit(mut self, bytes: usize) -> Self {
        self.settings.request_limit = bytes;
        self
    }

    /// Sets the largest reply that is kept, in bytes: 1 MiB by default.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.settings.response_limit = bytes;
        self
    }

    /// Sets how many requests may wait or be under way in all, and of one owner: a million and 100,000 by
    /// default. Past that the reply is 503 with `Retry-After`, and nothing is accepted that could be lost.
    /// Those that a [dead letter](crate::delivery::dead_letter) is redriven as are always taken, and count.
    pub fn max_queued(mut self, in_all: u32, per_scope: u32) -> Self {
        self.settings.bounds = QueueBounds {
            in_all,
            per_owner: per_scope,
        };
        self
    }

    /// Sets how long finished entries are kept: a day by default, and 30 days for failed ones.
    pub fn keep(mut self, done: Duration, failed: Duration) -> Self {
        (self.settings.keep, self.settings.keep_failed) = (done, failed);
        self
    }

    /// Sets how many are replayed at a time, at most: 8 by default. After an outage it begins with
    /// one.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// Holds replays back while this dependency's breaker is open, its retry budget is used up, or
    /// it asked to be left alone.
    pub fn paced_by<C, L>(
        mut self,
        dependencies: &Dependencies<C, L>,
        name: impl Into<String>,
    ) -> Self {
        let paced = (dependencies.by_name(), name.into());
        self.settings.paced_by.push(paced);
        self
    }

    /// Holds the replays of each [target](Self::target) back as [`paced_by`](Self::paced_by) does, by the
    /// dependency of the target's name.
    pub fn targets_paced_by<C, L>(mut self, dependencies: &Dependencies<C, L>) -> Self {
        self.settings.targets_paced_by.push(dependencies.by_name());
        self
    }

    /// Sets the path of the [routes](Replay::routes), for the `Location` of replies.
    pub fn location(mut self, path: impl Into<String>) -> Self {
        self.settings.location = Some(path.into());
        self
    }

    /// Builds the replay journal.
    ///
    /// # Errors
    ///
    /// A setting that is not allowed.
    pub fn build(self) -> Result<Replay<J>, ConfigError> {
        let Settings {
            ttl,
            longest_ttl,
            attempts,
            timeout,
            concurrency,
            ..
        } = self.settings;
        if ttl < MINUTE || longest_ttl > 30 * DAY || ttl > longest_ttl {
            let value = format!("{ttl:?} and at most {longest_ttl:?}");
            let allowed = "1min to 30 days, the first no longer";
            return Err(ConfigError::new(None, "replay.ttl", value, allowed));
        }
        let timeouts = Duration::from_millis(1)..=10 * MINUTE;
        ConfigError::within("replay.attempts", attempts, 1..=5, "1 to 5")?;
        ConfigError::within("replay.timeout", timeout, timeouts, "1ms to 10min")?;
        ConfigError::within("replay.concurrency", concurrency, 1..=10_000, "1 to 10000")?;
        let wake = WorkerNotifier::new();
        let paces = Arc::new(Paces::new(concurrency));
        Ok(Replay {
            maintenance: Maintenance::new(Arc::clone(&paces), wake.clone()),
            journal: self.journal,
            state: Arc::new(ReplayState {
                settings: self.settings,
                scope: self.scope,
                webhooks: self.webhooks,
                paces,
                wake,
                dependencies: Dependencies::new(Policy::events().build()?),
            }),
        })
    }
}

opaque_debug! { ReplayBuilder<J>, self, queue = self.settings.queue }
