use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderName, Method, Request};

use super::{
    IdempotencyLayer, Requirement, ServerErrors,
    engine::Engine,
    hygiene::Unstored,
    key::KeyFormat,
    settings::{Scope, Settings, Shared},
};
use crate::{
    classify::IDEMPOTENCY_KEY,
    error::ConfigError,
    idempotency_key::{LONGEST, LONGEST_CONFIGURABLE},
    store::{IdempotencyStore, Orphans},
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Builds an [`IdempotencyLayer`]. There is no layer before it is said whose keys are whose
/// ([`scope`](IdempotencyBuilder::scope)) and what happens to an operation whose server died
/// ([`orphans`](IdempotencyBuilder::orphans)): there is no answer that is right for everybody.
///
/// ```compile_fail,E0599
/// use tower_reprise::{idempotency::IdempotencyLayer, store::{MemoryStore, Orphans}};
///
/// // Whose keys?
/// let layer = IdempotencyLayer::builder(MemoryStore::new()).orphans(Orphans::Reexecute).build();
/// ```
///
/// ```compile_fail,E0599
/// use tower_reprise::{idempotency::IdempotencyLayer, store::MemoryStore};
///
/// // And what if this process dies while it executes one?
/// let layer = IdempotencyLayer::builder(MemoryStore::new())
///     .scope(|req| req.extensions().get::<String>().cloned())
///     .build();
/// ```
#[must_use]
pub struct IdempotencyBuilder<St, P = Missing, O = Missing> {
    store: St,
    scope: P,
    orphans: O,
    settings: Settings,
}

/// What an [`IdempotencyBuilder`] was not told yet.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Missing;

/// What an [`IdempotencyBuilder`] knows: whose keys are whose.
#[derive(Clone)]
pub struct Scoped(Scope);

impl fmt::Debug for Scoped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scoped")
    }
}

impl<St, P, O> fmt::Debug for IdempotencyBuilder<St, P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyBuilder")
    }
}

impl<St> IdempotencyBuilder<St> {
    pub(super) fn new(store: St) -> Self {
        Self {
            store,
            scope: Missing,
            orphans: Missing,
            settings: Settings {
                format: KeyFormat {
                    header: IDEMPOTENCY_KEY,
                    strict: false,
                    longest: LONGEST,
                },
                methods: vec![Method::POST, Method::PATCH],
                requirement: Arc::new(|_| Requirement::Required),
                anonymous: None,
                namespace: Arc::from(""),
                route: Arc::new(|head, digest| digest.part(head.uri().path())),
                request_limit: 1 << 20,
                response_limit: 1 << 20,
                retention: DAY,
                lease: Duration::from_secs(30),
                store_timeout: None,
                wait: Duration::ZERO,
                server_errors: ServerErrors::default(),
                unstored: Unstored::default(),
                fail_open: false,
            },
        }
    }
}

impl<St, O> IdempotencyBuilder<St, Missing, O> {
    /// Who asks: the tenant or principal that a key belongs to, from what an authentication layer
    /// outside of this one put on the request. Two callers with the same key have nothing to do
    /// with each other, so it must tell callers apart that may not see each other's replies.
    ///
    /// `None` is a caller that is not known. Such are refused, unless there is a scope for
    /// [`anonymous`](IdempotencyBuilder::anonymous) callers.
    pub fn scope<F, T>(self, scope: F) -> IdempotencyBuilder<St, Scoped, O>
    where
        F: Fn(&Request<()>) -> Option<T> + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        let scope: Scope = Arc::new(move |head, digest| match scope(head) {
            Some(scope) => {
                digest.part(scope);
                true
            }
            None => false,
        });
        IdempotencyBuilder {
            store: self.store,
            scope: Scoped(scope),
            orphans: self.orphans,
            settings: self.settings,
        }
    }
}

impl<St, P> IdempotencyBuilder<St, P, Missing> {
    /// What happens to an operation whose server died, or whose handler panicked: see [`Orphans`].
    pub fn orphans(self, orphans: Orphans) -> IdempotencyBuilder<St, P, Orphans> {
        IdempotencyBuilder {
            store: self.store,
            scope: self.scope,
            orphans,
            settings: self.settings,
        }
    }
}

impl<St, P, O> IdempotencyBuilder<St, P, O> {
    /// A scope for all callers that are not known. They can get each other's replies, if they
    /// guess each other's keys.
    pub fn anonymous(mut self, scope: impl Into<Arc<str>>) -> Self {
        self.settings.anonymous = Some(scope.into());
        self
    }

    /// Tells keys of one API from those of others on the same store: a name and a version. Needed
    /// where routers are nested under different paths, since each sees only its own part of the
    /// path.
    pub fn namespace(mut self, namespace: impl Into<Arc<str>>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// What a key is unique for, next to caller, namespace and method: the path, unless told
    /// otherwise. With the pattern of a route (axum's `MatchedPath`) a key that was used for one
    /// item can't be used for another.
    pub fn route<F, T>(mut self, route: F) -> Self
    where
        F: Fn(&Request<()>) -> T + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        self.settings.route = Arc::new(move |head, digest| digest.part(route(head)));
        self
    }

