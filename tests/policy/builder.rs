//! Profiles, ranges and approvals of a builder, and the findings of an audit.

use std::time::Duration;

use http::StatusCode;
use tower_reprise::{
    Dependencies, Policy,
    backoff::{Backoff, FullJitter},
    classify::Codes,
    error::{ConfigError, Rule},
    http::GrpcCode,
    policy::{PolicyBuilder, Profile, Severity},
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn refused(builder: PolicyBuilder) -> ConfigError {
    builder.build().expect_err("out of range")
}

#[test]
fn p_1_profiles_have_the_standards_defaults() {
    let table = [
        (Policy::http(), 3, 30 * SECOND, SECOND),
        (Policy::events(), 5, DAY, SECOND),
        (Policy::webhook(), 4, DAY, SECOND),
        (Policy::batch_item(), 3, 300 * SECOND, SECOND),
        (Policy::grpc_unary(), 3, 30 * SECOND, SECOND),
        (Policy::bank(), 3, 30 * SECOND, SECOND / 2),
    ];
    for (builder, retries, total, base) in table {
        let policy = builder.build().unwrap();
        let profile = policy.profile();
        assert_eq!(policy.max_retries(), retries, "{profile:?}");
        assert_eq!(policy.total_timeout(), total, "{profile:?}");
        let almost = policy.backoff().delay(0, Duration::ZERO, 0.999_999);
        assert!(
            almost < base && almost > base * 99 / 100,
            "{profile:?}: {almost:?}"
        );
        let capped = policy.backoff().delay(60, Duration::ZERO, 0.999_999);
        assert!(
            capped < 30 * SECOND && capped > 29 * SECOND,
            "{profile:?}: {capped:?}"
        );
        let budget = policy.budget().unwrap();
        assert_eq!(
            (budget.ratio, budget.floor, budget.initial),
            (0.2, retries, 1)
        );
    }
}

#[test]
fn p_1_p_2_ranges_are_the_standards_and_no_retries_are_always_allowed() {
    let table = [
        (Profile::Synchronous, 1, 5),
        (Profile::Asynchronous, 1, 10),
        (Profile::BatchItem, 1, 5),
        (Profile::GrpcUnary, 1, 5),
        (Profile::Bank, 1, 5),
    ];
    for (profile, least, most) in table {
        for retries in 0..20 {
            let built = PolicyBuilder::new(profile).max_retries(retries).build();
            assert_eq!(
                built.is_ok(),
                retries == 0 || (least..=most).contains(&retries),
                "{profile:?} {retries}"
            );
        }
    }
    for deliveries in 0..20 {
        let built = Policy::webhook().deliveries(deliveries).build();
        assert_eq!(
            built.is_ok(),
            (3..=8).contains(&deliveries),
            "{deliveries} deliveries"
        );
    }
    assert!(Policy::http().total_timeout(30 * SECOND).build().is_ok());
    assert_eq!(
        refused(Policy::http().total_timeout(31 * SECOND)).rule(),
        Some(Rule::R3)
    );
    assert_eq!(
        refused(Policy::events().total_timeout(DAY + SECOND)).rule(),
        Some(Rule::R3)
    );
}

#[test]
fn p_1_webhooks_count_deliveries_and_nothing_else_does() {
    assert_eq!(
        Policy::webhook()
            .deliveries(8)
            .build()
            .unwrap()
            .max_retries(),
        7
    );
    assert_eq!(
        refused(Policy::webhook().max_retries(4)).field(),
        "max_retries"
    );
    assert_eq!(refused(Policy::http().deliveries(4)).field(), "deliveries");
    let error = refused(Policy::webhook().deliveries(9)).to_string();
    assert!(
        error.starts_with("R-2: deliveries is 9, allowed: 3 to 8"),
        "{error}"
    );
}

#[test]
fn p_2_an_error_names_rule_field_value_and_range() {
    let error = refused(Policy::http().max_retries(6));
    assert_eq!(error.rule(), Some(Rule::R2));
    assert_eq!((error.field(), error.value()), ("max_retries", "6"));
    assert_eq!(error.allowed(), "1 to 5 for synchronous calls");
    let cases = [
        (
            Policy::http().budget_ratio(0.21),
            Some(Rule::R7),
            "budget.ratio",
        ),
        (
            Policy::http().budget_floor(11),
            Some(Rule::R7),
            "budget.floor",
        ),
        (Policy::http().without_budget(), Some(Rule::R7), "budget"),
        (
            Policy::http().retry_without_key(),
            Some(Rule::R6),
            "rules.retry_without_key",
        ),
        (
            Policy::http().retry_status(StatusCode::CONFLICT),
            Some(Rule::R4),
            "rules.retry_statuses",
        ),
        (
            Policy::http().retry_status(StatusCode::NOT_IMPLEMENTED),
            Some(Rule::R4),
            "rules.retry_statuses",
        ),
        (
            Policy::http().retry_grpc(GrpcCode::Internal),
            Some(Rule::R4),
            "rules.retry_grpc",
        ),
        (Policy::http().base(Duration::ZERO), None, "backoff.base"),
        (
            Policy::http().base(SECOND).cap(SECOND / 2),
            None,
            "backoff.cap",
        ),
        (Policy::http().budget_ratio(f64::NAN), None, "budget.ratio"),
        (Policy::http().budget_ratio(-0.1), None, "budget.ratio"),
        (
            Policy::http().total_timeout(Duration::ZERO),
            None,
            "total_timeout",
        ),
        (
            Policy::http().attempt_timeout(31 * SECOND),
            None,
            "attempt_timeout",
        ),
        (
            Policy::http().consecutive_failures(0),
            None,
            "breaker.consecutive_failures",
        ),
        (
            Policy::http().failure_rate(f64::NAN, 1, SECOND),
            None,
            "breaker.failure_rate",
        ),
        (
            Policy::http().failure_rate(1.1, 1, SECOND),
            None,
            "breaker.failure_rate",
        ),
        (
            Policy::http().failure_rate(0.5, 0, SECOND),
            None,
            "breaker.minimum_calls",
        ),
        (
            Policy::http().failure_rate(0.5, 1, Duration::ZERO),
            None,
            "breaker.window",
        ),
        (
            Policy::http().cooldown(2 * SECOND, SECOND),
            None,
            "breaker.max_cooldown",
        ),
        (
            Policy::http().retry_after_spread(DAY),
            None,
            "retry_after.spread",
        ),
        (
            Policy::http().retry_after_longest(2 * DAY),
            None,
            "retry_after.longest",
        ),
        (
            Policy::http().replay_limit(usize::MAX),
            None,
            "replay_limit",
        ),
        (Policy::http().service(""), None, "service"),
        (Policy::http().service("a\nb"), None, "service"),
        (Policy::events().dead_letters(""), None, "dead_letters"),
        (
            Policy::http().approve(Rule::R2, "  "),
            None,
            "approvals.reason",
        ),
    ];
    for (builder, rule, field) in cases {
        let error = refused(builder);
        assert_eq!((error.rule(), error.field()), (rule, field), "{error}");
    }
}

#[test]
fn c_1_425_is_retried_once_however_it_is_asked_for() {
    let policy = Policy::http()
        .retry_status(StatusCode::TOO_EARLY)
        .build()
        .unwrap();
    assert!(!policy.rules().statuses.contains(&StatusCode::TOO_EARLY));
    assert!(policy.rules().once.contains(&StatusCode::TOO_EARLY));
}

#[test]
fn p_2_only_an_approval_of_the_same_rule_gets_past() {
    let bold = || Policy::http().max_retries(20);
    assert!(bold().approve(Rule::R3, "wrong rule").build().is_err());
    let policy = bold().approve(Rule::R2, "board 2026-14").build().unwrap();
    assert_eq!(policy.max_retries(), 20);
    assert!(
        bold()
            .max_retries(101)
            .approve(Rule::R2, "no")
            .build()
            .is_err()
    );
}

fn findings(policy: &Policy) -> Vec<(Rule, Severity)> {
    let audit = policy.audit();
    audit
        .findings()
        .iter()
        .map(|finding| (finding.rule, finding.severity))
        .collect()
}

#[test]
fn p_3_a_policy_within_the_standard_has_no_findings() {
    for profile in [
        Profile::Synchronous,
        Profile::BatchItem,
        Profile::GrpcUnary,
        Profile::Bank,
    ] {
        let policy = PolicyBuilder::new(profile).build().unwrap();
        assert_eq!(findings(&policy), []);
        assert_eq!(policy.audit().to_string(), "nothing to report");
    }
    let decorrelated = Policy::http().decorrelated().build().unwrap();
    assert_eq!(findings(&decorrelated), []);
}

#[test]
fn p_2_p_3_approvals_show_with_their_reason_and_lift_only_what_the_board_may() {
    let policy = Policy::http()
        .max_retries(9)
        .total_timeout(60 * SECOND)
        .retry_status(StatusCode::CONFLICT)
        .retry_without_key()
        .without_budget()
        .approve(Rule::R2, "r2")
        .approve(Rule::R3, "r3")
        .approve(Rule::R4, "r4")
        .approve(Rule::R6, "r6")
        .approve(Rule::R7, "r7")
        .build()
        .unwrap();
    assert_eq!(
        findings(&policy),
        [
            (Rule::R2, Severity::Approved),
            (Rule::R3, Severity::Approved),
            (Rule::R4, Severity::Violation),
            (Rule::R6, Severity::Violation),
            (Rule::R7, Severity::Violation),
        ]
    );
    let audit = policy.audit();
    assert!(!audit.is_compliant());
    for end in [
        "r2",
        "r3",
        "r4: blocks the merge",
        "r6: blocks the merge",
        "r7: blocks the deployment",
    ] {
        let shown = audit.to_string();
        assert!(shown.lines().any(|line| line.ends_with(end)), "{audit}");
    }
}

/// R-4 holds for codes in bodies as for statuses: a code that makes a 400 be retried is found.
#[test]
fn p_3_r_4_codes_that_are_never_retried_are_found() {
    let of = |codes: Codes| Policy::http().codes(codes);
    for codes in [
        Codes::standard(),
        Codes::forrst(),
        Codes::bank(),
        Codes::standard().retry("BUSY").at_most("UNAVAILABLE", 1),
        Codes::standard()
            .retry("503")
            .at_most("425", 1)
            .retry("20429"),
        Codes::bank().never("404").never("PERMISSION_DENIED"),
    ] {
        assert_eq!(findings(&of(codes).build().unwrap()), []);
    }
    for (codes, value) in [
        (
            Codes::standard().retry("INVALID_ARGUMENT"),
            "INVALID_ARGUMENT",
        ),
        (
            Codes::forrst().at_most("VALIDATION_ERROR", 1),
            "VALIDATION_ERROR",
        ),
        (Codes::bank().fresh_id("RBAC_DENY"), "RBAC_DENY"),
        (Codes::bank().retry("INTERNAL"), "INTERNAL"),
        (Codes::standard().retry("ALREADY_EXISTS"), "ALREADY_EXISTS"),
        (Codes::standard().retry("501"), "501"),
    ] {
        let error = of(codes.clone()).build().unwrap_err();
        assert_eq!((error.rule(), error.value()), (Some(Rule::R4), value));
        assert_eq!(error.field(), "rules.codes");
        let approved = of(codes).approve(Rule::R4, "they mean something else by it");
        let found = findings(&approved.build().unwrap());
        assert_eq!(found, [(Rule::R4, Severity::Violation)]);
    }
}

#[test]
fn p_3_an_approval_that_nothing_needs_shows_too() {
    let policy = Policy::http()
        .approve(Rule::R4, "left over")
        .build()
        .unwrap();
    assert_eq!(findings(&policy), [(Rule::R4, Severity::Warning)]);
    assert!(policy.audit().is_compliant());
    assert!(policy.audit().to_string().contains("left over"));
}

#[derive(Debug)]
struct Fixed;

impl Backoff for Fixed {
    fn delay(&self, _: u32, _: Duration, _: f64) -> Duration {
        SECOND
    }
}

#[derive(Debug)]
struct EqualJitter;

impl Backoff for EqualJitter {
    fn delay(&self, retry: u32, previous: Duration, uniform: f64) -> Duration {
        let half = FullJitter::default().delay(retry, previous, 0.999_999) / 2;
        half + half.mul_f64(uniform)
    }
}

#[test]
fn p_3_a_backoff_without_jitter_is_found_by_sampling() {
    let refused = Policy::http().backoff(Fixed).build().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "R-1: backoff is a fixed time, allowed: full or decorrelated jitter (or an approval with a reason)"
    );
    let equal = Policy::http().backoff(EqualJitter).build().unwrap();
    assert_eq!(findings(&equal), [(Rule::R1, Severity::Violation)]);
    for builder in [
        Policy::http().backoff(Fixed),
        Policy::http().backoff(EqualJitter),
    ] {
        let approved = builder.approve(Rule::R1, "simulator").build().unwrap();
        assert_eq!(findings(&approved), [(Rule::R1, Severity::Violation)]);
    }
    let spread = Policy::http()
        .backoff(FullJitter::default())
        .build()
        .unwrap();
    assert_eq!(findings(&spread), []);
}

