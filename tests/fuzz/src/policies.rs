//! P-1, P-2, P-4: policies as people write them. What is refused is refused with a reason, and what
//! is not is within the ranges.

use tower_reprise::{
    Policy,
    error::{ConfigError, Rule},
    policy::{Finding, Policies, Profile},
};

/// A file.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    check_policy(Policy::from_toml(text));
    check_policy(Policy::from_json(text));
    check_policies(Policies::from_toml(text));
    check_policies(Policies::from_json(text));
    let variables = text.lines().filter_map(|line| line.split_once('='));
    check_policy(Policy::from_env("", variables));
}

fn check_policies(read: Result<Policies, ConfigError>) {
    match read {
        Ok(policies) => {
            for (name, policy) in policies.iter() {
                check(policy);
                assert!(std::ptr::eq(policies.get(name), policy));
            }
            check(policies.default_policy());
            assert!(policies.audit().findings().iter().all(explained));
        }
        Err(error) => refused(&error),
    }
}

fn check_policy(read: Result<Policy, ConfigError>) {
    match read {
        Ok(policy) => check(&policy),
        Err(error) => refused(&error),
    }
}

fn check(policy: &Policy) {
    let audit = policy.audit();
    let approved = |rule| audit.findings().iter().any(|finding| finding.rule == rule);
    let profile = policy.profile();
    // No retries are always allowed, but a webhook is to be delivered.
    let off = policy.max_retries() == 0 && profile != Profile::Webhook;
    let within = off || profile.retries().contains(&policy.max_retries());
    assert!(within || approved(Rule::R2));
    assert!(policy.total_timeout() <= profile.longest() || approved(Rule::R3));
    for retry in [0, 1, 31, 1000] {
        let _ = policy.backoff().delay(retry, policy.total_timeout(), 0.999);
    }
    assert!(audit.findings().iter().all(explained));
}

fn refused(error: &ConfigError) {
    assert!(!error.to_string().is_empty());
    assert!(
        error.to_string().len() < 100_000,
        "an error that repeats its input"
    );
}

fn explained(finding: &Finding) -> bool {
    !finding.remedy().is_empty()
}
