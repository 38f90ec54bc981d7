//! Parses when a server wants to be called again.
//!
//! There are several formats: `Retry-After` as seconds or as one of three date formats, generations
//! of rate-limit fields whose reset is a delay in one API and a Unix timestamp in another, and gRPC's
//! pushback. The functions here turn all of them into one [`Guidance`].
//!
//! They are pure: the clock is an argument, nothing is allocated, and no header a peer can send
//! makes them panic. A malformed value is ignored, as if it had not been sent. The one exception is
//! pushback, where the gRPC specification reads a malformed value as "do not retry".
//!
//! The durations are what the server asked for, up to `u64::MAX` seconds; add them to a point in
//! time with checked arithmetic.
//!
//! # Example
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use http::{HeaderMap, HeaderValue};
//! use tower_reprise::{call::Guidance, classify::retry_after::guidance};
//!
//! let now = SystemTime::now();
//! let mut headers = HeaderMap::new();
//! assert_eq!(guidance(&headers, now), None);
//!
//! headers.insert("retry-after", HeaderValue::from_static("3"));
//! headers.insert("ratelimit", HeaderValue::from_static(r#""minute";r=0;t=20, "day";r=812;t=9000"#));
//! assert_eq!(guidance(&headers, now), Some(Guidance::AtLeast(Duration::from_secs(20))));
//!
//! headers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("250"));
//! assert_eq!(guidance(&headers, now), Some(Guidance::Exactly(Duration::from_millis(250))));
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;

use crate::{call::Guidance, http::headers::digits};

/// The most lines of a field, members of a list and parameters of a member that are read.
const MAX_ITEMS: usize = 16;

/// Numbers from here on are seconds since 1970 (September 2001 and later): as a delay they would be
/// more than 31 years.
const EPOCH_SECONDS: u64 = 1_000_000_000;
/// Numbers from here on are milliseconds since 1970, for the same dates.
const EPOCH_MILLIS: u64 = 1_000_000_000_000;

/// IMF-fixdate, RFC 850, asctime.
const DATE_FORMATS: [&str; 3] = [
    "%a, %d %b %Y %T GMT",
    "%A, %d-%b-%y %T GMT",
    "%a %b %e %T %Y",
];
const WEEKDAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The mean of 400 years, after which the calendar repeats.
const SECONDS_PER_YEAR: i64 = 31_556_952;
/// Counted from the first day of year 1.
const DAYS_BEFORE_1970: i64 = 719_162;

/// Returns the guidance of a response that failed for want of capacity, by precedence.
///
/// A gRPC [`pushback`] decides alone. Without one, `x-should-retry: false` stops the call. Otherwise
/// the larger of [`retry_after`] and [`rate_limit`] is the floor.
#[must_use]
pub fn guidance(headers: &HeaderMap, now: SystemTime) -> Option<Guidance> {
    match explicit_guidance(headers, now) {
        None | Some(Guidance::AtLeast(_)) => retry_after(headers, now)
            .max(rate_limit(headers, now))
            .map(Guidance::AtLeast),
        decision => decision,
    }
}

/// Returns the guidance of a response that failed for another reason: as [`guidance`], without
/// [`rate_limit`], whose fields many servers send with every reply.
#[must_use]
pub fn explicit_guidance(headers: &HeaderMap, now: SystemTime) -> Option<Guidance> {
    if let Some(decision) = pushback(headers) {
        return Some(decision);
    }
    if lines(headers, "x-should-retry").any(|value| value.eq_ignore_ascii_case(b"false")) {
        return Some(Guidance::Stop);
    }
    retry_after(headers, now).map(Guidance::AtLeast)
}

/// Returns the delay in `grpc-retry-pushback-ms`, or `None` if the field is absent.
///
/// A negative number, anything that is not a number, and a field that is sent more than once all
/// mean [`Guidance::Stop`].
#[must_use]
pub fn pushback(headers: &HeaderMap) -> Option<Guidance> {
    let mut values = lines(headers, "grpc-retry-pushback-ms");
    let value = values.next()?;
    Some(match (digits(value), values.next()) {
        (Some(millis), None) => Guidance::Exactly(Duration::from_millis(millis)),
        _ => Guidance::Stop,
    })
}

