use std::{fmt, sync::Arc, time::Duration};

use tower::Layer;

use super::EventDedup;
use crate::{
    error::ConfigError,
    server::idempotency::{builder::Missing, engine::Engine, times::Times},
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
    pub(super) shared: Arc<Shared<St, F>>,
}

pub(super) struct Shared<St, F> {
    pub(super) engine: Arc<Engine<St>>,
    pub(super) consumer: Arc<str>,
    pub(super) id: F,
}

impl<St> EventDedupLayer<St, Missing> {
    /// Says what is to be remembered where, and for whom: consumers of different names each get
    /// every event once.
    pub fn builder(store: St, consumer: impl Into<Arc<str>>) -> EventDedupBuilder<St> {
        EventDedupBuilder {
            store,
            consumer: consumer.into(),
            id: Missing,
            orphans: Missing,
            times: Times {
                lease: Duration::from_secs(30),
                retention: WEEK,
                store_timeout: None,
            },
        }
    }
}

impl<St, F> Clone for EventDedupLayer<St, F> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<St, F> fmt::Debug for EventDedupLayer<St, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventDedupLayer")
            .field("consumer", &self.shared.consumer)
            .finish_non_exhaustive()
    }
}

impl<S, St, F> Layer<S> for EventDedupLayer<St, F> {
    type Service = EventDedup<S, St, F>;

    fn layer(&self, inner: S) -> Self::Service {
        EventDedup {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// Builds an [`EventDedupLayer`], once it was told how an event is known and what happens to one
/// whose consumer died.
#[must_use]
pub struct EventDedupBuilder<St, F = Missing, O = Missing> {
    store: St,
    consumer: Arc<str>,
    id: F,
    orphans: O,
    times: Times,
}

impl<St, F, O> fmt::Debug for EventDedupBuilder<St, F, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventDedupBuilder")
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

impl<St, O> EventDedupBuilder<St, Missing, O> {
    /// By what an event is known: the same for each delivery, another for another event. `None` if
    /// an event has no id; such are not processed.
    pub fn id<E, F, T>(self, id: F) -> EventDedupBuilder<St, F, O>
    where
        F: Fn(&E) -> Option<T>,
        T: AsRef<[u8]>,
    {
        EventDedupBuilder {
            store: self.store,
            consumer: self.consumer,
            id,
            orphans: self.orphans,
            times: self.times,
        }
    }
}

impl<St, F> EventDedupBuilder<St, F, Missing> {
    /// What happens to an event whose consumer died while it processed it: see [`CrashPolicy`].
    pub fn orphans(self, orphans: CrashPolicy) -> EventDedupBuilder<St, F, CrashPolicy> {
        EventDedupBuilder {
            store: self.store,
            consumer: self.consumer,
            id: self.id,
            orphans,
            times: self.times,
        }
    }
}

impl<St, F, O> EventDedupBuilder<St, F, O> {
    /// How long an event is remembered: seven days, or longer.
    pub fn window(mut self, window: Duration) -> Self {
        self.times.retention = window;
        self
    }

    /// How long a consumer may be gone before its event is an orphan: 30 s unless told otherwise.
    /// It may take longer for an event, since its lease is renewed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.times.lease = lease;
        self
    }

    /// How long an answer of the store is waited for: 5 s, or a third of the lease if that is
    /// shorter.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.times.store_timeout = Some(timeout);
        self
    }
}

impl<St: IdempotencyStore, F> EventDedupBuilder<St, F, CrashPolicy> {
    /// The layer.
    ///
    /// # Errors
    ///
    /// A setting that is not allowed.
    pub fn build(self) -> Result<EventDedupLayer<St, F>, ConfigError> {
        let Times {
            lease, retention, ..
        } = self.times;
        let store_timeout = self.times.check("events", "window", WEEK, "7 days (R-6)")?;
        let engine = Engine::new(
            self.store,
            lease,
            retention,
            self.orphans,
            store_timeout,
            false,
        );
        Ok(EventDedupLayer {
            shared: Arc::new(Shared {
                engine: Arc::new(engine),
                consumer: self.consumer,
                id: self.id,
            }),
        })
    }
}
