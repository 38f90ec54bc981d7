//! The layers together, in every subset and order, and what each adds to the others.
#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

mod support;

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    future::{Future, Ready, pending, ready},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use tokio::{
    task::JoinSet,
    time::{Instant, advance, sleep},
};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKey, IdempotencyKeyLayer, InboundBudgetLayer,
    Policy, RetryAfterLayer, RetryBudgetLayer, RetryLayer, RetryOverride,
    backoff::Backoff,
    call::{Attempt, StopReason},
    classify::Standard,
    dependency::{BreakerState, Named},
    error::{BoxError, ConfigError, Refusal, Refused, Rule},
    policy::{Exhaustion, PolicyBuilder, RetryAfterMode},
};

use support::{call, outcome};

const HOST: &str = "a.example";

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

type Reply = Result<Response<Bytes>, BoxError>;
type Client = BoxCloneService<Request<()>, Response<Bytes>, BoxError>;
type Script =
    dyn Fn(&Request<()>, usize) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send + Sync;
type Log = Arc<Mutex<Vec<(Instant, Request<()>)>>>;

/// Answers the n-th attempt of each call (by its `x-call` header) by a script, and remembers
/// what it got and when. Panics when called without having been readied.
struct Server {
    script: Arc<Script>,
    attempts: Arc<Mutex<HashMap<HeaderValue, usize>>>,
    seen: Log,
    readied: bool,
}

impl Server {
    fn new<F>(script: impl Fn(&Request<()>, usize) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Self {
            script: Arc::new(move |request, n| Box::pin(script(request, n))),
            attempts: Arc::default(),
            seen: Arc::default(),
            readied: false,
        }
    }

    /// Answers at once.
    fn replies(
        script: impl Fn(&Request<()>, usize) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |request, n| ready(Ok(script(request, n))))
    }

    /// Always the same status.
    fn always(code: u16) -> Self {
        Self::replies(move |_, _| status(code))
    }

    fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn times(&self) -> Vec<Instant> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .map(|(at, _)| *at)
            .collect()
    }

    fn header(&self, name: &str) -> Vec<Option<String>> {
        let seen = self.seen.lock().unwrap();
        let value =
            |request: &Request<()>| Some(request.headers().get(name)?.to_str().ok()?.into());
        seen.iter().map(|(_, request)| value(request)).collect()
    }
}

impl Clone for Server {
    fn clone(&self) -> Self {
        Self {
            script: Arc::clone(&self.script),
            attempts: Arc::clone(&self.attempts),
            seen: Arc::clone(&self.seen),
            readied: false,
        }
    }
}

impl Service<Request<()>> for Server {
    type Response = Response<Bytes>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Reply> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.readied = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.readied), "called unreadied");
        let call = request.headers().get("x-call").cloned();
        let call = call.unwrap_or(HeaderValue::from_static(""));
        let n = {
            let mut attempts = self.attempts.lock().unwrap();
            let n = attempts.entry(call).or_default();
            *n += 1;
            *n - 1
        };
        let reply = (self.script)(&request, n);
        self.seen.lock().unwrap().push((Instant::now(), request));
        reply
    }
}

fn status(code: u16) -> Response<Bytes> {
    Response::builder().status(code).body(Bytes::new()).unwrap()
}

fn busy(code: u16, seconds: u64) -> Response<Bytes> {
    let mut response = status(code);
    response.headers_mut().insert("retry-after", seconds.into());
    response
}

fn request(method: Method, host: &str) -> Request<()> {
    let uri = format!("http://{host}/items");
    Request::builder().method(method).uri(uri).body(()).unwrap()
}

fn get() -> Request<()> {
    request(Method::GET, HOST)
}

fn post() -> Request<()> {
    request(Method::POST, HOST)
}

fn numbered(mut request: Request<()>, call: usize) -> Request<()> {
    request.headers_mut().insert("x-call", call.into());
    request
}

fn with<T: Clone + Send + Sync + 'static>(mut request: Request<()>, extension: T) -> Request<()> {
    request.extensions_mut().insert(extension);
    request
}

fn with_header(mut request: Request<()>, name: &'static str, value: &'static str) -> Request<()> {
    request
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
    request
}

fn grpc() -> Request<()> {
    with_header(post(), "content-type", "application/grpc")
}

#[derive(Debug, Clone, Copy)]
struct Fixed(Duration);

impl Backoff for Fixed {
    fn delay(&self, _retry: u32, _previous: Duration, _uniform: f64) -> Duration {
        self.0
    }
}

fn policy() -> PolicyBuilder {
    Policy::synchronous().backoff(Fixed(secs(1)))
}

/// A budget and a breaker that never say no.
fn lenient() -> PolicyBuilder {
    Policy::synchronous()
        .backoff(Fixed(Duration::from_millis(1)))
        .approve(Rule::R7, "test")
        .budget_floor(10_000)
        .consecutive_failures(10_000)
        .failure_rate(1.0, 10_000, secs(30))
}

fn deps(policy: PolicyBuilder) -> Dependencies {
    Dependencies::new(policy.build().unwrap())
}

fn code<B>(result: &Result<Response<B>, BoxError>) -> u16 {
    result.as_ref().unwrap().status().as_u16()
}

fn refusal<B>(result: &Result<Response<B>, BoxError>) -> Option<Refusal> {
    let error = result.as_ref().err()?;
    Refused::find(&**error).map(Refused::kind)
}

/// Originals and retries that the dependency counted.
fn counted<C, L>(deps: &Dependencies<C, L>) -> (u64, u64) {
    let status = deps.get(HOST).status();
    (status.originals, status.retries)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Key,
    Budget,
    Retry,
    After,
    Breaker,
}

/// The recommended order, from the caller inwards.
const PARTS: [Part; 5] = [
    Part::Key,
    Part::Budget,
    Part::Retry,
    Part::After,
    Part::Breaker,
];

fn stack(parts: &[Part], deps: &Dependencies, server: &Server) -> Client {
    let deps = || deps.clone();
    let innermost: Client = BoxCloneService::new(server.clone());
    parts
        .iter()
        .rev()
        .fold(innermost, |inner, part| match part {
            Part::Key => BoxCloneService::new(IdempotencyKeyLayer::new().layer(inner)),
            Part::Budget => BoxCloneService::new(RetryBudgetLayer::new(deps()).layer(inner)),
            Part::Retry => BoxCloneService::new(RetryLayer::new(deps()).layer(inner)),
            Part::After => BoxCloneService::new(RetryAfterLayer::new(deps()).layer(inner)),
            Part::Breaker => BoxCloneService::new(CircuitBreakerLayer::new(deps()).layer(inner)),
        })
}

/// All orders of all subsets: 326 for five parts, the empty one included.
fn arrangements(parts: &[Part]) -> Vec<Vec<Part>> {
    let mut all = vec![Vec::new()];
    for first in parts {
        let rest: Vec<_> = parts.iter().copied().filter(|part| part != first).collect();
        for mut arrangement in arrangements(&rest) {
            arrangement.insert(0, *first);
            all.push(arrangement);
        }
    }
    all
}

