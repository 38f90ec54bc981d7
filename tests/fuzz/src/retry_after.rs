//! RA-1 … RA-8 and RA-10: what response headers ask for.

use std::time::{Duration, SystemTime};

use tower_reprise::{
    call::Guidance,
    classify::retry_after::{
        GuidanceTable, delay_value, explicit_guidance, guidance, http_date, pushback, rate_limit,
        retry_after, retry_after_value,
    },
};

use crate::support::headers;

/// Header fields, one a line; `now` is the time at which they are read, in seconds.
pub(crate) fn run(input: &[u8]) {
    let mut headers = headers(input);
    let now = headers.remove("now");
    let now = now.and_then(|now| now.to_str().ok()?.parse().ok());
    let now = Duration::from_secs(now.unwrap_or(1_763_000_000).min(1 << 38));
    let now = SystemTime::UNIX_EPOCH + now;

    let asked = GuidanceTable::standard().longest_delay(&headers, now);
    assert!(asked >= retry_after(&headers, now));
    let limited = rate_limit(&headers, now);
    match guidance(&headers, now) {
        Some(Guidance::AtLeast(floor)) => assert_eq!(Some(floor), asked.max(limited)),
        None => assert!(asked.is_none() && limited.is_none()),
        decided => assert_eq!(decided, explicit_guidance(&headers, now)),
    }
    if let Some(decided) = pushback(&headers) {
        assert_eq!(guidance(&headers, now), Some(decided));
    }
    for value in headers.get_all("retry-after") {
        value_alone(value.as_bytes(), now);
    }
    value_alone(input, now);
}

fn value_alone(value: &[u8], now: SystemTime) {
    let delay = retry_after_value(value, now);
    // RA-10: blanks mean nothing, and what is no timestamp means the same in every field.
    let vendors = delay_value(value, now);
    assert_eq!(delay_value(&[b"\t", value].concat(), now), vendors);
    if delay < Some(Duration::from_secs(1_000_000_000)) && delay.is_some() {
        assert_eq!(vendors, delay);
    }
    // RA-1: blanks around it mean nothing.
    assert_eq!(
        retry_after_value(&[b" \t", value, b" "].concat(), now),
        delay
    );
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let from = value.iter().position(|byte| !blank(byte)).unwrap_or(0);
    let to = value
        .iter()
        .rposition(|byte| !blank(byte))
        .map_or(0, |last| last + 1);
    let trimmed = value.get(from..to).unwrap_or_default();
    if !trimmed.is_empty() && trimmed.iter().all(u8::is_ascii_digit) {
        // RA-2: digits of any length.
        let text = str::from_utf8(trimmed).expect("digits");
        let seconds = text.parse().unwrap_or(u64::MAX);
        assert_eq!(delay.map(|delay| delay.as_secs()), Some(seconds));
    } else if let Some(delay) = delay {
        // RA-4: a date that is past is no delay.
        let date = http_date(trimmed, now).expect("a date, if it is no number");
        assert_eq!(delay, date.duration_since(now).unwrap_or_default());
    }
}
