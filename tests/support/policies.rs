//! Policies whose waits are short or can be foreseen.

use std::time::Duration;

use tower_reprise::{Dependencies, Policy, backoff::Backoff, policy::PolicyBuilder};

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The same wait before every retry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fixed(pub(crate) Duration);

impl Backoff for Fixed {
    fn delay(&self, _retry: u32, _previous: Duration, _uniform: f64) -> Duration {
        self.0
    }
}

/// The synchronous profile with waits of one or two milliseconds, for real time.
pub(crate) fn quick() -> PolicyBuilder {
    Policy::http()
        .budget_floor(10)
        .honours_keys()
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
}

pub(crate) fn deps(policy: PolicyBuilder) -> Dependencies {
    Dependencies::new(policy.build().unwrap())
}