/// The un-boxed stack is a service for a body that is in common use.
#[tokio::test(start_paused = true)]
async fn the_whole_stack_composes_without_boxes() {
    fn is_client<S>(client: S) -> S
    where
        S: Service<Request<Full<Bytes>>, Response = Response<Full<Bytes>>, Error = BoxError>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        client
    }
    let deps = deps(policy());
    let server = service_fn(|request: Request<Full<Bytes>>| async move {
        Ok::<_, Infallible>(Response::new(request.into_body()))
    });
    let mut client = is_client(
        ServiceBuilder::new()
            .layer(IdempotencyKeyLayer::new())
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps.clone()))
            .layer(RetryAfterLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps))
            .service(server),
    );
    let request = post().map(|()| Full::from("body"));
    assert_eq!(call(&mut client, request).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn g_3_every_arrangement_counts_each_original_and_charges_each_retry_once() {
    const FAILURES: [usize; 8] = [0, 1, 0, 2, 3, 0, 1, 0];
    let all = arrangements(&PARTS);
    assert_eq!(all.len(), 326);
    let subsets: HashSet<_> = all
        .iter()
        .filter(|parts| parts.is_sorted_by_key(|part| PARTS.iter().position(|p| p == part)))
        .collect();
    assert_eq!(
        subsets.len(),
        32,
        "each subset in the recommended order is among them"
    );
    for parts in all {
        let server = Server::replies(|request, n| {
            let call: usize = request.headers()["x-call"]
                .to_str()
                .unwrap()
                .parse()
                .unwrap();
            status(if n < FAILURES[call % FAILURES.len()] {
                503
            } else {
                200
            })
        });
        let deps = deps(lenient());
        let mut client = stack(&parts, &deps, &server);
        let place = |part| parts.iter().position(|p| *p == part);
        let retrying = place(Part::Retry);
        let keyed = place(Part::Key) < retrying && place(Part::Key).is_some();
        let mut retries = 0;
        let calls = 2 * FAILURES.len();
        for i in 0..calls {
            let method = if i < FAILURES.len() {
                Method::GET
            } else {
                Method::POST
            };
            let retried = retrying.is_some() && (method == Method::GET || keyed);
            let failures = FAILURES[i % FAILURES.len()];
            let expected = if retried || failures == 0 { 200 } else { 503 };
            let request = numbered(request(method, HOST), i);
            let result = call(&mut client, request).await;
            assert_eq!(code(&result), expected, "{parts:?}, call {i}");
            retries += if retried { failures } else { 0 };
        }
        let counts = retrying.is_some() || place(Part::Budget).is_some();
        let originals = if counts { calls } else { 0 };
        let expected = (originals as u64, retries as u64);
        assert_eq!(counted(&deps), expected, "{parts:?}");
        assert_eq!(server.calls(), calls + retries, "{parts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn g_3_layers_stacked_twice_count_and_charge_once() {
    use Part::{Breaker, Budget, Retry};
    for parts in [
        &[Budget, Budget, Retry][..],
        &[Budget, Retry, Budget],
        &[Retry, Budget, Budget],
        &[Retry, Retry],
        &[Budget, Retry, Budget, Retry, Budget, Breaker],
    ] {
        for failures in [0, 1, 3, 5] {
            let server = Server::replies(move |_, n| status(if n < failures { 503 } else { 200 }));
            let deps = deps(lenient());
            call(&mut stack(parts, &deps, &server), get())
                .await
                .unwrap();
            let (originals, retries) = counted(&deps);
            assert_eq!(originals, 1, "{parts:?}");
            assert_eq!(server.calls() as u64, 1 + retries, "{parts:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn g_3_one_layer_used_twice_counts_once() {
    let deps = deps(lenient());
    let layer = RetryBudgetLayer::new(deps.clone());
    let mut client = layer.clone().layer(layer.layer(Server::always(200)));
    call(&mut client, get()).await.unwrap();
    let repeat = with(get(), Attempt::retry(1));
    call(&mut client, repeat).await.unwrap();
    assert_eq!(counted(&deps), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn g_3_concurrent_calls_are_counted_and_charged_once_each() {
    let server = Server::new(|_, n| async move {
        sleep(Duration::from_millis(5)).await;
        Ok(status(if n == 0 { 503 } else { 200 }))
    });
    let deps = deps(lenient());
    let client = stack(&PARTS, &deps, &server);
    let mut calls = JoinSet::new();
    for i in 0..100 {
        let mut client = client.clone();
        calls.spawn(async move { call(&mut client, numbered(post(), i)).await });
    }
    for result in calls.join_all().await {
        assert_eq!((code(&result), outcome(&result)), (200, Some((2, None))));
    }
    assert_eq!((counted(&deps), server.calls()), ((100, 100), 200));
}

#[tokio::test(start_paused = true)]
async fn g_3_nothing_is_charged_for_a_retry_that_something_else_forbids() {
    let off = || with(get(), RetryOverride::off());
    let breaker = || policy().consecutive_failures(1).cooldown(secs(9), secs(9));
    for (name, policy, request, server) in [
        ("attempts", policy(), off(), Server::always(503)),
        (
            "deadline",
            policy().total_timeout(secs(1)),
            get(),
            Server::always(503),
        ),
        ("head", policy().replay_limit(4), get(), Server::always(503)),
        ("breaker", breaker(), get(), Server::always(503)),
        (
            "method",
            policy(),
            request(Method::PATCH, HOST),
            Server::always(503),
        ),
        ("status", policy(), get(), Server::always(404)),
        (
            "time asked for",
            policy(),
            get(),
            Server::replies(|_, _| busy(503, 60)),
        ),
    ] {
        let deps = deps(policy);
        let parts = &PARTS[1..];
        let result = call(&mut stack(parts, &deps, &server), request).await;
        assert!(result.is_ok(), "{name}");
        assert_eq!((counted(&deps), server.calls()), ((1, 0), 1), "{name}");
    }
}

// Dependencies

#[tokio::test(start_paused = true)]
async fn g_2_what_one_dependency_does_never_touches_another() {
    let server = Server::replies(|request, n| match request.uri().host() {
        Some("a.example") => busy(503, 20),
        _ => status(if n == 0 { 503 } else { 200 }),
    });
    let deps = deps(policy().budget_floor(1).consecutive_failures(2));
    let mut client = stack(&PARTS, &deps, &server);
    let off = || with(get(), RetryOverride::off());
    for i in 0..5 {
        let _ = call(&mut client, numbered(off(), i)).await;
    }
    let a = deps.get("a.example").status();
    assert!(matches!(a.breaker, BreakerState::Open(_)));
    assert!(a.hold.is_some());

    let start = Instant::now();
    let b = numbered(request(Method::GET, "b.example"), 10);
    let result = call(&mut client, b).await;
    assert_eq!((code(&result), start.elapsed()), (200, secs(1)));
    let b = deps.get("b.example").status();
    assert_eq!((b.originals, b.retries), (1, 1));
    assert_eq!((b.breaker, b.hold), (BreakerState::Closed, None));
    assert_eq!(deps.get("a.example").status().retries, 0);
}

#[tokio::test(start_paused = true)]
async fn g_2_one_budget_used_up_leaves_the_others() {
    let server = Server::always(503);
    let deps = deps(
        policy()
            .budget_floor(2)
            .on_budget_exhausted(Exhaustion::Never),
    );
    let mut client = stack(&[Part::Retry], &deps, &server);
    for (host, attempts) in [("a.example", 3), ("a.example", 1), ("b.example", 3)] {
        let result = call(&mut client, request(Method::GET, host)).await;
        assert_eq!(
            outcome(&result),
            Some((attempts, Some(StopReason::Budget))),
            "{host}"
        );
    }
}

// Retry loops of others

/// How a retry loop of another make says that a request is a repeat.
#[derive(Debug, Clone, Copy)]
enum Sign {
    Extension,
    Grpc,
    Envoy,
}

const SIGNS: [Sign; 3] = [Sign::Extension, Sign::Grpc, Sign::Envoy];

impl Sign {
    fn put(self, request: &mut Request<()>, previous: u32) {
        match self {
            Self::Extension => {
                request.extensions_mut().insert(Attempt::retry(previous));
            }
            Self::Grpc => {
                let headers = request.headers_mut();
                headers.insert("grpc-previous-rpc-attempts", previous.into());
            }
            Self::Envoy => {
                let headers = request.headers_mut();
                headers.insert("x-envoy-attempt-count", (previous + 1).into());
            }
        }
    }
}

/// Repeats on 503, at once.
#[derive(Debug, Clone)]
struct Foreign {
    sign: Sign,
    made: u32,
    max: u32,
}

impl tower::retry::Policy<Request<()>, Response<Bytes>, BoxError> for Foreign {
    type Future = Ready<()>;

    fn retry(&mut self, request: &mut Request<()>, result: &mut Reply) -> Option<Ready<()>> {
        let failed = result
            .as_ref()
            .is_ok_and(|response| response.status() == 503);
        self.made += 1;
        (failed && self.made <= self.max).then(|| {
            self.sign.put(request, self.made);
            ready(())
        })
    }

    fn clone_request(&mut self, request: &Request<()>) -> Option<Request<()>> {
        Some(request.clone())
    }
}

fn foreign(sign: Sign, max: u32) -> tower::retry::RetryLayer<Foreign> {
    tower::retry::RetryLayer::new(Foreign { sign, made: 0, max })
}

#[tokio::test(start_paused = true)]
async fn g_6_below_a_foreign_loop_each_repeat_is_charged_once_and_refused_over_budget() {
    for sign in SIGNS {
        let server = Server::always(503);
        let deps = deps(
            policy()
                .budget_floor(2)
                .on_budget_exhausted(Exhaustion::Never),
        );
        let mut client = ServiceBuilder::new()
            .layer(foreign(sign, 5))
            .layer(RetryBudgetLayer::new(deps.clone()))
            .service(server.clone());
        let result = call(&mut client, get()).await;
        assert_eq!(refusal(&result), Some(Refusal::Budget), "{sign:?}");
        assert_eq!((counted(&deps), server.calls()), ((1, 2), 3), "{sign:?}");
        let result = call(&mut client, get()).await;
        assert_eq!(refusal(&result), Some(Refusal::Budget), "{sign:?}");
        assert_eq!((counted(&deps), server.calls()), ((2, 2), 4), "{sign:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn g_6_repeats_of_a_foreign_loop_are_charged_once_wherever_our_layers_are() {
    for sign in SIGNS {
        let server = Server::replies(|_, n| status(if n < 3 { 503 } else { 200 }));
        let budget = |deps: &Dependencies| RetryBudgetLayer::new(deps.clone());
        let retry = |deps: &Dependencies| RetryLayer::new(deps.clone());
        let off = || with(get(), RetryOverride::off());

        let two = deps(lenient());
        let mut client = ServiceBuilder::new()
            .layer(foreign(sign, 5))
            .layer(budget(&two))
            .layer(budget(&two))
            .service(server.clone());
        call(&mut client, numbered(get(), 1)).await.unwrap();
        assert_eq!(counted(&two), (1, 3), "two below, {sign:?}");

        let around = deps(lenient());
        let mut client = ServiceBuilder::new()
            .layer(budget(&around))
            .layer(foreign(sign, 5))
            .layer(budget(&around))
            .service(server.clone());
        call(&mut client, numbered(get(), 2)).await.unwrap();
        assert_eq!(counted(&around), (1, 3), "around it, {sign:?}");

        let mixed = deps(lenient());
        let mut client = ServiceBuilder::new()
            .layer(retry(&mixed))
            .layer(foreign(sign, 5))
            .layer(budget(&mixed))
            .layer(retry(&mixed))
            .layer(budget(&mixed))
            .service(server.clone());
        call(&mut client, numbered(off(), 3)).await.unwrap();
        assert_eq!(counted(&mixed), (1, 3), "mixed, {sign:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn g_6_what_is_no_repeat_is_an_original() {
    let grpc = "grpc-previous-rpc-attempts";
    let envoy = "x-envoy-attempt-count";
    for (name, value, repeat) in [
        (grpc, "0", false),
        (grpc, "1", true),
        (grpc, "7", true),
        (grpc, "-1", false),
        (grpc, "many", false),
        (envoy, "0", false),
        (envoy, "1", false),
        (envoy, "2", true),
        (envoy, "", false),
    ] {
        let deps = deps(lenient());
        let mut client = RetryBudgetLayer::new(deps.clone()).layer(Server::always(200));
        call(&mut client, with_header(get(), name, value))
            .await
            .unwrap();
        let expected = if repeat { (0, 1) } else { (1, 0) };
        assert_eq!(counted(&deps), expected, "{name}: {value}");

        // Our own loop, whether it keeps the request or not.
        let off = RetryOverride::off();
        for (policy, wish) in [
            (lenient(), RetryOverride::new()),
            (lenient(), off),
            (lenient().replay_limit(0), RetryOverride::new()),
        ] {
            let deps = self::deps(policy);
            let mut client = RetryLayer::new(deps.clone()).layer(Server::always(200));
            let request = with_header(with(get(), wish), name, value);
            call(&mut client, request).await.unwrap();
            assert_eq!(counted(&deps), (u64::from(!repeat), 0), "{name}: {value}");
        }
    }
}

fn inbound(policy: PolicyBuilder) -> InboundBudgetLayer<Standard, Named> {
    InboundBudgetLayer::new(deps(policy.budget_ratio(0.0).budget_floor(0)))
}

#[tokio::test(start_paused = true)]
async fn g_6_a_server_refuses_inbound_retries_with_do_not_retry() {
    for code in [429_u16, 503] {
        let server = service_fn(|_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(Bytes::from_static(b"served")))
        });
        let layer = inbound(policy());
        let layer = layer.status(StatusCode::from_u16(code).unwrap()).unwrap();
        // The error type is still the server's own.
        let mut server = layer.layer(server);
        let mut ask = async |request| {
            let result: Result<_, Infallible> = call(&mut server, request).await;
            result.unwrap()
        };
        assert_eq!(*ask(get()).await.body(), "served");

        for sign in SIGNS {
            let mut repeat = get();
            sign.put(&mut repeat, 1);
            let response = ask(repeat).await;
            assert_eq!(response.status(), code);
            let headers = response.headers();
            assert_eq!(headers["x-should-retry"], "false");
            assert_eq!(headers["cache-control"], "no-store");
            assert_eq!(headers[CONTENT_TYPE], "application/problem+json");
            let problem: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(problem["status"], code);

            let mut repeat = grpc();
            sign.put(&mut repeat, 1);
            let response = ask(repeat).await;
            assert_eq!(response.status(), 200);
            let headers = response.headers();
            assert_eq!(headers[CONTENT_TYPE], "application/grpc");
            assert_eq!(headers["grpc-status"], if code == 429 { "8" } else { "14" });
            assert_eq!(headers["grpc-retry-pushback-ms"], "-1");
            assert!(response.body().is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn g_6_a_peer_cannot_make_up_a_budget_of_its_own() {
    let refused = async |located: bool| {
        let deps = deps(policy().budget_floor(1));
        let server =
            service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Bytes::new())) });
        let mut server = match located {
            true => InboundBudgetLayer::located(deps)
                .layer(server)
                .boxed_clone(),
            false => InboundBudgetLayer::new(deps).layer(server).boxed_clone(),
        };
        let mut refused = 0;
        for host in 0..10 {
            let mut repeat = get();
            *repeat.uri_mut() = format!("http://host-{host}.example/").parse().unwrap();
            repeat.extensions_mut().insert(Attempt::retry(1));
            let response = call(&mut server, repeat).await.unwrap();
            refused += usize::from(response.status() == 429);
        }
        refused
    };
    assert_eq!(refused(false).await, 9);
    assert_eq!(refused(true).await, 0, "by host, as was asked for");
}

#[test]
fn g_6_a_server_refuses_with_429_or_503_only() {
    for code in [200, 400, 500, 504] {
        let status = StatusCode::from_u16(code).unwrap();
        let error = inbound(policy()).status(status).unwrap_err();
        assert_eq!(error.field(), "inbound.status");
    }
}

#[tokio::test(start_paused = true)]
async fn g_6_our_own_client_takes_that_refusal_as_final() {
    for request in [get(), with_header(grpc(), "idempotency-key", "k")] {
        let failing = Server::replies(|request, _| {
            let mut response = status(200);
            if request.headers().contains_key(CONTENT_TYPE) {
                let code = HeaderValue::from_static("14");
                response.headers_mut().insert("grpc-status", code);
            } else {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            response
        });
        // In one process, so that the client's extensions reach the server too.
        let server = inbound(policy()).layer(failing.clone());
        let deps = deps(policy());
        let mut client = stack_over(&deps, server);
        let result = call(&mut client, request).await;
        assert_eq!(outcome(&result), Some((2, Some(StopReason::Pushback))));
        assert_eq!(result.unwrap().headers()["x-should-retry"], "false");
        assert_eq!(failing.calls(), 1);
    }
}

/// In another process, where no extension of the client's arrives.
fn elsewhere<S>(
    server: S,
) -> impl Service<Request<()>, Response = S::Response, Error = S::Error, Future = S::Future> + Clone
where
    S: Service<Request<()>> + Clone,
{
    server.map_request(|mut request: Request<()>| {
        request.extensions_mut().clear();
        request
    })
}

#[tokio::test(start_paused = true)]
async fn g_6_a_server_in_another_process_knows_retries_that_tell_of_themselves() {
    let told = (1, (2, Some(StopReason::Pushback)));
    let untold = (4, (4, Some(StopReason::Exhausted)));
    for (policy, expected) in [(policy().send_attempt_count(), told), (policy(), untold)] {
        let failing = Server::always(503);
        let server = inbound(self::policy()).layer(failing.clone());
        let mut client = stack_over(&deps(policy), elsewhere(server));
        let result = call(&mut client, get()).await;
        assert_eq!((failing.calls(), outcome(&result).unwrap()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn g_6_a_first_attempt_tells_nothing_and_retries_tell_their_number() {
    let server = Server::always(503);
    let mut client = stack_over(&deps(policy().send_attempt_count()), server.clone());
    // What a caller's own retries told is not passed on by ours.
    let request = with_header(get(), "x-envoy-attempt-count", "7");
    call(&mut client, get()).await.unwrap();
    call(&mut client, request).await.unwrap();
    let numbers = server.header("x-envoy-attempt-count");
    let numbers: Vec<_> = numbers.iter().map(Option::as_deref).collect();
    let retries = [Some("2"), Some("3"), Some("4")];
    assert_eq!(numbers[..4], [&[None], &retries[..]].concat());
    assert_eq!(numbers[4..], [&[Some("7")], &retries[..]].concat());
}

fn stack_over<S>(deps: &Dependencies, server: S) -> Client
where
    S: Service<Request<()>, Response = Response<Bytes>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps.clone()))
            .service(server),
    )
}

// The circuit breaker

#[tokio::test(start_paused = true)]
async fn cb_7_a_breaker_that_is_open_before_the_wait_yields_the_last_result_at_once() {
    let server = Server::always(503);
    let deps = deps(policy().consecutive_failures(2).cooldown(secs(9), secs(9)));
    let mut client = stack(&PARTS, &deps, &server);
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Breaker))));
    assert_eq!((code(&result), start.elapsed()), (503, secs(1)));
    assert_eq!((counted(&deps), server.calls()), ((1, 1), 2));
}

#[tokio::test(start_paused = true)]
async fn cb_7_a_breaker_that_another_call_opens_during_the_wait_yields_the_last_result() {
    let server = Server::always(503);
    let deps = deps(policy().consecutive_failures(2).cooldown(secs(9), secs(9)));
    let mut client = stack(&PARTS, &deps, &server);
    let mut other = client.clone();
    client.ready().await.unwrap();
    let mut waiting = task::spawn(client.call(get()));
    assert_pending!(waiting.poll());
    let off = with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut other, off).await), 503);
    assert!(matches!(
        deps.get(HOST).status().breaker,
        BreakerState::Open(_)
    ));
    advance(secs(1)).await;
    let result = assert_ready!(waiting.poll());
    assert_eq!(code(&result), 503);
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Breaker))));
    drop(waiting);
    assert_eq!(
        (counted(&deps), server.calls()),
        ((2, 0), 2),
        "G-3: nothing is charged"
    );
}

