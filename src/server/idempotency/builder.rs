use std::{sync::Arc, time::Duration};

use http::{HeaderName, Method, Request, StatusCode};

use super::{
    IdempotencyLayer, ServerErrors,
    engine::Engine,
    engine::EngineSettings,
    limits::{DAY, MAX_EXECUTION, TimeLimits, UNSETTLED_LIMIT},
    outcome::Judge,
    settings::{LayerState, Settings},
};
use crate::{
    call::key::{LONGEST, LONGEST_CONFIGURABLE},
    error::ConfigError,
    http::header_filter::HeaderFilter,
    server::dialect::{Dialect, HttpDialect, Requirement, Scope},
    store::{CrashPolicy, IdempotencyStore},
};

/// Builds an [`IdempotencyLayer`]. It needs the owner of keys
/// ([`scope`](IdempotencyBuilder::scope)) and the fate of an operation whose server died
/// ([`crash_policy`](IdempotencyBuilder::crash_policy)): no default is right for everybody.
///
/// ```compile_fail,E0277
/// use tower_reprise::{server::idempotency::IdempotencyLayer, store::{MemoryStore, CrashPolicy}};
///
/// // Whose keys?
/// let layer = IdempotencyLayer::builder(MemoryStore::new()).crash_policy(CrashPolicy::Reexecute).build();
/// ```
///
/// ```compile_fail,E0277
/// use tower_reprise::{IdempotencyLayer, server::dialect::Scope, store::MemoryStore};
///
/// // And what if this process dies while it executes one?
/// let layer = IdempotencyLayer::builder(MemoryStore::new())
///     .scope(Scope::new(|req| req.extensions().get::<String>().cloned()))
///     .build();
/// ```
#[must_use]
pub struct IdempotencyBuilder<St, P = Missing, O = Missing, D = HttpDialect> {
    store: St,
    scope: P,
    crash_policy: O,
    dialect: D,
    settings: Settings,
}

/// A setting that an [`IdempotencyBuilder`] still needs.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Missing;

opaque_debug! { IdempotencyBuilder<St, P, O, D> }

/// The settings that a layer needs: a bound can name what is missing, where the lack of a method
/// could not.
mod said {
    use crate::{server::dialect, store};

    #[diagnostic::on_unimplemented(
        message = "it was not said whose idempotency keys are whose",
        label = "there is no layer before `.scope(…)`",
        note = "without a scope one caller could get another's reply: \
                `.scope(Scope::new(|request| request.extensions().get::<Principal>().map(|p| p.id.clone())))`",
        note = "if nobody is known, say so: `.scope(Scope::anonymous(\"everybody\"))`"
    )]
    pub trait Scope {
        fn get(self) -> dialect::Scope;
    }

    impl Scope for dialect::Scope {
        fn get(self) -> Self {
            self
        }
    }

    #[diagnostic::on_unimplemented(
        message = "it was not said what happens to an operation whose server died",
        label = "there is no layer before `.crash_policy(…)`",
        note = "`.crash_policy(CrashPolicy::Reexecute)` executes it again, and is right if that does no harm",
        note = "`.crash_policy(CrashPolicy::Unknown)` tells callers that nobody knows how it ended"
    )]
    pub trait CrashPolicy {
        fn get(self) -> store::CrashPolicy;
    }

    impl CrashPolicy for store::CrashPolicy {
        fn get(self) -> Self {
            self
        }
    }
}

impl<St> IdempotencyBuilder<St> {
    pub(super) fn new(store: St) -> Self {
        Self {
            store,
            scope: Missing,
            crash_policy: Missing,
            dialect: HttpDialect::new(),
            settings: Settings {
                max_key_len: LONGEST,
                namespace: Arc::from(""),
                request_limit: 1 << 20,
                response_limit: 1 << 20,
                limits: TimeLimits {
                    lease: Duration::from_secs(30),
                    retention: DAY,
                    store_timeout: None,
                    max_execution: MAX_EXECUTION,
                },
                unsettled_limit: UNSETTLED_LIMIT,
                wait: Duration::ZERO,
                judge: Judge::default(),
                stored_headers: HeaderFilter::default(),
                fail_open: false,
            },
        }
    }
}