/// Returns the delay in `Retry-After`: the largest of its well-formed lines, `None` if there is none.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    lines(headers, "retry-after")
        .filter_map(|value| retry_after_value(value, now))
        .max()
}

/// Returns the delay in one `Retry-After` value: digits are seconds, dates are relative to `now` and zero
/// once they have passed.
#[must_use]
pub fn retry_after_value(value: &[u8], now: SystemTime) -> Option<Duration> {
    let value = trim(value);
    digits(value).map(Duration::from_secs).or_else(|| {
        let date = http_date(value, now)?;
        Some(date.duration_since(now).unwrap_or_default())
    })
}

/// Returns the time until the exhausted limits of a failed response reset; the largest wins.
///
/// Read are `RateLimit` (`"default";r=0;t=5`, or the older `limit=9, remaining=0, reset=5`), and the
/// `-Remaining` and `-Reset` fields of `RateLimit` and `X-RateLimit`. A reset is a delay in seconds
/// or, by its magnitude, a Unix timestamp in seconds or milliseconds.
///
/// A limit with requests remaining did not cause the failure and is ignored. A reset without a
/// remaining count counts as exhausted, unless another field says that requests remain.
#[must_use]
pub fn rate_limit(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let mut limits = Limits::default();
    let mut dictionary = Quota::default();
    for member in members(headers, "ratelimit") {
        let mut parts = split(member, b';');
        let head = parts.next().unwrap_or_default();
        dictionary.read(head, "remaining", "reset");

        let mut policy = Quota::default();
        for parameter in parts.take(MAX_ITEMS) {
            policy.read(parameter, "r", "t");
        }
        if policy.remaining.is_some() {
            limits.add(&policy, now);
        }
    }
    limits.add(&dictionary, now);
    for (remaining, reset) in [
        ("ratelimit-remaining", "ratelimit-reset"),
        ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ] {
        let quota = Quota {
            remaining: numbers(headers, remaining).min(),
            reset: numbers(headers, reset).max(),
        };
        limits.add(&quota, now);
    }
    limits.floor()
}

/// One limit as its server describes it. Where a value is repeated, the more cautious one holds.
#[derive(Default)]
struct Quota {
    remaining: Option<u64>,
    reset: Option<u64>,
}

impl Quota {
    fn read(&mut self, pair: &[u8], remaining: &str, reset: &str) {
        let Some(equals) = pair.iter().position(|&byte| byte == b'=') else {
            return;
        };
        let (key, value) = (trim(&pair[..equals]), number(trim(&pair[equals + 1..])));
        if key == remaining.as_bytes() {
            self.remaining = self.remaining.into_iter().chain(value).min();
        } else if key == reset.as_bytes() {
            self.reset = self.reset.max(value);
        }
    }
}

/// The limits of a response, combined.
#[derive(Default)]
struct Limits {
    exhausted: Option<Duration>,
    presumed: Option<Duration>,
    some_remain: bool,
}

impl Limits {
    fn add(&mut self, quota: &Quota, now: SystemTime) {
        let reset = quota.reset.map(|reset| until_reset(reset, now));
        match quota.remaining {
            Some(0) => self.exhausted = self.exhausted.max(reset),
            Some(_) => self.some_remain = true,
            None => self.presumed = self.presumed.max(reset),
        }
    }

    fn floor(self) -> Option<Duration> {
        if self.some_remain {
            self.exhausted
        } else {
            self.exhausted.max(self.presumed)
        }
    }
}

fn until_reset(reset: u64, now: SystemTime) -> Duration {
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

/// Parses an HTTP-date: IMF-fixdate, RFC 850 or asctime (RFC 9110, 5.6.7).
///
/// The grammar is strict, except that any weekday goes with any date. A two-digit year
/// is the latest one that is not more than 50 years after `now`. A leap second is the first second
/// of the next minute.
#[must_use]
pub fn http_date(value: &[u8], now: SystemTime) -> Option<SystemTime> {
    let date = DATE_FORMATS
        .iter()
        .find_map(|format| Date::parse(format, value, now))?;
    let seconds = date.unix_seconds();
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    }
}

/// A date of the Gregorian calendar and the seconds since its midnight.
#[derive(Default)]
struct Date {
    year: i64,
    month: i64,
    day: i64,
    time: i64,
}

