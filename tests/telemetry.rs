//! What is logged and counted, under which names, and what never is.
#![cfg(all(feature = "metrics", feature = "tracing"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[cfg(feature = "delivery")]
#[path = "telemetry/dead_letters.rs"]
mod dead_letters;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Debug,
    io,
    sync::{Arc, LazyLock, Mutex},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use metrics_exporter_prometheus::PrometheusBuilder;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tower::{Layer as _, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_http::request_id::RequestId;
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKey, IdempotencyKeyLayer, Policy,
    RetryAfterLayer, RetryBudgetLayer, RetryLayer,
    call::Attempt,
    error::{BoxError, Refused, Rule},
    policy::PolicyBuilder,
};
use tracing::{
    Dispatch, Event, Level, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::DefaultGuard,
};
use tracing_subscriber::{Layer, Registry, layer::Context, prelude::*};

type Body = Full<Bytes>;
type Client = BoxCloneService<Request<Body>, Response<Body>, BoxError>;

const URI: &str = "http://stock.example:8080/items";

// ---- what is listened with

/// One event: where it came from, and its fields as text.
#[derive(Debug, Clone)]
struct Logged {
    target: &'static str,
    level: Level,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Logged {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

/// Keeps every event and every span, whoever they are from.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<Logged>>>);

impl Log {
    /// Listens on this thread until the guard is dropped.
    fn listen() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
        (log, guard)
    }

    fn all(&self) -> Vec<Logged> {
        self.0.lock().unwrap().clone()
    }

    fn with_message(&self, message: &str) -> Vec<Logged> {
        let mut found = self.all();
        found.retain(|event| {
            event.target == "tower_reprise"
                && event.fields.get("message").is_some_and(|m| m == message)
        });
        found
    }

    fn retries(&self) -> Vec<Logged> {
        self.with_message("retry")
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        let metadata = attributes.metadata();
        let mut logged = Logged {
            target: metadata.target(),
            level: *metadata.level(),
            fields: BTreeMap::new(),
        };
        attributes.record(&mut logged);
        self.0.lock().unwrap().push(logged);
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut logged = Logged {
            target: event.metadata().target(),
            level: *event.metadata().level(),
            fields: BTreeMap::new(),
        };
        event.record(&mut logged);
        self.0.lock().unwrap().push(logged);
    }
}

/// What was counted, as `name{label=value,…}` and its value. Reading resets histograms.
fn counted(snapshotter: &Snapshotter) -> BTreeMap<String, DebugValue> {
    let snapshot = snapshotter.snapshot().into_vec();
    let entries = snapshot.into_iter().map(|(key, _, _, value)| {
        let key = key.key();
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        (format!("{}{{{}}}", key.name(), labels.join(",")), value)
    });
    entries.collect()
}

/// Runs with a recorder of its own on this thread, and returns what it was told.
async fn measured(run: impl Future<Output = ()>) -> BTreeMap<String, DebugValue> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let guard = metrics::set_default_local_recorder(&recorder);
    run.await;
    drop(guard);
    counted(&snapshotter)
}

fn count(n: u64) -> DebugValue {
    DebugValue::Counter(n)
}

fn gauge(value: f64) -> DebugValue {
    DebugValue::Gauge(value.into())
}

fn samples(values: &[f64]) -> DebugValue {
    DebugValue::Histogram(values.iter().map(|value| (*value).into()).collect())
}

fn expected<const N: usize>(entries: [(&str, DebugValue); N]) -> BTreeMap<String, DebugValue> {
    entries
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

// ---- what is listened to

/// An event's place in the code remembers whether anybody wants it, and with fewer than two
/// subscribers it asks the thread that gets there first. With two that nobody hears, no test
/// decides for another.
fn keep_tests_apart() {
    static UNHEARD: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Registry::default())));
    LazyLock::force(&UNHEARD);
}

/// Waits of exactly the time that the server asked for, so that they can be told.
fn policy() -> PolicyBuilder {
    keep_tests_apart();
    Policy::synchronous()
        .service("checkout")
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
        .retry_after_spread(Duration::ZERO)
}

fn deps() -> Dependencies {
    Dependencies::new(policy().build().unwrap())
}

type Reply = Result<Response<Body>, BoxError>;