impl<St, P, O, D> IdempotencyBuilder<St, P, O, D> {
    /// Sets the owner of keys: see [`Scope`]. Give a `ReplayLayer` around this one the same.
    pub fn scope(self, scope: Scope) -> IdempotencyBuilder<St, Scope, O, D> {
        IdempotencyBuilder {
            store: self.store,
            scope,
            crash_policy: self.crash_policy,
            dialect: self.dialect,
            settings: self.settings,
        }
    }
}

impl<St, P, D> IdempotencyBuilder<St, P, Missing, D> {
    /// Sets what happens to an operation whose server died, or whose handler panicked.
    pub fn crash_policy(
        self,
        crash_policy: CrashPolicy,
    ) -> IdempotencyBuilder<St, P, CrashPolicy, D> {
        IdempotencyBuilder {
            store: self.store,
            scope: self.scope,
            crash_policy,
            dialect: self.dialect,
            settings: self.settings,
        }
    }
}

/// Settings of the [`HttpDialect`].
impl<St, P, O> IdempotencyBuilder<St, P, O> {
    /// See [`HttpDialect::route`].
    pub fn route<F, T>(mut self, route: F) -> Self
    where
        F: Fn(&Request<()>) -> T + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        self.dialect = self.dialect.route(route);
        self
    }

    /// See [`HttpDialect::fingerprint`].
    pub fn fingerprint<F, T>(mut self, fingerprint: F) -> Self
    where
        F: Fn(&Request<()>, &[u8]) -> Option<T> + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        self.dialect = self.dialect.fingerprint(fingerprint);
        self
    }

    /// See [`HttpDialect::methods`].
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.dialect = self.dialect.methods(methods);
        self
    }

    /// See [`HttpDialect::requirement`].
    pub fn requirement<F>(mut self, requirement: F) -> Self
    where
        F: Fn(&Request<()>) -> Requirement + Send + Sync + 'static,
    {
        self.dialect = self.dialect.requirement(requirement);
        self
    }

    /// See [`HttpDialect::header`].
    pub fn header(mut self, name: HeaderName) -> Self {
        self.dialect = self.dialect.header(name);
        self
    }

    /// See [`HttpDialect::strict`].
    pub fn strict(mut self) -> Self {
        self.dialect = self.dialect.strict();
        self
    }

    /// Sets the dialect: an [`HttpDialect`] that other layers share, or `forrst::Forrst`.
    pub fn with_dialect<D: Dialect>(self, dialect: D) -> IdempotencyBuilder<St, P, O, D> {
        IdempotencyBuilder {
            store: self.store,
            scope: self.scope,
            crash_policy: self.crash_policy,
            dialect,
            settings: self.settings,
        }
    }
}

impl<St, P, O, D> IdempotencyBuilder<St, P, O, D> {
    /// Tells keys of one API from those of others on the same store: a name and a version. Needed
    /// where a layer sees only part of the path: below a router that strips a prefix, unless it is
    /// axum's and the `axum` feature is on.
    pub fn namespace(mut self, namespace: impl Into<Arc<str>>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// Sets the longest key: 64 characters by default, at most 255.
    pub fn max_key_len(mut self, characters: usize) -> Self {
        self.settings.max_key_len = characters;
        self
    }

    /// Sets the largest request body, in bytes: 1 MiB by default. It is read into memory, and a
    /// larger one is rejected.
    pub fn request_limit(mut self, bytes: usize) -> Self {
        self.settings.request_limit = bytes;
        self
    }

    /// Sets the largest response body that is stored, in bytes: 1 MiB by default. A larger one goes
    /// to the first caller as it comes; repeats are told that it was executed.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.settings.response_limit = bytes;
        self
    }

