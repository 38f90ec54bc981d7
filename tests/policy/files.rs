//! Policies of all dependencies: from one file, and as an assertion.

use std::{collections::BTreeSet, fmt::Write, time::Duration};

use http::StatusCode;
use tower_reprise::{
    Dependencies, Policy,
    error::{Enforcement, Rule},
    policy::{Policies, Profile, RetryAfterMode, Severity, assert_compliant},
};

const EXAMPLE: &str = include_str!("../../examples/policy.toml");

const FILE: &str = r#"
    service = "checkout"

    [default]
    profile = "synchronous"
    total_timeout = "10s"
    breaker = { consecutive_failures = 7, cooldown = "2s" }
    rules = { no_retry_statuses = [500, 502], retry_statuses = [425] }

    [profiles.careful]
    max_retries = 1
    retry_after = { mode = "refuse" }

    [profiles.slow]
    profile = "careful"
    attempt_timeout = "5s"

    [dependencies."Stock.example"]
    attempt_timeout = "500ms"
    rules = { no_retry_statuses = [504] }

    [dependencies."bank.example:8443"]
    profile = "slow"
    breaker = { cooldown = "3s" }
    service = "ledger"

    [dependencies.hooks]
    profile = "webhook"
    dead_letters = "hooks.dlq"
"#;

fn open(text: &str) -> Policies {
    Policies::from_toml(text).unwrap()
}

#[test]
fn p_4_a_dependency_changes_single_fields_of_what_it_starts_from() {
    let policies = open(FILE);
    let default = policies.default_policy();
    assert_eq!((default.service(), default.max_retries()), ("checkout", 3));
    assert_eq!(default.total_timeout(), Duration::from_secs(10));

    let stock = policies.get("stock.EXAMPLE");
    assert_eq!(stock.attempt_timeout(), Some(Duration::from_millis(500)));
    assert_eq!(
        stock.total_timeout(),
        Duration::from_secs(10),
        "of [default]"
    );
    assert_eq!(stock.breaker(), default.breaker());
    let retried = |status: u16| {
        let status = StatusCode::from_u16(status).unwrap();
        let rules = stock.rules();
        rules.statuses.contains(&status) || rules.once.contains(&status)
    };
    assert!(retried(500) && retried(502), "a list is said as a whole");
    assert!(!retried(504) && retried(425), "other lists stay");

    let bank = policies.get("bank.example:8443");
    assert_eq!(bank.service(), "ledger");
    assert_eq!(bank.max_retries(), 1, "of a profile's profile");
    assert_eq!(bank.attempt_timeout(), Some(Duration::from_secs(5)));
    assert_eq!(bank.retry_after().mode, RetryAfterMode::Refuse);
    assert_eq!(bank.breaker().consecutive_failures, 7);
    assert_eq!(bank.breaker().cooldown, Duration::from_secs(3));
    assert_eq!(bank.total_timeout(), Duration::from_secs(10));

    let hooks = policies.get("hooks");
    assert_eq!(hooks.profile(), Profile::Webhook);
    assert_eq!(
        hooks.total_timeout(),
        Duration::from_secs(24 * 3600),
        "a profile of the standard takes nothing from [default]"
    );
    assert_eq!(hooks.service(), "checkout", "the service is the file's");

    let names: Vec<_> = policies.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["bank.example:8443", "hooks", "stock.example"]);
    assert_eq!(policies.get("unknown.example").max_retries(), 3);
}

#[test]
fn p_4_an_override_can_take_back_what_a_parent_switched_on() {
    let policies = open(
        r#"
        [default]
        profile = "synchronous"
        budget = { off = true }
        backoff = { strategy = "decorrelated" }
        rules = { retry_without_key = true }
        approvals = [{ rule = "R-7", reason = "a" }, { rule = "R-6", reason = "b" }]
        [dependencies.strict]
        budget = { off = false, ratio = 0.1 }
        backoff = { strategy = "full_jitter" }
        rules = { retry_without_key = false }
        approvals = []
    "#,
    );
    assert!(policies.default_policy().budget().is_none());
    let strict = policies.get("strict");
    assert_eq!(strict.budget().unwrap().ratio, 0.1);
    assert!(!strict.rules().unkeyed_writes);
    assert_eq!(
        strict.backoff().delay(0, Duration::ZERO, 0.0),
        Duration::ZERO
    );
    assert!(strict.audit().findings().is_empty());
}