impl Date {
    /// Reads `value` by a format of conversions, as in `strftime`, and literal text.
    fn parse(format: &str, value: &[u8], now: SystemTime) -> Option<Self> {
        let mut rest = Cursor(value);
        let mut date = Self::default();
        let mut short_year = false;
        for conversion in format.split('%').skip(1) {
            let (kind, literal) = conversion.split_at(1);
            match kind {
                "a" => {
                    rest.name(WEEKDAYS.map(|name| &name[..3]))?;
                }
                "A" => {
                    rest.name(WEEKDAYS)?;
                }
                "b" => date.month = rest.name(MONTHS)?,
                "e" if rest.literal(" ").is_some() => date.day = rest.digits(1)?,
                "d" | "e" => date.day = rest.digits(2)?,
                "T" => date.time = rest.time()?,
                "y" => (date.year, short_year) = (rest.digits(2)?, true),
                _ => date.year = rest.digits(4)?,
            }
            rest.literal(literal)?;
        }
        if short_year {
            date.choose_century(now);
        }
        let day_exists = (1..=days_in(date.year, date.month)).contains(&date.day);
        (rest.0.is_empty() && day_exists).then_some(date)
    }

    /// Completes a two-digit year. For the limit of 50 years, 29 February is 1 March in a year that
    /// has none.
    fn choose_century(&mut self, now: SystemTime) {
        let now = unix_seconds(now);
        // Right to within a year, which is enough to leave no more than two centuries to choose from.
        let this_year = 1970 + now / SECONDS_PER_YEAR;
        self.year = this_year + (self.year - this_year).rem_euclid(100) - 50;
        if self.unix_seconds() > now {
            self.year -= 100;
        }
        self.year += 50;
    }

    fn unix_seconds(&self) -> i64 {
        let past = self.year - 1;
        let leap_days = past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400);
        let months: i64 = (1..self.month).map(|month| days_in(self.year, month)).sum();
        let days = past * 365 + leap_days + months + self.day - 1 - DAYS_BEFORE_1970;
        days.saturating_mul(86_400).saturating_add(self.time)
    }
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns whole seconds since 1970.
fn unix_seconds(time: SystemTime) -> i64 {
    let whole = |distance: Duration| i64::try_from(distance.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => whole(after),
        Err(before) => -whole(before.duration()),
    }
}

/// The unread rest of a date.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn literal(&mut self, expected: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(expected.as_bytes())?;
        Some(())
    }

    /// Reads one of `names`, and returns its place among them, counted from 1.
    fn name<const N: usize>(&mut self, names: [&str; N]) -> Option<i64> {
        let mut places = (1..).zip(names);
        places.find_map(|(place, name)| self.literal(name).map(|()| place))
    }

    fn digits(&mut self, count: usize) -> Option<i64> {
        let (number, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        digits(number)?.try_into().ok()
    }

    /// Reads `hh:mm:ss` as seconds since midnight.
    fn time(&mut self) -> Option<i64> {
        let hour = self.digits(2)?;
        self.literal(":")?;
        let minute = self.digits(2)?;
        self.literal(":")?;
        let second = self.digits(2)?;
        (hour <= 23 && minute <= 59 && second <= 60).then_some((hour * 60 + minute) * 60 + second)
    }
}

fn lines<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    let values = headers.get_all(name).into_iter().take(MAX_ITEMS);
    values.map(|value| trim(value.as_bytes()))
}

fn members<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    lines(headers, name)
        .flat_map(|line| split(line, b','))
        .take(MAX_ITEMS)
}

fn numbers<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = u64> + 'a {
    members(headers, name).filter_map(|member| number(split(member, b';').next()?))
}

/// Splits a structured field at a separator, which has no meaning inside a quoted string.
fn split(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    let parts = value.split(move |&byte| {
        quoted ^= byte == b'"' && !escaped;
        escaped = quoted && byte == b'\\' && !escaped;
        byte == separator && !quoted
    });
    parts.map(trim)
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Parses digits with an optional fraction, which is rounded up.
fn number(value: &[u8]) -> Option<u64> {
    let Some(point) = value.iter().position(|&byte| byte == b'.') else {
        return digits(value);
    };
    let fraction = digits(&value[point + 1..])?;
    Some(digits(&value[..point])?.saturating_add(u64::from(fraction > 0)))
}
