//! Values of fields: numbers, durations, points in time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) use crate::http::headers::digits as integer;

use super::{
    MAX_ITEMS,
    date::{http_date, rfc3339_date},
};

/// Numbers from here on are seconds since 1970 (September 2001 and later): as a delay they would be
/// more than 31 years.
const EPOCH_SECONDS: u64 = 1_000_000_000;
/// Numbers from here on are milliseconds since 1970, for the same dates.
const EPOCH_MILLIS: u64 = 1_000_000_000_000;

/// Returns the delay in a value of a vendor's own, whichever form it has: a number of seconds or, by
/// its magnitude, a Unix timestamp in seconds or milliseconds; a duration with units (`1m30s`,
/// `6ms`); a timestamp of RFC 3339 or an HTTP-date, zero once it has passed.
///
/// A fraction of a number is rounded up. Units are `ns`, `us`, `ms`, `s`, `m`, `h` and `d`.
#[must_use]
pub fn delay_value(value: &[u8], now: SystemTime) -> Option<Duration> {
    let value = trim(value);
    let until = |date: SystemTime| date.duration_since(now).unwrap_or_default();
    number(value)
        .map(|number| until_reset(number, now))
        .or_else(|| duration(value))
        .or_else(|| rfc3339_date(value).map(until))
        .or_else(|| http_date(value, now).map(until))
}

/// Returns the delay to a reset that is a delay or a timestamp, by its magnitude.
pub(super) fn until_reset(reset: u64, now: SystemTime) -> Duration {
    let since_epoch = match reset {
        EPOCH_MILLIS.. => Duration::from_millis(reset),
        EPOCH_SECONDS.. => Duration::from_secs(reset),
        _ => return Duration::from_secs(reset),
    };
    match now.duration_since(UNIX_EPOCH) {
        Ok(passed) => since_epoch.saturating_sub(passed),
        Err(before) => since_epoch.saturating_add(before.duration()),
    }
}

/// Parses numbers with units, as Go and OpenAI write a duration. Saturates.
fn duration(value: &[u8]) -> Option<Duration> {
    let mut rest = value;
    let mut nanos = 0_u128;
    for _ in 0..MAX_ITEMS {
        let numeric = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
        let (amount, after) = rest.split_at(rest.iter().take_while(numeric).count());
        let (unit, after) = after.split_at(after.iter().take_while(|byte| !numeric(byte)).count());
        nanos = nanos.saturating_add(amount_nanos(amount, unit_nanos(unit)?)?);
        rest = after;
        if rest.is_empty() {
            let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
            let below = u32::try_from(nanos % 1_000_000_000).unwrap_or_default();
            return Some(Duration::new(seconds, below));
        }
    }
    None
}

fn unit_nanos(unit: &[u8]) -> Option<u128> {
    Some(match unit {
        b"ns" => 1,
        // A `u`, a micro sign or a Greek letter.
        b"us" | b"\xc2\xb5s" | b"\xce\xbcs" => 1_000,
        b"ms" => 1_000_000,
        b"s" => 1_000_000_000,
        b"m" => 60_000_000_000,
        b"h" => 3_600_000_000_000,
        b"d" => 86_400_000_000_000,
        _ => return None,
    })
}

/// Returns a decimal amount of a unit, rounded up; 18 digits of a fraction count.
fn amount_nanos(amount: &[u8], unit: u128) -> Option<u128> {
    let point = amount.iter().position(|&byte| byte == b'.');
    let whole = u128::from(integer(&amount[..point.unwrap_or(amount.len())])?) * unit;
    let Some(point) = point else {
        return Some(whole);
    };
    let fraction = &amount[point + 1..];
    integer(fraction)?;
    let counted = &fraction[..fraction.len().min(18)];
    let scale = 10_u128.pow(u32::try_from(counted.len()).ok()?);
    Some(whole + (u128::from(integer(counted)?) * unit).div_ceil(scale))
}

/// Splits a structured field at a separator, which has no meaning inside a quoted string.
pub(super) fn split(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    let parts = value.split(move |&byte| {
        quoted ^= byte == b'"' && !escaped;
        escaped = quoted && byte == b'\\' && !escaped;
        byte == separator && !quoted
    });
    parts.map(trim)
}

pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Parses digits with an optional fraction, which is rounded up.
pub(super) fn number(value: &[u8]) -> Option<u64> {
    let Some(point) = value.iter().position(|&byte| byte == b'.') else {
        return integer(value);
    };
    let fraction = integer(&value[point + 1..])?;
    Some(integer(&value[..point])?.saturating_add(u64::from(fraction > 0)))
}
