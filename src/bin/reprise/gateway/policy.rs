//! The policies: read, audited, and read again.

use toml::Table;
use tower_reprise::{
    Dependencies, Policy,
    error::{BoxError, ConfigError},
    policy::Policies,
};

use super::upstream::UpstreamSettings;
use crate::usage_error::UsageError;

/// Reads policies of a file or of tables, or takes the standard's. Those that break a rule are
/// refused.
pub(crate) fn open(path: Option<&str>, tables: Option<&Table>) -> Result<Policies, BoxError> {
    let (policies, place) = match (path, tables) {
        (Some(path), _) => (Policies::open(path)?, path),
        (None, Some(tables)) => {
            let read = Policies::from_toml(&toml::to_string(tables)?);
            (read.map_err(|error| in_place(&error))?, "[policy]")
        }
        (None, None) => {
            let standard = Policy::http().service("gateway").build()?;
            return Ok(standard.into());
        }
    };
    let audit = policies.audit();
    // An approved violation is its approver's responsibility.
    if audit.violations().any(|finding| finding.approval.is_none()) {
        let allowed = format!("a policy that keeps the standard; it breaks it:\n{audit}");
        return Err(UsageError::new("policy", place, allowed).into());
    }
    Ok(policies)
}

/// An error of a policy's table, by the table's place in the file.
fn in_place(error: &ConfigError) -> BoxError {
    let own = error.field().strip_prefix("dependencies.");
    let field = match own.and_then(|own| own.split_once('.')) {
        Some((name, field)) => format!("upstreams.{name}.policy.{field}"),
        None => format!("policy.{}", error.field()),
    };
    if error.value().is_empty() {
        // Without the line of a text that was made of the table.
        let why = error.allowed().lines().last().unwrap_or_default();
        return format!("{field}: {why}").into();
    }
    error.to_string().replacen(error.field(), &field, 1).into()
}

/// Adds the policies of endpoints, which are their upstream's.
pub(crate) fn with_endpoints(policies: Policies, upstreams: &[UpstreamSettings]) -> Policies {
    let with = |policies: Policies, upstream: &UpstreamSettings| {
        let names = upstream.endpoint_names();
        let own = names.into_iter().filter(|name| **name != *upstream.name);
        own.fold(policies, |policies, name| {
            let known = policies.iter().any(|(known, _)| known == &*name);
            let policy = policies.get(&upstream.name).clone();
            match known {
                true => policies,
                false => policies.policy_for(&name, policy),
            }
        })
    };
    upstreams.iter().fold(policies, with)
}

/// The dependencies of the upstream, and of the callers' retries.
#[derive(Clone)]
pub(crate) struct Registries {
    pub(crate) upstream: Dependencies,
    pub(crate) inbound: Dependencies,
}

impl Registries {
    pub(crate) fn new(policies: &Policies) -> Self {
        let registry = || {
            let builder = Dependencies::builder(policies.clone());
            builder.recorder_installed().build()
        };
        Self {
            upstream: registry(),
            inbound: registry(),
        }
    }

    /// Takes other policies. Calls that are under way end by the ones that they began with.
    pub(crate) fn reload(&self, policies: &Policies) {
        self.upstream.reload(policies.clone());
        self.inbound.reload(policies.clone());
    }
}
