use super::*;

fn field(codes: &Codes) -> Option<&'static str> {
    codes.check().err().map(|(field, ..)| field)
}

#[test]
fn p_2_sizes_and_times_have_limits() {
    let mebibyte = 1024 * 1024;
    for (limit, allowed) in [
        (0, false),
        (1, true),
        (2048, true),
        (mebibyte, true),
        (mebibyte + 1, false),
        (usize::MAX, false),
    ] {
        let found = field(&Codes::standard().limit(limit));
        let expected = (!allowed).then_some("rules.codes.limit");
        assert_eq!(found, expected, "{limit}");
    }
    for (millis, allowed) in [(0, true), (9999, true), (10_000, true), (10_001, false)] {
        let found = field(&Codes::standard().time(Duration::from_millis(millis)));
        let expected = (!allowed).then_some("rules.codes.time");
        assert_eq!(found, expected, "{millis} ms");
    }
    let standard = Codes::standard();
    assert_eq!(standard.most(), 65_536);
    assert_eq!(standard.longest(), Duration::from_millis(250));
    let told = standard.limit(17).time(Duration::from_millis(3));
    assert_eq!(told.most(), 17);
    assert_eq!(told.longest(), Duration::from_millis(3));
}

#[test]
fn p_2_pointers_content_types_and_codes_are_well_formed() {
    for (pointer, allowed) in [
        ("/fault/id", true),
        ("/", true),
        ("/a~0b~1c", true),
        ("", false),
        ("fault", false),
        ("fault~0", false),
        ("/a~2", false),
        ("/a~", false),
    ] {
        let found = field(&Codes::standard().pointer(pointer));
        let expected = (!allowed).then_some("rules.codes.pointers");
        assert_eq!(found, expected, "{pointer:?}");
    }
    for (kind, allowed) in [
        ("application/json", true),
        ("application/vnd.api+json", true),
        ("json", false),
        ("/json", false),
        ("application/", false),
        ("application/json; charset=utf-8", false),
        ("app lication/json", false),
        ("a/b/c", false),
    ] {
        let found = field(&Codes::standard().content_type(kind));
        let expected = (!allowed).then_some("rules.codes.content_types");
        assert_eq!(found, expected, "{kind:?}");
    }
    for (code, allowed) in [
        ("x".to_owned(), true),
        ("x".repeat(128), true),
        ("x".repeat(129), false),
        (String::new(), false),
        ("two words".to_owned(), false),
        ("é".to_owned(), false),
    ] {
        let found = field(&Codes::standard().never(code.clone()));
        let expected = (!allowed).then_some("rules.codes");
        assert_eq!(found, expected, "{code:?}");
    }
}

#[test]
fn p_3_r_4_codes_that_are_never_retried_are_known() {
    for (code, forbidden) in [
        // The bank's.
        ("RBAC_DENY", true),
        // gRPC's names.
        ("PERMISSION_DENIED", true),
        ("INTERNAL", true),
        ("UNAVAILABLE", false),
        // Numbers of HTTP statuses.
        ("400", true),
        ("404", true),
        ("501", true),
        ("425", false),
        ("429", false),
        ("503", false),
        ("200", false),
        ("302", false),
        ("699", false),
        ("20429", false),
        ("BUSY", false),
    ] {
        let codes = [
            Codes::standard().retry(code),
            Codes::standard().at_most(code, 2),
            Codes::standard().fresh_id(code),
        ];
        for codes in codes {
            let found: Vec<_> = codes.forbidden().collect();
            let expected: &[&str] = if forbidden { &[code] } else { &[] };
            assert_eq!(found, expected);
        }
        assert_eq!(Codes::standard().never(code).forbidden().count(), 0);
    }
}

