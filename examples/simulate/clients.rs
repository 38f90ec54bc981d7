//! The contestants: this crate's own layers, and others.

use std::{sync::Arc, time::Duration};

use http_body_util::Empty;
use tower::{ServiceBuilder, ServiceExt};
use tower_reprise::{
    Dependencies, Policy, RetryBudgetLayer, RetryLayer, error::BoxError, policy::PolicyBuilder,
    stacks,
};

use crate::{
    dice::{Dice, mix},
    others::{self, Bucket, Wait},
    world::Wire,
};

/// The settings that all contestants of a setting share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) retries: u32,
    pub(crate) base: Duration,
    pub(crate) cap: Duration,
    /// The timeout of a request.
    pub(crate) timeout: Option<Duration>,
}

impl Terms {
    /// The defaults of [`Policy::http`].
    pub(crate) const STANDARD: Self = Self {
        retries: 3,
        base: Duration::from_secs(1),
        cap: Duration::from_secs(30),
        timeout: None,
    };

    /// The policy that says the same.
    pub(crate) fn policy(&self) -> PolicyBuilder {
        let policy = Policy::http()
            .service("simulate")
            .max_retries(self.retries)
            .base(self.base)
            .cap(self.cap);
        match self.timeout {
            Some(timeout) => policy.attempt_timeout(timeout),
            None => policy,
        }
    }
}

/// One way to call a server.
#[derive(Debug, Clone)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    make: Make,
}

#[derive(Debug, Clone)]
enum Make {
    Once,
    Loop(Wait),
    Bucket,
    Tower,
    Resilience,
    Envoy,
    /// `RetryLayer` alone.
    Retry(Policy),
    /// `RetryBudgetLayer` and `RetryLayer`.
    Budget(Policy),
    /// `stacks::client`.
    Stack(Policy),
}

impl Contestant {
    pub(crate) const ONCE: Self = Self {
        name: "no retries",
        make: Make::Once,
    };
    pub(crate) const TOWER: Self = Self {
        name: "tower::retry",
        make: Make::Tower,
    };
    pub(crate) const RESILIENCE: Self = Self {
        name: "tower-resilience",
        make: Make::Resilience,
    };
    pub(crate) const ENVOY: Self = Self {
        name: "Envoy's formula",
        make: Make::Envoy,
    };
    pub(crate) const BUCKET: Self = Self {
        name: "token bucket",
        make: Make::Bucket,
    };

    pub(crate) const fn looped(name: &'static str, wait: Wait) -> Self {
        let make = Make::Loop(wait);
        Self { name, make }
    }

    pub(crate) const fn retry(name: &'static str, policy: Policy) -> Self {
        let make = Make::Retry(policy);
        Self { name, make }
    }

    pub(crate) const fn budget(name: &'static str, policy: Policy) -> Self {
        let make = Make::Budget(policy);
        Self { name, make }
    }

    pub(crate) const fn stack(name: &'static str, policy: Policy) -> Self {
        let make = Make::Stack(policy);
        Self { name, make }
    }

    /// Returns whether it is `stacks::client`.
    pub(crate) const fn is_stack(&self) -> bool {
        matches!(self.make, Make::Stack(_))
    }

    /// A client. What it knows it shares with its clones, and with no other client.
    pub(crate) fn client(&self, terms: Terms, seed: u64, wire: Wire) -> Result<Wire, BoxError> {
        let deps = |policy: &Policy| {
            Dependencies::builder(policy.clone())
                .seed(mix(seed, 0))
                .build()
        };
        let timed = |wire: Wire| match terms.timeout {
            Some(timeout) => ServiceBuilder::new()
                .timeout(timeout)
                .service(wire)
                .boxed_clone(),
            None => wire,
        };
        let dice = || Dice::new(mix(seed, 1));
        Ok(match &self.make {
            Make::Once => timed(wire),
            Make::Loop(wait) => others::looped(timed(wire), terms, *wait, dice(), None),
            Make::Bucket => {
                let bucket = Some(Arc::new(Bucket::full()));
                others::looped(timed(wire), terms, Wait::Full, dice(), bucket)
            }
            Make::Tower => others::tower(timed(wire), terms, dice())?,
            Make::Resilience => others::resilience(timed(wire), terms, dice()),
            Make::Envoy => others::envoy(timed(wire), terms, dice()),
            Make::Retry(policy) => ServiceBuilder::new()
                .layer(RetryLayer::new(deps(policy)))
                .service(wire)
                .boxed_clone(),
            Make::Budget(policy) => {
                let deps = deps(policy);
                ServiceBuilder::new()
                    .layer(RetryBudgetLayer::new(deps.clone()))
                    .layer(RetryLayer::new(deps))
                    .service(wire)
                    .boxed_clone()
            }
            Make::Stack(policy) => ServiceBuilder::new()
                .layer(stacks::client(deps(policy)))
                .service(wire)
                .map_response(|reply| reply.map(|_| Empty::new()))
                .boxed_clone(),
        })
    }
}
