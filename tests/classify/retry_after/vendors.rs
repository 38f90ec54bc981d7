//! RA-10: the forms of vendors, and the table that users extend.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use tower_reprise::{
    Policy,
    call::Guidance,
    classify::retry_after::{
        GuidanceTable, delay_value, explicit_guidance, guidance, rate_limit, rfc3339_date,
    },
};

use super::{NOW, at, guide, headers, secs};

const fn ms(millis: u64) -> Option<Guidance> {
    Some(Guidance::AtLeast(Duration::from_millis(millis)))
}

#[test]
fn ra_10_each_vendors_header_is_a_floor() {
    type Lines<'a> = &'a [(&'a str, &'a str)];
    let table: &[(Lines, Option<Guidance>)] = &[
        // OpenAI and Azure OpenAI.
        (&[("retry-after-ms", "1500")], ms(1500)),
        (&[("retry-after-ms", "0.5")], ms(1)),
        (&[("retry-after-ms", "-1")], None),
        (
            &[("retry-after-ms", "1500"), ("retry-after", "1")],
            ms(1500),
        ),
        (
            &[("retry-after-ms", "1500"), ("retry-after", "2")],
            ms(2000),
        ),
        // Cosmos DB and AWS.
        (&[("x-ms-retry-after-ms", "100")], ms(100)),
        (&[("x-amz-retry-after", "1200")], ms(1200)),
        // OpenAI and Stripe.
        (
            &[("x-should-retry", "false"), ("retry-after", "2")],
            Some(Guidance::Stop),
        ),
        (&[("stripe-should-retry", "false")], Some(Guidance::Stop)),
        (&[("stripe-should-retry", "true")], None),
        (&[("stripe-should-retry", "maybe")], None),
        // OpenAI.
        (&[("x-ratelimit-reset-requests", "1m30s")], ms(90_000)),
        (&[("x-ratelimit-reset-tokens", "6ms")], ms(6)),
        (
            &[
                ("x-ratelimit-remaining-requests", "59"),
                ("x-ratelimit-reset-requests", "1s"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
            ms(360_000),
        ),
        (
            &[
                ("x-ratelimit-remaining-requests", "59"),
                ("x-ratelimit-reset-requests", "1s"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
            None,
        ),
        (&[("x-ratelimit-reset-", "5s")], None),
        // Anthropic.
        (
            &[
                ("anthropic-ratelimit-requests-remaining", "0"),
                ("anthropic-ratelimit-requests-reset", "2026-01-15T12:00:07Z"),
                ("anthropic-ratelimit-input-tokens-remaining", "1000"),
                (
                    "anthropic-ratelimit-input-tokens-reset",
                    "2026-01-15T12:01:00Z",
                ),
            ],
            ms(7000),
        ),
        // Discord: the bucket's reset is a fraction of a second, and a timestamp beside it.
        (
            &[
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1768478400.470"),
                ("x-ratelimit-reset-after", "0.470"),
            ],
            ms(1000),
        ),
        // X and Okta.
        (
            &[
                ("x-rate-limit-remaining", "0"),
                ("x-rate-limit-reset", "1768478412"),
            ],
            ms(12_000),
        ),
        // The drafts, old and new.
        (&[("ratelimit", r#""default";r=0;t=5"#)], ms(5000)),
        (&[("ratelimit", "limit=9, remaining=0, reset=5")], ms(5000)),
        (
            &[("ratelimit-remaining", "0"), ("ratelimit-reset", "5")],
            ms(5000),
        ),
        (
            &[("ratelimit-reset", "Thu, 15 Jan 2026 12:00:09 GMT")],
            ms(9000),
        ),
        // Pushback decides alone.
        (
            &[("grpc-retry-pushback-ms", "3"), ("retry-after-ms", "1500")],
            Some(Guidance::Exactly(Duration::from_millis(3))),
        ),
    ];
    for (lines, expected) in table {
        assert_eq!(guide(lines), *expected, "{lines:?}");
    }
}

#[test]
fn ra_10_delays_have_many_forms() {
    for (text, expected) in [
        ("6ms", Some(Duration::from_millis(6))),
        ("1m30s", Some(secs(90))),
        ("1h2m3s", Some(secs(3723))),
        ("1d", Some(secs(86_400))),
        ("1.5s", Some(Duration::from_millis(1500))),
        ("59.926s", Some(Duration::from_millis(59_926))),
        ("250us", Some(Duration::from_micros(250))),
        ("250\u{b5}s", Some(Duration::from_micros(250))),
        ("250\u{3bc}s", Some(Duration::from_micros(250))),
        ("0.1ns", Some(Duration::from_nanos(1))),
        ("0s", Some(Duration::ZERO)),
        (" 2s\t", Some(secs(2))),
        ("2026-01-15T12:00:07Z", Some(secs(7))),
        ("2026-01-15t13:00:07+01:00", Some(secs(7))),
        (
            "2026-01-15 06:30:07.25-05:30",
            Some(Duration::from_millis(7250)),
        ),
        ("2026-01-15T11:59:60Z", Some(Duration::ZERO)),
        ("2026-01-15T11:59:59Z", Some(Duration::ZERO)),
        ("Thu, 15 Jan 2026 12:00:07 GMT", Some(secs(7))),
        ("1.5", Some(secs(2))),
        ("1768478407", Some(secs(7))),
        ("1768478400250", Some(Duration::from_millis(250))),
        ("", None),
        ("s", None),
        ("5 s", None),
        ("-5s", None),
        ("+5s", None),
        (".5s", None),
        ("5.s", None),
        ("1..5s", None),
        ("5s3", None),
        ("5fortnights", None),
        ("P1D", None),
        ("2026-13-15T12:00:07Z", None),
        ("2026-00-15T12:00:07Z", None),
        ("2026-02-29T12:00:07Z", None),
        ("2026-01-15T24:00:00Z", None),
        ("2026-01-15T12:00:07", None),
        ("2026-01-15T12:00:07.Z", None),
        ("2026-01-15T12:00:07+24:00", None),
        ("2026-01-15", None),
    ] {
        assert_eq!(delay_value(text.as_bytes(), at(NOW)), expected, "{text:?}");
    }
    let many = "1s".repeat(16);
    assert_eq!(delay_value(many.as_bytes(), at(NOW)), Some(secs(16)));
    let more = "1s".repeat(17);
    assert_eq!(delay_value(more.as_bytes(), at(NOW)), None);
    let digits = format!("{}d", "9".repeat(400));
    let far = delay_value(digits.as_bytes(), at(NOW));
    assert!(far >= Some(secs(u64::MAX)), "{far:?}");
}

/// A status that was caused otherwise has no limits that failed it, but may say to wait.
#[test]
fn ra_10_limits_say_nothing_about_a_failure_of_another_kind() {
    let map = headers(&[
        ("x-ratelimit-reset-requests", "1m"),
        ("anthropic-ratelimit-tokens-reset", "2027-01-01T00:00:00Z"),
    ]);
    assert_eq!(explicit_guidance(&map, at(NOW)), None);
    let map = headers(&[
        ("retry-after-ms", "7"),
        ("x-ratelimit-reset-requests", "1m"),
    ]);
    assert_eq!(explicit_guidance(&map, at(NOW)), ms(7));
}

#[test]
fn ra_10_a_policy_extends_the_table() {
    let table = GuidanceTable::standard()
        .delay("X-Acme-Wait")
        .millis("x-acme-wait-ms")
        .stop("x-acme-retry")
        .reset("x-acme-*-reset", "x-acme-*-left")
        .without("retry-after-ms");
    for (lines, expected) in [
        (&[("x-acme-wait", "1m30s")][..], ms(90_000)),
        (&[("x-acme-wait-ms", "20")], ms(20)),
        (&[("x-acme-retry", "False")], Some(Guidance::Stop)),
        (
            &[("x-acme-jobs-reset", "5"), ("x-acme-jobs-left", "0")],
            ms(5000),
        ),
        (
            &[("x-acme-jobs-reset", "5"), ("x-acme-jobs-left", "1")],
            None,
        ),
        (&[("retry-after-ms", "20")], None),
        (&[("retry-after", "2")], ms(2000)),
    ] {
        let found = table.guidance(&headers(lines), at(NOW));
        assert_eq!(found, expected, "{lines:?}");
    }
    let policy = Policy::http().guidance(table.clone()).build().unwrap();
    assert_eq!(policy.rules().guidance, table);
}

#[test]
fn ra_10_rows_that_could_never_match_are_refused() {
    let standard = GuidanceTable::standard;
    for (table, value) in [
        (standard().delay("x acme"), r#""x acme""#),
        (standard().delay(""), r#""""#),
        (standard().delay("a-*-b-*"), r#""a-*-b-*""#),
        (standard().millis("/a~2"), r#""/a~2""#),
        (standard().reset("/reset", "/left"), r#""/reset""#),
        (standard().reset("x-*-reset", "x-left"), r#""x-left""#),
        (standard().reset("x-reset", "x left"), r#""x left""#),
        (
            (0..45).fold(standard(), |table, n| table.delay(format!("x-{n}"))),
            "65",
        ),
    ] {
        let error = Policy::http().guidance(table).build().unwrap_err();
        let text = error.to_string();
        assert_eq!(error.field(), "rules.guidance", "{text}");
        assert!(text.contains(&format!("is {value}, allowed: ")), "{text}");
    }
}

/// The page of the module is the table.
#[test]
fn ra_10_every_row_is_documented() {
    let page = include_str!("../../../src/classify/retry_after.rs");
    let rows: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("//! | "))
        .collect();
    for field in GuidanceTable::standard().fields() {
        let field = format!("`{field}`");
        assert!(rows.iter().any(|row| row.contains(&field)), "{field}");
    }
}

fn any_delay() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9]{1,25}",
        "([0-9]{1,25}(\\.[0-9]{1,25})?(ns|us|ms|s|m|h|d|x)){1,18}",
        "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{0,12})?(Z|[-+][0-9]{2}:[0-9]{2})?",
        "[ -~]{0,40}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ra_10_no_vendors_header_panics(
        lines in prop::collection::vec((0..12_usize, any_delay()), 0..24),
        now in -5_000_000_000_i64..300_000_000_000,
    ) {
        const NAMES: [&str; 12] = [
            "retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after", "x-should-retry",
            "stripe-should-retry", "x-ratelimit-reset-requests", "x-ratelimit-remaining-requests",
            "x-ratelimit-reset-after", "x-rate-limit-reset", "anthropic-ratelimit-tokens-reset",
            "anthropic-ratelimit-tokens-remaining", "retry-after",
        ];
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(NAMES[name], HeaderValue::from_str(&value).unwrap());
        }
        let table = GuidanceTable::standard();
        let floor = table.longest_delay(&map, at(now)).max(rate_limit(&map, at(now)));
        match guidance(&map, at(now)) {
            Some(Guidance::AtLeast(delay)) => prop_assert_eq!(Some(delay), floor),
            None => prop_assert_eq!(floor, None),
            decision => prop_assert_eq!(decision, Some(Guidance::Stop)),
        }
    }

    #[test]
    fn ra_10_durations_add_up(hours in 0..10_000_u64, minutes in 0..60_u64, millis in 0..60_000_u64) {
        let text = format!("{hours}h{minutes}m{}.{:03}s", millis / 1000, millis % 1000);
        let expected = Duration::from_secs(hours * 3600 + minutes * 60) + Duration::from_millis(millis);
        prop_assert_eq!(delay_value(text.as_bytes(), at(NOW)), Some(expected));
    }

    #[test]
    fn ra_10_an_offset_is_another_name_of_the_same_instant(
        seconds in 0..86_400_i64, hours in 0..24_i64, minutes in 0..60_i64,
    ) {
        let time = |seconds: i64| {
            let (day, time) = (15 + seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
            format!("2026-01-{day:02}T{:02}:{:02}:{:02}", time / 3600, time / 60 % 60, time % 60)
        };
        let utc = rfc3339_date(format!("{}Z", time(seconds)).as_bytes());
        prop_assert_eq!(utc, Some(at(NOW - 43_200 + seconds)));
        let offset = (hours * 60 + minutes) * 60;
        let east = format!("{}+{hours:02}:{minutes:02}", time(seconds + offset));
        prop_assert_eq!(rfc3339_date(east.as_bytes()), utc);
        let west = format!("{}-{hours:02}:{minutes:02}", time(seconds - offset));
        prop_assert_eq!(rfc3339_date(west.as_bytes()), utc);
    }
}
