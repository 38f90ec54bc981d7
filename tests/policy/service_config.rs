//! P-5: gRPC service configs. Valid and invalid documents of gRFC A6, and of the checks of grpc-go and
//! grpc-java.

use std::{sync::Arc, time::Duration};

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_reprise::{
    Policy, RetryLayer,
    config::ServiceConfig,
    dependency::Dependency,
    error::{BoxError, Rule},
    http::GrpcCode,
};

const RETRY: &str = r#"{"maxAttempts":3,"initialBackoff":"0.1s","maxBackoff":"1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}"#;

/// The retry policy above, with one field replaced, or left out if the value is empty.
fn retry_with(field: &str, value: &str) -> String {
    let mut policy: serde_json::Value = serde_json::from_str(RETRY).unwrap();
    match value {
        "" => drop(policy.as_object_mut().unwrap().remove(field)),
        value => policy[field] = serde_json::from_str(value).unwrap(),
    }
    policy.to_string()
}

fn document(retry: &str) -> String {
    format!(
        r#"{{"methodConfig":[{{"name":[{{"service":"a.B","method":"C"}}],"retryPolicy":{retry}}}]}}"#
    )
}

/// The policy of `a.B/C`.
fn policy(text: &str) -> Policy {
    let config = ServiceConfig::from_json(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let deps = config.dependencies("peer", Policy::grpc_unary());
    let deps = deps
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .build();
    deps.get("peer/a.B/C").policy().clone()
}

#[test]
fn p_5_what_the_libraries_accept_is_accepted() {
    for (field, value) in [
        ("maxAttempts", "2"),
        ("maxAttempts", "5.0"),
        ("maxAttempts", "1000"),
        ("initialBackoff", r#""3600s""#),
        ("initialBackoff", r#""0.0001s""#),
        ("maxBackoff", r#""0.01s""#),
        ("maxBackoff", r#""315576000000s""#),
        ("backoffMultiplier", "0.5"),
        ("backoffMultiplier", "1e300"),
        ("retryableStatusCodes", "[14]"),
        ("retryableStatusCodes", r#"["unavailable", 8, "Aborted"]"#),
        ("retryableStatusCodes", r#"["UNAVAILABLE", "UNAVAILABLE"]"#),
        ("perAttemptRecvTimeout", r#""1s""#),
        ("unknownField", r#"{"a":[1]}"#),
    ] {
        policy(&document(&retry_with(field, value)));
    }
    for text in [
        "{}",
        r#"{"methodConfig":null}"#,
        r#"{"methodConfig":[]}"#,
        r#"{"methodConfig":[{"name":[{}]}]}"#,
        r#"{"methodConfig":[{"name":[{"service":"a.B"}],"timeout":"1.500s"}]}"#,
        r#"{"methodConfig":[{"name":[{"service":"a.B","method":""}]},{"name":[{"service":"a.b"}]}]}"#,
        r#"{"methodConfig":[{"name":[{"service":"a.B"},{"service":"a.B","method":"C"}]}]}"#,
        r#"{"retryThrottling":{"maxTokens":1000,"tokenRatio":0.1}}"#,
        r#"{"retryThrottling":{"maxTokens":0.5,"tokenRatio":0.0001}}"#,
        r#"{"loadBalancingConfig":[{"round_robin":{}}],"unheardOf":1}"#,
    ] {
        let config = ServiceConfig::from_json(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let _ = config.dependencies("peer", Policy::grpc_unary()).unwrap();
    }
}

#[test]
fn p_5_what_they_refuse_is_refused_with_its_place() {
    const TWO: &str = "an integer of at least 2";
    const POSITIVE: &str = "a duration of more than 0";
    for (field, value, said, allowed) in [
        ("maxAttempts", "", "absent", TWO),
        ("maxAttempts", "1", "1", TWO),
        ("maxAttempts", "0", "0", TWO),
        ("maxAttempts", "-3", "-3", TWO),
        ("maxAttempts", "2.5", "2.5", TWO),
        ("maxAttempts", r#""3""#, r#""3""#, TWO),
        ("initialBackoff", "", "absent", POSITIVE),
        ("initialBackoff", r#""0s""#, r#""0s""#, POSITIVE),
        ("initialBackoff", r#""-1s""#, r#""-1s""#, POSITIVE),
        ("initialBackoff", r#""1""#, r#""1""#, POSITIVE),
        ("initialBackoff", r#""1m""#, r#""1m""#, POSITIVE),
        ("initialBackoff", r#""1.s""#, r#""1.s""#, POSITIVE),
        ("initialBackoff", r#"".1s""#, r#"".1s""#, POSITIVE),
        ("initialBackoff", r#""+1s""#, r#""+1s""#, POSITIVE),
        (
            "initialBackoff",
            r#""0.1234567891s""#,
            r#""0.1234567891s""#,
            POSITIVE,
        ),
        (
            "initialBackoff",
            r#""315576000001s""#,
            r#""315576000001s""#,
            POSITIVE,
        ),
        ("initialBackoff", "0.1", "0.1", POSITIVE),
        ("maxBackoff", "", "absent", POSITIVE),
        ("maxBackoff", r#""0s""#, r#""0s""#, POSITIVE),
        ("maxBackoff", "null", "absent", POSITIVE),
        ("backoffMultiplier", "", "absent", "a number of more than 0"),
        ("backoffMultiplier", "0", "0", "a number of more than 0"),
        ("backoffMultiplier", "-2", "-2", "a number of more than 0"),
        (
            "backoffMultiplier",
            r#""2""#,
            r#""2""#,
            "a number of more than 0",
        ),
        (
            "retryableStatusCodes",
            "",
            "absent",
            "an array of at least one gRPC status",
        ),
        (
            "retryableStatusCodes",
            "[]",
            "[]",
            "an array of at least one gRPC status",
        ),
        ("retryableStatusCodes", "14", "14", "an array"),
        ("perAttemptRecvTimeout", r#""0s""#, r#""0s""#, POSITIVE),
    ] {
        let error = ServiceConfig::from_json(&document(&retry_with(field, value))).unwrap_err();
        assert_eq!(
            error.field(),
            format!("methodConfig[0].retryPolicy.{field}"),
            "{value}"
        );
        assert_eq!(error.value(), said, "{field}");
        assert!(
            error.allowed().starts_with(allowed),
            "{field} {value}: {error}"
        );
    }
    for code in [
        r#""OK""#,
        "0",
        "17",
        "-1",
        "1.5",
        r#""NO_SUCH""#,
        "null",
        "[]",
    ] {
        let text = document(&retry_with(
            "retryableStatusCodes",
            &format!("[14, {code}]"),
        ));
        let error = ServiceConfig::from_json(&text).unwrap_err();
        assert_eq!(
            error.field(),
            "methodConfig[0].retryPolicy.retryableStatusCodes[1]",
            "{error}"
        );
    }
}

#[test]
fn p_5_the_rest_of_a_document_is_checked_too() {
    for (text, field) in [
        ("", "service config"),
        ("[]", "service config"),
        ("{}{}", "service config"),
        (r#"{"methodConfig":{}}"#, "methodConfig"),
        (r#"{"methodConfig":[1]}"#, "methodConfig[0]"),
        (r#"{"methodConfig":[{"name":{}}]}"#, "methodConfig[0].name"),
        (
            r#"{"methodConfig":[{"name":["a.B"]}]}"#,
            "methodConfig[0].name[0]",
        ),
        (
            r#"{"methodConfig":[{"name":[{"service":1}]}]}"#,
            "methodConfig[0].name[0].service",
        ),
        (
            r#"{"methodConfig":[{"name":[{"method":"C"}]}]}"#,
            "methodConfig[0].name[0]",
        ),
        (
            r#"{"methodConfig":[{"name":[{},{"service":""}]}]}"#,
            "methodConfig[0].name[1]",
        ),
        (
            r#"{"methodConfig":[{"name":[{"service":"a.B"}]},{"name":[{"service":"a.B"}]}]}"#,
            "methodConfig[1].name[0]",
        ),
        (
            r#"{"methodConfig":[{"name":[{}],"timeout":"-1s"}]}"#,
            "methodConfig[0].timeout",
        ),
        (
            r#"{"methodConfig":[{"name":[{}],"timeout":1}]}"#,
            "methodConfig[0].timeout",
        ),
        (
            r#"{"methodConfig":[{"name":[{}],"retryPolicy":[]}]}"#,
            "methodConfig[0].retryPolicy",
        ),
        (
            r#"{"retryThrottling":{"tokenRatio":0.1}}"#,
            "retryThrottling.maxTokens",
        ),
        (
            r#"{"retryThrottling":{"maxTokens":0,"tokenRatio":0.1}}"#,
            "retryThrottling.maxTokens",
        ),
        (
            r#"{"retryThrottling":{"maxTokens":1001,"tokenRatio":0.1}}"#,
            "retryThrottling.maxTokens",
        ),
        (
            r#"{"retryThrottling":{"maxTokens":10}}"#,
            "retryThrottling.tokenRatio",
        ),
        (
            r#"{"retryThrottling":{"maxTokens":10,"tokenRatio":0}}"#,
            "retryThrottling.tokenRatio",
        ),
        (
            r#"{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":1}}]}"#,
            "methodConfig[0].hedgingPolicy.maxAttempts",
        ),
        (
            r#"{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":2,"hedgingDelay":"1"}}]}"#,
            "methodConfig[0].hedgingPolicy.hedgingDelay",
        ),
        (
            r#"{"methodConfig":[{"name":[{}],"hedgingPolicy":{"hedgingDelay":"1s"}}]}"#,
            "methodConfig[0].hedgingPolicy.maxAttempts",
        ),
        (
            r#"{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":2,"hedgingDelay":"-1s"}}]}"#,
            "methodConfig[0].hedgingPolicy.hedgingDelay",
        ),
        (
            r#"{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":2,"nonFatalStatusCodes":14}}]}"#,
            "methodConfig[0].hedgingPolicy.nonFatalStatusCodes",
        ),
        (
            r#"{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":2,"nonFatalStatusCodes":[14,"OK"]}}]}"#,
            "methodConfig[0].hedgingPolicy.nonFatalStatusCodes[1]",
        ),
        (
            r#"{"methodConfig":[{"name":[{}],"hedgingPolicy":[]}]}"#,
            "methodConfig[0].hedgingPolicy",
        ),
    ] {
        let error = ServiceConfig::from_json(text).unwrap_err();
        assert_eq!(error.field(), field, "{text}: {error}");
        assert!(!error.allowed().is_empty(), "{text}");
    }
    let hedging = r#""hedgingPolicy":{"maxAttempts":2}"#;
    let both = document(RETRY).replace(r#""retryPolicy""#, &format!(r#"{hedging},"retryPolicy""#));
    let error = ServiceConfig::from_json(&both).unwrap_err();
    assert!(error.allowed().ends_with("not both"), "{error}");
    let large = ServiceConfig::from_json(&" ".repeat((1 << 20) + 1)).unwrap_err();
    assert_eq!(large.allowed(), "at most 1 MiB");
}

#[test]
fn p_5_a_policy_has_what_its_method_config_says() {
    let text = document(&retry_with(
        "retryableStatusCodes",
        r#"["UNAVAILABLE", "aborted"]"#,
    ));
    let text = text.replace(
        r#""retryPolicy""#,
        r#""timeout":"2.5s","waitForReady":true,"retryPolicy""#,
    );
    let found = policy(&text);
    assert_eq!(found.max_retries(), 2);
    assert_eq!(found.total_timeout(), Duration::from_millis(2500));
    assert_eq!(
        found.rules().grpc,
        [GrpcCode::Unavailable, GrpcCode::Aborted]
    );
    assert_eq!(found.rules().statuses, [429, 502, 503, 504]);
    assert_eq!(found.rules().idempotent_methods, ["a.B/C"]);
    // The waits are below 100, 200, 400 ms … and 1 s.
    for (retry, bound) in [
        (0, 100),
        (1, 200),
        (2, 400),
        (3, 800),
        (4, 1000),
        (2000, 1000),
    ] {
        let half = found.backoff().delay(retry, Duration::ZERO, 0.5);
        assert_eq!(half, Duration::from_millis(bound / 2), "{retry}");
    }
    assert!(found.audit().is_compliant(), "{:?}", found.audit());
    let config = ServiceConfig::from_json(&text).unwrap();
    assert_eq!(
        config.notes(),
        ["methodConfig[0].waitForReady is ignored: it is the channel's"]
    );

    // More than five attempts are five, and nothing else is retried than what is listed.
    let clamped = policy(&document(&retry_with("maxAttempts", "9")));
    assert_eq!(clamped.max_retries(), 4);
    let aborted = policy(&document(&retry_with("retryableStatusCodes", "[10]")));
    assert!(aborted.rules().statuses.is_empty());
}

fn hedging(policy: &str) -> String {
    document(RETRY).replace(
        &format!(r#""retryPolicy":{RETRY}"#),
        &format!(r#""hedgingPolicy":{policy}"#),
    )
}

#[test]
fn p_5_a_hedging_policy_is_the_policys_hedge() {
    let delay = Duration::from_millis(500);
    for (attempts, retries) in [(2, 1), (3, 2), (4, 3), (5, 4), (100, 4)] {
        let found = policy(&hedging(&format!(
            r#"{{"maxAttempts":{attempts},"hedgingDelay":"0.5s","nonFatalStatusCodes":["UNAVAILABLE","aborted"]}}"#
        )));
        let hedge = found.hedge().unwrap();
        assert_eq!((hedge.min_delay, hedge.max_delay), (delay, delay));
        assert!(hedge.counted, "never more attempts than written");
        assert_eq!(found.max_retries(), retries, "{attempts}");
        assert_eq!(
            found.rules().grpc,
            [GrpcCode::Unavailable, GrpcCode::Aborted]
        );
        assert_eq!(found.rules().statuses, [429, 502, 503, 504]);
        assert_eq!(found.rules().idempotent_methods, ["a.B/C"]);
        assert_eq!(found.backoff().delay(0, Duration::ZERO, 0.5), delay / 2);
        assert!(found.audit().is_compliant(), "{:?}", found.audit());
    }
    let fatal = policy(&hedging(r#"{"maxAttempts":2,"hedgingDelay":"0.001s"}"#));
    assert!(fatal.rules().grpc.is_empty() && fatal.rules().statuses.is_empty());

    // Valid by gRPC, and beyond what is done here.
    let late = "methodConfig[0].hedgingPolicy.hedgingDelay";
    for (policy, base, rule, field, allowed) in [
        (
            r#"{"maxAttempts":2}"#,
            Policy::grpc_unary(),
            None,
            late,
            "H-1",
        ),
        (
            r#"{"maxAttempts":2,"hedgingDelay":"0s"}"#,
            Policy::grpc_unary(),
            None,
            late,
            "H-1",
        ),
        (
            r#"{"maxAttempts":2,"hedgingDelay":"0.0009s"}"#,
            Policy::grpc_unary(),
            None,
            late,
            "0.001s",
        ),
        (
            r#"{"maxAttempts":2,"hedgingDelay":"100000s"}"#,
            Policy::grpc_unary(),
            None,
            late,
            "86400s",
        ),
        (
            r#"{"maxAttempts":2,"hedgingDelay":"1s","nonFatalStatusCodes":["UNKNOWN"]}"#,
            Policy::grpc_unary(),
            Some(Rule::R4),
            "methodConfig[0].hedgingPolicy.nonFatalStatusCodes",
            "",
        ),
        (
            r#"{"maxAttempts":2,"hedgingDelay":"1s"}"#,
            Policy::grpc_unary()
                .approve(Rule::R7, "a test")
                .without_budget(),
            None,
            "methodConfig[0].hedgingPolicy",
            "R-7",
        ),
    ] {
        let config = ServiceConfig::from_json(&hedging(policy)).unwrap();
        let error = config.dependencies("peer", base).unwrap_err();
        assert_eq!((error.rule(), error.field()), (rule, field), "{error}");
        assert!(error.to_string().contains(allowed), "{error}");
    }
}

#[test]
fn p_5_throttling_is_the_budget() {
    let budget = |tokens: f64, ratio: f64| {
        let text =
            format!(r#"{{"retryThrottling":{{"maxTokens":{tokens},"tokenRatio":{ratio}}}}}"#);
        let config = ServiceConfig::from_json(&text).unwrap();
        let base = Policy::grpc_unary().approve(Rule::R7, "the owner's word");
        let deps = config.dependencies("peer", base).unwrap().build();
        let budget = deps.get("peer").policy().budget().unwrap();
        (budget.ratio, budget.floor)
    };
    assert_eq!(budget(10.0, 0.1), (0.1, 5));
    assert_eq!(budget(0.5, 0.2), (0.2, 1));
    assert_eq!(budget(1000.0, 0.1239), (0.123, 10));
    assert_eq!(budget(10.0, 0.5), (0.5, 5));
}

/// What is beyond a rule takes an approval, as everywhere, and the error has its place.
#[test]
fn p_5_values_beyond_a_rule_take_an_approval() {
    let slow = document(RETRY).replace(r#""retryPolicy""#, r#""timeout":"60s","retryPolicy""#);
    let unknown = document(&retry_with("retryableStatusCodes", r#"["UNKNOWN"]"#));
    let ratio = r#"{"retryThrottling":{"maxTokens":10,"tokenRatio":0.3}}"#.to_owned();
    let brief = document(RETRY).replace(r#""retryPolicy""#, r#""timeout":"0s","retryPolicy""#);
    for (text, rule, field) in [
        (&slow, Some(Rule::R3), "methodConfig[0].timeout"),
        (
            &unknown,
            Some(Rule::R4),
            "methodConfig[0].retryPolicy.retryableStatusCodes",
        ),
        (&ratio, Some(Rule::R7), "retryThrottling.tokenRatio"),
        (&brief, None, "methodConfig[0].timeout"),
    ] {
        let config = ServiceConfig::from_json(text).unwrap();
        let error = config
            .dependencies("peer", Policy::grpc_unary())
            .unwrap_err();
        assert_eq!((error.rule(), error.field()), (rule, field), "{error}");
        if let Some(rule) = rule {
            let base = Policy::grpc_unary().approve(rule, "the owner's word");
            let _ = config.dependencies("peer", base).unwrap();
        }
    }
}

/// The most specific name decides, and names are compared with regard to case.
#[tokio::test]
async fn p_5_a_method_comes_before_its_service_and_that_before_the_default() {
    let entry = |name: &str, seconds: u32| format!(r#"{{"name":[{name}],"timeout":"{seconds}s"}}"#);
    let entries = [
        entry("{}", 1),
        entry(r#"{"service":"a.B"}"#, 2),
        entry(r#"{"service":"a.B","method":"C"}"#, 3),
        entry(r#"{"service":"a.B","method":"c"},{"service":"x.Y"}"#, 4),
    ];
    let text = format!(r#"{{"methodConfig":[{}]}}"#, entries.join(","));
    for (path, name, seconds) in [
        ("/a.B/C", "peer/a.b/c", 3),
        ("/a.B/c", "peer/a.b/c#2", 4),
        ("/a.B/D", "peer/a.b", 2),
        ("/x.Y/Z", "peer/a.b/c#2", 4),
        ("/n.O/P", "peer/*", 1),
    ] {
        let found = called(&text, path).await;
        assert_eq!(found.name(), name, "{path}");
        assert_eq!(found.policy().total_timeout().as_secs(), seconds, "{path}");
    }
    // Without a default entry, the rest goes by the peer's name.
    let found = called("{}", "/n.O/P").await;
    assert_eq!(found.name(), "peer");
    assert!(found.policy().rules().grpc.is_empty());
}

/// The dependency that a call of this path goes to.
async fn called(text: &str, path: &str) -> Arc<Dependency> {
    let config = ServiceConfig::from_json(text).unwrap();
    let deps = config
        .dependencies("peer", Policy::grpc_unary())
        .unwrap()
        .build();
    let echo = service_fn(|_: Request<()>| async { Ok::<_, BoxError>(Response::new(())) });
    let client = RetryLayer::new(deps.clone()).layer(echo);
    client
        .oneshot(Request::post(path).body(()).unwrap())
        .await
        .unwrap();
    deps.list().remove(0)
}
