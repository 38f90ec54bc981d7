//! Others: plain loops, the published token bucket, tower's retry, and tower-resilience's.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use tokio::time::{Instant, sleep};
use tower::{
    Layer, ServiceBuilder, ServiceExt,
    retry::{
        RetryLayer,
        backoff::{ExponentialBackoffMaker, MakeBackoff},
    },
    service_fn,
    util::BoxCloneService,
};
use tower_reprise::error::BoxError;
use tower_resilience_retry::{FnInterval, RetryBudget};

use crate::{
    clients::Terms,
    dice::Dice,
    tower_retry::Budgeted,
    world::{Call, Reply, Wire, lock, reply, seconds, succeeded},
};

/// The wait between two attempts of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    Never,
    /// `min(cap, base · 2ⁿ)`.
    Exponential,
    /// Uniform below that.
    Full,
    /// As long as `Retry-After` says, to the second.
    AsTold,
}

impl Wait {
    fn draw(self, terms: Terms, retry: u32, dice: &Mutex<Dice>, told: Option<u64>) -> Duration {
        let factor = 1_u32.checked_shl(retry).unwrap_or(u32::MAX);
        let bound = terms.base.saturating_mul(factor).min(terms.cap);
        match (self, told) {
            (Self::Never, _) => Duration::ZERO,
            (Self::AsTold, Some(told)) => Duration::from_secs(told),
            (Self::Exponential | Self::AsTold, _) => bound,
            (Self::Full, _) => bound.mul_f64(lock(dice).uniform()),
        }
    }
}

/// The token bucket of "Fixing retries with token buckets and circuit breakers" (Brooker, 2022),
/// with that article's figures: a tenth of a token for each call, five at most and to begin with,
/// one for each retry, and no other limit.
#[derive(Debug)]
pub(crate) struct Bucket(Mutex<f64>);

impl Bucket {
    const SIZE: f64 = 5.0;

    pub(crate) fn full() -> Self {
        Self(Mutex::new(Self::SIZE))
    }

    fn call(&self) {
        let mut tokens = lock(&self.0);
        *tokens = (*tokens + 0.1).min(Self::SIZE);
    }

    fn take(&self) -> bool {
        let mut tokens = lock(&self.0);
        let some = *tokens > 1.0;
        if some {
            *tokens -= 1.0;
        }
        some
    }
}

/// A loop as people write it: until it succeeds, so many times or as long as the bucket lasts.
pub(crate) fn looped(
    wire: Wire,
    terms: Terms,
    wait: Wait,
    dice: Dice,
    bucket: Option<Arc<Bucket>>,
) -> Wire {
    let dice = Arc::new(Mutex::new(dice));
    BoxCloneService::new(service_fn(move |call: Call| {
        let (wire, dice, bucket) = (wire.clone(), Arc::clone(&dice), bucket.clone());
        async move {
            if let Some(bucket) = &bucket {
                bucket.call();
            }
            let mut retry = 0;
            loop {
                let result = wire.clone().oneshot(call.clone()).await;
                let again = match &bucket {
                    Some(bucket) => !succeeded(&result) && bucket.take(),
                    None => !succeeded(&result) && retry < terms.retries,
                };
                if !again {
                    return result;
                }
                sleep(wait.draw(terms, retry, &dice, told(&result))).await;
                retry += 1;
            }
        }
    }))
}

/// The seconds of a `Retry-After`.
fn told(result: &Result<Reply, BoxError>) -> Option<u64> {
    let told = result.as_ref().ok()?.headers().get("retry-after")?;
    told.to_str().ok()?.parse().ok()
}

pub(crate) fn tower(wire: Wire, terms: Terms, dice: Dice) -> Result<Wire, BoxError> {
    let mut backoff = ExponentialBackoffMaker::new(terms.base, terms.cap, 0.99, dice)?;
    let policy = Budgeted {
        left: terms.retries,
        backoff: backoff.make_backoff(),
        budget: Arc::default(),
        succeeded,
    };
    Ok(ServiceBuilder::new()
        .layer(RetryLayer::new(policy))
        .service(wire)
        .boxed_clone())
}

