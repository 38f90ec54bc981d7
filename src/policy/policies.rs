use std::collections::BTreeMap;

use super::{Audit, Policy};

/// A default policy, and policies of single dependencies.
///
/// A registry is made from it, and [reloaded] with it. A lone [`Policy`] converts into it.
///
/// ```
/// use tower_reprise::{Dependencies, Policy, policy::Policies};
///
/// let policies = Policies::new(Policy::http().build()?)
///     .policy_for("bank.example", Policy::bank().max_retries(1).build()?);
/// assert_eq!(policies.get("bank.example").max_retries(), 1);
/// assert_eq!(policies.get("elsewhere.example").max_retries(), 3);
///
/// let deps = Dependencies::new(policies);
/// assert_eq!(deps.get("Bank.example").policy().max_retries(), 1);
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
///
/// [reloaded]: crate::dependency::Dependencies::reload
#[derive(Debug, Clone)]
#[must_use]
pub struct Policies {
    default: Policy,
    own: BTreeMap<Box<str>, Policy>,
}

impl Policies {
    /// Uses this policy for every dependency.
    pub fn new(default: Policy) -> Self {
        Self {
            default,
            own: BTreeMap::new(),
        }
    }

    /// Uses another policy for one dependency. Names are compared without regard to case.
    pub fn policy_for(mut self, name: &str, policy: Policy) -> Self {
        self.own.insert(name.to_ascii_lowercase().into(), policy);
        self
    }

    /// Returns the policy of dependencies that have none of their own.
    #[must_use]
    pub fn default_policy(&self) -> &Policy {
        &self.default
    }

    /// Returns the policy of a dependency.
    #[must_use]
    pub fn get(&self, name: &str) -> &Policy {
        self.own(&name.to_ascii_lowercase())
            .unwrap_or(&self.default)
    }

    /// Iterates over the dependencies that have a policy of their own, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Policy)> {
        self.own.iter().map(|(name, policy)| (&**name, policy))
    }

    /// Lists every difference of all these policies from the standard.
    pub fn audit(&self) -> Audit {
        let default = Audit::default().merge("(default)", self.default.audit());
        self.iter().fold(default, |all, (name, policy)| {
            all.merge(name, policy.audit())
        })
    }

    /// Returns whether any of these policies hedges.
    pub(crate) fn hedge(&self) -> bool {
        let hedges = |policy: &Policy| policy.hedge().is_some();
        hedges(&self.default) || self.own.values().any(hedges)
    }

    /// Returns a dependency's own policy, by its name in lower case.
    pub(crate) fn own(&self, name: &str) -> Option<&Policy> {
        self.own.get(name)
    }
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Self {
        Self::new(policy)
    }
}