fn reply(status: u16, headers: &[(&'static str, &str)]) -> Reply {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Ok(response.body(Body::default()).unwrap())
}

fn refused() -> Reply {
    Err(io::Error::from(io::ErrorKind::ConnectionRefused).into())
}

/// A dependency that gives these replies, and 200 when they are used up.
fn peer(replies: impl IntoIterator<Item = Reply>) -> Client {
    let replies = Arc::new(Mutex::new(replies.into_iter().collect::<VecDeque<_>>()));
    BoxCloneService::new(service_fn(move |_: Request<Body>| {
        let next = replies.lock().unwrap().pop_front();
        std::future::ready(next.unwrap_or_else(|| reply(200, &[])))
    }))
}

fn stack(deps: &Dependencies, peer: Client) -> Client {
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(IdempotencyKeyLayer::new())
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps.clone()))
            .layer(RetryAfterLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .service(peer),
    )
}

fn retry_only(deps: &Dependencies, peer: Client) -> Client {
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(RetryLayer::new(deps.clone()))
            .service(peer),
    )
}

fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::default()).unwrap()
}

// ---- O-1

#[tokio::test(start_paused = true)]
async fn o_1_each_retry_is_one_event_with_exactly_these_fields() {
    let (log, _guard) = Log::listen();
    let replies = [reply(503, &[("retry-after", "7")]), refused()];
    let mut request = Request::post(URI)
        .header("x-request-id", "req-1")
        .body(Body::from("pay"))
        .unwrap();
    let key = IdempotencyKey::new("order-42").unwrap();
    request.extensions_mut().insert(key);
    let response = stack(&deps(), peer(replies))
        .oneshot(request)
        .await
        .unwrap();
    assert_eq!(response.status(), 200);

    let retries = log.retries();
    assert_eq!(retries.len(), 2);
    for retry in &retries {
        assert_eq!(retry.level, Level::INFO);
        let fields: Vec<_> = retry.fields.keys().copied().collect();
        assert_eq!(
            fields,
            [
                "attempt",
                "backoff_ms",
                "correlation_id",
                "dependency",
                "error_type",
                "idempotency_key",
                "max_attempts",
                "message",
            ]
        );
        assert_eq!(retry.fields["correlation_id"], "req-1");
        assert_eq!(retry.fields["dependency"], "stock.example:8080");
        assert_eq!(retry.fields["idempotency_key"], "order-42");
        assert_eq!(retry.fields["max_attempts"], "3");
    }
    let field = |name| [&*retries[0].fields[name], &*retries[1].fields[name]];
    assert_eq!(field("attempt"), ["1", "2"]);
    assert_eq!(field("error_type"), ["http_503", "connect"]);
    assert_eq!(field("backoff_ms")[0].parse(), Ok(7000.0));
    let second: f64 = field("backoff_ms")[1].parse().unwrap();
    assert!((0.0..2.0).contains(&second), "{second}");
}

#[tokio::test(start_paused = true)]
async fn o_1_no_retry_is_no_event() {
    let (log, _guard) = Log::listen();
    let client = stack(&deps(), peer([reply(200, &[]), reply(404, &[])]));
    client.clone().oneshot(get(URI)).await.unwrap();
    assert!(log.all().is_empty(), "a success is not worth a line");
    client.oneshot(get(URI)).await.unwrap();
    assert!(log.retries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn o_1_the_correlation_id_is_the_first_there_is() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let long = "x".repeat(129);
    let cases = [
        (Some("req-1"), Some(TRACE), Some("ext-1"), "req-1"),
        (None, Some(TRACE), Some("ext-1"), TRACE),
        (None, None, Some("ext-1"), "ext-1"),
        (None, None, None, ""),
        // What is no id is not logged.
        (Some("two words"), Some(TRACE), None, TRACE),
        (Some(&long), None, Some("ext-1"), "ext-1"),
        (Some("caf\u{e9}"), None, None, ""),
    ];
    for (request_id, trace, extension, expected) in cases {
        let (log, _guard) = Log::listen();
        let mut request = get(URI);
        let headers = request.headers_mut();
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).unwrap();
        if let Some(id) = request_id {
            headers.insert("x-request-id", value(id));
        }
        if let Some(trace) = trace {
            headers.insert("traceparent", value(trace));
        }
        if let Some(id) = extension {
            request.extensions_mut().insert(RequestId::new(value(id)));
        }
        let client = retry_only(&deps(), peer([reply(503, &[])]));
        client.oneshot(request).await.unwrap();
        let retries = log.retries();
        assert_eq!(retries.len(), 1);
        assert_eq!(retries[0].fields["correlation_id"], expected);
        assert_eq!(retries[0].fields["idempotency_key"], "");
    }
}

