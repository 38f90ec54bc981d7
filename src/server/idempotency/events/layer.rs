use std::{sync::Arc, time::Duration};

use tower::Layer;

use super::EventDedup;
use crate::{
    error::ConfigError,
    server::idempotency::{
        Drain,
        builder::Missing,
        engine::{Engine, EngineSettings},
        limits::{MAX_EXECUTION, TimeLimits, UNSETTLED_LIMIT},
    },
    store::{CrashPolicy, IdempotencyStore},
};

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Drops events that were processed before. See the [module docs](super).
///
/// # Clone
///
/// Clones share the store.
#[must_use]
pub struct EventDedupLayer<St, F> {
    pub(super) state: Arc<DedupState<St, F>>,
}

pub(super) struct DedupState<St, F> {
    pub(super) engine: Arc<Engine<St>>,
    pub(super) consumer: Arc<str>,
    pub(super) id: F,
}

impl<St> EventDedupLayer<St, Missing> {
    /// Builds a layer for a consumer: consumers of different names each get every event once.
    pub fn builder(store: St, consumer: impl Into<Arc<str>>) -> EventDedupBuilder<St> {
        EventDedupBuilder {
            store,
            consumer: consumer.into(),
            id: Missing,
            crash_policy: Missing,
            limits: TimeLimits {
                lease: Duration::from_secs(30),
                retention: WEEK,
                store_timeout: None,
                max_execution: MAX_EXECUTION,
            },
        }
    }
}

impl<St, F> EventDedupLayer<St, F> {
    /// Returns a handle that waits for this layer's work at shutdown.
    #[must_use]
    pub fn drain(&self) -> Drain {
        Drain {
            pending: Arc::clone(&self.state.engine.pending),
        }
    }
}

impl<St, F> Clone for EventDedupLayer<St, F> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
        }
    }
}

opaque_debug! { EventDedupLayer<St, F>, self, consumer = self.state.consumer }

impl<S, St, F> Layer<S> for EventDedupLayer<St, F> {
    type Service = EventDedup<S, St, F>;

    fn layer(&self, inner: S) -> Self::Service {
        EventDedup {
            inner,
            state: Arc::clone(&self.state),
        }
    }
}

/// Builds an [`EventDedupLayer`]. It needs the id of an event, and the fate of one whose consumer
/// died.
#[must_use]
pub struct EventDedupBuilder<St, F = Missing, O = Missing> {
    store: St,
    consumer: Arc<str>,
    id: F,
    crash_policy: O,
    limits: TimeLimits,
}

opaque_debug! { EventDedupBuilder<St, F, O>, self, consumer = self.consumer }

impl<St, O> EventDedupBuilder<St, Missing, O> {
    /// Sets the id of an event: the same for each delivery, another for another event. An event
    /// without one (`None`) is not processed.
    pub fn id<E, F, T>(self, id: F) -> EventDedupBuilder<St, F, O>
    where
        F: Fn(&E) -> Option<T>,
        T: AsRef<[u8]>,
    {
        EventDedupBuilder {
            store: self.store,
            consumer: self.consumer,
            id,
            crash_policy: self.crash_policy,
            limits: self.limits,
        }
    }
}

impl<St, F> EventDedupBuilder<St, F, Missing> {
    /// Sets what happens to an event whose consumer died while it processed it.
    pub fn crash_policy(self, crash_policy: CrashPolicy) -> EventDedupBuilder<St, F, CrashPolicy> {
        EventDedupBuilder {
            store: self.store,
            consumer: self.consumer,
            id: self.id,
            crash_policy,
            limits: self.limits,
        }
    }
}

impl<St, F, O> EventDedupBuilder<St, F, O> {
    /// Sets how long an event is remembered: seven days, or longer.
    pub fn window(mut self, window: Duration) -> Self {
        self.limits.retention = window;
        self
    }

    /// Sets how long a consumer may be gone before its event is an orphan: 30 s by default. It may
    /// take longer for an event, since its lease is renewed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.limits.lease = lease;
        self
    }

    /// Sets how long the lease of an event is renewed: 15 minutes by default, at least a lease. One
    /// that takes longer, since its consumer hangs, counts as one whose consumer died.
    pub fn max_execution(mut self, longest: Duration) -> Self {
        self.limits.max_execution = longest;
        self
    }

    /// Sets how long the layer waits for the store: 5 s, or a third of the lease if that is
    /// shorter.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.limits.store_timeout = Some(timeout);
        self
    }
}

impl<St: IdempotencyStore, F> EventDedupBuilder<St, F, CrashPolicy> {
    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// A setting that is not allowed.
    pub fn build(self) -> Result<EventDedupLayer<St, F>, ConfigError> {
        let limits = self.limits;
        limits.check("events", "window", WEEK, "7 days (R-6)")?;
        let engine = EngineSettings {
            limits,
            crash_policy: self.crash_policy,
            fails_open: false,
            unsettled_limit: UNSETTLED_LIMIT,
        };
        Ok(EventDedupLayer {
            state: Arc::new(DedupState {
                engine: Arc::new(Engine::new(self.store, engine)),
                consumer: self.consumer,
                id: self.id,
            }),
        })
    }
}
