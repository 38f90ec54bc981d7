//! Limits that a server reports, and the time until those that are exhausted reset.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::{
    MAX_ITEMS, lines,
    value::{delay_value, number, split, trim, until_reset},
};

/// One limit as its server describes it. Where a value is repeated, the more cautious one holds.
#[derive(Default)]
struct Quota {
    remaining: Option<u64>,
    reset: Option<Duration>,
}

impl Quota {
    fn read(&mut self, pair: &[u8], (remaining, reset): (&str, &str), now: SystemTime) {
        let Some(equals) = pair.iter().position(|&byte| byte == b'=') else {
            return;
        };
        let (key, value) = (trim(&pair[..equals]), number(trim(&pair[equals + 1..])));
        if key == remaining.as_bytes() {
            self.remaining = self.remaining.into_iter().chain(value).min();
        } else if key == reset.as_bytes() {
            self.reset = self.reset.max(value.map(|reset| until_reset(reset, now)));
        }
    }
}

/// The limits of a response, combined.
#[derive(Default)]
pub(super) struct Limits {
    exhausted: Option<Duration>,
    presumed: Option<Duration>,
    some_remain: bool,
}

impl Limits {
    /// Reads a `RateLimit` field: a list of `"default";r=0;t=5`, or the older dictionary
    /// `limit=9, remaining=0, reset=5`.
    pub(super) fn read_list(&mut self, headers: &HeaderMap, name: &str, now: SystemTime) {
        let mut dictionary = Quota::default();
        for member in members(headers, name) {
            let mut parts = split(member, b';');
            let head = parts.next().unwrap_or_default();
            dictionary.read(head, ("remaining", "reset"), now);

            let mut policy = Quota::default();
            for parameter in parts.take(MAX_ITEMS) {
                policy.read(parameter, ("r", "t"), now);
            }
            if policy.remaining.is_some() {
                self.add(&policy);
            }
        }
        self.add(&dictionary);
    }

    /// Reads a field with a reset, and the one with the count that remains.
    pub(super) fn read_pair(
        &mut self,
        headers: &HeaderMap,
        reset: &str,
        remaining: &str,
        now: SystemTime,
    ) {
        // An HTTP-date has a comma.
        let whole = lines(headers, reset).filter_map(|line| delay_value(line, now));
        let listed = firsts(headers, reset).filter_map(|member| delay_value(member, now));
        self.add(&Quota {
            remaining: firsts(headers, remaining).filter_map(number).min(),
            reset: whole.chain(listed).max(),
        });
    }

    fn add(&mut self, quota: &Quota) {
        match quota.remaining {
            Some(0) => self.exhausted = self.exhausted.max(quota.reset),
            Some(_) => self.some_remain = true,
            None => self.presumed = self.presumed.max(quota.reset),
        }
    }

    pub(super) fn floor(self) -> Option<Duration> {
        if self.some_remain {
            self.exhausted
        } else {
            self.exhausted.max(self.presumed)
        }
    }
}

fn members<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    lines(headers, name)
        .flat_map(|line| split(line, b','))
        .take(MAX_ITEMS)
}

/// Returns the members without their parameters.
fn firsts<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    members(headers, name).filter_map(|member| split(member, b';').next())
}
