//! The policy: read, audited, and read again.

use tower_reprise::{Dependencies, Policy, error::BoxError, policy::Policies};

use crate::usage_error::UsageError;

/// Reads a policy, or takes the standard's. One that breaks a rule is refused.
pub(crate) fn open(path: Option<&str>) -> Result<Policies, BoxError> {
    let Some(path) = path else {
        let standard = Policy::http().service("gateway").build()?;
        return Ok(standard.into());
    };
    let policies = Policies::open(path)?;
    let audit = policies.audit();
    // An approved violation is its approver's responsibility.
    if audit.violations().any(|finding| finding.approval.is_none()) {
        let allowed = format!("a policy that keeps the standard; it breaks it:\n{audit}");
        return Err(UsageError::new("policy", path, allowed).into());
    }
    Ok(policies)
}

/// The dependencies of the upstream, and of the callers' retries.
#[derive(Clone)]
pub(crate) struct Registries {
    pub(crate) upstream: Dependencies,
    pub(crate) inbound: Dependencies,
}

impl Registries {
    pub(crate) fn new(policies: &Policies) -> Self {
        Self {
            upstream: Dependencies::new(policies.clone()),
            inbound: Dependencies::new(policies.clone()),
        }
    }

    /// Reads the policy again. What can't be used is not used, and calls go on by the old one.
    pub(crate) fn reload(&self, path: Option<&str>) {
        match path.map(|path| open(Some(path))) {
            None => tracing::warn!("there is no policy file to read again"),
            Some(Ok(policies)) => {
                self.upstream.reload(policies.clone());
                self.inbound.reload(policies);
                tracing::info!("the policy was read again");
            }
            Some(Err(error)) => tracing::error!(%error, "the policy stays as it was"),
        }
    }
}