    /// The methods that keys are for, instead of POST and PATCH. Others are passed on.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.settings.methods = methods.into_iter().collect();
        self
    }

    /// Which requests need a key: all of those methods, unless told otherwise.
    pub fn requirement<F>(mut self, requirement: F) -> Self
    where
        F: Fn(&Request<()>) -> Requirement + Send + Sync + 'static,
    {
        self.settings.requirement = Arc::new(requirement);
        self
    }

    /// The header that the key is in, instead of `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.settings.format.header = name;
        self
    }

    /// Takes keys only as the IETF draft has them, in quotes.
    pub fn strict(mut self) -> Self {
        self.settings.format.strict = true;
        self
    }

    /// The longest key: 64 characters unless told otherwise, at most 255.
    pub fn longest(mut self, characters: usize) -> Self {
        self.settings.format.longest = characters;
        self
    }

    /// The largest request body, in bytes: 1 MiB unless told otherwise. It is read into memory, and
    /// what is larger is refused.
    pub fn request_limit(mut self, bytes: usize) -> Self {
        self.settings.request_limit = bytes;
        self
    }

    /// The largest response body that is kept, in bytes: 1 MiB unless told otherwise. What is
    /// larger goes to the first caller as it comes; repeats are told that it was executed.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.settings.response_limit = bytes;
        self
    }

    /// How long replies are kept: 24 hours, or longer.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// How long a server may be gone before its operation is an orphan: 30 s unless told
    /// otherwise. A handler may take longer, since its lease is renewed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How long an answer of the store is waited for: 5 s, or a third of the lease if that is
    /// shorter.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.settings.store_timeout = Some(timeout);
        self
    }

    /// How long a repeat waits for the reply of the first request, instead of being refused at
    /// once because that one is still processing.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// What happens with replies that say 5xx.
    pub fn server_errors(mut self, server_errors: ServerErrors) -> Self {
        self.settings.server_errors = server_errors;
        self
    }

    /// Response headers that are not to be stored, next to those that never are.
    pub fn unstored(mut self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        self.settings.unstored.more.extend(headers);
        self
    }

    /// Executes requests without protection when the store can't be reached or is full, instead of
    /// refusing them with 503: for operations where twice is better than not now. What the store
    /// holds but can't be read is never executed again.
    pub fn fail_open(mut self) -> Self {
        self.settings.fail_open = true;
        self
    }
}

impl<St: IdempotencyStore> IdempotencyBuilder<St, Scoped, Orphans> {
    /// The layer.
    ///
    /// # Errors
    ///
    /// A setting that is not allowed.
    pub fn build(self) -> Result<IdempotencyLayer<St>, ConfigError> {
        let Self {
            store,
            scope: Scoped(scope),
            orphans,
            settings,
        } = self;
        let times = Times {
            lease: settings.lease,
            retention: settings.retention,
            store_timeout: settings.store_timeout,
        };
        let store_timeout = times.check("idempotency", "retention", DAY, "24h (R-6)")?;
        let number = |field, value: usize, allowed: std::ops::RangeInclusive<usize>| {
            if allowed.contains(&value) {
                return Ok(());
            }
            let (least, most) = allowed.into_inner();
            let allowed = match most {
                usize::MAX => format!("at least {least}"),
                _ => format!("{least} to {most}"),
            };
            Err(ConfigError::new(None, field, value, allowed))
        };
        number(
            "idempotency.longest",
            settings.format.longest,
            1..=LONGEST_CONFIGURABLE,
        )?;
        number(
            "idempotency.request_limit",
            settings.request_limit,
            1..=usize::MAX,
        )?;
        number(
            "idempotency.response_limit",
            settings.response_limit,
            1..=usize::MAX,
        )?;
        number(
            "idempotency.methods",
            settings.methods.len(),
            1..=usize::MAX,
        )?;
        let most = Duration::from_secs(60);
        if settings.wait > most {
            let value = format!("{:?}", settings.wait);
            return Err(ConfigError::new(
                None,
                "idempotency.wait",
                value,
                "at most 60s",
            ));
        }
        let engine = Engine::new(
            store,
            settings.lease,
            settings.retention,
            orphans,
            store_timeout,
        );
        Ok(IdempotencyLayer::new(Shared {
            engine: Arc::new(engine),
            settings,
            scope,
        }))
    }
}

/// The times of an engine.
pub(super) struct Times {
    pub(super) lease: Duration,
    pub(super) retention: Duration,
    pub(super) store_timeout: Option<Duration>,
}

impl Times {
    /// Whether they are allowed, and then how long the store is waited for.
    pub(super) fn check(
        &self,
        section: &str,
        retention_name: &str,
        least: Duration,
        least_name: &str,
    ) -> Result<Duration, ConfigError> {
        let refused = |field, value: Duration, allowed: String| {
            let field = format!("{section}.{field}");
            Err(ConfigError::new(
                None,
                field,
                format_args!("{value:?}"),
                allowed,
            ))
        };
        let Self {
            lease,
            retention,
            store_timeout,
        } = *self;
        if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&lease) {
            return refused("lease", lease, "1s to 10min".into());
        }
        if !(least..=365 * DAY).contains(&retention) {
            return refused(
                retention_name,
                retention,
                format!("{least_name} to 365 days"),
            );
        }
        // A renewal that is given this long is still in time.
        let longest = lease / 3;
        match store_timeout {
            None => Ok(longest.min(Duration::from_secs(5))),
            Some(timeout) if timeout.is_zero() || timeout > longest => {
                let allowed = format!("more than 0, up to {longest:?}, a third of the lease");
                refused("store_timeout", timeout, allowed)
            }
            Some(timeout) => Ok(timeout),
        }
    }
}