#[tokio::test(start_paused = true)]
async fn o_1_the_key_is_read_from_the_header_that_the_policy_names() {
    let (log, _guard) = Log::listen();
    let policy = policy().key_header("x-operation".parse().unwrap());
    let deps = Dependencies::new(policy.build().unwrap());
    let request = Request::post(URI)
        .header("x-operation", "order-42")
        .header("idempotency-key", "another")
        .body(Body::default())
        .unwrap();
    let client = retry_only(&deps, peer([reply(503, &[])]));
    client.oneshot(request).await.unwrap();
    assert_eq!(log.retries()[0].fields["idempotency_key"], "order-42");
}

#[tokio::test(start_paused = true)]
async fn o_1_a_gave_up_call_says_why() {
    let (log, _guard) = Log::listen();
    let client = stack(
        &deps(),
        peer([const { 404 }].map(|status| reply(status, &[]))),
    );
    client.oneshot(get(URI)).await.unwrap();
    let stop_reason = log.with_message("gave up");
    assert_eq!(stop_reason.len(), 1);
    assert_eq!(stop_reason[0].level, Level::DEBUG);
    assert_eq!(stop_reason[0].fields["reason"], "not_retryable");
    assert_eq!(stop_reason[0].fields["error_type"], "http_404");
    assert_eq!(stop_reason[0].fields["attempts"], "1");
}

#[tokio::test(start_paused = true)]
async fn p_2_an_approval_is_logged_once() {
    let (log, _guard) = Log::listen();
    let approved = policy()
        .max_retries(9)
        .approve(Rule::R2, "legacy mainframe")
        .build()
        .unwrap();
    let deps = Dependencies::builder(approved.clone())
        .policy_for("stock.example:8080", approved.clone())
        .build();
    let client = stack(&deps, peer([reply(503, &[]), reply(503, &[])]));
    for _ in 0..3 {
        client.clone().oneshot(get(URI)).await.unwrap();
    }
    let _ = (approved.audit(), deps.audit());

    let approvals = log.with_message("policy approved beyond a rule");
    assert_eq!(approvals.len(), 1);
    assert_eq!(approvals[0].level, Level::WARN);
    assert_eq!(approvals[0].fields["rule"], "R-2");
    assert_eq!(approvals[0].fields["reason"], "legacy mainframe");
    assert_eq!(approvals[0].fields["service"], "checkout");
}

#[test]
fn p_2_a_policy_within_the_rules_logs_nothing() {
    let (log, _guard) = Log::listen();
    let _ = deps();
    policy().max_retries(9).build().unwrap_err();
    assert!(log.all().is_empty());
}

// ---- O-2

