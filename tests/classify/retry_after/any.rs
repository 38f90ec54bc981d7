//! Any text: nothing panics, numbers saturate, forms agree.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use tower_reprise::{
    call::Guidance,
    classify::retry_after::{
        guidance, http_date, pushback, rate_limit, retry_after, retry_after_value,
    },
};

use super::{MONTHS, WEEKDAYS, YEAR, at, checked_at, secs, value};

/// The three forms of one instant. Walks the calendar year by year and month by month, so that it
/// shares no arithmetic with the parser.
fn forms(seconds: i64) -> [String; 3] {
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    let weekday = WEEKDAYS[usize::try_from(days % 7).unwrap()];
    let mut year = 1970;
    let leap = |year: i32| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    while days >= 365 + i64::from(leap(year)) {
        days -= 365 + i64::from(leap(year));
        year += 1;
    }
    let february = 28 + i64::from(leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (day, month, short) = (days + 1, MONTHS[month], &weekday[..3]);
    let time = format!("{:02}:{:02}:{:02}", time / 3600, time / 60 % 60, time % 60);
    [
        format!("{short}, {day:02} {month} {year:04} {time} GMT"),
        format!("{weekday}, {day:02}-{month}-{:02} {time} GMT", year % 100),
        format!("{short} {month} {day:2} {time} {year:04}"),
    ]
}

fn any_now() -> impl Strategy<Value = SystemTime> {
    let seconds = prop_oneof![
        any::<i64>(),
        -5_000_000_000_i64..300_000_000_000,
        Just(i64::MIN),
        Just(i64::MAX),
    ];
    (seconds, 0..1_000_000_000_u32).prop_filter_map("outside the clock", |(seconds, nanos)| {
        checked_at(seconds)?.checked_add(Duration::from_nanos(nanos.into()))
    })
}

/// A date of one of the three forms with up to three bytes changed, and the end cut off at times.
fn nearly_a_date() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((0..32_usize, any::<u8>()), 0..3);
    (0..253_402_300_800_i64, 0..3_usize, edits, 20..40_usize).prop_map(
        |(seconds, form, edits, length)| {
            let mut date = forms(seconds)[form].clone().into_bytes();
            for (place, byte) in edits {
                if let Some(target) = date.get_mut(place) {
                    *target = byte;
                }
            }
            date.truncate(length);
            date
        },
    )
}

fn anything() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        nearly_a_date(),
        "[-+ 0-9.\t]{0,40}".prop_map(String::into_bytes),
        r#"([a-z"\\;,= ]|r=0|t=|remaining=0|reset=|[0-9]{1,25}){0,30}"#
            .prop_map(String::into_bytes),
    ]
}

fn any_headers() -> impl Strategy<Value = HeaderMap> {
    let name = prop::sample::select(vec![
        "retry-after",
        "ratelimit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "grpc-retry-pushback-ms",
        "x-should-retry",
    ]);
    prop::collection::vec((name, anything()), 0..24).prop_map(|lines| {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                map.append(name, value);
            }
        }
        map
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ra_1_no_value_panics(value in anything(), now in any_now()) {
        let _ = retry_after_value(&value, now);
        let _ = http_date(&value, now);
    }

    #[test]
    fn ra_6_no_headers_panic(headers in any_headers(), now in any_now()) {
        let floor = retry_after(&headers, now).max(rate_limit(&headers, now));
        match guidance(&headers, now) {
            Some(Guidance::AtLeast(delay)) => prop_assert_eq!(Some(delay), floor),
            None => prop_assert_eq!(floor, None),
            decision => prop_assert!(
                decision == pushback(&headers) || headers.contains_key("x-should-retry")
            ),
        }
    }

    #[test]
    fn ra_2_digits_saturate_monotonically(digits in "[0-9]{1,60}", next in "[0-9]") {
        let longer = format!("{digits}{next}");
        let exact = digits.parse().unwrap_or(u64::MAX);
        prop_assert_eq!(value(&digits), Some(secs(exact)));
        prop_assert!(value(&longer) >= value(&digits));
    }

    #[test]
    fn ra_3_four_digit_forms_round_trip(seconds in 0..253_402_300_800_i64, now in any_now()) {
        let [imf, _, asctime] = forms(seconds);
        prop_assert_eq!(http_date(imf.as_bytes(), now), Some(at(seconds)), "{}", imf);
        prop_assert_eq!(http_date(asctime.as_bytes(), now), Some(at(seconds)), "{}", asctime);
    }

    #[test]
    fn ra_3_all_forms_agree_within_fifty_years(
        seconds in 0..253_402_300_800_i64,
        distance in -49 * YEAR..49 * YEAR,
    ) {
        for form in forms(seconds) {
            let date = http_date(form.as_bytes(), at(seconds + distance));
            prop_assert_eq!(date, Some(at(seconds)), "{}", form);
        }
    }

    #[test]
    fn ra_4_a_date_is_the_time_left_or_zero(
        seconds in 0..253_402_300_800_i64,
        distance in -49 * YEAR..49 * YEAR,
    ) {
        let left = secs(u64::try_from(distance).unwrap_or(0));
        for form in forms(seconds) {
            let delay = retry_after_value(form.as_bytes(), at(seconds - distance));
            prop_assert_eq!(delay, Some(left), "{}", form);
        }
    }
}