#[test]
fn p_4_json_says_the_same() {
    let policies = Policies::from_json(
        r#"{
            "service": "checkout",
            "default": {"profile": "synchronous", "total_timeout": "10s", "attempt_timeout": null},
            "profiles": {"careful": {"max_retries": 1}},
            "dependencies": {"a.example": {"profile": "careful", "total_timeout": null}}
        }"#,
    )
    .unwrap();
    let own = policies.get("a.example");
    assert_eq!((own.max_retries(), own.service()), (1, "checkout"));
    assert_eq!(
        own.total_timeout(),
        Duration::from_secs(10),
        "null says nothing"
    );

    let mine: serde_json::Value = serde_json::json!({"default": {"profile": "bank"}});
    let inside: Policies = serde_json::from_value(mine).unwrap();
    assert_eq!(inside.default_policy().profile(), Profile::Bank);
}

#[test]
fn p_4_a_registry_is_made_of_a_file() {
    let deps = Dependencies::new(open(FILE));
    assert_eq!(deps.get("BANK.example:8443").policy().max_retries(), 1);
    assert_eq!(deps.get("other.example").policy().max_retries(), 3);
    let own = Policy::http().max_retries(2).build().unwrap();
    let deps = Dependencies::builder(open(FILE))
        .policy_for("bank.example:8443", own)
        .capacity(0)
        .build();
    assert_eq!(deps.get("bank.example:8443").policy().max_retries(), 2);
    assert_eq!(deps.get("hooks").policy().profile(), Profile::Webhook);
}

#[test]
fn p_4_what_is_wrong_is_named_with_field_value_and_what_is_allowed() {
    let default = "default.profile = 'synchronous'\n";
    let cases = [
        ("", "file", "", "missing field `default`"),
        ("[default]", "default.profile", "", "missing"),
        (
            "default.profile = 'fast'\nprofiles.slow = {}",
            "default.profile",
            "\"fast\"",
            "`asynchronous`",
        ),
        (
            "default.profile = 'fast'\nprofiles.slow = {}",
            "default.profile",
            "\"fast\"",
            "`slow`",
        ),
        (
            "dependencies.'a.b'.profile = 'fast'",
            "dependencies.\"a.b\".profile",
            "\"fast\"",
            "one of `synchronous`",
        ),
        (
            "profiles.'x y'.profile = 'fast'",
            "profiles.\"x y\".profile",
            "\"fast\"",
            "`x y`",
        ),
        (
            "dependencies.'a.b'.retires = 3",
            "dependencies.\"a.b\".retires",
            "",
            "`max_retries`",
        ),
        (
            "dependencies.a.backoff.factor = 3",
            "dependencies.a.backoff.factor",
            "",
            "`strategy`, `base`, `throttled_base`, `cap`",
        ),
        ("policies.a = {}", "policies", "", "`dependencies`"),
        (
            "profiles.a.backoff.base = '1 parsec'",
            "profiles.a.backoff.base",
            "",
            "\"1 parsec\" is not a duration",
        ),
        (
            "profiles.a.backoff.base = '0s'",
            "profiles.a.backoff.base",
            "0ns",
            "1ms to 3600s",
        ),
        (
            "dependencies.'a.b'.max_retries = 8",
            "dependencies.\"a.b\".max_retries",
            "8",
            "1 to 5 for synchronous calls",
        ),
        (
            "dependencies.a = { profile = 'webhook', max_retries = 3 }",
            "dependencies.a.max_retries",
            "3",
            "set `deliveries`",
        ),
        (
            "dependencies.a.budget.ratio = nan",
            "dependencies.a.budget.ratio",
            "NaN",
            "0 to 0.2",
        ),
        (
            "dependencies.a.rules.retry_statuses = [503, 777]",
            "dependencies.a.rules.retry_statuses[1]",
            "",
            "777 is not an HTTP status",
        ),
        (
            "[dependencies.A]\n[dependencies.a]",
            "dependencies",
            "\"a\"",
            "differ in more than case",
        ),
        ("dependencies.'' = {}", "dependencies", "\"\"", "1 to 255"),
        (
            "profiles.bank.max_retries = 1",
            "profiles",
            "\"bank\"",
            "no profile of the standard",
        ),
        (
            "profiles.a.profile = 'b'\nprofiles.b.profile = 'a'",
            "profiles.a.profile",
            "\"b\"",
            "a profile of the standard in 16 steps",
        ),
        ("service = ''", "default.service", "\"\"", "1 to 128"),
    ];
    for (text, field, value, allowed) in cases {
        let complete = text.is_empty() || text.contains("default");
        let whole = match complete {
            true => text.to_owned(),
            false => format!("{default}{text}"),
        };
        let error = Policies::from_toml(&whole).expect_err(&whole);
        assert_eq!((error.field(), error.value()), (field, value), "{error}");
        assert!(error.allowed().contains(allowed), "{error}");
    }
}

