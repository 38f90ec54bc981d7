use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use crate::error::ConfigError;

/// The targets whose rate is remembered before those at rest are forgotten.
const MAX_TARGETS: usize = 10_000;

/// The deliveries that each target may get in a second, and has got.
#[derive(Debug, Default)]
pub(in super::super) struct Rates {
    /// The rate of targets without one of their own, if they have any.
    default: Option<u32>,
    own: HashMap<String, u32>,
    buckets: Mutex<HashMap<String, Bucket>>,
}

/// The deliveries that a target may get now. A delivery that was under way already may leave less than nothing, so that
/// the rate holds over time.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: u32) -> Self {
        Self {
            tokens: f64::from(rate),
            at: Instant::now(),
        }
    }

    /// Refills up to the deliveries of a second.
    fn refilled(self, rate: u32) -> Self {
        let now = Instant::now();
        let rate = f64::from(rate);
        let more = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        Self {
            tokens: (self.tokens + more).min(rate),
            at: now,
        }
    }
}

impl Rates {
    pub(in super::super) fn new(
        default: Option<u32>,
        own: HashMap<String, u32>,
    ) -> Result<Self, ConfigError> {
        for rate in default.iter().chain(own.values()) {
            let allowed = "1 to 10000 deliveries a second";
            ConfigError::within("webhook.rate", *rate, 1..=10_000, allowed)?;
        }
        Ok(Self {
            default,
            own,
            buckets: Mutex::default(),
        })
    }

    /// Returns how many deliveries a target may get now.
    pub(in super::super) fn left(&self, target: &str) -> usize {
        let Some(rate) = self.rate(target) else {
            return usize::MAX;
        };
        let bucket = self.buckets().get(target).copied();
        let bucket = bucket.unwrap_or_else(|| Bucket::full(rate)).refilled(rate);
        // Less than nothing is none.
        bucket.tokens as usize
    }

    /// Counts a delivery.
    pub(in super::super) fn take(&self, target: &str) {
        let Some(rate) = self.rate(target) else {
            return;
        };
        let mut buckets = self.buckets();
        if buckets.len() >= MAX_TARGETS && !buckets.contains_key(target) {
            buckets.retain(|target, bucket| {
                let rate = self.rate(target).unwrap_or_default();
                bucket.refilled(rate).tokens < f64::from(rate)
            });
        }
        let bucket = buckets
            .entry(target.to_owned())
            .or_insert_with(|| Bucket::full(rate));
        *bucket = bucket.refilled(rate);
        bucket.tokens -= 1.0;
    }

    fn rate(&self, target: &str) -> Option<u32> {
        self.own.get(target).copied().or(self.default)
    }

    fn buckets(&self) -> MutexGuard<'_, HashMap<String, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
