//! The policy: read, audited, and read again.

use std::process::ExitCode;

use http::{HeaderName, Method, Request, header};
use tower_reprise::{
    Dependencies, Policy,
    call::Verdict,
    classify::{Classify, Rules, Standard},
    error::BoxError,
    policy::Policies,
};

use crate::{settings::Resend, wrong::Wrong};

/// Reads a policy, or takes the standard's. One that breaks a rule is refused.
pub(crate) fn open(path: Option<&str>) -> Result<Policies, BoxError> {
    let Some(path) = path else {
        let standard = Policy::synchronous().service("gateway").build()?;
        return Ok(standard.into());
    };
    let policies = Policies::open(path)?;
    let audit = policies.audit();
    if !audit.is_compliant() {
        let allowed = format!("a policy that keeps the standard; it breaks it:\n{audit}");
        return Err(Wrong::new("policy", path, allowed).into());
    }
    Ok(policies)
}

/// Says what an audit finds.
pub(crate) fn check(path: &str) -> ExitCode {
    match Policies::check(path) {
        Ok(audit) => {
            println!("{audit}");
            let kept = audit.is_compliant();
            println!(
                "{path}: {}",
                if kept {
                    "in order"
                } else {
                    "breaks the standard"
                }
            );
            ExitCode::from(u8::from(!kept))
        }
        Err(error) => {
            eprintln!("gateway: {error}");
            ExitCode::from(2)
        }
    }
}

/// What is known of the upstream, and of the callers' retries.
#[derive(Clone)]
pub(crate) struct Registries {
    pub(crate) upstream: Dependencies<Writes>,
    pub(crate) inbound: Dependencies,
}

impl Registries {
    pub(crate) fn new(policies: &Policies, resend: Resend) -> Self {
        Self {
            upstream: Dependencies::builder(policies.clone())
                .with_classifier(Writes(resend))
                .build(),
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

/// A header that no request to the upstream has.
const NOBODYS: HeaderName = header::CONNECTION;

/// The standard's idea of an outcome, and the operator's of which requests may be sent again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writes(Resend);

impl<B, R> Classify<Request<B>, R> for Writes
where
    Standard: Classify<Request<B>, R>,
{
    fn repeatable(&self, rules: &Rules, request: &Request<B>) -> bool {
        let is_write = matches!(*request.method(), Method::POST | Method::PATCH);
        let keyed = || request.headers().contains_key(&rules.key_header);
        if !(self.0 == Resend::Unsent && is_write && keyed()) {
            return Standard.repeatable(rules, request);
        }
        // Its key is nothing to the upstream. A method that the policy calls idempotent is so still.
        let mut keyless = rules.clone();
        keyless.key_header = NOBODYS;
        Standard.repeatable(&keyless, request)
    }

    fn classify(
        &self,
        rules: &Rules,
        outcome: Result<&R, &(dyn std::error::Error + 'static)>,
    ) -> Verdict {
        Classify::<Request<B>, R>::classify(&Standard, rules, outcome)
    }
}
