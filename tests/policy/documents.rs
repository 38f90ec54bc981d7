//! Policies in TOML, JSON and the environment.

use std::time::Duration;

use http::StatusCode;
use tower_reprise::policy::{Exhaustion, RetryAfterMode, RetryQuota};
use tower_reprise::{Policy, http::GrpcCode, policy::Profile};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

const EVERYTHING: &str = r#"
    profile = "synchronous"
    service = "checkout"
    max_retries = 9
    total_timeout = "1m"
    attempt_timeout = "1500ms"
    replay_limit = 1024
    dead_letters = "checkout.dlq"

    [backoff]
    strategy = "decorrelated"
    base = "250ms"
    cap = "5s"

    [budget]
    ratio = 0.6
    floor = 3
    quota = { capacity = 100, timeout = 20 }

    [breaker]
    consecutive_failures = 7
    failure_rate = 0.25
    minimum_calls = 40
    window = "1m"
    cooldown = "1s"
    max_cooldown = "10s"
    on_budget_exhausted = "never"

    [retry_after]
    mode = "refuse"
    spread = "0s"
    longest = "10m"

    [hedge]
    quantile = 0.9
    min_delay = "5ms"
    max_delay = "2s"

    [rules]
    retry_statuses = [409]
    no_retry_statuses = [500]
    retry_grpc = ["INTERNAL"]
    no_retry_grpc = ["ABORTED"]
    key_header = "X-Operation-Id"
    retry_without_key = true
    send_attempt_count = true

    [[approvals]]
    rule = "R-2"
    reason = "a"
    [[approvals]]
    rule = "R-3"
    reason = "b"
    [[approvals]]
    rule = "R-4"
    reason = "c"
    [[approvals]]
    rule = "R-6"
    reason = "d"
    [[approvals]]
    rule = "R-7"
    reason = "e"
"#;

#[test]
fn p_4_toml_says_everything_a_builder_can() {
    let policy = Policy::from_toml(EVERYTHING).unwrap();
    assert_eq!(policy.service(), "checkout");
    assert_eq!(policy.max_retries(), 9);
    assert_eq!(policy.total_timeout(), 60 * SECOND);
    assert_eq!(policy.attempt_timeout(), Some(Duration::from_millis(1500)));
    assert_eq!(policy.replay_limit(), 1024);
    assert_eq!(policy.dead_letters(), Some("checkout.dlq"));
    assert_eq!(
        policy.backoff().delay(0, Duration::ZERO, 0.0),
        SECOND / 4,
        "decorrelated starts at its base"
    );
    assert_eq!(policy.backoff().delay(0, DAY, 0.9), 5 * SECOND);
    let budget = policy.budget().unwrap();
    assert_eq!((budget.ratio, budget.floor), (0.6, 3));
    let quota = RetryQuota {
        capacity: 100,
        timeout: 20,
        ..RetryQuota::default()
    };
    assert_eq!(budget.quota, Some(quota));
    let breaker = policy.breaker();
    assert_eq!(
        (
            breaker.consecutive_failures,
            breaker.failure_rate,
            breaker.minimum_calls
        ),
        (7, 0.25, 40)
    );
    assert_eq!(
        (breaker.window, breaker.cooldown, breaker.max_cooldown),
        (60 * SECOND, SECOND, 10 * SECOND)
    );
    assert_eq!(breaker.on_budget_exhausted, Exhaustion::Never);
    let retry_after = policy.retry_after();
    assert_eq!(retry_after.mode, RetryAfterMode::Refuse);
    assert_eq!(
        (retry_after.spread, retry_after.longest),
        (Duration::ZERO, 600 * SECOND)
    );
    let hedge = policy.hedge().unwrap();
    assert_eq!(
        (hedge.quantile, hedge.min_delay, hedge.max_delay),
        (0.9, Duration::from_millis(5), 2 * SECOND)
    );
    let rules = policy.rules();
    assert!(rules.statuses.contains(&StatusCode::CONFLICT));
    assert!(!rules.statuses.contains(&StatusCode::INTERNAL_SERVER_ERROR));
    assert!(rules.grpc.contains(&GrpcCode::Internal) && !rules.grpc.contains(&GrpcCode::Aborted));
    assert_eq!(rules.key_header, "x-operation-id");
    assert!(rules.unkeyed_writes);
    assert!(rules.send_attempt_count);
    assert_eq!(policy.audit().findings().len(), 7);
}

#[test]
fn p_4_a_file_turns_hedges_on_and_off() {
    for (hedge, expected) in [
        ("", None),
        ("on = true", Some(0.95)),
        ("quantile = 0.9", Some(0.9)),
        ("counted = true", Some(0.95)),
        ("on = true, quantile = 0.99", Some(0.99)),
        ("on = false, quantile = 0.9", None),
    ] {
        let text = format!("profile = 'bank'\nhedge = {{ {hedge} }}");
        let policy = Policy::from_toml(&text).unwrap();
        let quantile = policy.hedge().map(|hedge| hedge.quantile);
        assert_eq!(quantile, expected, "{hedge}");
    }
    for (hedge, field) in [
        ("quantile = 0.5", "hedge.quantile"),
        ("quantile = 1.0", "hedge.quantile"),
        ("min_delay = '0s'", "hedge.min_delay"),
        ("min_delay = '1m'", "hedge.max_delay"),
        ("max_delay = '2d'", "hedge.max_delay"),
    ] {
        let text = format!("profile = 'bank'\nhedge = {{ {hedge} }}");
        assert_eq!(
            Policy::from_toml(&text).unwrap_err().field(),
            field,
            "{hedge}"
        );
    }
}

