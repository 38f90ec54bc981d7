//! Tables from configuration.

use std::time::Duration;

use tower_reprise::{Policy, classify::Codes};

fn expected() -> Codes {
    Codes::forrst()
        .retry("BUSY")
        .at_most("LOCKED", 1)
        .fresh_id("STALE")
        .never("FRAUD")
        .pointer("/fault/id")
        .content_type("text/json")
        .limit(1024)
        .time(Duration::from_millis(50))
}

#[test]
fn c_6_tables_come_from_configuration() {
    let toml = Policy::from_toml(
        r#"
        profile = "synchronous"
        [rules]
        request_id_header = "x-nonce"
        [rules.codes]
        preset = "forrst"
        retry = ["BUSY"]
        once = ["LOCKED"]
        fresh_id = ["STALE"]
        never = ["FRAUD"]
        pointers = ["/fault/id"]
        content_types = ["text/json"]
        limit = 1024
        time = "50ms"
        "#,
    );
    let json = Policy::from_json(
        r#"{"profile":"synchronous","rules":{"request_id_header":"x-nonce","codes":{
            "preset":"forrst","retry":["BUSY"],"once":["LOCKED"],"fresh_id":["STALE"],
            "never":["FRAUD"],"pointers":["/fault/id"],"content_types":["text/json"],
            "limit":1024,"time":"50ms"}}}"#,
    );
    let env = Policy::from_env(
        "APP_",
        [
            ("APP_PROFILE", "synchronous"),
            ("APP_RULES__REQUEST_ID_HEADER", "x-nonce"),
            ("APP_RULES__CODES__PRESET", "forrst"),
            ("APP_RULES__CODES__RETRY", r#"["BUSY"]"#),
            ("APP_RULES__CODES__ONCE", r#"["LOCKED"]"#),
            ("APP_RULES__CODES__FRESH_ID", r#"["STALE"]"#),
            ("APP_RULES__CODES__NEVER", r#"["FRAUD"]"#),
            ("APP_RULES__CODES__POINTERS", r#"["/fault/id"]"#),
            ("APP_RULES__CODES__CONTENT_TYPES", r#"["text/json"]"#),
            ("APP_RULES__CODES__LIMIT", "1024"),
            ("APP_RULES__CODES__TIME", "50ms"),
        ],
    );
    for policy in [toml, json, env] {
        let policy = policy.unwrap();
        assert_eq!(policy.rules().codes, expected());
        assert_eq!(policy.rules().request_id_header, "x-nonce");
    }
}

#[test]
fn c_6_what_is_not_said_is_the_profiles() {
    let codes = |text| Policy::from_toml(text).unwrap().rules().codes.clone();
    assert_eq!(codes("profile = 'bank'"), Codes::bank());
    let more = "profile = 'bank'\nrules.codes = { never = ['UPSTREAM_UNAVAILABLE'] }";
    assert_eq!(codes(more), Codes::bank().never("UPSTREAM_UNAVAILABLE"));
    let other = "profile = 'bank'\nrules.codes = { preset = 'standard' }";
    assert_eq!(codes(other), Codes::standard());
}

#[test]
fn p_4_an_error_names_the_field() {
    for (codes, field) in [
        ("{ preset = 'fortran' }", "rules.codes.preset"),
        ("{ retries = ['BUSY'] }", "rules.codes.retries"),
        ("{ retry = 'BUSY' }", "rules.codes.retry"),
        ("{ retry = [17] }", "rules.codes.retry[0]"),
        ("{ limit = 0 }", "rules.codes.limit"),
        ("{ limit = 1048577 }", "rules.codes.limit"),
        ("{ limit = -1 }", "rules.codes.limit"),
        ("{ time = '11s' }", "rules.codes.time"),
        ("{ time = 'soon' }", "rules.codes.time"),
        ("{ pointers = ['fault'] }", "rules.codes.pointers"),
        ("{ pointers = ['/a~2'] }", "rules.codes.pointers"),
        ("{ pointers = [''] }", "rules.codes.pointers"),
        ("{ content_types = ['json'] }", "rules.codes.content_types"),
        (
            "{ content_types = ['a/b; c'] }",
            "rules.codes.content_types",
        ),
        ("{ retry = [''] }", "rules.codes"),
        ("{ never = ['two words'] }", "rules.codes"),
    ] {
        let text = format!("profile = 'synchronous'\nrules.codes = {codes}");
        let error = Policy::from_toml(&text).unwrap_err();
        assert_eq!(error.field(), field, "{codes}: {error}");
        assert!(error.to_string().len() > field.len() + 10, "{error}");
    }
    let header = "profile = 'synchronous'\nrules.request_id_header = 'two words'";
    let error = Policy::from_toml(header).unwrap_err();
    assert_eq!(error.field(), "rules.request_id_header");
}

#[test]
fn p_2_the_builder_refuses_the_same() {
    for codes in [
        Codes::standard().limit(0),
        Codes::standard().limit(1024 * 1024 + 1),
        Codes::standard().time(Duration::from_secs(11)),
        Codes::standard().pointer("fault"),
        Codes::standard().content_type("json"),
        Codes::standard().retry(""),
        Codes::standard().retry("x".repeat(129)),
    ] {
        let refused = Policy::http().codes(codes.clone()).build();
        assert!(refused.is_err(), "{codes:?}");
    }
}