#[test]
fn c_6_a_body_is_read_only_where_a_code_may_decide() {
    let standard = Codes::standard();
    let own = || Codes::standard().retry("X");
    let declared = || own().content_type("text/json");
    let declared_only = Codes::standard().content_type("text/json");
    let json = Some("application/json");
    for (codes, status, kind, encoding, read) in [
        // Only a 409 may mean that the first request is still being processed.
        (&standard, 409, json, None, true),
        (&standard, 408, json, None, false),
        (&standard, 503, json, None, false),
        (&standard, 200, json, None, false),
        (&own(), 400, json, None, true),
        (&own(), 503, json, None, true),
        (&own(), 200, json, None, false),
        (&own(), 400, None, None, false),
        (&own(), 400, Some("text/json"), None, false),
        (
            &own(),
            400,
            Some("Application/Problem+JSON ; a=b"),
            None,
            true,
        ),
        (&own(), 400, json, Some("gzip"), false),
        (&own(), 400, json, Some("Identity"), true),
        (&declared(), 200, Some("TEXT/json; q=1"), None, true),
        (&declared(), 302, Some("text/json"), None, true),
        (&declared(), 400, Some("text/json"), None, true),
        (&declared(), 200, json, None, false),
        (&declared(), 200, Some("text/json"), Some("br"), false),
        (&declared_only, 200, Some("text/json"), None, true),
        (&declared_only, 400, Some("text/json"), None, false),
        (&declared_only, 409, Some("text/json"), None, true),
    ] {
        let mut headers = HeaderMap::new();
        let fields = [
            (header::CONTENT_TYPE, kind),
            (header::CONTENT_ENCODING, encoding),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                headers.insert(name, value.parse().unwrap());
            }
        }
        let status = StatusCode::from_u16(status).unwrap();
        let found = codes.may_be_in(status, &headers);
        assert_eq!(found, read, "{status} {kind:?} {encoding:?}");
    }
}

#[test]
fn c_6_the_first_place_with_a_known_code_counts() {
    let codes = Codes::standard()
        .at_most("LOCKED", 2)
        .fresh_id("STALE")
        .never("FRAUD")
        .pointer("/fault");
    let found = |texts: &[(&str, &'static str)]| {
        let at = |pointer: &str| {
            let text = texts.iter().find(|(known, _)| *known == pointer);
            text.map(|(_, text)| Cow::Borrowed(*text))
        };
        codes.find(at).map(|rule| (rule.name, rule.retry))
    };
    let locked = Some(("LOCKED", Retryable::MaxPerCause(2)));
    for place in POINTERS {
        assert_eq!(found(&[(place, "LOCKED")]), locked, "{place}");
    }
    assert_eq!(found(&[("/elsewhere", "LOCKED")]), None);
    assert_eq!(found(&[("/code", "OTHER"), ("/type", "LOCKED")]), locked);
    let stale = Some(("STALE", Retryable::FreshId));
    assert_eq!(found(&[("/code", "LOCKED"), ("/fault", "STALE")]), stale);
    let fraud = Some(("FRAUD", Retryable::Never));
    assert_eq!(found(&[("/error/code", "FRAUD")]), fraud);
}

/// Returns the rule of a code.
fn meaning(codes: &Codes, code: &'static str) -> Option<(Retryable, Option<Health>)> {
    let rule = codes.find(|_| Some(Cow::Borrowed(code)));
    rule.map(|rule| (rule.retry, rule.health))
}

#[test]
fn c_6_c_8_what_ready_tables_say_of_retries_and_of_health() {
    use Health::{Failure, Neutral, Success};
    use Retryable::{FreshId, MaxPerCause, Never, Yes};

    let [processing, urn] = STILL_PROCESSING;
    let (standard, forrst, bank) = (Codes::standard(), Codes::forrst(), Codes::bank());
    for (codes, code, retry, health) in [
        (&standard, processing, Yes, Success),
        (&standard, urn, Yes, Success),
        (&forrst, processing, MaxPerCause(3), Success),
        (&forrst, "RATE_LIMITED", MaxPerCause(3), Neutral),
        (&forrst, "UNAVAILABLE", MaxPerCause(5), Failure),
        (&forrst, "DEADLINE_EXCEEDED", MaxPerCause(1), Failure),
        (&forrst, "INTERNAL_ERROR", MaxPerCause(3), Failure),
        (&forrst, "DEPENDENCY_ERROR", MaxPerCause(3), Failure),
        (&forrst, "SERVER_MAINTENANCE", MaxPerCause(1), Failure),
        (&forrst, "FUNCTION_MAINTENANCE", MaxPerCause(1), Success),
        (&forrst, "FUNCTION_DISABLED", MaxPerCause(2), Success),
        (&forrst, "NOT_FOUND", Never, Success),
        (&bank, processing, Yes, Success),
        (&bank, "RESOURCE_EXHAUSTED", Yes, Neutral),
        (&bank, "DATABASE_UNAVAILABLE", Yes, Failure),
        (&bank, "REPLAY_DETECTED", FreshId, Success),
        (&bank, "RBAC_DENY", Never, Success),
        (&bank, "INTERNAL", Never, Failure),
    ] {
        assert_eq!(meaning(codes, code), Some((retry, Some(health))), "{code}");
    }
    assert_eq!(meaning(&standard, "NOT_FOUND"), None);
    // A custom code says nothing of the dependency's health: the status decides.
    let own = Codes::standard().retry("BUSY");
    assert_eq!(meaning(&own, "BUSY"), Some((Yes, None)));
}
