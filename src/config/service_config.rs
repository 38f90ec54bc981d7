//! gRPC service configs: the JSON in which the owners of a gRPC service publish how it is retried.

mod dependencies;
mod node;
mod read;

use std::{sync::Arc, time::Duration};

pub use self::dependencies::ByMethod;
use crate::{backoff::Backoff, error::ConfigError, http::GrpcCode};

/// The most attempts that count, as in every gRPC library.
const MOST_ATTEMPTS: u64 = 5;

/// A gRPC service config, as grpc-go and grpc-java read it: a policy for each `methodConfig`.
///
/// ```
/// use std::time::Duration;
/// use tower_reprise::{Policy, config::ServiceConfig};
///
/// let config = ServiceConfig::from_json(r#"{
///     "methodConfig": [{
///         "name": [{"service": "ledger.v1.Ledger", "method": "Balance"}],
///         "timeout": "10s",
///         "retryPolicy": {
///             "maxAttempts": 4,
///             "initialBackoff": "0.1s",
///             "maxBackoff": "1s",
///             "backoffMultiplier": 2,
///             "retryableStatusCodes": ["UNAVAILABLE"]
///         }
///     }],
///     "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}
/// }"#)?;
/// // For a channel, with `stacks::tonic::client(deps)`.
/// let deps = config.dependencies("ledger.example", Policy::grpc_unary())?.build();
/// let balance = deps.get("ledger.example/ledger.v1.Ledger/Balance");
/// assert_eq!(balance.policy().max_retries(), 3);
/// assert_eq!(balance.policy().total_timeout(), Duration::from_secs(10));
///
/// let error = ServiceConfig::from_json(r#"{"methodConfig": [{
///     "name": [{"service": "ledger.v1.Ledger"}],
///     "retryPolicy": {"maxAttempts": 1}
/// }]}"#).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "methodConfig[0].retryPolicy.maxAttempts is 1, allowed: an integer of at least 2",
/// );
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
///
/// | in the document | in the policy |
/// | --- | --- |
/// | `name` | a dependency of its own, `PEER/SERVICE/METHOD` by the first name, in lower case: a policy, a budget, a breaker. A name with a method comes before its service, that before the default `{}` |
/// | `timeout` | [`total_timeout`](crate::Policy::total_timeout); beyond 30 s it takes an approval of R-3 |
/// | `maxAttempts` | [`max_retries`](crate::Policy::max_retries) and one; more than 5 are 5 |
/// | `initialBackoff`, `maxBackoff`, `backoffMultiplier` | full jitter (R-1): uniform below `min(initial · multiplierⁿ, max)`. gRPC's own jitter, 20 % around that, is not offered |
/// | `retryableStatusCodes` | the gRPC statuses that are retried, and no others; those that R-4 does not list take its approval. `UNAVAILABLE` stands for HTTP's 429, 502, 503 and 504 too. A broken connection is retried as ever |
/// | a method or service with a `retryPolicy` | [declared idempotent](crate::policy::PolicyBuilder::idempotent_methods), by its owner. The default `{}` names no method and declares none: its calls are retried with a declaration or key of yours, if never sent, or with an approval of R-6 and [`retry_without_key`](crate::policy::PolicyBuilder::retry_without_key) |
/// | `perAttemptRecvTimeout` | [`attempt_timeout`](crate::Policy::attempt_timeout) |
/// | no `retryPolicy` | no status is retried: a call is repeated only if the connection failed, as gRPC's transparent retries are |
/// | no `methodConfig` for a method | the same, under the name of the peer |
/// | `retryThrottling` | the budget: `tokenRatio` (3 decimals count) is its ratio, which takes an approval of R-7 beyond 0.2, and half of `maxTokens` its floor, 10 at most. Without it, the default |
/// | `hedgingPolicy` | [`hedge`](crate::Policy::hedge), under the budget as every hedge is; its methods are declared idempotent as those of a `retryPolicy`. [`HedgeLayer`](crate::HedgeLayer) has to be in the stack, as it is in `stacks::client` |
/// | its `hedgingDelay` | the delay of a hedge, at least 1 ms: a hedge goes out for a call that is late (H-1), so that none, or 0, which sends all attempts at once, is an error of [`dependencies`](Self::dependencies) |
/// | its `maxAttempts` | [`max_retries`](crate::Policy::max_retries) and one, of which [hedges are a part](crate::policy::PolicyBuilder::count_hedges); no more than two attempts are out at a time. More than 5 are 5 |
/// | its `nonFatalStatusCodes` | an attempt that fails so leaves the call to the other one, and then to a retry, whose wait is full jitter from `hedgingDelay` on (R-1). Any other status ends the call. They take the approvals of `retryableStatusCodes` |
/// | `waitForReady` and other fields | ignored; [`notes`](Self::notes) says which |
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct ServiceConfig {
    methods: Vec<MethodConfig>,
    throttling: Option<Throttling>,
    notes: Vec<String>,
}

/// The configuration of the methods of these names.
#[derive(Debug, Clone, PartialEq)]
struct MethodConfig {
    /// Its place in the document.
    path: String,
    names: Vec<MethodName>,
    timeout: Option<Duration>,
    retry: Option<RetryPolicy>,
    hedging: Option<HedgingPolicy>,
}

/// A method, a service, or all services, for which it is empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MethodName(String);

#[derive(Debug, Clone, PartialEq)]
struct RetryPolicy {
    max_attempts: u32,
    backoff: GrpcBackoff,
    codes: Vec<GrpcCode>,
    attempt_timeout: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq)]
struct HedgingPolicy {
    max_attempts: u32,
    /// Zero sends all attempts at once.
    delay: Duration,
    codes: Vec<GrpcCode>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Throttling {
    max_tokens: f64,
    token_ratio: f64,
}

/// Full jitter with a factor of its own.
#[derive(Debug, Clone, Copy, PartialEq)]
struct GrpcBackoff {
    initial: Duration,
    max: Duration,
    multiplier: f64,
}

impl Backoff for GrpcBackoff {
    fn delay(&self, retry: u32, _previous: Duration, uniform: f64) -> Duration {
        let factor = self
            .multiplier
            .powi(i32::try_from(retry).unwrap_or(i32::MAX));
        let bound = Duration::try_from_secs_f64(self.initial.as_secs_f64() * factor);
        crate::backoff::below(bound.unwrap_or(self.max).min(self.max), uniform)
    }
}

impl ServiceConfig {
    /// Reads a document, and checks it by the rules of gRFC A6 and of the two libraries. Where those
    /// differ, what one of them refuses is refused.
    ///
    /// # Errors
    ///
    /// Names the place in the document, its value, and what is allowed.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        read::document(text)
    }

    /// Returns what the document says and this crate has no use for, with its place.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the names of all methods and services that the document retries or hedges.
    fn repeated(&self) -> impl Iterator<Item = Arc<str>> {
        let repeats = |method: &&MethodConfig| method.retry.is_some() || method.hedging.is_some();
        let names = self
            .methods
            .iter()
            .filter(repeats)
            .flat_map(|method| &method.names);
        names
            .filter(|name| !name.0.is_empty())
            .map(|name| name.0.as_str().into())
    }
}
