//! Retry-After: seconds and dates.

use std::time::Duration;

use tower_reprise::classify::retry_after::{http_date, retry_after, retry_after_value};

use super::{EXAMPLE, MONTHS, NOW, YEAR, at, checked_at, headers, secs, value};

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
