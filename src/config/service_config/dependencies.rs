use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use http::{Request, StatusCode};

use super::{GrpcBackoff, HedgingPolicy, MethodConfig, ServiceConfig};
use crate::{
    call::RetryOverride,
    classify::{KeysHonoured, Rules},
    dependency::{Dependencies, DependenciesBuilder, Locate},
    error::ConfigError,
    http::GrpcCode,
    policy::{Policies, Policy, PolicyBuilder},
};

/// The largest floor of a budget: half of gRPC's tokens may be hundreds.
const LARGEST_FLOOR: f64 = 10.0;

/// HTTP's statuses that gRPC reads as `UNAVAILABLE`.
const UNAVAILABLE: [StatusCode; 4] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// The shortest delay of a hedge.
const SHORTEST_DELAY: Duration = Duration::from_millis(1);

/// The longest wait of a retry of hedged attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Fields of a policy, and where a document sets them.
const PLACES: [(&str, &str); 9] = [
    ("total_timeout", "timeout"),
    ("attempt_timeout", "retryPolicy.perAttemptRecvTimeout"),
    ("max_retries", "retryPolicy.maxAttempts"),
    ("backoff", "retryPolicy.initialBackoff"),
    ("rules.retry_grpc", "retryPolicy.retryableStatusCodes"),
    ("rules.retry_grpc", "hedgingPolicy.nonFatalStatusCodes"),
    ("hedge", "hedgingPolicy"),
    ("hedge.min_delay", "hedgingPolicy.hedgingDelay"),
    ("budget.ratio", "retryThrottling.tokenRatio"),
];

impl ServiceConfig {
    /// Starts a registry for a peer, with a dependency for each `methodConfig` and one, named as the
    /// peer, for all other methods. `base` has the settings that the document does not make: the
    /// service's name, methods that are idempotent or unary, approvals.
    ///
    /// # Errors
    ///
    /// Names the place in the document whose value is beyond a rule and not approved, or the setting
    /// of `base`.
    pub fn dependencies(
        &self,
        peer: impl Into<Arc<str>>,
        base: PolicyBuilder,
    ) -> Result<DependenciesBuilder<crate::classify::Standard, ByMethod>, ConfigError> {
        let peer = peer.into();
        let base = self
            .throttled(base)
            .idempotent_methods(self.repeated().map(|name| name.to_string()));
        // Logs the approvals, once for all.
        let unlisted = without_statuses(base.clone()).build();
        let mut policies = Policies::new(unlisted.map_err(|error| self.placed(error, None))?);
        let mut names = HashMap::new();
        for method in &self.methods {
            let policy = method.policy(base.clone());
            let policy = policy.map_err(|error| self.placed(error, Some(method)))?;
            let name = dependency_name(&peer, method, &policies);
            policies = policies.policy_for(&name, policy);
            names.extend(
                method
                    .names
                    .iter()
                    .map(|method| (method.0.as_str().into(), name.clone())),
            );
        }
        let locate = ByMethod {
            peer,
            names: Arc::new(names),
        };
        Ok(Dependencies::builder(policies).with_locator(locate))
    }

    fn throttled(&self, base: PolicyBuilder) -> PolicyBuilder {
        let Some(throttling) = self.throttling else {
            return base;
        };
        let floor = (throttling.max_tokens / 2.0).clamp(1.0, LARGEST_FLOOR);
        base.budget_ratio(throttling.token_ratio)
            .budget_floor(floor as u32)
    }

    /// Returns an error of a policy with the place in the document that it is about.
    fn placed(&self, error: ConfigError, method: Option<&MethodConfig>) -> ConfigError {
        let is_there = |place: &str| match method {
            Some(method) if place.starts_with("hedgingPolicy") => method.hedging.is_some(),
            Some(method) if place.starts_with("retryPolicy") => method.retry.is_some(),
            _ => true,
        };
        let mut places = PLACES.iter();
        let place = places.find(|(field, place)| *field == error.field() && is_there(place));
        match (place, method) {
            (Some((_, place @ "retryThrottling.tokenRatio")), _) if self.throttling.is_some() => {
                error.renamed((*place).into())
            }
            (Some((_, place)), Some(method)) => error.renamed(format!("{}.{place}", method.path)),
            _ => error,
        }
    }
}

