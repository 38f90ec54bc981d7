use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use http::{Method, Request};

use super::{Dialect, Maintenance, Replay, Shared, pace::Pace};
use crate::{
    delivery::{dead_letter::KEEP, webhooks::Webhooks, worker::WorkerNotifier},
    dependency::{Dependencies, Dependency},
    error::ConfigError,
    store::journal::Journal,
};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) type Principal = Arc<dyn Fn(&Request<()>) -> Option<String> + Send + Sync>;
pub(super) type Function = Arc<dyn Fn(&Request<()>) -> String + Send + Sync>;

/// Whether a request is served in maintenance.
pub(super) type Served = Box<dyn Fn(&Request<()>) -> bool + Send + Sync>;
/// Finds a dependency.
pub(super) type Paced = Box<dyn Fn() -> Arc<Dependency> + Send + Sync>;

pub(super) struct Settings {
    pub(super) dialect: Dialect,
    pub(super) queue: Cow<'static, str>,
    pub(super) methods: Vec<Method>,
    pub(super) unasked: bool,
    pub(super) served: Option<Served>,
    pub(super) function: Function,
    pub(super) ttl: Duration,
    pub(super) longest_ttl: Duration,
    pub(super) attempts: u32,
    pub(super) timeout: Duration,
    pub(super) request_limit: usize,
    pub(super) response_limit: usize,
    pub(super) keep: Duration,
    pub(super) keep_failed: Duration,
    pub(super) concurrency: usize,
    pub(super) location: Option<String>,
    pub(super) paced_by: Vec<Paced>,
}

/// Builds a [`Replay`].
#[must_use]
pub struct ReplayBuilder<J> {
    journal: J,
    principal: Principal,
    webhooks: Option<Webhooks<J>>,
    settings: Settings,
}

impl<J: Journal + Clone> ReplayBuilder<J> {
    pub(super) fn new(journal: J, principal: Principal) -> Self {
        Self {
            journal,
            principal,
            webhooks: None,
            settings: Settings {
                dialect: Dialect::http(),
                queue: "replay".into(),
                methods: vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE],
                unasked: false,
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
                location: None,
                paced_by: Vec::new(),
            },
        }
    }

    /// The queue, instead of `replay`.
    pub fn queue(mut self, queue: impl Into<Cow<'static, str>>) -> Self {
        self.settings.queue = queue.into();
        self
    }

    /// How requests ask for replay, and how they are answered: as plain HTTP, unless told
    /// otherwise.
    pub fn dialect(mut self, dialect: impl Into<Dialect>) -> Self {
        self.settings.dialect = dialect.into();
        self
    }

    /// Tells callers' webhooks how their replays ended. Without this, requests that name a
    /// callback are refused.
    ///
    /// They have to be those of the same journal: a callback is queued there, together with the
    /// result that it tells of, and webhooks of another journal would never see it.
    ///
    /// A callback that was promised, and that this process can't send since it is set up in
    /// another way than the one that took it, is a [dead letter](crate::delivery::dead_letter) in
    /// the queue of webhooks, and can be redriven once that is mended.
    pub fn callbacks(mut self, webhooks: Webhooks<J>) -> Self {
        self.webhooks = Some(webhooks);
        self
    }

    /// Which methods can be replayed: POST, PUT, PATCH and DELETE, unless told otherwise.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.settings.methods = methods.into_iter().collect();
        self
    }

    /// Replays also requests that do not ask for it. They can still say that they do not
    /// want it.
    pub fn unasked(mut self) -> Self {
        self.settings.unasked = true;
        self
    }

    /// Which requests are served in [maintenance](super::Maintenance) as at any other time: those
    /// of safe methods (GET, HEAD, OPTIONS) that can't be journaled, unless told otherwise. All
    /// others are journaled if they ask for it, and refused with 503 and `Retry-After` if not.
    pub fn served_in_maintenance(
        mut self,
        served: impl Fn(&Request<()>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.served = Some(Box::new(served));
        self
    }

    /// What a request calls, for lists and logs, where the dialect does not know: method and path,
    /// unless told otherwise. It should hold no secrets.
    pub fn function(
        mut self,
        function: impl Fn(&Request<()>) -> String + Send + Sync + 'static,
    ) -> Self {
        self.settings.function = Arc::new(function);
        self
    }

    /// How long a request may wait unless it says so, and how long it may say: a day and seven,
    /// unless told otherwise. Shorter wishes are granted, longer ones cut.
    pub fn ttl(mut self, ttl: Duration, longest: Duration) -> Self {
        (self.settings.ttl, self.settings.longest_ttl) = (ttl, longest);
        self
    }

    /// How often a request is attempted: 3 times unless told otherwise, 1 to 5.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.settings.attempts = attempts;
        self
    }

    /// How long one attempt may take: 30 s unless told otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// The largest request body, in bytes: 1 MiB unless told otherwise. Larger requests are served
    /// but never journaled, unless they keep their size to themselves, and are refused.
    pub fn request_limit(mut self, bytes: usize) -> Self {
        self.settings.request_limit = bytes;
        self
    }

    /// The largest reply that is kept, in bytes: 1 MiB unless told otherwise.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.settings.response_limit = bytes;
        self
    }

    /// How long what is over is kept: a day unless told otherwise, and 30 days for what failed.
    pub fn keep(mut self, done: Duration, failed: Duration) -> Self {
        (self.settings.keep, self.settings.keep_failed) = (done, failed);
        self
    }

    /// How many are replayed at a time, at most: 8 unless told otherwise. After an outage it begins
    /// with one.
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
    ) -> Self
    where
        C: Clone + Send + Sync + 'static,
        L: Clone + Send + Sync + 'static,
    {
        let (dependencies, name) = (dependencies.clone(), name.into());
        // Not the one that is known by that name now: a registry forgets, and is reloaded.
        let find = move || dependencies.get(&name);
        self.settings.paced_by.push(Box::new(find));
        self
    }

    /// Under which path the [routes](Replay::routes) are, for the `Location` of replies.
    pub fn location(mut self, path: impl Into<String>) -> Self {
        self.settings.location = Some(path.into());
        self
    }

    /// The replay journal.
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
        let refused = |field: &'static str, value: String, allowed: &'static str| {
            Err(ConfigError::new(None, field, value, allowed))
        };
        if ttl < MINUTE || longest_ttl > 30 * DAY || ttl > longest_ttl {
            let value = format!("{ttl:?} and at most {longest_ttl:?}");
            return refused("replay.ttl", value, "1min to 30 days, the first no longer");
        }
        if !(1..=5).contains(&attempts) {
            return refused("replay.attempts", attempts.to_string(), "1 to 5");
        }
        if !(Duration::from_millis(1)..=10 * MINUTE).contains(&timeout) {
            return refused("replay.timeout", format!("{timeout:?}"), "1ms to 10min");
        }
        if !(1..=10_000).contains(&concurrency) {
            return refused("replay.concurrency", concurrency.to_string(), "1 to 10000");
        }
        let wake = WorkerNotifier::new();
        let pace = Arc::new(Pace::new(concurrency));
        Ok(Replay {
            maintenance: Maintenance::new(Arc::clone(&pace), wake.clone()),
            journal: self.journal,
            shared: Arc::new(Shared {
                settings: self.settings,
                principal: self.principal,
                webhooks: self.webhooks,
                pace,
                wake,
            }),
        })
    }
}

impl<J> fmt::Debug for ReplayBuilder<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBuilder")
            .field("queue", &self.settings.queue)
            .finish_non_exhaustive()
    }
}
