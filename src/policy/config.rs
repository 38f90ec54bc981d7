//! Policies from TOML, JSON and the environment.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};

use self::{rules::RulesFile, written::Human};
use super::{Exhaustion, Policy, PolicyBuilder, Profile, RetryAfterMode, Rule};
use crate::error::ConfigError;

mod rules;
mod written;

impl Policy {
    /// Reads a policy from TOML. Only `profile` is required.
    ///
    /// ```
    /// # use tower_reprise::Policy;
    /// let policy = Policy::from_toml(r#"
    ///     profile = "synchronous"
    ///     service = "checkout"
    ///     max_retries = 2
    ///     total = "10s"
    ///     attempt_timeout = "1500ms"
    ///     backoff = { strategy = "full_jitter", base = "200ms", cap = "5s" }
    ///     budget = { ratio = 0.1, floor = 5 }
    ///     breaker = { consecutive_failures = 5, failure_rate = 0.5, minimum_calls = 20, window = "30s", cooldown = "2s", max_cooldown = "30s", on_budget_exhausted = "open_if_failing" }
    ///     retry_after = { mode = "hold", spread = "1s", longest = "1h" }
    ///     replay_limit = 65536
    ///     [rules]
    ///     no_retry_statuses = [500]
    ///     key_header = "idempotency-key"
    ///     idempotent_methods = ["ledger.v1.Ledger/Balance"]
    ///     codes = { preset = "forrst", retry = ["BUSY"], never = ["FRAUD"], pointers = ["/fault/id"] }
    /// "#)?;
    /// assert_eq!(policy.max_retries(), 2);
    ///
    /// let error = Policy::from_toml("profile = 'bank'\nbackoff = { base = '3 parsecs' }").unwrap_err();
    /// assert_eq!(error.field(), "backoff.base");
    /// # Ok::<(), tower_reprise::error::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What can't be read, what is unknown, and what is not allowed, with the field's name.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let document = toml::Deserializer::parse(text)
            .map_err(|error| ConfigError::unreadable("TOML".into(), error.to_string()))?;
        read(document)
    }

    /// Reads a policy from JSON, with the same fields as [`from_toml`](Self::from_toml).
    ///
    /// # Errors
    ///
    /// What can't be read, what is unknown, and what is not allowed, with the field's name.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let mut document = serde_json::Deserializer::from_str(text);
        let policy = read(&mut document)?;
        let end = document.end();
        end.map_err(|error| ConfigError::unreadable("JSON".into(), error.to_string()))?;
        Ok(policy)
    }

    /// Reads a policy from variables that begin with a prefix: with `REPRISE_`, `REPRISE_PROFILE`
    /// is `profile` and `REPRISE_BACKOFF__BASE` is `backoff.base`. Lists are written as JSON.
    ///
    /// ```
    /// # use tower_reprise::Policy;
    /// let variables = [("REPRISE_PROFILE", "bank"), ("REPRISE_BACKOFF__BASE", "250ms"), ("HOME", "/")];
    /// let policy = Policy::from_env("REPRISE_", variables)?;
    /// assert_eq!(policy.max_retries(), 3);
    /// # Ok::<(), tower_reprise::error::ConfigError>(())
    /// ```
    ///
    /// Call it with `std::env::vars()` to read the real ones.
    ///
    /// # Errors
    ///
    /// What can't be read, what is unknown, and what is not allowed, with the field's name.
    pub fn from_env<K, V>(
        prefix: &str,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError>
    where
        K: AsRef<str>,
        V: AsRef<str>,
    {
        let mut document = serde_json::Map::new();
        for (name, value) in variables {
            let Some(path) = name.as_ref().strip_prefix(prefix) else {
                continue;
            };
            let value = value.as_ref();
            let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            let path = path.to_ascii_lowercase();
            let mut parents: Vec<_> = path.split("__").collect();
            let field = parents.pop().unwrap_or_default();
            let mut table = &mut document;
            for parent in parents {
                let entry = table
                    .entry(parent)
                    .or_insert_with(|| serde_json::Map::new().into());
                table = entry.as_object_mut().ok_or_else(|| {
                    ConfigError::unreadable(
                        path.clone(),
                        format!("{parent} is set to a single value too"),
                    )
                })?;
            }
            table.insert(field.into(), value);
        }
        read(serde_json::Value::Object(document))
    }
}

/// For policies inside a configuration of your own.
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        File::deserialize(deserializer)?
            .build()
            .map_err(Error::custom)
    }
}