#[test]
fn p_4_json_and_the_environment_read_the_same_fields() {
    let json = r#"{"profile": "bank", "max_retries": 2, "backoff": {"base": "100ms"}, "rules": {"no_retry_statuses": [502]}}"#;
    let variables = [
        ("APP_RETRY_PROFILE", "bank"),
        ("APP_RETRY_MAX_RETRIES", "2"),
        ("APP_RETRY_BACKOFF__BASE", "100ms"),
        ("APP_RETRY_RULES__NO_RETRY_STATUSES", "[502]"),
        ("PATH", "/bin"),
    ];
    for policy in [
        Policy::from_json(json),
        Policy::from_env("APP_RETRY_", variables),
    ] {
        let policy = policy.unwrap();
        assert_eq!((policy.profile(), policy.max_retries()), (Profile::Bank, 2));
        assert!(policy.backoff().delay(0, Duration::ZERO, 0.999) < Duration::from_millis(100));
        assert!(!policy.rules().statuses.contains(&StatusCode::BAD_GATEWAY));
    }
}

#[test]
fn p_4_what_follows_a_json_document_is_an_error() {
    let error = Policy::from_json(r#"{"profile": "bank"} {"max_retries": 1}"#).unwrap_err();
    assert_eq!(error.field(), "JSON");
    assert!(error.to_string().contains("trailing"), "{error}");
}

#[test]
fn p_4_a_policy_can_stand_inside_another_file() {
    #[derive(serde::Deserialize)]
    struct Mine {
        retry: Policy,
    }
    let mine: Mine = serde_json::from_str(r#"{"retry": {"profile": "bank"}}"#).unwrap();
    assert_eq!(mine.retry.profile(), Profile::Bank);
    let refused =
        serde_json::from_str::<Mine>(r#"{"retry": {"profile": "bank", "max_retries": 8}}"#);
    assert!(
        refused
            .err()
            .unwrap()
            .to_string()
            .contains("R-2: max_retries is 8")
    );
}

#[test]
fn p_4_errors_name_the_field() {
    let cases = [
        ("", "policy", "profile"),
        ("profile = 'fast'", "profile", "synchronous"),
        ("profile = 'bank'\nretires = 3", "retires", "max_retries"),
        (
            "profile = 'bank'\ntotal_timeout = 30",
            "total_timeout",
            "duration such as",
        ),
        (
            "profile = 'bank'\ntotal_timeout = 'soon'",
            "total_timeout",
            "\"soon\" is not a duration",
        ),
        ("profile = 'bank'\nmax_retries = -1", "max_retries", ""),
        (
            "profile = 'bank'\n[backoff]\nbase = '1 parsec'",
            "backoff.base",
            "\"1 parsec\"",
        ),
        (
            "profile = 'bank'\n[backoff]\nfactor = 2",
            "backoff.factor",
            "strategy",
        ),
        (
            "profile = 'bank'\n[backoff]\nstrategy = 'fixed'",
            "backoff.strategy",
            "full_jitter",
        ),
        (
            "profile = 'bank'\n[rules]\nretry_statuses = [503, 777]",
            "rules.retry_statuses[1]",
            "777 is not an HTTP status",
        ),
        (
            "profile = 'bank'\n[rules]\nretry_statuses = [200]",
            "rules.retry_statuses[0]",
            "400 to 599",
        ),
        (
            "profile = 'bank'\n[rules]\nretry_grpc = ['OOPS']",
            "rules.retry_grpc[0]",
            "OOPS",
        ),
        (
            "profile = 'bank'\n[rules]\nkey_header = 'not a name'",
            "rules.key_header",
            "header name",
        ),
        (
            "profile = 'bank'\n[[approvals]]\nrule = 'R-99'\nreason = 'x'",
            "approvals[0].rule",
            "R-99",
        ),
        ("profile = 'bank'\nmax_retries = 8", "max_retries", "1 to 5"),
        ("not toml at all", "TOML", ""),
    ];
    for (text, field, message) in cases {
        let error = Policy::from_toml(text).expect_err(text);
        assert_eq!(error.field(), field, "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    let twice = [
        ("X_PROFILE", "bank"),
        ("X_BACKOFF", "1"),
        ("X_BACKOFF__BASE", "1s"),
    ];
    assert_eq!(
        Policy::from_env("X_", twice).unwrap_err().field(),
        "backoff__base"
    );
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn s_3_no_text_makes_the_readers_panic(text in "\\PC*") {
        let _ = Policy::from_toml(&text);
        let _ = Policy::from_toml(&format!("profile = 'bank'\ntotal_timeout = '{text}'"));
        let _ = Policy::from_json(&text);
        let _ = Policy::from_env("", [(text.as_str(), text.as_str())]);
    }
}