/// The rejection probability of Envoy's admission control filter with its defaults: success rates
/// from 95 % on are good, at most 80 % are rejected, over 30 s. A 429 is no success here, or it would
/// reject nothing. Retries as in a loop.
pub(crate) fn envoy(wire: Wire, terms: Terms, dice: Dice) -> Wire {
    const WINDOW: Duration = Duration::from_secs(30);
    const GOOD: f64 = 0.95;
    const MOST: f64 = 0.8;
    let seen = Arc::new(Mutex::new(VecDeque::<(Instant, bool)>::new()));
    let draws = Arc::new(Mutex::new(dice.clone()));
    let admitted = BoxCloneService::new(service_fn(move |call: Call| {
        let (wire, seen) = (wire.clone(), Arc::clone(&seen));
        let drawn = lock(&draws).uniform();
        async move {
            {
                let mut seen = lock(&seen);
                while seen.front().is_some_and(|(at, _)| at.elapsed() > WINDOW) {
                    seen.pop_front();
                }
                let all = seen.len() as f64;
                let good = seen.iter().filter(|(_, good)| *good).count() as f64;
                let rejected = ((all - good / GOOD) / (all + 1.0)).clamp(0.0, MOST);
                if drawn < rejected {
                    return Ok(reply(StatusCode::SERVICE_UNAVAILABLE));
                }
            }
            let result = wire.oneshot(call).await;
            lock(&seen).push_back((Instant::now(), succeeded(&result)));
            result
        }
    }));
    looped(admitted, terms, Wait::Full, dice, None)
}

/// The token bucket of tower-resilience with its defaults, on virtual time, which its own clock
/// does not follow: 100 tokens, ten more each second, and one for each success.
#[derive(Debug)]
struct Refilled(Mutex<(f64, Instant)>);

impl Refilled {
    const SIZE: f64 = 100.0;
    const PER_SECOND: f64 = 10.0;

    fn full() -> Self {
        Self(Mutex::new((Self::SIZE, Instant::now())))
    }

    fn change(&self, change: impl FnOnce(&mut f64)) -> f64 {
        let mut state = lock(&self.0);
        let (tokens, seen) = *state;
        let refill = seen.elapsed().as_secs_f64() * Self::PER_SECOND;
        *state = ((tokens + refill).min(Self::SIZE), Instant::now());
        change(&mut state.0);
        state.0
    }
}

impl RetryBudget for Refilled {
    fn try_withdraw(&self) -> bool {
        let mut some = false;
        self.change(|tokens| {
            some = *tokens >= 1.0;
            *tokens -= f64::from(u8::from(some));
        });
        some
    }

    fn deposit(&self) {
        self.change(|tokens| *tokens = (*tokens + 1.0).min(Self::SIZE));
    }

    fn balance(&self) -> usize {
        self.change(|_| {}) as usize
    }
}

/// Its backoff is seeded too: half to one and a half of `base · 2ⁿ`, as
/// `ExponentialRandomBackoff` of 0.5 draws it.
pub(crate) fn resilience(wire: Wire, terms: Terms, dice: Dice) -> Wire {
    let dice = Mutex::new(dice);
    let backoff = FnInterval::new(move |retry| {
        let factor = 2_f64.powi(i32::try_from(retry).unwrap_or(i32::MAX));
        let wait = (terms.base.as_secs_f64() * factor).min(terms.cap.as_secs_f64());
        seconds(wait * (0.5 + lock(&dice).uniform()))
    });
    let layer = tower_resilience_retry::RetryLayer::<Call, Reply, BoxError>::builder()
        .max_attempts(usize::try_from(terms.retries).unwrap_or(usize::MAX) + 1)
        .backoff(backoff)
        .retry_on_response(|reply: &Reply| !reply.status().is_success())
        .budget(Arc::new(Refilled::full()))
        .build();
    layer.layer(wire).boxed_clone()
}