fn read<'de, D>(deserializer: D) -> Result<Policy, ConfigError>
where
    D: Deserializer<'de>,
{
    let file: File = serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let field = match error.path().to_string() {
            path if path == "." => "policy".into(),
            path => path,
        };
        ConfigError::unreadable(field, error.into_inner().to_string().trim().to_owned())
    })?;
    file.build()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    profile: Profile,
    service: Option<String>,
    max_retries: Option<u32>,
    deliveries: Option<u32>,
    total: Option<Human>,
    attempt_timeout: Option<Human>,
    #[serde(default)]
    backoff: BackoffFile,
    #[serde(default)]
    budget: BudgetFile,
    #[serde(default)]
    breaker: BreakerFile,
    #[serde(default)]
    retry_after: RetryAfterFile,
    #[serde(default)]
    rules: RulesFile,
    replay_limit: Option<usize>,
    replay_pool: Option<usize>,
    dead_letters: Option<String>,
    #[serde(default)]
    approvals: Vec<ApprovalFile>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackoffFile {
    strategy: Option<Strategy>,
    base: Option<Human>,
    cap: Option<Human>,
}

#[derive(PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Strategy {
    FullJitter,
    Decorrelated,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetFile {
    off: Option<bool>,
    ratio: Option<f64>,
    floor: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct BreakerFile {
    consecutive_failures: Option<u32>,
    failure_rate: Option<f64>,
    minimum_calls: Option<u32>,
    window: Option<Human>,
    cooldown: Option<Human>,
    max_cooldown: Option<Human>,
    on_budget_exhausted: Option<Exhaustion>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryAfterFile {
    mode: Option<RetryAfterMode>,
    spread: Option<Human>,
    longest: Option<Human>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalFile {
    rule: Rule,
    reason: String,
}

impl File {
    fn build(self) -> Result<Policy, ConfigError> {
        let builder = PolicyBuilder::new(self.profile);
        let builder = set(builder, self.service, PolicyBuilder::service);
        let builder = set(builder, self.max_retries, PolicyBuilder::max_retries);
        let builder = set(builder, self.deliveries, PolicyBuilder::deliveries);
        let builder = set(builder, human(self.total), PolicyBuilder::total);
        let builder = set(
            builder,
            human(self.attempt_timeout),
            PolicyBuilder::attempt_timeout,
        );
        let builder = set(builder, human(self.backoff.base), PolicyBuilder::base);
        let builder = set(builder, human(self.backoff.cap), PolicyBuilder::cap);
        let decorrelated = self.backoff.strategy == Some(Strategy::Decorrelated);
        let builder = if decorrelated {
            builder.decorrelated()
        } else {
            builder
        };
        let builder = set(builder, self.budget.ratio, PolicyBuilder::budget_ratio);
        let builder = set(builder, self.budget.floor, PolicyBuilder::budget_floor);
        let off = self.budget.off == Some(true);
        let builder = if off {
            builder.without_budget()
        } else {
            builder
        };
        let builder = self.breaker.apply(builder);
        let builder = set(
            builder,
            self.retry_after.mode,
            PolicyBuilder::retry_after_mode,
        );
        let builder = set(
            builder,
            human(self.retry_after.spread),
            PolicyBuilder::retry_after_spread,
        );
        let builder = set(
            builder,
            human(self.retry_after.longest),
            PolicyBuilder::retry_after_longest,
        );
        let builder = self.rules.apply(builder);
        let builder = set(builder, self.replay_limit, PolicyBuilder::replay_limit);
        let builder = set(builder, self.replay_pool, PolicyBuilder::replay_pool);
        let builder = set(builder, self.dead_letters, PolicyBuilder::dead_letters);
        let approve = |builder: PolicyBuilder, a: ApprovalFile| builder.approve(a.rule, a.reason);
        self.approvals.into_iter().fold(builder, approve).build()
    }
}

impl BreakerFile {
    fn apply(self, builder: PolicyBuilder) -> PolicyBuilder {
        let now = builder.breaker_policy();
        let builder = set(
            builder,
            self.consecutive_failures,
            PolicyBuilder::consecutive_failures,
        );
        let builder = set(
            builder,
            self.on_budget_exhausted,
            PolicyBuilder::on_budget_exhausted,
        );
        builder
            .failure_rate(
                self.failure_rate.unwrap_or(now.failure_rate),
                self.minimum_calls.unwrap_or(now.minimum_calls),
                human(self.window).unwrap_or(now.window),
            )
            .cooldown(
                human(self.cooldown).unwrap_or(now.cooldown),
                human(self.max_cooldown).unwrap_or(now.max_cooldown),
            )
    }
}

fn set<T>(
    builder: PolicyBuilder,
    value: Option<T>,
    setter: impl FnOnce(PolicyBuilder, T) -> PolicyBuilder,
) -> PolicyBuilder {
    match value {
        Some(value) => setter(builder, value),
        None => builder,
    }
}

fn human(value: Option<Human>) -> Option<Duration> {
    value.map(|Human(duration)| duration)
}
