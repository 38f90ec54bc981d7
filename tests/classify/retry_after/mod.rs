//! Parsing of the fields in which servers say when to call again.

mod any;
mod dates;
mod limits;
mod vendors;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use tower_reprise::{
    call::Guidance,
    classify::retry_after::{guidance, rate_limit, retry_after_value},
};

/// Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110.
pub(crate) const EXAMPLE: i64 = 784_111_777;
/// Thu, 15 Jan 2026 12:00:00 GMT.
pub(crate) const NOW: i64 = 1_768_478_400;
pub(crate) const YEAR: i64 = 31_556_952;

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn checked_at(seconds: i64) -> Option<SystemTime> {
    let distance = secs(seconds.unsigned_abs());
    if seconds < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    }
}

pub(crate) fn at(seconds: i64) -> SystemTime {
    checked_at(seconds).unwrap()
}

pub(crate) fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in lines {
        map.append(
            HeaderName::try_from(*name).unwrap(),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    map
}

pub(crate) fn limit(lines: &[(&str, &str)]) -> Option<Duration> {
    rate_limit(&headers(lines), at(NOW))
}

pub(crate) fn guide(lines: &[(&str, &str)]) -> Option<Guidance> {
    guidance(&headers(lines), at(NOW))
}

pub(crate) fn value(text: &str) -> Option<Duration> {
    retry_after_value(text.as_bytes(), at(NOW))
}

pub(crate) const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

pub(crate) const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
