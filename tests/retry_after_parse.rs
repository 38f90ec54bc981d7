//! RA-1 … RA-6 and RA-8: what a response says about when to call again.
#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tower_reprise::{
    call::Guidance,
    classify::retry_after::{
        explicit_guidance, guidance, http_date, pushback, rate_limit, retry_after,
        retry_after_value,
    },
};

/// Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110.
const EXAMPLE: i64 = 784_111_777;
/// Thu, 15 Jan 2026 12:00:00 GMT.
const NOW: i64 = 1_768_478_400;
const YEAR: i64 = 31_556_952;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn checked_at(seconds: i64) -> Option<SystemTime> {
    let distance = secs(seconds.unsigned_abs());
    if seconds < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    }
}

fn at(seconds: i64) -> SystemTime {
    checked_at(seconds).unwrap()
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in lines {
        map.append(
            HeaderName::try_from(*name).unwrap(),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    map
}

fn limit(lines: &[(&str, &str)]) -> Option<Duration> {
    rate_limit(&headers(lines), at(NOW))
}

fn guide(lines: &[(&str, &str)]) -> Option<Guidance> {
    guidance(&headers(lines), at(NOW))
}

fn value(text: &str) -> Option<Duration> {
    retry_after_value(text.as_bytes(), at(NOW))
}

#[test]
fn ra_1_digits_are_seconds() {
    for (text, expected) in [
        ("0", 0),
        ("5", 5),
        ("120", 120),
        ("007", 7),
        (" 5", 5),
        ("5 ", 5),
        ("\t 5 \t", 5),
        ("4294967296", 4_294_967_296),
    ] {
        assert_eq!(value(text), Some(secs(expected)), "{text:?}");
    }
}

#[test]
fn ra_1_zero_differs_from_absent() {
    assert_eq!(retry_after(&headers(&[]), at(NOW)), None);
    assert_eq!(
        retry_after(&headers(&[("retry-after", "0")]), at(NOW)),
        Some(Duration::ZERO)
    );
}

#[test]
fn ra_1_anything_else_is_ignored() {
    for text in [
        "", " ", "+5", "-1", "5.5", "5s", "5 6", "5,6", "0x5", "1e3", "٣", "５", "soon", "\n5",
        "5\r",
    ] {
        assert_eq!(value(text), None, "{text:?}");
    }
    assert_eq!(retry_after_value(b"5\xff", at(NOW)), None);
    assert_eq!(retry_after_value(b"5\x00", at(NOW)), None);
}

#[test]
fn ra_1_dates_are_relative_to_now() {
    let now = at(EXAMPLE - 7);
    for date in [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "\tSun, 06 Nov 1994 08:49:37 GMT ",
    ] {
        assert_eq!(
            retry_after_value(date.as_bytes(), now),
            Some(secs(7)),
            "{date}"
        );
    }
    let between = now + Duration::from_millis(250);
    assert_eq!(
        retry_after_value(b"Sun, 06 Nov 1994 08:49:37 GMT", between),
        Some(Duration::from_millis(6750))
    );
}

#[test]
fn ra_2_long_digits_saturate() {
    for (text, expected) in [
        ("18446744073709551614", u64::MAX - 1),
        ("18446744073709551615", u64::MAX),
        ("18446744073709551616", u64::MAX),
        ("99999999999999999999999999", u64::MAX),
    ] {
        assert_eq!(value(text), Some(secs(expected)), "{text}");
    }
    assert_eq!(value(&"9".repeat(5000)), Some(secs(u64::MAX)));
    assert_eq!(value(&format!("{}1", "0".repeat(5000))), Some(secs(1)));
}

#[test]
fn ra_3_three_date_forms_agree() {
    for date in [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
    ] {
        assert_eq!(
            http_date(date.as_bytes(), at(NOW)),
            Some(at(EXAMPLE)),
            "{date}"
        );
    }
}

#[test]
fn ra_3_known_instants() {
    for (date, expected) in [
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Wed, 31 Dec 1969 23:59:59 GMT", -1),
        ("Sat, 01 Jan 0000 00:00:00 GMT", -62_167_219_200),
        ("Mon, 01 Jan 0001 00:00:00 GMT", -62_135_596_800),
        ("Tue, 29 Feb 2000 00:00:00 GMT", 951_782_400),
        ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
        ("Thu, 31 Dec 2026 23:59:59 GMT", 1_798_761_599),
        ("Mon, 01 Mar 2100 00:00:00 GMT", 4_107_542_400),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
        ("Sat Nov 26 08:49:37 1994", EXAMPLE + 20 * 86_400),
        ("Sat Nov 06 08:49:37 1994", EXAMPLE),
        ("Mon, 06 Nov 1994 08:49:37 GMT", EXAMPLE),
    ] {
        assert_eq!(
            http_date(date.as_bytes(), at(NOW)),
            checked_at(expected),
            "{date}"
        );
    }
}

#[test]
fn ra_3_every_name_is_known() {
    let days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday";
    for day in days.split(' ') {
        let long = format!("{day}, 06-Nov-94 08:49:37 GMT");
        let short = format!("{}, 06 Nov 1994 08:49:37 GMT", &day[..3]);
        for date in [long, short] {
            assert_eq!(
                http_date(date.as_bytes(), at(NOW)),
                Some(at(EXAMPLE)),
                "{date}"
            );
        }
    }
    let starts = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    for (month, days) in MONTHS.iter().zip(starts) {
        let date = format!("Sun, 01 {month} 1970 00:00:00 GMT");
        assert_eq!(
            http_date(date.as_bytes(), at(NOW)),
            Some(at(days * 86_400)),
            "{date}"
        );
    }
}

#[test]
fn ra_3_days_follow_the_calendar() {
    for (date, exists) in [
        ("Sun, 00 Jan 2023 00:00:00 GMT", false),
        ("Sun, 31 Jan 2023 00:00:00 GMT", true),
        ("Sun, 32 Jan 2023 00:00:00 GMT", false),
        ("Sun, 28 Feb 2023 00:00:00 GMT", true),
        ("Sun, 29 Feb 2023 00:00:00 GMT", false),
        ("Sun, 29 Feb 2024 00:00:00 GMT", true),
        ("Sun, 30 Feb 2024 00:00:00 GMT", false),
        ("Sun, 29 Feb 2000 00:00:00 GMT", true),
        ("Sun, 29 Feb 2100 00:00:00 GMT", false),
        ("Sun, 30 Apr 2023 00:00:00 GMT", true),
        ("Sun, 31 Apr 2023 00:00:00 GMT", false),
        ("Sun, 31 Jun 2023 00:00:00 GMT", false),
        ("Sun, 31 Sep 2023 00:00:00 GMT", false),
        ("Sun, 31 Nov 2023 00:00:00 GMT", false),
        ("Sunday, 29-Feb-24 00:00:00 GMT", true),
        ("Sunday, 29-Feb-23 00:00:00 GMT", false),
        ("Sun Feb 29 00:00:00 2024", true),
        ("Sun Feb 29 00:00:00 2023", false),
        ("Sun Feb  0 00:00:00 2023", false),
    ] {
        let parsed = http_date(date.as_bytes(), at(NOW));
        assert_eq!(parsed.is_some(), exists, "{date}");
    }
}

#[test]
fn ra_3_a_leap_second_is_the_next_minute() {
    assert_eq!(
        http_date(b"Sat, 31 Dec 2016 23:59:60 GMT", at(NOW)),
        http_date(b"Sun, 01 Jan 2017 00:00:00 GMT", at(NOW)),
    );
    assert_eq!(
        http_date(b"Sun, 01 Jan 2017 00:00:00 GMT", at(NOW)),
        Some(at(1_483_228_800))
    );
}

#[test]
fn ra_3_the_grammar_is_exact() {
    for date in [
        "",
        "Sun",
        "Sun, ",
        "sun, 06 Nov 1994 08:49:37 GMT",
        "SUN, 06 Nov 1994 08:49:37 GMT",
        "Xyz, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06 Nov 1994 08:49:37 GMT",
        "Sun 06 Nov 1994 08:49:37 GMT",
        "Sun,06 Nov 1994 08:49:37 GMT",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun,  6 Nov 1994 08:49:37 GMT",
        "Sun, +6 Nov 1994 08:49:37 GMT",
        "Sun, 06 nov 1994 08:49:37 GMT",
        "Sun, 06 November 1994 08:49:37 GMT",
        "Sun, 06 Nov 94 08:49:37 GMT",
        "Sun, 06 Nov 01994 08:49:37 GMT",
        "Sun, 06 Nov 1994 8:49:37 GMT",
        "Sun, 06 Nov 1994 08-49-37 GMT",
        "Sun, 06 Nov 1994 08:49 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:60:37 GMT",
        "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 06 Nov 1994 08:49:37.5 GMT",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 1994 08:49:37 gmt",
        "Sun, 06 Nov 1994 08:49:37 UTC",
        "Sun, 06 Nov 1994 08:49:37 +0000",
        "Sun, 06 Nov 1994 08:49:37 GMT ",
        "Sun, 06 Nov 1994 08:49:37 GMTx",
        " Sun, 06 Nov 1994 08:49:37 GMT",
        "06 Nov 1994 08:49:37 GMT",
        ", 06 Nov 1994 08:49:37 GMT",
        ", 06-Nov-94 08:49:37 GMT",
        " Nov  6 08:49:37 1994",
        "Sun, 06-Nov-94 08:49:37 GMT",
        "Sunday, 06-Nov-1994 08:49:37 GMT",
        "Sunday, 06 Nov 94 08:49:37 GMT",
        "Sunday, 6-Nov-94 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37",
        "Sun Nov 6 08:49:37 1994",
        "Sun Nov   6 08:49:37 1994",
        "Sun, Nov  6 08:49:37 1994",
        "Sun Nov  6 08:49:37 94",
        "Sun Nov  6 08:49:37 1994 GMT",
        "Sunday Nov  6 08:49:37 1994",
        "1994-11-06T08:49:37Z",
    ] {
        assert_eq!(http_date(date.as_bytes(), at(NOW)), None, "{date:?}");
    }
}

#[test]
fn ra_3_two_digit_years_are_computed_from_now() {
    // Fri, 15 Jan 1999 12:00:00 GMT and the same of 2080; only `now` differs.
    let (in_1999, in_2080) = (916_401_600, 3_472_545_600);
    for (now, year, full) in [
        (NOW, "26", 2026),
        (NOW, "25", 2025),
        (NOW, "27", 2027),
        (NOW, "75", 2075),
        (NOW, "77", 1977),
        (NOW, "94", 1994),
        (NOW, "00", 2000),
        (NOW, "99", 1999),
        (in_1999, "99", 1999),
        (in_1999, "05", 2005),
        (in_1999, "48", 2048),
        (in_1999, "50", 1950),
        (in_2080, "94", 2094),
        (in_2080, "29", 2129),
        (in_2080, "31", 2031),
        (-YEAR * 10, "94", 1994),
        (-YEAR * 10, "11", 1911),
    ] {
        let short = format!("Sunday, 06-Jul-{year} 08:49:37 GMT");
        let long = format!("Sun, 06 Jul {full} 08:49:37 GMT");
        assert_eq!(
            http_date(short.as_bytes(), at(now)),
            http_date(long.as_bytes(), at(now)),
            "{short} at {now}"
        );
    }
}

#[test]
fn ra_3_the_fifty_years_end_to_the_second() {
    let in_2076 = http_date(b"Wed, 15 Jan 2076 12:00:00 GMT", at(NOW));
    let in_1976 = http_date(b"Thu, 15 Jan 1976 12:00:01 GMT", at(NOW));
    assert!(in_2076.is_some() && in_1976.is_some());
    assert_eq!(
        http_date(b"Wednesday, 15-Jan-76 12:00:00 GMT", at(NOW)),
        in_2076
    );
    assert_eq!(
        http_date(b"Thursday, 15-Jan-76 12:00:01 GMT", at(NOW)),
        in_1976
    );
}

#[test]
fn ra_3_leap_days_fifty_years_ahead() {
    let date = b"Saturday, 29-Feb-76 12:00:00 GMT";
    let (feb_28, mar_2) = (NOW + 44 * 86_400, NOW + 46 * 86_400);
    assert_eq!(http_date(date, at(feb_28)), Some(at(194_443_200)));
    assert_eq!(http_date(date, at(mar_2)), Some(at(3_350_203_200)));
}

#[test]
fn ra_3_the_edges_of_the_calendar_are_no_panic() {
    for now in [i64::MIN, i64::MIN + 1, -62_135_596_801, i64::MAX] {
        let Some(now) = checked_at(now) else { continue };
        for date in [
            "Sun, 01 Jan 0000 00:00:00 GMT",
            "Sun, 31 Dec 9999 23:59:60 GMT",
            "Sunday, 29-Feb-00 23:59:60 GMT",
            "Sunday, 31-Dec-99 23:59:60 GMT",
        ] {
            let _ = http_date(date.as_bytes(), now);
            let _ = retry_after_value(date.as_bytes(), now);
        }
    }
}

#[test]
fn ra_4_a_past_date_is_zero() {
    for date in [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "Thu, 15 Jan 2026 11:59:59 GMT",
        "Thu, 15 Jan 2026 12:00:00 GMT",
    ] {
        assert_eq!(value(date), Some(Duration::ZERO), "{date}");
    }
    assert_eq!(value("Thu, 15 Jan 2026 12:00:01 GMT"), Some(secs(1)));
}

#[test]
fn ra_5_the_largest_valid_line_wins() {
    let date = "Thu, 15 Jan 2026 12:00:30 GMT";
    for (lines, expected) in [
        (&["5", "5"][..], Some(5)),
        (&["5", "9"], Some(9)),
        (&["9", "5"], Some(9)),
        (&["x", "5", "-1"], Some(5)),
        (&["x", ""], None),
        (&["29", date], Some(30)),
        (&[date, "31"], Some(31)),
    ] {
        let lines: Vec<_> = lines.iter().map(|line| ("retry-after", *line)).collect();
        let delay = retry_after(&headers(&lines), at(NOW));
        assert_eq!(delay, expected.map(secs), "{lines:?}");
    }
}

#[test]
fn ra_5_lines_past_the_sixteenth_are_not_read() {
    let mut lines = vec![("retry-after", "1"); 15];
    lines.push(("retry-after", "2"));
    lines.push(("retry-after", "99"));
    assert_eq!(retry_after(&headers(&lines), at(NOW)), Some(secs(2)));
}

#[test]
fn ra_6_rate_limit_list() {
    for (field, expected) in [
        (r#""default";r=0;t=5"#, Some(5)),
        (r#"default;r=0;t=5"#, Some(5)),
        (r#""default" ; r=0 ;  t=5"#, Some(5)),
        (r#""default";t=5;r=0;pk=:cGs=:"#, Some(5)),
        (r#""default";r=0;t=0"#, Some(0)),
        (r#""a";r=0;t=5, "b";r=0;t=9"#, Some(9)),
        (r#""a";r=0;t=9,"b";r=0;t=5"#, Some(9)),
        (r#""a";r=0;t=5, "b";r=3;t=900"#, Some(5)),
        (r#""default";r=1;t=5"#, None),
        (r#""default";r=0"#, None),
        (r#""default";t=5"#, None),
        (r#""default""#, None),
        (r#""a;r=0;t=7""#, None),
        (r#""a,b;t=90";r=0;t=5"#, Some(5)),
        (r#""a\",b;t=90";r=0;t=5"#, Some(5)),
        (r#""a\\";r=0;t=5, "b";r=0;t=6"#, Some(6)),
        (r#""a;r=0;t=5"#, None),
        (r#""a";r=x;t=5, "b";r=0;t=y, "c";r=0;t=2"#, Some(2)),
        (r#""a";r=0;t=-5"#, None),
        (",,;;=,\"", None),
        ("", None),
    ] {
        assert_eq!(
            limit(&[("ratelimit", field)]),
            expected.map(secs),
            "{field}"
        );
    }
}

#[test]
fn ra_6_rate_limit_lines_combine() {
    let lines = [
        ("ratelimit", r#""a";r=0;t=5"#),
        ("ratelimit", r#""b";r=0;t=8"#),
    ];
    assert_eq!(limit(&lines), Some(secs(8)));
    let lines = [
        ("ratelimit", "limit=100, remaining=0"),
        ("ratelimit", "reset=5"),
    ];
    assert_eq!(limit(&lines), Some(secs(5)));
}

#[test]
fn ra_6_rate_limit_dictionary() {
    for (field, expected) in [
        ("limit=100, remaining=0, reset=5", Some(5)),
        ("limit=100,remaining=0,reset=5", Some(5)),
        ("reset=5, remaining=0, limit=100;w=60", Some(5)),
        ("limit=100, remaining=1, reset=5", None),
        ("limit=100, reset=5", Some(5)),
        ("limit=100, remaining=0", None),
        ("remaining=0, reset=5, remaining=3, reset=2", Some(5)),
        ("remaining=3, reset=2, remaining=0, reset=5", Some(5)),
    ] {
        assert_eq!(
            limit(&[("ratelimit", field)]),
            expected.map(secs),
            "{field}"
        );
    }
}

#[test]
fn ra_6_rate_limit_fields() {
    for prefix in ["ratelimit", "x-ratelimit"] {
        for (remaining, reset, expected) in [
            (Some("0"), Some("5"), Some(5)),
            (Some(" 0\t"), Some(" 5 "), Some(5)),
            (Some("1"), Some("5"), None),
            (None, Some("5"), Some(5)),
            (Some("0"), None, None),
            (None, None, None),
            (Some("0"), Some("soon"), None),
            (Some("0"), Some("-5"), None),
            (Some("-1"), Some("5"), Some(5)),
            (Some("0"), Some("1.5"), Some(2)),
            (Some("0"), Some("1.0"), Some(1)),
            (Some("0"), Some("1."), None),
            (Some("0"), Some(".5"), None),
            (Some("0"), Some("1.5.1"), None),
            (Some("0"), Some("5;w=60, 9;w=3600"), Some(9)),
            (Some("3, 0"), Some("5"), Some(5)),
        ] {
            let names = [format!("{prefix}-remaining"), format!("{prefix}-reset")];
            let lines: Vec<_> = names
                .iter()
                .zip([remaining, reset])
                .filter_map(|(name, value)| Some((name.as_str(), value?)))
                .collect();
            assert_eq!(limit(&lines), expected.map(secs), "{lines:?}");
        }
    }
}

#[test]
fn ra_6_a_guessed_exhaustion_yields_to_what_remains() {
    let guess = ("x-ratelimit-reset", "60");
    assert_eq!(limit(&[guess]), Some(secs(60)));
    assert_eq!(limit(&[guess, ("ratelimit-remaining", "5")]), None);
    assert_eq!(limit(&[guess, ("ratelimit", r#""a";r=5;t=9"#)]), None);
    assert_eq!(
        limit(&[guess, ("ratelimit", r#""a";r=0;t=9, "b";r=5;t=99"#)]),
        Some(secs(9))
    );
}

#[test]
fn ra_6_reset_is_a_delay_or_a_timestamp_by_magnitude() {
    for (reset, expected) in [
        ("999999999", secs(999_999_999)),
        ("1000000000", Duration::ZERO),
        ("1768478400", Duration::ZERO),
        ("1768478407", secs(7)),
        ("1768478406.5", secs(7)),
        ("999999999999", secs(999_999_999_999 - 1_768_478_400)),
        ("1000000000000", Duration::ZERO),
        ("1768478400250", Duration::from_millis(250)),
    ] {
        for (name, field) in [
            ("ratelimit", format!(r#""a";r=0;t={reset}"#)),
            ("ratelimit", format!("remaining=0, reset={reset}")),
            ("ratelimit-reset", reset.to_owned()),
            ("x-ratelimit-reset", reset.to_owned()),
        ] {
            assert_eq!(limit(&[(name, &field)]), Some(expected), "{name}: {field}");
        }
    }
    assert_eq!(
        rate_limit(&headers(&[("ratelimit-reset", "1000000000")]), at(-5)),
        Some(secs(1_000_000_005)),
    );
}

#[test]
fn ra_6_long_resets_saturate() {
    let digits = "9".repeat(400);
    let far = limit(&[("x-ratelimit-reset", &digits)]);
    assert!(far > Some(secs(1_000_000_000_000_000)), "{far:?}");
    let fraction = format!("{digits}.{digits}");
    assert_eq!(limit(&[("x-ratelimit-reset", &fraction)]), far);
}

#[test]
fn ra_6_sixteen_members_are_read() {
    let padding = r#""a";r=0;t=1,"#;
    let last = format!("{}\"b\";r=0;t=9", padding.repeat(15));
    assert_eq!(limit(&[("ratelimit", &last)]), Some(secs(9)));
    let past = format!("{}\"b\";r=0;t=9", padding.repeat(16));
    assert_eq!(limit(&[("ratelimit", &past)]), Some(secs(1)));
    let line = padding.trim_end_matches(',');
    let mut lines = vec![("ratelimit", line); 16];
    lines.push(("ratelimit", r#""b";r=0;t=9"#));
    assert_eq!(limit(&lines), Some(secs(1)));
}

#[test]
fn ra_6_precedence() {
    let after = ("retry-after", "5");
    let shorter = ("ratelimit", r#""a";r=0;t=3"#);
    let longer = ("x-ratelimit-reset", "8");
    let push = ("grpc-retry-pushback-ms", "250");
    let no_push = ("grpc-retry-pushback-ms", "-1");
    let never = ("x-should-retry", "false");
    let floor = |seconds| Some(Guidance::AtLeast(secs(seconds)));
    let exactly = Some(Guidance::Exactly(Duration::from_millis(250)));

    assert_eq!(guide(&[]), None);
    assert_eq!(guide(&[("retry-after", "x")]), None);
    assert_eq!(guide(&[("retry-after", "0")]), floor(0));
    assert_eq!(guide(&[after]), floor(5));
    assert_eq!(guide(&[shorter]), floor(3));
    assert_eq!(guide(&[after, shorter]), floor(5));
    assert_eq!(guide(&[after, longer]), floor(8));
    assert_eq!(guide(&[shorter, longer]), floor(8));
    assert_eq!(guide(&[after, longer, push]), exactly);
    assert_eq!(guide(&[after, no_push]), Some(Guidance::Stop));
    assert_eq!(guide(&[after, never]), Some(Guidance::Stop));
    assert_eq!(guide(&[never, push]), exactly);
}

#[test]
fn ra_6_only_false_forbids_the_retry() {
    for (value, stops) in [
        ("false", true),
        ("False", true),
        (" FALSE\t", true),
        ("true", false),
        ("0", false),
        ("", false),
        ("falsey", false),
    ] {
        let expected = stops.then_some(Guidance::Stop);
        assert_eq!(guide(&[("x-should-retry", value)]), expected, "{value:?}");
    }
    let lines = [("x-should-retry", "true"), ("x-should-retry", "false")];
    assert_eq!(guide(&lines), Some(Guidance::Stop));
}

#[test]
fn ra_8_pushback() {
    assert_eq!(pushback(&headers(&[])), None);
    for (text, expected) in [
        ("0", Some(0)),
        ("250", Some(250)),
        (" 250 ", Some(250)),
        ("2147483647", Some(2_147_483_647)),
        ("2147483648", Some(2_147_483_648)),
        ("99999999999999999999999999999999", Some(u64::MAX)),
        ("-1", None),
        ("-99999999999999999999999999999999", None),
        ("", None),
        ("+1", None),
        ("1.5", None),
        ("1s", None),
        ("1, 1", None),
        ("٣", None),
    ] {
        let expected = expected.map_or(Guidance::Stop, |millis| {
            Guidance::Exactly(Duration::from_millis(millis))
        });
        let headers = headers(&[("grpc-retry-pushback-ms", text)]);
        assert_eq!(pushback(&headers), Some(expected), "{text:?}");
    }
}

#[test]
fn ra_8_repeated_pushback_stops() {
    let line = ("grpc-retry-pushback-ms", "250");
    assert_eq!(pushback(&headers(&[line, line])), Some(Guidance::Stop));
}

const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

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

#[test]
fn ra_6_limits_say_nothing_about_a_failure_of_another_kind() {
    let mut headers = HeaderMap::new();
    headers.insert("x-ratelimit-reset", HeaderValue::from_static("3000"));
    assert_eq!(explicit_guidance(&headers, UNIX_EPOCH), None);
    headers.insert("retry-after", HeaderValue::from_static("2"));
    let two = Guidance::AtLeast(Duration::from_secs(2));
    assert_eq!(explicit_guidance(&headers, UNIX_EPOCH), Some(two));
    headers.insert("x-should-retry", HeaderValue::from_static("false"));
    assert_eq!(
        explicit_guidance(&headers, UNIX_EPOCH),
        Some(Guidance::Stop)
    );
    headers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("7"));
    let seven = Guidance::Exactly(Duration::from_millis(7));
    assert_eq!(explicit_guidance(&headers, UNIX_EPOCH), Some(seven));
}