#[tokio::test(start_paused = true)]
async fn cb_7_a_breaker_above_the_loop_stops_its_retries_too() {
    let server = Server::always(503);
    let deps = deps(policy().consecutive_failures(2).cooldown(secs(9), secs(9)));
    let mut client = stack(&[Part::Breaker, Part::Retry], &deps, &server);
    client.ready().await.unwrap();
    let mut waiting = task::spawn(client.call(get()));
    assert_pending!(waiting.poll());
    for _ in 0..2 {
        let mut other = stack(&[Part::Breaker, Part::Retry], &deps, &server);
        let off = with(get(), RetryOverride::off());
        assert_eq!(code(&call(&mut other, off).await), 503);
    }
    assert!(matches!(
        deps.get(HOST).status().breaker,
        BreakerState::Open(_)
    ));
    advance(secs(1)).await;
    let result = assert_ready!(waiting.poll());
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Breaker))));
    drop(waiting);
    assert_eq!((counted(&deps), server.calls()), ((3, 0), 3));
}

#[tokio::test(start_paused = true)]
async fn cb_7_a_retry_refused_beside_a_probe_yields_the_last_result_and_is_not_charged() {
    let server = Server::new(|_, n| async move {
        match n {
            0 | 1 => Ok(status(503)),
            _ => pending().await,
        }
    });
    let half = Duration::from_millis(500);
    let deps = deps(policy().consecutive_failures(2).cooldown(half, half));
    let mut client = stack(&PARTS, &deps, &server);
    let (mut other, mut third) = (client.clone(), client.clone());
    client.ready().await.unwrap();
    let mut waiting = task::spawn(client.call(get()));
    assert_pending!(waiting.poll());
    let off = || with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut other, off()).await), 503);
    advance(half).await;
    third.ready().await.unwrap();
    let mut probe = task::spawn(third.call(off()));
    assert_pending!(probe.poll());
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Probing);

    advance(half).await;
    let result = assert_ready!(waiting.poll());
    assert_eq!(code(&result), 503);
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Breaker))));
    drop(waiting);
    assert_eq!((counted(&deps), server.calls()), ((3, 0), 3));
}

