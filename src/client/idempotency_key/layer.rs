use std::sync::Arc;

use http::HeaderName;
use tower::Layer;

use super::IdempotencyKeyService;
use crate::call::key::{LONGEST, LONGEST_CONFIGURABLE};
use crate::{error::ConfigError, http::headers::IDEMPOTENCY_KEY, policy::Audit};

/// Stamps an idempotency key on each POST and PATCH that has none. See the [module docs](super).
#[derive(Debug, Clone)]
#[must_use]
pub struct IdempotencyKeyLayer<P = ()> {
    persist: P,
    settings: Settings,
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) header: HeaderName,
    pub(super) quoted: bool,
    pub(super) longest: usize,
    pub(super) idempotent_methods: Arc<[String]>,
}

impl IdempotencyKeyLayer {
    /// Makes a layer that stamps random UUIDs, bare, in the `Idempotency-Key` header.
    pub fn new() -> Self {
        Self {
            persist: (),
            settings: Settings {
                header: IDEMPOTENCY_KEY,
                quoted: false,
                longest: LONGEST,
                idempotent_methods: Arc::default(),
            },
        }
    }
}

impl Default for IdempotencyKeyLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<P> IdempotencyKeyLayer<P> {
    /// Sets the header. The policy must know it too:
    /// [`PolicyBuilder::key_header`](crate::policy::PolicyBuilder::key_header).
    pub fn header(mut self, name: HeaderName) -> Self {
        self.settings.header = name;
        self
    }

    /// Sends the key as a structured-field string, `"…"`, as the IETF draft has it.
    pub fn quoted(mut self) -> Self {
        self.settings.quoted = true;
        self
    }

    /// Sets the longest key that is sent, up to 255. Default: 64.
    ///
    /// # Errors
    ///
    /// For zero, or more than 255.
    pub fn max_key_len(mut self, longest: usize) -> Result<Self, ConfigError> {
        ConfigError::within("longest", longest, 1..=LONGEST_CONFIGURABLE, "1 to 255")?;
        self.settings.longest = longest;
        Ok(self)
    }

    /// Declares gRPC methods that are safe to repeat without a key, and so get none:
    /// `package.Service/Method`, or `package.Service` for all of a service's. The policy must declare
    /// them too, or calls of them are not repeated:
    /// [`PolicyBuilder::idempotent_methods`](crate::policy::PolicyBuilder::idempotent_methods).
    pub fn idempotent_methods<T: Into<String>>(
        mut self,
        methods: impl IntoIterator<Item = T>,
    ) -> Self {
        self.settings.idempotent_methods = methods.into_iter().map(Into::into).collect();
        self
    }

    /// Stores each key before it is first sent: see [`PersistKey`](super::PersistKey).
    pub fn with_persist<Q>(self, persist: Q) -> IdempotencyKeyLayer<Q> {
        IdempotencyKeyLayer {
            persist,
            settings: self.settings,
        }
    }
}

impl<S, P: Clone> Layer<S> for IdempotencyKeyLayer<P> {
    type Service = IdempotencyKeyService<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyKeyService {
            inner,
            persist: self.persist.clone(),
            settings: self.settings.clone(),
        }
    }
}

/// Reports keys that may be longer than R-6 allows.
impl<P> From<&IdempotencyKeyLayer<P>> for Audit {
    fn from(layer: &IdempotencyKeyLayer<P>) -> Self {
        Self::of_key_len(layer.settings.longest)
    }
}