#[test]
fn p_3_async_work_without_a_dead_letter_queue_is_found() {
    for builder in [Policy::events(), Policy::webhook()] {
        let policy = builder.clone().build().unwrap();
        assert_eq!(findings(&policy), [(Rule::R8, Severity::Violation)]);
        assert!(!policy.audit().is_compliant());
        let complete = builder.dead_letters("orders.dlq").build().unwrap();
        assert_eq!(findings(&complete), []);
    }
}

#[test]
fn p_3_a_registry_audits_all_its_policies() {
    let deps = Dependencies::builder(Policy::http().build().unwrap())
        .policy_for("queue.example", Policy::events().build().unwrap())
        .build();
    let audit = deps.audit();
    assert!(!audit.is_compliant());
    let message = audit.findings()[0].to_string();
    assert!(
        message.starts_with("R-8 violation: queue.example: "),
        "{message}"
    );
}

#[test]
fn cb_8_a_time_without_success_holds_in_any_order() {
    let of = |policy: PolicyBuilder| policy.build().unwrap().breaker().no_success_for;
    let new = Policy::http;
    assert_eq!(of(new()), SECOND);
    assert_eq!(of(new().consecutive_failures(5)), Duration::ZERO);
    let (first, last) = (
        new().no_success_for(2 * SECOND),
        new().consecutive_failures(5),
    );
    assert_eq!(of(first.consecutive_failures(5)), 2 * SECOND);
    assert_eq!(of(last.no_success_for(2 * SECOND)), 2 * SECOND);
}