#[test]
fn p_4_what_is_said_twice_is_refused() {
    for text in [
        r#"{"default": {"profile": "bank"}, "dependencies": {"a": {}, "a": {"max_retries": 1}}}"#,
        r#"{"default": {"profile": "bank", "profile": "synchronous"}}"#,
        r#"{"default": {"profile": "bank"}} {}"#,
    ] {
        assert!(Policies::from_json(text).is_err(), "{text}");
    }
    let twice = "default.profile = 'bank'\n[dependencies.a]\n[dependencies.a]";
    assert_eq!(Policies::from_toml(twice).unwrap_err().field(), "TOML");
}

#[test]
fn p_4_a_type_error_in_toml_has_its_line() {
    let error =
        Policies::from_toml("[default]\nprofile = 'bank'\ntotal_timeout = 30\n").unwrap_err();
    assert_eq!(error.field(), "default.total_timeout");
    assert!(error.to_string().contains("line 3"), "{error}");
}

#[test]
fn s_3_files_are_bounded() {
    let long = format!("{FILE}#{}", "x".repeat(1024 * 1024));
    let error = Policies::from_toml(&long).unwrap_err();
    assert!(error.to_string().contains("1 MiB"), "{error}");

    let mut many = String::from("default.profile = 'bank'\n");
    for i in 0..=4096 {
        writeln!(many, "dependencies.d{i} = {{}}").unwrap();
    }
    let error = Policies::from_toml(&many).unwrap_err();
    assert_eq!((error.field(), error.value()), ("dependencies", "4097"));

    let chain = |length: usize| {
        let mut text = format!("default.profile = 'p1'\nprofiles.p{length}.profile = 'bank'\n");
        for i in 1..length {
            writeln!(text, "profiles.p{i}.profile = 'p{}'", i + 1).unwrap();
        }
        Policies::from_toml(&text)
    };
    assert!(chain(15).is_ok());
    assert_eq!(chain(16).unwrap_err().field(), "default.profile");
}