impl MethodConfig {
    fn policy(&self, base: PolicyBuilder) -> Result<Policy, ConfigError> {
        let mut builder = without_statuses(base);
        if let Some(timeout) = self.timeout {
            builder = builder.total_timeout(timeout);
        }
        if let Some(hedging) = &self.hedging {
            return hedging.apply(builder, &self.path)?.approved();
        }
        let Some(retry) = &self.retry else {
            return builder.approved();
        };
        builder = builder
            .max_retries(retry.max_attempts - 1)
            .backoff(retry.backoff);
        if let Some(timeout) = retry.attempt_timeout {
            builder = builder.attempt_timeout(timeout);
        }
        retry_codes(builder, &retry.codes).approved()
    }
}

impl HedgingPolicy {
    fn apply(&self, builder: PolicyBuilder, path: &str) -> Result<PolicyBuilder, ConfigError> {
        if self.delay < SHORTEST_DELAY {
            let field = format!("{path}.hedgingPolicy.hedgingDelay");
            let value = format!("{:?}", self.delay);
            let allowed = "at least 0.001s: a hedge goes out for a call that is late (H-1)";
            return Err(ConfigError::new(None, field, value, allowed));
        }
        let builder = builder
            .max_retries(self.max_attempts - 1)
            .count_hedges()
            .backoff(GrpcBackoff {
                initial: self.delay,
                max: LONGEST_WAIT.max(self.delay),
                multiplier: 2.0,
            })
            .hedge_delay(self.delay, self.delay);
        Ok(retry_codes(builder, &self.codes))
    }
}

/// Retries on these statuses.
fn retry_codes(builder: PolicyBuilder, codes: &[GrpcCode]) -> PolicyBuilder {
    let unavailable = codes
        .contains(&GrpcCode::Unavailable)
        .then_some(UNAVAILABLE);
    let builder = unavailable
        .into_iter()
        .flatten()
        .fold(builder, PolicyBuilder::retry_status);
    codes
        .iter()
        .copied()
        .fold(builder, PolicyBuilder::retry_grpc)
}

/// Retries on no status.
fn without_statuses(builder: PolicyBuilder) -> PolicyBuilder {
    let rules = Rules::standard();
    let statuses = rules.statuses.into_iter().chain(rules.once);
    let builder = statuses.fold(builder, PolicyBuilder::no_retry_status);
    rules
        .grpc
        .into_iter()
        .fold(builder, PolicyBuilder::no_retry_grpc)
}

/// Returns a name that no other entry has; they are compared without regard to case, and methods
/// are not.
fn dependency_name(peer: &str, method: &MethodConfig, known: &Policies) -> Arc<str> {
    let first = method.names.first().map_or("", |name| name.0.as_str());
    let name = match first {
        "" => format!("{peer}/*"),
        first => format!("{peer}/{first}"),
    };
    let taken = |name: &str| {
        known
            .iter()
            .any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    let numbered = (2..).map(|number| format!("{name}#{number}"));
    let mut candidates = std::iter::once(name.clone()).chain(numbered);
    candidates
        .find(|name| !taken(name))
        .unwrap_or_default()
        .into()
}

/// Locates gRPC calls by the `methodConfig` that their method has in a [`ServiceConfig`]. A
/// [`RetryOverride`] on the request may name another dependency.
#[derive(Debug, Clone)]
pub struct ByMethod {
    peer: Arc<str>,
    names: Arc<HashMap<Box<str>, Arc<str>>>,
}

impl ByMethod {
    fn name<B>(&self, request: &Request<B>) -> &str {
        let path = request.uri().path();
        let method = path.strip_prefix('/').unwrap_or(path);
        let service = method
            .rsplit_once('/')
            .map_or(method, |(service, _)| service);
        let found = [method, service, ""]
            .into_iter()
            .find_map(|name| self.names.get(name));
        found.unwrap_or(&self.peer)
    }
}

impl<B> Locate<Request<B>> for ByMethod {
    fn locate<'a>(&'a self, request: &'a Request<B>) -> Cow<'a, str> {
        let overrides = request.extensions().get::<RetryOverride>();
        let overridden = overrides.and_then(RetryOverride::dependency_name);
        Cow::Borrowed(overridden.unwrap_or_else(|| self.name(request)))
    }

    fn repeatable(&self, rules: &Rules, request: &Request<B>) -> bool {
        rules.repeatable(request, KeysHonoured::ByCaller)
    }
}
