//! Rate-limit fields, and pushback of gRPC.

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use tower_reprise::{
    call::Guidance,
    classify::retry_after::{explicit_guidance, pushback, rate_limit},
};

use super::{at, guide, headers, limit, secs};

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