#[test]
fn p_4_a_file_is_opened_by_its_name() {
    let folder = std::env::temp_dir().join(format!("reprise-policies-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let opened = Policies::open(write("a.toml", FILE)).unwrap();
    assert_eq!(opened.iter().count(), 3);
    let json = write("a.json", r#"{"default": {"profile": "bank"}}"#);
    assert!(Policies::open(&json).is_ok());
    let error = Policies::open(write("a.yaml", FILE)).unwrap_err();
    assert!(error.allowed().contains(".toml or .json"), "{error}");
    let error = Policies::open(folder.join("none.toml")).unwrap_err();
    assert!(error.field().ends_with("none.toml"), "{error}");
    let large = write("large.toml", &"#".repeat(1024 * 1024 + 1));
    let error = Policies::open(large).unwrap_err();
    assert!(error.to_string().contains("1 MiB"), "{error}");
    assert!(Policies::check(json).unwrap().is_compliant());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn p_3_a_check_finds_all_that_open_would_refuse_one_by_one() {
    let file = r#"
        [default]
        profile = "synchronous"
        max_retries = 9
        total_timeout = "1m"
        [profiles.unused]
        max_retries = 50
        [dependencies.a]
        max_retries = 2
        total_timeout = "5s"
        budget = { off = true }
        rules = { retry_statuses = [409], retry_without_key = true }
        [dependencies.b]
        profile = "asynchronous"
        [dependencies.c]
        profile = "bank"
        breaker = { on_budget_exhausted = "never" }
        [dependencies.d]
        profile = "bank"
        max_retries = 6
        approvals = [{ rule = "R-2", reason = "board" }, { rule = "R-4", reason = "left over" }]
    "#;
    assert_eq!(
        Policies::from_toml(file).unwrap_err().field(),
        "default.max_retries"
    );
    let audit = Policies::check_toml(file).unwrap();
    let found: Vec<_> = audit
        .findings()
        .iter()
        .map(|finding| {
            let dependency = finding.dependency.as_deref().unwrap();
            (finding.severity, finding.rule, dependency, &*finding.field)
        })
        .collect();
    assert_eq!(
        found,
        [
            (Severity::Approved, Rule::R2, "d", "max_retries"),
            (Severity::Warning, Rule::R4, "d", "approvals"),
            (
                Severity::Warning,
                Rule::R7,
                "c",
                "breaker.on_budget_exhausted"
            ),
            (Severity::Violation, Rule::R2, "(default)", "max_retries"),
            (Severity::Violation, Rule::R3, "(default)", "total_timeout"),
            (Severity::Violation, Rule::R4, "a", "rules.retry_statuses"),
            (
                Severity::Violation,
                Rule::R6,
                "a",
                "rules.retry_without_key"
            ),
            (Severity::Violation, Rule::R7, "a", "budget"),
            (Severity::Violation, Rule::R8, "b", "dead_letters"),
        ]
    );
    let impossible = Policies::check_toml("default = { profile = 'bank', max_retries = 101 }");
    assert_eq!(impossible.unwrap_err().field(), "default.max_retries");
}

#[test]
fn p_3_the_gates_are_those_of_the_enforcement_table() {
    let table = [
        (Rule::R1, Enforcement::Merge),
        (Rule::R6, Enforcement::Merge),
        (Rule::R4, Enforcement::Merge),
        (Rule::R7, Enforcement::Deployment),
        (Rule::R2, Enforcement::Review),
        (Rule::R8, Enforcement::Deployment),
    ];
    for (rule, gate) in table {
        assert_eq!(rule.enforcement(), gate, "{rule}");
    }
}

#[test]
fn p_3_an_audit_prints_as_a_table() {
    let audit = Policies::check_toml(
        r#"
        [default]
        profile = "synchronous"
        max_retries = 9
        approvals = [{ rule = "R-2", reason = "board\n2026-14" }]
        [dependencies.orders]
        profile = "asynchronous"
        [dependencies."a.example"]
        total_timeout = "1m"
        max_retries = 3
        approvals = []
    "#,
    )
    .unwrap();
    assert_eq!(
        audit.to_string(),
        "\
RULE  SEVERITY   DEPENDENCY  FIELD          VALUE    ALLOWED                            APPROVAL
R-2   approved   (default)   max_retries    9        1 to 5 for synchronous calls       board 2026-14
R-3   violation  a.example   total_timeout  60s      at most 30s for synchronous calls  none: needs the board's
R-8   violation  orders      dead_letters   not set  a queue for asynchronous events    none: blocks the deployment"
    );
    let line = audit.findings()[1].to_string();
    assert_eq!(
        line,
        "R-3 violation: a.example: total_timeout is 60s, the standard has at most 30s for synchronous calls"
    );
}

#[test]
fn p_3_a_users_own_test_fails_with_rules_and_remedies() {
    assert_compliant(&open(FILE));
    let deps = Dependencies::new(open(FILE));
    deps.dead_letters_elsewhere("hooks.dlq");
    assert_compliant(&deps);
    let policies = open("default.profile = 'bank'\ndependencies.orders.profile = 'asynchronous'");
    let audit = policies.audit();
    let panic = std::panic::catch_unwind(|| assert_compliant(audit.clone())).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    let remedy = "R-8 orders: set `dead_letters` (a queue for asynchronous events): it blocks the \
                  deployment";
    assert!(message.contains(remedy), "{message}");
    assert!(message.contains(&audit.to_string()), "{message}");
}

#[test]
fn p_4_the_annotated_example_is_compliant() {
    let policies = open(EXAMPLE);
    assert_compliant(&policies);
    assert_eq!(policies.get("ledger.example:50051").max_retries(), 3);
    assert_eq!(policies.get("mainframe.example").max_retries(), 8);
    let rules: BTreeSet<_> = policies
        .audit()
        .findings()
        .iter()
        .map(|finding| (finding.rule, finding.severity))
        .collect();
    let approved = |rule| (rule, Severity::Approved);
    assert_eq!(
        rules,
        BTreeSet::from([approved(Rule::R2), approved(Rule::R3)])
    );
}

/// Returns the names that an error lists as the known ones.
fn expected(text: &str) -> Vec<String> {
    let error = Policies::from_toml(text).expect_err(text).to_string();
    let (_, names) = error.split_once("expected ").expect(&error);
    let quoted = names.split('`').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

#[test]
fn p_4_the_annotated_example_has_every_field_and_every_name() {
    let tables = [
        "",
        "backoff",
        "budget",
        "breaker",
        "retry_after",
        "rules",
        "rules.codes",
    ];
    let example: toml::Table = EXAMPLE.parse().unwrap();
    let mut sections = vec![&example["default"]];
    for table in ["profiles", "dependencies"] {
        sections.extend(example[table].as_table().unwrap().values());
    }
    for table in tables {
        let dot = if table.is_empty() { "" } else { "." };
        let fields = expected(&format!("default.{table}{dot}unheard_of = 1"));
        assert!(fields.len() > 2, "{table}: {fields:?}");
        for field in fields {
            let said = sections.iter().any(|section| {
                let mut parents = table.split('.').filter(|parent| !parent.is_empty());
                let table = parents.try_fold(*section, |table, parent| table.get(parent));
                table.is_some_and(|table| table.get(&field).is_some())
            });
            assert!(said, "{table}{dot}{field} is not in the example");
        }
    }
    for field in expected("unheard_of = 1") {
        assert!(example.contains_key(&field), "{field}");
    }
    let choices = [
        "backoff.strategy",
        "breaker.on_budget_exhausted",
        "retry_after.mode",
        "rules.codes.preset",
    ];
    let choices = choices.map(|field| expected(&format!("default.{field} = 'unheard_of'")));
    let policy = Policy::from_toml("profile = 'unheard_of'").unwrap_err();
    let profiles = policy.allowed().split('`').skip(3).step_by(2);
    let profiles: Vec<_> = profiles.map(str::to_owned).collect();
    assert!(profiles.contains(&"grpc_unary".to_owned()), "{profiles:?}");
    for name in choices.into_iter().flatten().chain(profiles) {
        let quoted = format!("\"{name}\"");
        assert!(EXAMPLE.contains(&quoted), "{quoted} is not in the example");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn s_3_no_text_makes_the_reader_panic(text in "\\PC*") {
        let _ = Policies::from_toml(&text);
        let _ = Policies::from_json(&text);
        let _ = Policies::check_toml(&format!("default.profile = 'bank'\ndependencies.{text:?}.profile = {text:?}"));
        let _ = Policies::check_toml(&format!("default = {{ profile = 'bank', approvals = [{{ rule = 'R-2', reason = {text:?} }}] }}"))
            .map(|audit| audit.to_string());
    }
}

/// P-4: a section that no call would ever go by is an error.
#[test]
fn p_4_a_dependency_is_not_named_by_its_url() {
    let text = "default.profile = 'synchronous'\ndependencies.'https://a.example'.max_retries = 1";
    let error = Policies::from_toml(text).unwrap_err().to_string();
    assert!(error.contains("https://a.example"), "{error}");
    assert!(error.contains("host and port"), "{error}");
}