#[tokio::test(start_paused = true)]
async fn cb_7_without_a_real_result_the_refusal_itself_returns() {
    let server = Server::always(503);
    let deps = deps(policy().consecutive_failures(1).cooldown(secs(9), secs(9)));
    let mut client = stack(&PARTS, &deps, &server);
    call(&mut client, get()).await.unwrap();
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(refusal(&result), Some(Refusal::Breaker));
    assert_eq!(outcome(&result), Some((0, Some(StopReason::Breaker))));
    assert_eq!(server.calls(), 1);
}

/// A breaker alone, opened by one failure, over a server that fails until told otherwise and
/// then answers after a second.
async fn opened() -> (Dependencies, Client, Server, Arc<AtomicBool>) {
    let well = Arc::new(AtomicBool::new(false));
    let server = Server::new({
        let well = Arc::clone(&well);
        move |_, _| {
            let well = well.load(Ordering::Relaxed);
            async move {
                if well {
                    sleep(secs(1)).await;
                }
                Ok(status(if well { 200 } else { 503 }))
            }
        }
    });
    let deps = deps(
        policy()
            .consecutive_failures(1)
            .cooldown(secs(10), secs(60)),
    );
    let mut client = stack(&[Part::Breaker], &deps, &server);
    assert_eq!(code(&call(&mut client, get()).await), 503);
    (deps, client, server, well)
}

