use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderName, Method, Request};

use super::{
    Dialect, Http, IdempotencyLayer, Requirement, ServerErrors,
    engine::Engine,
    settings::{Scope, Settings, Shared},
    times::{DAY, Times},
};
use crate::http::header_filter::Unstored;
use crate::{
    call::key::{LONGEST, LONGEST_CONFIGURABLE},
    error::ConfigError,
    store::{CrashPolicy, IdempotencyStore},
};

/// Builds an [`IdempotencyLayer`]. There is no layer before it is said whose keys are whose
/// ([`scope`](IdempotencyBuilder::scope)) and what happens to an operation whose server died
/// ([`orphans`](IdempotencyBuilder::orphans)): there is no answer that is right for everybody.
///
/// ```compile_fail,E0277
/// use tower_reprise::{server::idempotency::IdempotencyLayer, store::{MemoryStore, CrashPolicy}};
///
/// // Whose keys?
/// let layer = IdempotencyLayer::builder(MemoryStore::new()).orphans(CrashPolicy::Reexecute).build();
/// ```
///
/// ```compile_fail,E0277
/// use tower_reprise::{server::idempotency::IdempotencyLayer, store::MemoryStore};
///
/// // And what if this process dies while it executes one?
/// let layer = IdempotencyLayer::builder(MemoryStore::new())
///     .scope(|req| req.extensions().get::<String>().cloned())
///     .build();
/// ```
#[must_use]
pub struct IdempotencyBuilder<St, P = Missing, O = Missing, D = Http> {
    store: St,
    scope: P,
    orphans: O,
    dialect: D,
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

impl<St, P, O, D> fmt::Debug for IdempotencyBuilder<St, P, O, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyBuilder")
    }
}

/// What has to be said before there is a layer: a bound can tell what is missing, where the lack of
/// a method could not.
mod said {
    use super::Scoped;
    use crate::store;

    #[diagnostic::on_unimplemented(
        message = "it was not said whose idempotency keys are whose",
        label = "there is no layer before `.scope(…)`",
        note = "without a scope one caller could get another's reply: \
                `.scope(|request| request.extensions().get::<Principal>().map(|p| p.id.clone()))`",
        note = "if nobody is known, say so: `.scope(|_| None::<String>).anonymous(\"everybody\")`"
    )]
    pub trait Scope {
        fn get(self) -> Scoped;
    }

    impl Scope for Scoped {
        fn get(self) -> Self {
            self
        }
    }

    #[diagnostic::on_unimplemented(
        message = "it was not said what happens to an operation whose server died",
        label = "there is no layer before `.orphans(…)`",
        note = "`.orphans(Orphans::Reexecute)` executes it again, and is right if that does no harm",
        note = "`.orphans(Orphans::Unknown)` tells callers that nobody knows how it ended"
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
            orphans: Missing,
            dialect: Http::new(),
            settings: Settings {
                longest: LONGEST,
                anonymous: None,
                namespace: Arc::from(""),
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

impl<St, O, D> IdempotencyBuilder<St, Missing, O, D> {
    /// Who asks: the tenant or principal that a key belongs to, from what an authentication layer
    /// outside of this one put on the request. Two callers with the same key have nothing to do
    /// with each other, so it must tell callers apart that may not see each other's replies.
    ///
    /// `None` is a caller that is not known. Such are refused, unless there is a scope for
    /// [`anonymous`](IdempotencyBuilder::anonymous) callers.
    pub fn scope<F, T>(self, scope: F) -> IdempotencyBuilder<St, Scoped, O, D>
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
            dialect: self.dialect,
            settings: self.settings,
        }
    }
}

impl<St, P, D> IdempotencyBuilder<St, P, Missing, D> {
    /// What happens to an operation whose server died, or whose handler panicked: see [`CrashPolicy`].
    pub fn orphans(self, orphans: CrashPolicy) -> IdempotencyBuilder<St, P, CrashPolicy, D> {
        IdempotencyBuilder {
            store: self.store,
            scope: self.scope,
            orphans,
            dialect: self.dialect,
            settings: self.settings,
        }
    }
}

/// What is said about plain HTTP.
impl<St, P, O> IdempotencyBuilder<St, P, O> {
    /// What a key is unique for, next to caller, namespace and method: the path, unless told
    /// otherwise. With the pattern of a route (axum's `MatchedPath`) a key that was used for one
    /// item can't be used for another.
    pub fn route<F, T>(mut self, route: F) -> Self
    where
        F: Fn(&Request<()>) -> T + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        self.dialect.route = Arc::new(move |head, digest| digest.part(route(head)));
        self
    }

    /// The methods that keys are for, instead of POST and PATCH. Others are passed on.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.dialect.methods = methods.into_iter().collect();
        self
    }

    /// Which requests need a key: all of those methods, unless told otherwise.
    pub fn requirement<F>(mut self, requirement: F) -> Self
    where
        F: Fn(&Request<()>) -> Requirement + Send + Sync + 'static,
    {
        self.dialect.requirement = Arc::new(requirement);
        self
    }

    /// The header that the key is in, instead of `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.dialect.format.header = name;
        self
    }

    /// Takes keys only as the IETF draft has them, in quotes.
    pub fn strict(mut self) -> Self {
        self.dialect.format.strict = true;
        self
    }

    /// Another dialect than plain HTTP: `forrst::Forrst`. What was said about headers, methods and
    /// routes is of no use to it, and forgotten.
    pub fn with_dialect<D: Dialect>(self, dialect: D) -> IdempotencyBuilder<St, P, O, D> {
        IdempotencyBuilder {
            store: self.store,
            scope: self.scope,
            orphans: self.orphans,
            dialect,
            settings: self.settings,
        }
    }
}

impl<St, P, O, D> IdempotencyBuilder<St, P, O, D> {
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

    /// The longest key: 64 characters unless told otherwise, at most 255.
    pub fn longest(mut self, characters: usize) -> Self {
        self.settings.longest = characters;
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

impl<St, P, O, D: Dialect> IdempotencyBuilder<St, P, O, D> {
    /// The layer.
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
            orphans,
            dialect,
            settings,
        } = self;
        let (Scoped(scope), orphans) = (scope.get(), orphans.get());
        dialect.check()?;
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
            settings.longest,
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
            settings.fail_open,
        );
        Ok(IdempotencyLayer::new(Shared {
            engine: Arc::new(engine),
            settings,
            scope,
            dialect,
        }))
    }
}