    /// Sets how long replies are stored: 24 hours, or longer.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.limits.retention = retention;
        self
    }

    /// Sets how long a server may be gone before its operation is an orphan: 30 s by default. A
    /// handler may take longer, since its lease is renewed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.limits.lease = lease;
        self
    }

    /// Sets how long the layer waits for the store: 5 s, or a third of the lease if that is
    /// shorter.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.settings.limits.store_timeout = Some(timeout);
        self
    }

    /// Sets how long an execution renews its lease: 15 minutes by default, at least a lease. One that
    /// takes longer, since it hangs, counts as one whose server died: see
    /// [`crash_policy`](Self::crash_policy). It is not stopped.
    pub fn max_execution(mut self, longest: Duration) -> Self {
        self.settings.limits.max_execution = longest;
        self
    }

    /// Sets the memory for ends of executions that wait for a store that is down, in bytes: 64 MiB by
    /// default. Past it, their replies are dropped first.
    pub fn unsettled_limit(mut self, bytes: usize) -> Self {
        self.settings.unsettled_limit = bytes;
        self
    }

    /// Sets how long a repeat waits for the reply of the first request: not at all by default, so
    /// that it is rejected while that one is processing.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets what happens to replies of status 5xx.
    pub fn server_errors(mut self, server_errors: ServerErrors) -> Self {
        self.settings.judge.server_errors = server_errors;
        self
    }

    /// Declares that the handler means "nothing was done" by these statuses, 408 or 503 for example:
    /// a repeat is executed. A 503 stands for gRPC's UNAVAILABLE too.
    ///
    /// Without this, a 408, and a 503 without `Retry-After`, leave the outcome unknown, and the
    /// [`crash_policy`](Self::crash_policy) decides, since a timeout layer below this one sends the
    /// same status after the handler began. Declare a status only if nothing below this layer sends
    /// it but the handler, or an operation can take effect more than once. A handler that knows marks
    /// its response with [`HandlerOutcome::NoEffect`](super::HandlerOutcome::NoEffect) instead.
    ///
    /// Earlier attempts of a `RetryLayer` below count as without effect only if 408 and 503 are both
    /// declared.
    pub fn no_effect_statuses(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.settings.judge.no_effect_statuses.extend(statuses);
        self
    }

    /// Adds response headers to those that are never stored.
    pub fn unstored(mut self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.settings.stored_headers.left_out.extend(headers);
        self
    }

    /// Executes requests without protection when the store can't be reached or is full, instead of
    /// rejecting them with 503: for operations where twice is better than not now. An operation
    /// whose record can't be read is never executed again.
    pub fn fail_open(mut self) -> Self {
        self.settings.fail_open = true;
        self
    }
}

impl<St, P, O, D: Dialect> IdempotencyBuilder<St, P, O, D> {
    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// A setting that is not allowed.
    pub fn build(self) -> Result<IdempotencyLayer<St, D>, ConfigError>
    where
        St: IdempotencyStore,
        P: said::Scope,
        O: said::CrashPolicy,
    {
        let Self {
            store,
            scope,
            crash_policy,
            dialect,
            settings,
        } = self;
        dialect.check()?;
        let limits = settings.limits;
        limits.check("idempotency", "retention", DAY, "24h (R-6)")?;
        let keys = 1..=LONGEST_CONFIGURABLE;
        ConfigError::within(
            "idempotency.max_key_len",
            settings.max_key_len,
            keys,
            "1 to 255",
        )?;
        for (field, limit) in [
            ("idempotency.request_limit", settings.request_limit),
            ("idempotency.response_limit", settings.response_limit),
        ] {
            ConfigError::within(field, limit, 1..=usize::MAX, "at least 1")?;
        }
        let error = |status: &StatusCode| status.is_client_error() || status.is_server_error();
        let mut statuses = settings.judge.no_effect_statuses.iter();
        if let Some(status) = statuses.find(|status| !error(status)) {
            let field = "idempotency.no_effect_statuses";
            return Err(ConfigError::new(None, field, status.as_u16(), "400 to 599"));
        }
        let waits = Duration::ZERO..=Duration::from_secs(60);
        ConfigError::within("idempotency.wait", settings.wait, waits, "at most 60s")?;
        let engine = EngineSettings {
            limits,
            crash_policy: crash_policy.get(),
            fails_open: settings.fail_open,
            unsettled_limit: settings.unsettled_limit,
        };
        Ok(IdempotencyLayer::new(LayerState {
            engine: Arc::new(Engine::new(store, engine)),
            settings,
            scope: scope.get(),
            dialect,
        }))
    }
}
