//! Reads policies from TOML, JSON and the environment, and gRPC service configs.
//!
//! [`Policy`] and [`Policies`](crate::policy::Policies) have the functions for files of this crate; a
//! [`ServiceConfig`] is a document of gRPC's.

use serde::{Deserialize, Deserializer, de::Error};

use self::section::{Section, built_in_profile};
pub use self::service_config::{ByMethod, ServiceConfig};
use crate::{
    error::ConfigError,
    policy::{Policy, PolicyBuilder},
};

mod file;
mod read;
mod rules;
mod section;
mod serde_types;
mod service_config;
mod table;

impl Policy {
    /// Reads a policy from TOML. Only `profile` is required.
    ///
    /// ```
    /// # use tower_reprise::Policy;
    /// let policy = Policy::from_toml(r#"
    ///     profile = "synchronous"
    ///     service = "checkout"
    ///     max_retries = 2
    ///     total_timeout = "10s"
    ///     attempt_timeout = "1500ms"
    ///     backoff = { strategy = "full_jitter", base = "200ms", cap = "5s" }
    ///     budget = { ratio = 0.1, floor = 5, quota = { capacity = 500 } }
    ///     breaker = { consecutive_failures = 5, failure_rate = 0.5, minimum_calls = 20, window = "30s", cooldown = "2s", max_cooldown = "30s", on_budget_exhausted = "open_if_failing" }
    ///     retry_after = { mode = "hold", spread = "1s", longest = "1h" }
    ///     replay_limit = 65536
    ///     [rules]
    ///     no_retry_statuses = [500]
    ///     key_header = "idempotency-key"
    ///     idempotent_methods = ["ledger.v1.Ledger/Balance"]
    ///     codes = { preset = "bank", retry = ["BUSY"], never = ["FRAUD"], pointers = ["/fault/id"] }
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
    /// Names the field that can't be read, is unknown, or has a value that is not allowed.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        build(read::toml(text, "policy")?)
    }

    /// Reads a policy from JSON, with the same fields as [`from_toml`](Self::from_toml).
    ///
    /// # Errors
    ///
    /// Names the field that can't be read, is unknown, or has a value that is not allowed.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        build(read::json(text, "policy")?)
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
    /// Names the field that can't be read, is unknown, or has a value that is not allowed.
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
                        format!("{parent} is set to a single value as well"),
                    )
                })?;
            }
            table.insert(field.into(), value);
        }
        build(read::table(serde_json::Value::Object(document), "policy")?)
    }
}

/// For policies inside a configuration of your own.
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        build(Section::deserialize(deserializer)?).map_err(Error::custom)
    }
}

/// Builds a policy that is not in a file with others.
fn build(section: Section) -> Result<Policy, ConfigError> {
    let Some(name) = &section.profile else {
        return Err(ConfigError::unreadable(
            "policy".into(),
            "missing field `profile`".into(),
        ));
    };
    let profile = built_in_profile(name)
        .map_err(|error| ConfigError::unreadable("profile".into(), error.to_string()))?;
    section.apply(profile).build()
}

impl PolicyBuilder {
    /// Makes a setting that a document has.
    fn set<T>(self, value: Option<T>, setter: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => setter(self, value),
            None => self,
        }
    }

    /// Makes a setting that a document switches on.
    fn when(self, is_on: Option<bool>, setter: impl FnOnce(Self) -> Self) -> Self {
        self.set(is_on.filter(|is_on| *is_on), |builder, _| setter(builder))
    }
}