#[tokio::test(start_paused = true)]
async fn o_2_an_exhausted_call_is_counted_under_these_names() {
    let measured = measured(async {
        let busy = || reply(503, &[("retry-after", "7")]);
        let client = stack(&deps(), peer([busy(), busy(), busy(), busy()]));
        assert_eq!(client.oneshot(get(URI)).await.unwrap().status(), 503);
    })
    .await;
    let labels = "service=checkout,dependency=stock.example:8080";
    let attempts = |n| format!("retry_attempts_total{{{labels},attempt_number={n}}}");
    assert_eq!(
        measured,
        expected([
            (&attempts(1), count(1)),
            (&attempts(2), count(1)),
            (&attempts(3), count(1)),
            (&format!("retry_exhausted_total{{{labels}}}"), count(1)),
            (
                &format!("retry_backoff_duration_seconds{{{labels}}}"),
                samples(&[7.0, 7.0, 7.0])
            ),
            // Three of the ten that a quiet client is allowed.
            (
                &format!("retry_budget_utilization_ratio{{{labels}}}"),
                gauge(0.3)
            ),
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn o_2_a_success_is_not_counted() {
    let measured = measured(async {
        let client = stack(&deps(), peer([reply(200, &[]), reply(404, &[])]));
        for _ in 0..2 {
            client.clone().oneshot(get(URI)).await.unwrap();
        }
    })
    .await;
    assert_eq!(measured, expected([]));
}

#[tokio::test(start_paused = true)]
async fn o_2_a_retry_that_succeeds_is_not_exhausted() {
    let measured = measured(async {
        let client = retry_only(&deps(), peer([reply(503, &[])]));
        client.oneshot(get(URI)).await.unwrap();
    })
    .await;
    let names: BTreeSet<_> = measured
        .keys()
        .map(|key| &key[..key.find('{').unwrap()])
        .collect();
    assert_eq!(
        Vec::from_iter(names),
        [
            "retry_attempts_total",
            "retry_backoff_duration_seconds",
            "retry_budget_utilization_ratio"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn o_2_a_wait_that_does_not_fit_is_exhaustion() {
    let measured = measured(async {
        let client = retry_only(&deps(), peer([reply(503, &[("retry-after", "3600")])]));
        client.oneshot(get(URI)).await.unwrap();
    })
    .await;
    let name = "retry_exhausted_total{service=checkout,dependency=stock.example:8080}";
    assert_eq!(measured, expected([(name, count(1))]));
}

#[tokio::test(start_paused = true)]
async fn g_4_a_retry_that_the_budget_refused_is_suppressed() {
    let (log, _guard) = Log::listen();
    let measured = measured(async {
        let policy = policy().budget_floor(0).budget_ratio(0.0);
        let deps = Dependencies::new(policy.build().unwrap());
        let client = retry_only(&deps, peer([reply(503, &[])]));
        assert_eq!(client.oneshot(get(URI)).await.unwrap().status(), 503);
    })
    .await;
    let labels = "service=checkout,dependency=stock.example:8080";
    assert_eq!(
        measured,
        expected([
            (&format!("retry_suppressed{{{labels}}}"), count(1)),
            (
                &format!("retry_budget_utilization_ratio{{{labels}}}"),
                gauge(1.0)
            ),
        ])
    );
    assert!(log.retries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn o_2_a_breaker_shows_its_state_and_whom_it_refused() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (log, _guard) = Log::listen();
    let policy = policy().consecutive_failures(2);
    let deps = Dependencies::new(policy.build().unwrap());
    let client = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .service(peer([reply(503, &[]), refused()]));
    let _ = client.clone().oneshot(get(URI)).await;
    let _ = client.clone().oneshot(get(URI)).await;
    for _ in 0..3 {
        let error = client.clone().oneshot(get(URI)).await.unwrap_err();
        assert!(Refused::find(&*error).is_some());
    }
    let labels = "service=checkout,dependency=stock.example:8080";
    let open = format!("circuit_breaker_open{{{labels}}}");
    let refusals = format!("calls_refused_total{{{labels},by=breaker}}");
    let measured = counted(&snapshotter);
    assert_eq!(
        measured,
        expected([(&open, gauge(1.0)), (&refusals, count(3))])
    );
    assert_eq!(log.with_message("circuit breaker opened").len(), 1);

    tokio::time::advance(Duration::from_secs(2)).await;
    client.oneshot(get(URI)).await.unwrap();
    assert_eq!(counted(&snapshotter)[&open], gauge(0.0));
    assert_eq!(log.with_message("circuit breaker closed").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn o_2_other_refusals_say_by_whom() {
    let labels = "service=checkout,dependency=stock.example:8080";
    let by_gate = measured(async {
        let client = ServiceBuilder::new()
            .layer(RetryAfterLayer::new(deps()))
            .service(peer([reply(503, &[("retry-after", "3600")])]));
        client.clone().oneshot(get(URI)).await.unwrap();
        client.oneshot(get(URI)).await.unwrap_err();
    })
    .await;
    let refusals = format!("calls_refused_total{{{labels},by=retry_after}}");
    assert_eq!(by_gate, expected([(&refusals, count(1))]));

    let by_budget = measured(async {
        let policy = policy().budget_floor(0).budget_ratio(0.0);
        let client = ServiceBuilder::new()
            .layer(RetryBudgetLayer::new(Dependencies::new(
                policy.build().unwrap(),
            )))
            .service(peer([]));
        let mut request = get(URI);
        request.extensions_mut().insert(Attempt::retry(1));
        client.oneshot(request).await.unwrap_err();
    })
    .await;
    let refusals = format!("calls_refused_total{{{labels},by=budget}}");
    assert_eq!(by_budget[&refusals], count(1));
}

#[tokio::test(start_paused = true)]
async fn o_2_attempt_numbers_are_bounded() {
    let measured = measured(async {
        let policy = policy()
            .max_retries(14)
            .budget_floor(100)
            .approve(Rule::R2, "a test")
            .approve(Rule::R7, "a test");
        let deps = Dependencies::new(policy.build().unwrap());
        let client = retry_only(&deps, peer((0..20).map(|_| reply(503, &[]))));
        client.oneshot(get(URI)).await.unwrap();
    })
    .await;
    let mut numbers: Vec<_> = measured
        .iter()
        .filter_map(|(key, value)| {
            let (name, number) = key.split_once("attempt_number=")?;
            assert!(name.starts_with("retry_attempts_total{"), "{name}");
            Some((number.trim_end_matches('}'), value))
        })
        .collect();
    numbers.sort_by_key(|(number, _)| number.parse().unwrap_or(u32::MAX));
    assert_eq!(numbers.len(), 11);
    for (i, (number, value)) in numbers.iter().enumerate().take(10) {
        assert_eq!((*number, *value), (&*(i + 1).to_string(), &count(1)));
    }
    assert_eq!(numbers[10], ("more", &count(4)));
}

#[tokio::test(start_paused = true)]
async fn o_2_dependency_labels_are_bounded() {
    let (log, _guard) = Log::listen();
    let measured = measured(async {
        let deps = Dependencies::builder(policy().build().unwrap())
            .capacity(2)
            .build();
        for i in 0..9 {
            let client = retry_only(&deps, peer([reply(503, &[])]));
            let uri = format!("http://host-{i}.example/");
            client.oneshot(get(&uri)).await.unwrap();
        }
    })
    .await;
    let dependencies: BTreeSet<_> = measured
        .keys()
        .map(|key| {
            let (_, rest) = key.split_once("dependency=").unwrap();
            rest.split([',', '}']).next().unwrap()
        })
        .collect();
    assert_eq!(
        Vec::from_iter(dependencies),
        ["host-0.example", "host-1.example", "overflow"]
    );
    let warned = log.with_message(
        "no entry for a dependency, for want of room or for its name: such share one",
    );
    assert_eq!(warned.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn o_2_the_dependency_is_host_and_port() {
    for (uri, dependency) in [
        (
            "http://user:hunter2@stock.example:8080/a?b=c",
            "stock.example:8080",
        ),
        ("http://Stock.Example/a", "stock.example"),
        ("https://stock.example:8443/a", "stock.example:8443"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ] {
        let measured = measured(async {
            let client = retry_only(&deps(), peer([reply(503, &[])]));
            client.oneshot(get(uri)).await.unwrap();
        })
        .await;
        let name = format!("dependency={dependency}");
        let named = |key: &String| {
            key.trim_end_matches('}')
                .split(['{', ','])
                .any(|part| part == name)
        };
        assert_eq!(measured.len(), 3);
        assert!(measured.keys().all(named), "{measured:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn o_2_prometheus_can_scrape_it() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let guard = metrics::set_default_local_recorder(&recorder);
    let policy = policy().consecutive_failures(4);
    let deps = Dependencies::new(policy.build().unwrap());
    let busy = || reply(503, &[]);
    let client = stack(&deps, peer([busy(), busy(), busy(), busy()]));
    client.clone().oneshot(get(URI)).await.unwrap();
    client.oneshot(get(URI)).await.unwrap_err();
    drop(guard);

    let text = recorder.handle().render();
    let labels = r#"service="checkout",dependency="stock.example:8080""#;
    for line in [
        &*format!(r#"retry_attempts_total{{{labels},attempt_number="1"}} 1"#),
        &format!(r#"retry_attempts_total{{{labels},attempt_number="3"}} 1"#),
        &format!("retry_exhausted_total{{{labels}}} 1"),
        &format!("retry_backoff_duration_seconds_count{{{labels}}} 3"),
        &format!("retry_budget_utilization_ratio{{{labels}}} 0.3"),
        &format!("circuit_breaker_open{{{labels}}} 1"),
        &format!(r#"calls_refused_total{{{labels},by="breaker"}} 1"#),
        "# TYPE retry_attempts_total counter",
        "# TYPE retry_budget_utilization_ratio gauge",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nnot in\n{text}");
    }
}

// ---- S-2

/// Every one of them is somewhere in a request, in a response or in an error below.
const SECRETS: [&str; 12] = [
    "s3cret-token",
    "s3cret-proxy",
    "s3cret-cookie",
    "s3cret-api-key",
    "s3cret-user",
    "s3cret-password",
    "s3cret-query",
    "s3cret-path",
    "s3cret-body",
    "s3cret-set-cookie",
    "s3cret-reply",
    "s3cret-error",
];

fn secret_request(method: &str) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri("http://s3cret-user:s3cret-password@stock.example:8080/s3cret-path?card=s3cret-query")
        .header("authorization", "Bearer s3cret-token")
        .header("proxy-authorization", "Basic s3cret-proxy")
        .header("cookie", "session=s3cret-cookie")
        .header("x-api-key", "s3cret-api-key")
        .body(Body::from("s3cret-body"))
        .unwrap()
}

fn secret_reply(status: u16) -> Reply {
    let response = Response::builder()
        .status(status)
        .header("set-cookie", "session=s3cret-set-cookie")
        .header("www-authenticate", "Bearer realm=\"s3cret-reply\"")
        .header("grpc-message", "s3cret-reply");
    Ok(response.body(Body::from("s3cret-reply")).unwrap())
}

/// An error with a secret in its text, as some clients put the whole URI there.
fn secret_error() -> Reply {
    let kind = io::ErrorKind::ConnectionReset;
    Err(io::Error::new(kind, "s3cret-error").into())
}

fn assert_no_secrets(text: &str) {
    let lower = text.to_ascii_lowercase();
    for secret in SECRETS {
        assert!(!lower.contains(secret), "{secret} in {text}");
    }
}

/// Calls that end in every way there is.
async fn secret_calls() {
    let all = |status| (0..4).map(move |_| secret_reply(status));
    let starved = || policy().budget_floor(0).budget_ratio(0.0).build().unwrap();
    let brittle = || policy().consecutive_failures(2).build().unwrap();
    let scenarios: Vec<(Policy, Vec<Reply>)> = vec![
        (policy().build().unwrap(), vec![secret_reply(503)]),
        (policy().build().unwrap(), all(503).collect()),
        (policy().build().unwrap(), all(401).collect()),
        (
            policy().build().unwrap(),
            (0..4).map(|_| secret_error()).collect(),
        ),
        (starved(), all(503).collect()),
        (brittle(), all(503).collect()),
        (brittle(), (0..4).map(|_| secret_error()).collect()),
    ];
    for (policy, replies) in scenarios {
        for method in ["GET", "POST"] {
            let replies = replies.iter().map(|reply| match reply {
                Ok(response) => secret_reply(response.status().as_u16()),
                Err(_) => secret_error(),
            });
            let deps = Dependencies::new(policy.clone());
            let client = stack(&deps, peer(replies));
            for _ in 0..2 {
                let result = client.clone().oneshot(secret_request(method)).await;
                if let Err(error) = result {
                    assert_no_secrets(&error.to_string());
                    if let Some(refused) = Refused::find(&*error) {
                        assert_no_secrets(&format!("{refused} {refused:?}"));
                    }
                }
            }
            assert_no_secrets(&format!("{deps:?} {:?}", deps.list()));
        }
    }
    // Hooks that fail, with more in their errors than should be logged.
    let failing = |_: Request<Body>, _: Attempt| async {
        Err::<Request<Body>, BoxError>("s3cret-error".into())
    };
    let stripping = |mut request: Request<Body>, _: Attempt| async move {
        request.headers_mut().clear();
        Ok::<_, BoxError>(request)
    };
    let deps = deps();
    let _ = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()).with_prepare(failing))
        .service(peer([secret_reply(503)]))
        .oneshot(secret_request("GET"))
        .await;
    let _ = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()).with_prepare(stripping))
        .service(peer([secret_reply(503)]))
        .oneshot(secret_request("GET"))
        .await;
    // A host taken from a header.
    let (mut parts, body) = secret_request("GET").into_parts();
    parts.uri = "/s3cret-path?card=s3cret-query".parse().unwrap();
    let host = HeaderValue::from_static("s3cret-user:s3cret-password@stock.example");
    parts.headers.insert("host", host);
    let client = stack(&deps, peer([secret_reply(503)]));
    client
        .oneshot(Request::from_parts(parts, body))
        .await
        .unwrap();
    // A refused configuration.
    let mut request = secret_request("POST");
    let key = IdempotencyKey::new("k".repeat(99)).unwrap();
    request.extensions_mut().insert(key);
    let error = stack(&deps, peer([])).oneshot(request).await.unwrap_err();
    assert_no_secrets(&format!("{error} {error:?}"));
}

#[tokio::test(start_paused = true)]
async fn s_2_no_secret_is_logged() {
    let (log, _guard) = Log::listen();
    secret_calls().await;
    let ours = log.all();
    for kind in [
        "retry",
        "gave up",
        "circuit breaker opened",
        "retry not sent",
    ] {
        assert!(!log.with_message(kind).is_empty(), "{kind} was not tried");
    }
    assert!(
        !log.with_message("retry suppressed: budget used up")
            .is_empty()
    );
    assert_no_secrets(&format!("{ours:?}"));
}

#[tokio::test(start_paused = true)]
async fn s_2_no_secret_is_counted() {
    let measured = measured(secret_calls()).await;
    assert!(measured.len() > 8, "{measured:?}");
    assert_no_secrets(&format!("{measured:?}"));

    let recorder = PrometheusBuilder::new().build_recorder();
    let guard = metrics::set_default_local_recorder(&recorder);
    secret_calls().await;
    drop(guard);
    let text = recorder.handle().render();
    assert!(text.contains("retry_attempts_total"));
    assert_no_secrets(&text);
}

#[tokio::test(start_paused = true)]
async fn s_2_no_secret_is_in_what_a_caller_prints() {
    let bare = || Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
    let client = stack(&deps(), peer((0..4).map(|_| bare())));
    let error = client.oneshot(secret_request("GET")).await.unwrap_err();
    assert_no_secrets(&format!("{error} {error:?}"));
}

/// Polls a future once, and prints it before and after.
async fn printed(future: impl Future + Debug) -> String {
    let mut future = Box::pin(future);
    let before = format!("{future:?}");
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
    format!("{before} {future:?}")
}

#[tokio::test(start_paused = true)]
async fn s_2_a_future_prints_nothing_of_its_request() {
    // Each of them holds a request or a response when it is printed.
    let busy = || service_fn(|_: Request<Body>| async { secret_reply(503) });
    let deps = deps();
    let mut retry = RetryLayer::new(deps.clone()).layer(busy());
    assert_no_secrets(&printed(retry.call(secret_request("GET"))).await);

    let held = Dependencies::new(policy().build().unwrap());
    let mut gate =
        RetryAfterLayer::new(held.clone()).layer(peer([reply(503, &[("retry-after", "7")])]));
    gate.call(secret_request("GET")).await.unwrap();
    assert_no_secrets(&printed(gate.call(secret_request("GET"))).await);

    let never = |_: IdempotencyKey| std::future::pending::<Result<(), BoxError>>();
    let mut key = IdempotencyKeyLayer::new().with_persist(never).layer(busy());
    assert_no_secrets(&printed(key.call(secret_request("POST"))).await);

    let mut breaker = CircuitBreakerLayer::new(deps).layer(busy());
    assert_no_secrets(&printed(breaker.call(secret_request("GET"))).await);
}

// ---- O-3

#[tokio::test(start_paused = true)]
async fn o_3_nobody_has_to_listen() {
    secret_calls().await;
    let client = stack(&deps(), peer([reply(503, &[])]));
    assert_eq!(client.oneshot(get(URI)).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn o_3_a_subscriber_that_wants_errors_only_gets_nothing() {
    let log = Log::default();
    let errors = log
        .clone()
        .with_filter(tracing_subscriber::filter::LevelFilter::ERROR);
    let _guard = tracing::subscriber::set_default(Registry::default().with(errors));
    let client = stack(&deps(), peer([reply(503, &[])]));
    assert_eq!(client.oneshot(get(URI)).await.unwrap().status(), 200);
    assert!(log.all().is_empty());
}