#[tokio::test(start_paused = true)]
async fn cb_2_an_open_breaker_refuses_without_calling_with_what_is_left() {
    let (deps, mut client, server, _) = opened().await;
    let BreakerState::Open(cooldown) = deps.get(HOST).status().breaker else {
        panic!("it should be open");
    };
    assert!((secs(8)..=secs(10)).contains(&cooldown), "{cooldown:?}");
    advance(secs(3)).await;
    let error = call(&mut client, get()).await.unwrap_err();
    let refused = Refused::find(&*error).unwrap();
    assert_eq!(
        (refused.kind(), refused.dependency()),
        (Refusal::Breaker, HOST)
    );
    assert_eq!(refused.retry_after(), Some(cooldown - secs(3)));
    assert_eq!(server.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn cb_3_after_the_cooldown_one_probe_passes_and_its_success_closes() {
    let (deps, mut client, server, well) = opened().await;
    well.store(true, Ordering::Relaxed);
    advance(secs(10)).await;
    client.ready().await.unwrap();
    let mut probe = task::spawn(client.call(get()));
    assert_pending!(probe.poll());
    for _ in 0..3 {
        let mut other = client.clone();
        let error = call(&mut other, get()).await.unwrap_err();
        let refused = Refused::find(&*error).unwrap();
        assert_eq!(
            (refused.kind(), refused.retry_after()),
            (Refusal::Breaker, None)
        );
    }
    assert_eq!(server.calls(), 2);
    advance(secs(1)).await;
    assert_eq!(code(&assert_ready!(probe.poll())), 200);
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Closed);
    assert_eq!(code(&call(&mut client, get()).await), 200);
}

#[tokio::test(start_paused = true)]
async fn cb_4_a_failed_probe_opens_it_for_longer() {
    let (deps, mut client, server, _) = opened().await;
    advance(secs(10)).await;
    assert_eq!(code(&call(&mut client, get()).await), 503);
    let BreakerState::Open(cooldown) = deps.get(HOST).status().breaker else {
        panic!("it should be open");
    };
    assert!((secs(16)..=secs(20)).contains(&cooldown), "{cooldown:?}");
    assert_eq!(
        refusal(&call(&mut client, get()).await),
        Some(Refusal::Breaker)
    );
    assert_eq!(server.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn cb_5_a_dropped_probe_frees_its_slot() {
    let (deps, mut client, server, well) = opened().await;
    well.store(true, Ordering::Relaxed);
    advance(secs(10)).await;
    client.ready().await.unwrap();
    // Polled or not.
    drop(client.call(get()));
    client.ready().await.unwrap();
    let mut probe = task::spawn(client.call(get()));
    assert_pending!(probe.poll());
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Probing);
    drop(probe);
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(server.calls(), 4);
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn cb_5_a_panicking_service_frees_the_probe_slot() {
    // Panics in `call` for the second request, in its future for the third.
    let server = Server::new(|request, n| {
        let at_once = n == 1;
        assert!(!at_once, "panics in `call`");
        let _ = request;
        async move {
            assert!(n != 2, "panics in the future");
            Ok(status(if n == 0 { 503 } else { 200 }))
        }
    });
    let deps = deps(
        policy()
            .consecutive_failures(1)
            .cooldown(secs(10), secs(60)),
    );
    let client = stack(&[Part::Breaker], &deps, &server);
    let ask = || {
        let mut client = client.clone();
        tokio::spawn(async move { call(&mut client, get()).await })
    };
    assert_eq!(code(&ask().await.unwrap()), 503);
    advance(secs(10)).await;
    for _ in 0..2 {
        assert!(ask().await.unwrap_err().is_panic());
        assert!(matches!(
            deps.get(HOST).status().breaker,
            BreakerState::Open(_)
        ));
    }
    assert_eq!(code(&ask().await.unwrap()), 200);
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn d_6_dropped_under_the_whole_stack_a_call_gives_back_probe_and_charge() {
    let server = Server::new(|_, n| async move {
        match n {
            0 => Ok(status(503)),
            1 | 2 => pending().await,
            _ => Ok(status(200)),
        }
    });
    let tenth = Duration::from_millis(100);
    let deps = deps(policy().consecutive_failures(1).cooldown(tenth, tenth));
    let mut client = stack(&PARTS, &deps, &server);
    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll(), "the breaker is open for less than the wait");
    assert_eq!(counted(&deps), (1, 1), "granted");
    advance(secs(1)).await;
    assert_pending!(future.poll());
    assert_eq!(deps.get(HOST).status().breaker, BreakerState::Probing);
    drop(future);
    assert_eq!(counted(&deps), (1, 1), "sent");
    assert!(matches!(
        deps.get(HOST).status().breaker,
        BreakerState::Open(_)
    ));

    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll());
    drop(future);
    assert_eq!(code(&call(&mut client, get()).await), 200);
}

// Retry-After for everybody

/// Says once that it is busy for so long, and answers from then on.
fn busy_once(seconds: u64) -> Server {
    let said = AtomicBool::new(false);
    Server::replies(move |request, _| {
        let a = request.uri().host() == Some(HOST);
        if a && !said.swap(true, Ordering::Relaxed) {
            busy(503, seconds)
        } else {
            status(200)
        }
    })
}

fn gate(policy: PolicyBuilder, server: &Server) -> (Dependencies, Client) {
    let deps = deps(policy);
    let client = stack(&[Part::After], &deps, server);
    (deps, client)
}

#[tokio::test(start_paused = true)]
async fn ra_9_later_calls_to_the_same_dependency_wait_and_others_do_not() {
    let server = busy_once(5);
    let (deps, mut client) = gate(policy(), &server);
    let start = Instant::now();
    assert_eq!(code(&call(&mut client, get()).await), 503);
    assert_eq!(deps.get(HOST).status().hold, Some(secs(5)));
    let b = request(Method::GET, "b.example");
    assert_eq!(code(&call(&mut client, b).await), 200);
    assert_eq!(start.elapsed(), Duration::ZERO);

    assert_eq!(code(&call(&mut client, get()).await), 200);
    let waited = start.elapsed();
    assert!(
        (secs(5)..=secs(5) + secs(1) / 2).contains(&waited),
        "{waited:?}"
    );
    assert_eq!(deps.get(HOST).status().hold, None);
    let start = Instant::now();
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(start.elapsed(), Duration::ZERO, "once is enough");
}

/// When calls that were held together reach the server.
async fn wakes(policy: PolicyBuilder, calls: usize) -> Vec<Duration> {
    let server = busy_once(5);
    let (_, mut client) = gate(policy, &server);
    let start = Instant::now();
    call(&mut client, get()).await.unwrap();
    let mut held = JoinSet::new();
    for _ in 0..calls {
        let mut client = client.clone();
        held.spawn(async move { call(&mut client, get()).await });
    }
    let results = held.join_all().await;
    assert!(results.iter().all(|result| code(result) == 200));
    let times = server.times().split_off(1);
    times.into_iter().map(|at| at - start).collect()
}

#[tokio::test(start_paused = true)]
async fn ra_9_held_calls_wake_spread_out_and_never_early() {
    let woken = wakes(policy(), 40).await;
    let soon = secs(5)..=secs(5) + secs(1) / 2;
    assert!(woken.iter().all(|at| soon.contains(at)), "{woken:?}");
    let instants: HashSet<_> = woken.iter().collect();
    assert!(instants.len() > 20, "{woken:?}");
    let together = wakes(policy().retry_after_spread(Duration::ZERO), 5).await;
    assert_eq!(together, [secs(5); 5], "as configured");
}

#[tokio::test(start_paused = true)]
async fn ra_9_in_refuse_mode_calls_are_refused_at_once() {
    let server = busy_once(5);
    let (_, mut client) = gate(policy().retry_after_mode(RetryAfterMode::Refuse), &server);
    call(&mut client, get()).await.unwrap();
    advance(secs(2)).await;
    let start = Instant::now();
    let error = call(&mut client, get()).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let refused = Refused::find(&*error).unwrap();
    assert_eq!(refused.kind(), Refusal::RetryAfter);
    assert_eq!(refused.retry_after(), Some(secs(3)));
    assert_eq!(server.calls(), 1);
    advance(secs(3)).await;
    assert_eq!(code(&call(&mut client, get()).await), 200);
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_wait_that_does_not_fit_is_refused_at_once() {
    let server = busy_once(10);
    let (_, mut client) = gate(policy().total_timeout(secs(10)), &server);
    call(&mut client, get()).await.unwrap();
    let short = with(get(), RetryOverride::new().total_timeout(secs(5)));
    let start = Instant::now();
    for request in [get(), short] {
        let result = call(&mut client, request).await;
        assert_eq!(refusal(&result), Some(Refusal::RetryAfter));
    }
    assert_eq!((start.elapsed(), server.calls()), (Duration::ZERO, 1));
    let patient = with(get(), RetryOverride::new().total_timeout(secs(20)));
    assert_eq!(code(&call(&mut client, patient).await), 200);
}

/// Asks for five seconds, and for `more` in the reply to a call that takes three.
fn asks_for_more(more: u64) -> Server {
    Server::new(move |_, n| async move {
        match n {
            0 => {
                sleep(secs(3)).await;
                Ok(busy(503, more))
            }
            1 => Ok(busy(503, 5)),
            _ => Ok(status(200)),
        }
    })
}

async fn held_meanwhile(more: u64, policy: PolicyBuilder) -> (Reply, Duration, usize) {
    let server = asks_for_more(more);
    let (_, mut client) = gate(policy.retry_after_spread(Duration::ZERO), &server);
    let start = Instant::now();
    client.ready().await.unwrap();
    let slow = tokio::spawn(client.call(get()));
    tokio::task::yield_now().await;
    call(&mut client, get()).await.unwrap();
    let held = call(&mut client, get()).await;
    let ended = start.elapsed();
    assert_eq!(code(&slow.await.unwrap()), 503);
    (held, ended, server.calls())
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_later_response_extends_the_wait_of_those_who_are_held() {
    let (held, ended, calls) = held_meanwhile(10, policy()).await;
    assert_eq!((code(&held), ended, calls), (200, secs(13), 3));

    let (held, ended, calls) = held_meanwhile(10, policy().total_timeout(secs(12))).await;
    assert_eq!(refusal(&held), Some(Refusal::RetryAfter));
    assert_eq!(
        (ended, calls),
        (secs(5), 2),
        "refused when it no longer fits"
    );
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_later_response_never_shortens_the_wait() {
    let server = asks_for_more(1);
    let (deps, mut client) = gate(policy().retry_after_spread(Duration::ZERO), &server);
    let start = Instant::now();
    client.ready().await.unwrap();
    let slow = tokio::spawn(client.call(get()));
    tokio::task::yield_now().await;
    call(&mut client, get()).await.unwrap();
    assert_eq!(code(&slow.await.unwrap()), 503);
    assert_eq!(
        deps.get(HOST).status().hold,
        Some(secs(2)),
        "of five, not one"
    );
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(start.elapsed(), secs(5));
}

#[tokio::test(start_paused = true)]
async fn ra_9_no_dependency_shuts_out_later_calls_for_longer_than_configured() {
    let server = busy_once(3600);
    let policy = policy().retry_after_spread(Duration::ZERO);
    let (_, mut client) = gate(policy.retry_after_longest(secs(10)), &server);
    call(&mut client, get()).await.unwrap();
    let start = Instant::now();
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(start.elapsed(), secs(10));
}

#[tokio::test(start_paused = true)]
async fn ra_9_only_failures_that_name_a_time_hold_later_calls() {
    for (code, name, value, hold) in [
        (503, "retry-after", "5", Some(secs(5))),
        (429, "retry-after", "5", Some(secs(5))),
        (429, "x-ratelimit-reset", "7", Some(secs(7))),
        (
            503,
            "grpc-retry-pushback-ms",
            "250",
            Some(Duration::from_millis(250)),
        ),
        (503, "grpc-retry-pushback-ms", "-1", None),
        (503, "retry-after", "0", None),
        (503, "retry-after", "soon", None),
        (200, "retry-after", "5", None),
        // Only this request is in conflict with something.
        (409, "retry-after", "5", None),
        (503, "x-other", "5", None),
    ] {
        let server = Server::replies(move |_, _| {
            let response = Response::builder().status(code).header(name, value);
            response.body(Bytes::new()).unwrap()
        });
        let (deps, mut client) = gate(policy(), &server);
        call(&mut client, get()).await.unwrap();
        assert_eq!(deps.get(HOST).status().hold, hold, "{code} {name}: {value}");
    }
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_retry_waits_out_what_another_call_was_told() {
    let server = Server::replies(|request, n| match (request.method(), n) {
        (&Method::GET, 0) => status(503),
        (&Method::GET, _) => status(200),
        _ => busy(503, 8),
    });
    let deps = deps(policy().retry_after_spread(Duration::ZERO));
    let mut client = stack(&PARTS[1..], &deps, &server);
    let told = with(request(Method::PUT, HOST), RetryOverride::off());
    assert_eq!(code(&call(&mut client, numbered(told, 1)).await), 503);
    let start = Instant::now();
    // Held first, then answered.
    let result = call(&mut client, numbered(get(), 2)).await;
    assert_eq!((code(&result), outcome(&result)), (200, Some((2, None))));
    assert_eq!(start.elapsed(), secs(9), "8 s held, then the backoff");
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_retry_that_another_calls_answer_makes_too_late_is_not_waited_for() {
    for (asked, end, ended) in [
        (5, (200, Some((2, None))), secs(8)),
        (60, (503, Some((1, Some(StopReason::Deadline)))), secs(2)),
    ] {
        let server = Server::new(move |request, n| {
            let put = request.method() == Method::PUT;
            async move {
                sleep(secs(if put { 1 } else { 2 })).await;
                Ok(match (put, n) {
                    (true, _) => busy(503, asked),
                    (false, 0) => status(503),
                    (false, _) => status(200),
                })
            }
        });
        let deps = deps(policy().retry_after_spread(Duration::ZERO));
        let mut client = stack(&PARTS[1..], &deps, &server);
        let mut other = client.clone();
        let put = with(request(Method::PUT, HOST), RetryOverride::off());
        let told = tokio::spawn(async move { call(&mut other, numbered(put, 1)).await });
        let start = Instant::now();
        let result = call(&mut client, numbered(get(), 2)).await;
        assert_eq!((code(&result), outcome(&result)), end);
        assert_eq!(start.elapsed(), ended);
        assert_eq!(code(&told.await.unwrap()), 503);
    }
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_retry_held_below_keeps_the_deadline_of_the_whole_call() {
    // When the retry goes out after a second, 24 s are left and 24.5 s are asked for.
    let server = Server::new(|request, n| {
        let put = request.method() == Method::PUT;
        async move {
            match (put, n) {
                (true, _) => {
                    sleep(Duration::from_millis(500)).await;
                    Ok(busy(503, 25))
                }
                (false, 0) => Ok(status(503)),
                (false, _) => Ok(status(200)),
            }
        }
    });
    let policy = policy()
        .retry_after_spread(Duration::ZERO)
        .total_timeout(secs(25));
    let deps = deps(policy);
    let mut client = stack(&PARTS[1..], &deps, &server);
    let mut other = client.clone();
    let start = Instant::now();
    let put = with(request(Method::PUT, HOST), RetryOverride::off());
    let told = tokio::spawn(async move { call(&mut other, numbered(put, 1)).await });
    let result = call(&mut client, numbered(get(), 2)).await;
    assert_eq!((code(&result), start.elapsed()), (503, secs(1)));
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Pushback))));
    assert_eq!(code(&told.await.unwrap()), 503);
    assert_eq!((counted(&deps), server.calls()), ((2, 0), 2), "G-3");
}

#[tokio::test(start_paused = true)]
async fn ra_9_the_time_a_call_is_held_is_not_its_attempts_time() {
    let server = busy_once(5);
    let policy = policy().retry_after_spread(Duration::ZERO);
    let deps = deps(policy.attempt_timeout(secs(2)));
    let mut client = stack(&PARTS[1..], &deps, &server);
    let told = with(get(), RetryOverride::off());
    assert_eq!(code(&call(&mut client, told).await), 503);
    let start = Instant::now();
    // Not even one that may not be repeated is lost by it.
    let result = call(&mut client, post()).await;
    assert_eq!((code(&result), start.elapsed()), (200, secs(5)));
    assert_eq!(outcome(&result), None);
    assert_eq!((counted(&deps), server.calls()), ((2, 0), 2), "G-3");
}

// Idempotency keys

const KEY: &str = "idempotency-key";

fn is_uuid_v4(key: &str) -> bool {
    let groups: Vec<_> = key.split('-').map(str::len).collect();
    let hex = |c: char| matches!(c, '0'..='9' | 'a'..='f' | '-');
    groups == [8, 4, 4, 4, 12]
        && key.chars().all(hex)
        && key.as_bytes()[14] == b'4'
        && matches!(key.as_bytes()[19], b'8' | b'9' | b'a' | b'b')
}

async fn stamped(layer: IdempotencyKeyLayer, request: Request<()>) -> Option<String> {
    let server = Server::always(200);
    call(&mut layer.layer(server.clone()), request)
        .await
        .unwrap();
    server.header(KEY).remove(0)
}

#[tokio::test(start_paused = true)]
async fn k_1_a_uuid_is_stamped_once_and_is_the_same_on_every_attempt() {
    for request in [post(), request(Method::PATCH, HOST), grpc()] {
        let server = Server::replies(|_, n| status(if n < 3 { 503 } else { 200 }));
        let deps = deps(lenient());
        let result = call(&mut stack(&PARTS, &deps, &server), request).await;
        assert_eq!((code(&result), outcome(&result)), (200, Some((4, None))));
        let keys = server.header(KEY);
        let key = keys[0].clone().expect("a key");
        assert!(is_uuid_v4(&key), "{key}");
        assert_eq!(keys, vec![Some(key); 4]);
    }
}

/// K-1: no two calls have the same key, so that HTTP/2 has no use for one in its tables.
#[tokio::test(start_paused = true)]
async fn k_1_a_stamped_key_is_not_indexed_and_a_callers_is_as_it_was() {
    for (sent, sensitive) in [(None, true), (Some("mine"), false)] {
        let mut request = post();
        if let Some(sent) = sent {
            request.headers_mut().insert(KEY, sent.parse().unwrap());
        }
        let server = service_fn(|request: Request<()>| async move {
            let key = request.headers().get(KEY).cloned();
            Ok::<_, BoxError>(Response::new(key))
        });
        let mut client = IdempotencyKeyLayer::new().layer(server);
        let response = client.ready().await.unwrap().call(request).await.unwrap();
        let key = response.into_body().expect("a key");
        assert_eq!(key.is_sensitive(), sensitive, "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn k_1_safe_methods_get_no_key() {
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"] {
        let request = request(method.parse().unwrap(), HOST);
        assert_eq!(
            stamped(IdempotencyKeyLayer::new(), request).await,
            None,
            "{method}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn k_1_declared_grpc_methods_get_no_key() {
    let layer = || IdempotencyKeyLayer::new().idempotent_methods(["a.Ledger/Balance", "a.Health"]);
    for (path, content_type, keyed) in [
        ("a.Ledger/Balance", "application/grpc", false),
        ("a.Ledger/Book", "application/grpc", true),
        ("a.Health/Any", "application/grpc+proto", false),
        ("a.Ledger/Balance", "application/json", true),
    ] {
        let mut request = with_header(post(), "content-type", content_type);
        *request.uri_mut() = format!("http://{HOST}/{path}").parse().unwrap();
        let key = stamped(layer(), request).await;
        assert_eq!(key.is_some(), keyed, "{path} {content_type}");
    }
}

#[tokio::test(start_paused = true)]
async fn k_5_no_two_operations_share_a_key() {
    let mut keys = HashSet::new();
    for _ in 0..1000 {
        let key = stamped(IdempotencyKeyLayer::new(), post()).await.unwrap();
        assert!(is_uuid_v4(&key), "{key}");
        assert!(keys.insert(key));
    }
}

#[tokio::test(start_paused = true)]
async fn k_2_a_key_of_the_callers_is_kept() {
    let layer = IdempotencyKeyLayer::new;
    let chosen = |request| with(request, IdempotencyKey::new("order-42").unwrap());
    let kept = |key: &str| Some(key.to_owned());

    let header = with_header(post(), KEY, "mine");
    assert_eq!(stamped(layer(), header).await, kept("mine"));
    let odd = with_header(post(), KEY, "\"mine\";v=1");
    assert_eq!(stamped(layer(), odd).await, kept("\"mine\";v=1"));
    assert_eq!(stamped(layer(), chosen(post())).await, kept("order-42"));
    assert_eq!(stamped(layer(), chosen(get())).await, kept("order-42"));
    let both = chosen(with_header(post(), KEY, "mine"));
    assert_eq!(stamped(layer(), both).await, kept("mine"));
}

#[tokio::test(start_paused = true)]
async fn k_3_keys_are_bare_or_quoted() {
    let layer = || IdempotencyKeyLayer::new().quoted();
    let key = stamped(layer(), post()).await.unwrap();
    let bare = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    assert!(bare.is_some_and(is_uuid_v4), "{key}");
    let chosen = with(post(), IdempotencyKey::new("order-42").unwrap());
    assert_eq!(stamped(layer(), chosen).await.unwrap(), "\"order-42\"");
    let header = with_header(post(), KEY, "mine");
    assert_eq!(stamped(layer(), header).await.unwrap(), "mine");
}

#[tokio::test(start_paused = true)]
async fn k_1_keys_are_at_most_64_long_and_a_longer_one_is_a_clear_error() {
    let long = |length| with(post(), IdempotencyKey::new("k".repeat(length)).unwrap());
    let in_header = |length| {
        let mut request = post();
        let value = "k".repeat(length).parse().unwrap();
        request.headers_mut().insert(KEY, value);
        request
    };
    for longest in [64, 255] {
        let layer = || IdempotencyKeyLayer::new().max_key_len(longest).unwrap();
        for request in [long(longest), in_header(longest)] {
            let key = stamped(layer(), request).await.unwrap();
            assert_eq!(key.len(), longest);
        }
        let server = Server::always(200);
        let mut client = layer().layer(server.clone());
        let mut too_long = vec![in_header(longest + 1)];
        too_long.extend((longest < 255).then(|| long(longest + 1)));
        for request in too_long {
            let error = call(&mut client, request).await.unwrap_err();
            let error = error.downcast::<ConfigError>().unwrap();
            assert_eq!(error.field(), KEY);
            assert_eq!(error.allowed(), format!("at most {longest}"));
            assert!(error.value().contains(&format!("{}", longest + 1)));
        }
        assert_eq!(server.calls(), 0, "nothing is sent");
    }
    assert!(IdempotencyKeyLayer::new().max_key_len(0).is_err());
    assert!(IdempotencyKeyLayer::new().max_key_len(256).is_err());
    for bad in [
        "",
        "with space",
        "quo\"te",
        "back\\slash",
        "ünicode",
        "line\n",
        &"k".repeat(256),
    ] {
        assert!(IdempotencyKey::new(bad).is_err(), "{bad:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn k_1_another_header_and_other_keys() {
    let name = HeaderName::from_static("x-once");
    let server = Server::replies(|_, n| status(if n == 0 { 503 } else { 200 }));
    let deps = deps(lenient().key_header(name.clone()));
    let make = |request: &Request<()>| {
        let path = request.uri().path().trim_start_matches('/');
        IdempotencyKey::new(format!("{path}-1")).unwrap()
    };
    let mut client = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new().header(name).with_make_key(make))
        .layer(RetryLayer::new(deps))
        .service(server.clone());
    assert_eq!(code(&call(&mut client, post()).await), 200);
    assert_eq!(server.header("x-once"), vec![Some("items-1".to_owned()); 2]);
    assert_eq!(server.header(KEY), [None, None]);
}

/// What happened, in order.
type Journal = Arc<Mutex<Vec<String>>>;

/// A whole stack whose keys are written to a journal, as what the server gets is.
fn journaled(fails: bool) -> (Journal, Client, Server) {
    let journal = Journal::default();
    let server = Server::replies({
        let journal = Arc::clone(&journal);
        move |request, n| {
            let key = request.headers().get(KEY).map(|key| key.to_str().unwrap());
            let line = format!("sent {}", key.unwrap_or("-"));
            journal.lock().unwrap().push(line);
            status(if n < 2 { 503 } else { 200 })
        }
    });
    let persist = {
        let journal = Arc::clone(&journal);
        move |key: IdempotencyKey| {
            let journal = Arc::clone(&journal);
            async move {
                sleep(secs(1)).await;
                if fails {
                    return Err(BoxError::from(std::io::Error::other("disk full")));
                }
                journal
                    .lock()
                    .unwrap()
                    .push(format!("stored {}", key.as_str()));
                Ok(())
            }
        }
    };
    let deps = deps(lenient());
    let client = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new().quoted().with_persist(persist))
        .layer(RetryLayer::new(deps))
        .service(server.clone());
    (journal, BoxCloneService::new(client), server)
}

#[tokio::test(start_paused = true)]
async fn k_4_the_key_is_stored_once_before_the_first_send() {
    let (journal, mut client, server) = journaled(false);
    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(post()));
    assert_pending!(future.poll());
    advance(Duration::from_millis(999)).await;
    assert_pending!(future.poll());
    assert_eq!(server.calls(), 0, "not stored yet");
    assert_eq!(code(&future.await), 200);
    let journal = journal.lock().unwrap().clone();
    let key = journal[0].strip_prefix("stored ").expect("stored first");
    assert!(is_uuid_v4(key), "bare: {key}");
    assert_eq!(journal[1..], vec![format!("sent \"{key}\""); 3]);
}

#[tokio::test(start_paused = true)]
async fn k_4_a_callers_key_is_stored_too_and_a_request_without_one_is_just_sent() {
    let chosen = with(post(), IdempotencyKey::new("order-42").unwrap());
    let header = with_header(post(), KEY, "order-42");
    let quoted = with_header(post(), KEY, "\"order-42\"");
    for (request, stored, sent) in [
        (chosen, "stored order-42", "sent \"order-42\""),
        (header, "stored order-42", "sent order-42"),
        (quoted, "stored order-42", "sent \"order-42\""),
    ] {
        let (journal, mut client, _) = journaled(false);
        assert_eq!(code(&call(&mut client, request).await), 200);
        assert_eq!(*journal.lock().unwrap(), [stored, sent, sent, sent]);
    }
    let (journal, mut client, _) = journaled(false);
    assert_eq!(code(&call(&mut client, get()).await), 200);
    assert_eq!(*journal.lock().unwrap(), ["sent -"; 3]);
}

#[tokio::test(start_paused = true)]
async fn k_4_a_callers_key_on_any_other_method_is_stored_too() {
    for method in [Method::PUT, Method::GET, Method::DELETE] {
        let (journal, mut client, _) = journaled(false);
        let request = with_header(request(method, HOST), KEY, "order-42");
        assert_eq!(code(&call(&mut client, request).await), 200);
        assert_eq!(journal.lock().unwrap()[0], "stored order-42");
    }
}

#[tokio::test(start_paused = true)]
async fn k_4_if_the_key_cannot_be_stored_the_call_fails_and_nothing_is_sent() {
    let (_, mut client, server) = journaled(true);
    let error = call(&mut client, post()).await.unwrap_err();
    let error = error
        .downcast::<std::io::Error>()
        .expect("the hook's own error");
    assert_eq!(error.to_string(), "disk full");
    assert_eq!(server.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn k_4_a_readiness_error_after_the_hook_returns_unchanged() {
    let (mock, mut handle) = tower_test::mock::pair::<Request<()>, Response<()>>();
    let layer = IdempotencyKeyLayer::new().with_persist(|_| async { Ok::<_, BoxError>(()) });
    let mut client = task::spawn(layer.layer(mock));
    assert_ready_ok!(client.enter(|cx, mut client| client.poll_ready(cx)));
    let mut future = task::spawn(client.call(post()));
    handle.send_error(std::fmt::Error);
    assert!(assert_ready_err!(future.poll()).is::<std::fmt::Error>());
}
