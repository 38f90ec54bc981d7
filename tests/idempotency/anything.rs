//! Random stacks of this crate's layers and of tower's and tower-http's, with random faults, against
//! a ledger: no operation with a key takes effect twice, and none gets another's reply. I-6, I-12,
//! I-14, I-19.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};
use http_body::Frame;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use proptest::prelude::*;
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer,
    load_shed::LoadShedLayer, service_fn, util::BoxCloneService,
};
use tower_http::{catch_panic::CatchPanicLayer, timeout::TimeoutLayer};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKeyLayer, InboundBudgetLayer, Policy,
    ProblemLayer, RetryLayer,
    error::{BoxError, Rule},
    server::{
        dialect::Scope,
        idempotency::{Execution, HandlerOutcome, IdempotencyLayer, ServerErrors},
    },
    stacks,
    store::{
        Claim, Claimed, CrashPolicy, FencingToken, IdempotencyStore, Ownership, RecordKey,
        SqliteStore, StoreError, StoreErrorKind, Stored,
    },
};

use crate::{
    setup::{Fault, Flaky, Verb},
    support::database::Folder,
};

type Body = UnsyncBoxBody<Bytes, BoxError>;
type Stack = BoxCloneService<Request<Full<Bytes>>, Response<Body>, BoxError>;

/// A layer of a stack, above the idempotency layer or below it.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// tower-http's, which answers with this status.
    Timeout(u16, u64),
    /// tower's, which fails.
    Elapsed(u64),
    CatchPanic,
    LoadShed,
    Limit(usize),
    Problem,
    InboundBudget,
    Breaker,
}

/// The client's layers.
#[derive(Debug, Clone, Copy)]
enum Client {
    Stack { honours_keys: bool },
    ByHand,
    None,
}

/// The course of one execution.
#[derive(Debug, Clone, Copy)]
struct Course {
    before: u64,
    takes_effect: bool,
    after: u64,
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Status(u16),
    /// A 503 that says when to come back.
    Busy,
    Marked(HandlerOutcome),
    Panic,
    Hang,
    /// An error of a call that was never sent, or that was.
    Refused,
    Reset,
}

impl End {
    /// Whether a handler that keeps its word can end so after it took effect.
    fn is_proof(self) -> bool {
        matches!(
            self,
            Self::Status(401 | 425 | 429) | Self::Busy | Self::Refused
        ) || matches!(self, Self::Marked(HandlerOutcome::NoEffect))
    }
}

/// The fate of a message between client and server.
#[derive(Debug, Clone, Copy)]
enum Wire {
    Passes,
    NeverSent,
    ReplyLost,
}

/// The effects that operations had, and the guard that a careful handler has.
#[derive(Debug, Default)]
struct Ledger {
    effects: Mutex<HashMap<String, (FencingToken, usize)>>,
}

impl Ledger {
    /// Takes effect, unless a later execution was here, or one before it that the layer says may
    /// have been.
    fn take(&self, operation: &str, execution: &Execution) {
        let mut effects = self.effects.lock().unwrap();
        let (last, taken) = effects
            .entry(operation.to_owned())
            .or_insert((execution.token(), 0));
        if execution.token() < *last || (execution.is_orphan() && *taken > 0) {
            return;
        }
        (*last, *taken) = (execution.token(), *taken + 1);
    }

    fn most(&self) -> usize {
        let effects = self.effects.lock().unwrap();
        effects.values().map(|(_, taken)| *taken).max().unwrap_or(0)
    }
}

/// A body that can be made of bytes too.
struct AnyBody(Body);

impl From<Bytes> for AnyBody {
    fn from(bytes: Bytes) -> Self {
        Self(Full::from(bytes).map_err(Into::into).boxed_unsync())
    }
}

impl http_body::Body for AnyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }
}

fn boxed<B>(response: Response<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    response.map(|body| body.map_err(Into::into).boxed_unsync())
}

/// Boxes a service with whatever body and error.
fn stack<S, B>(service: S) -> Stack
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    BoxCloneService::new(service.map_response(boxed).map_err(Into::into))
}

fn milliseconds(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Part {
    fn around(self, inner: Stack, deps: &Dependencies) -> Stack {
        match self {
            Self::Timeout(status, n) => {
                let status = StatusCode::from_u16(status).unwrap();
                let layer = TimeoutLayer::with_status_code(status, milliseconds(n));
                stack(layer.layer(inner))
            }
            Self::Elapsed(n) => {
                let layer = tower::timeout::TimeoutLayer::new(milliseconds(n));
                stack(layer.layer(inner))
            }
            Self::CatchPanic => stack(CatchPanicLayer::new().layer(inner)),
            Self::LoadShed => stack(LoadShedLayer::new().layer(inner)),
            Self::Limit(n) => stack(ConcurrencyLimitLayer::new(n).layer(inner)),
            Self::Problem => {
                let layered = ProblemLayer::new().layer(inner);
                stack(layered.map_err(|never| match never {}))
            }
            Self::InboundBudget => {
                let inner = inner.map_response(|reply| reply.map(AnyBody));
                stack(InboundBudgetLayer::new(deps.clone()).layer(inner))
            }
            Self::Breaker => stack(CircuitBreakerLayer::new(deps.clone()).layer(inner)),
        }
    }
}

/// A world: the stack, and what goes wrong in it.
#[derive(Debug, Clone)]
struct World {
    crash_policy: CrashPolicy,
    server_errors: ServerErrors,
    waits: bool,
    above: Vec<Part>,
    below: Vec<Part>,
    client: Client,
    courses: Vec<Course>,
    wires: Vec<Wire>,
    store: Vec<(Verb, Fault, usize)>,
    /// Which operation is asked for, and how long after the one before.
    calls: Vec<(usize, u64)>,
}

/// Operations that share their keys, but not their owner or their path.
const OPERATIONS: [(&str, &str, &str); 5] = [
    ("ada", "/payments", "k"),
    ("ada", "/refunds", "k"),
    ("bob", "/payments", "k"),
    ("ada", "/payments", "l"),
    ("bob", "/refunds", "l"),
];

/// Takes the next of a list, and starts over at its end.
fn next<T: Copy>(list: &[T], at: &AtomicUsize) -> Option<T> {
    let n = at.fetch_add(1, Ordering::SeqCst);
    list.get(n % list.len().max(1)).copied()
}

fn handler(world: &World, ledger: &Arc<Ledger>) -> Stack {
    let (courses, ledger) = (world.courses.clone(), Arc::clone(ledger));
    let at = Arc::new(AtomicUsize::new(0));
    BoxCloneService::new(service_fn(move |request: Request<Full<Bytes>>| {
        let course = next(&courses, &at).unwrap();
        let ledger = Arc::clone(&ledger);
        async move {
            let operation = request.headers()["x-operation"]
                .to_str()
                .unwrap()
                .to_owned();
            let execution = request.extensions().get::<Execution>().unwrap().clone();
            sleep(milliseconds(course.before)).await;
            if course.takes_effect && !course.end.is_proof() {
                ledger.take(&operation, &execution);
            }
            sleep(milliseconds(course.after)).await;
            let reply = |status: u16| {
                let body = Full::from(operation.clone());
                let mut reply = boxed(Response::new(body));
                *reply.status_mut() = StatusCode::from_u16(status).unwrap();
                reply
            };
            let failed = |kind: io::ErrorKind| Err(BoxError::from(io::Error::from(kind)));
            match course.end {
                End::Status(status) => Ok(reply(status)),
                End::Busy => {
                    let mut reply = reply(503);
                    reply
                        .headers_mut()
                        .insert(RETRY_AFTER, HeaderValue::from_static("1"));
                    Ok(reply)
                }
                End::Marked(outcome) => {
                    let mut reply = reply(200);
                    reply.extensions_mut().insert(outcome);
                    Ok(reply)
                }
                End::Panic => panic!("the handler panics on demand"),
                End::Hang => std::future::pending().await,
                End::Refused => failed(io::ErrorKind::ConnectionRefused),
                End::Reset => failed(io::ErrorKind::ConnectionReset),
            }
        }
    }))
}

fn registry(honours_keys: bool) -> Dependencies {
    let mut policy = Policy::http()
        .approve(Rule::R7, "many retries, to find what goes wrong")
        .budget_floor(10_000)
        .cooldown(milliseconds(50), milliseconds(50));
    if honours_keys {
        policy = policy.honours_keys();
    }
    Dependencies::new(policy.build().unwrap())
}

/// The client's layers over a wire that loses messages, and the server behind it.
fn client(world: &World, server: Stack) -> Stack {
    let (wires, at) = (world.wires.clone(), Arc::new(AtomicUsize::new(0)));
    let wire = service_fn(move |request: Request<Full<Bytes>>| {
        let (mut server, wire) = (server.clone(), next(&wires, &at));
        async move {
            let failed = |kind: io::ErrorKind| Err(BoxError::from(io::Error::from(kind)));
            if let Some(Wire::NeverSent) = wire {
                return failed(io::ErrorKind::ConnectionRefused);
            }
            let reply = server.ready().await?.call(request).await?;
            match wire {
                Some(Wire::ReplyLost) => failed(io::ErrorKind::ConnectionReset),
                _ => Ok(reply),
            }
        }
    });
    match world.client {
        Client::None => stack(wire),
        Client::ByHand => stack(
            ServiceBuilder::new()
                .layer(IdempotencyKeyLayer::new())
                .layer(RetryLayer::new(registry(false)))
                .service(wire),
        ),
        Client::Stack { honours_keys } => stack(stacks::client(registry(honours_keys)).layer(wire)),
    }
}

async fn try_out<St: IdempotencyStore + Clone>(world: &World, store: Flaky<St>) {
    for (verb, fault, times) in &world.store {
        store.fail(*verb, *fault, *times);
    }
    let ledger = Arc::new(Ledger::default());
    let idempotency = IdempotencyLayer::builder(store.clone())
        .scope(Scope::new(|head| head.headers().get("x-tenant").cloned()))
        .crash_policy(world.crash_policy)
        .server_errors(world.server_errors)
        .lease(Duration::from_secs(3))
        .wait(Duration::from_secs(if world.waits { 2 } else { 0 }))
        .build()
        .unwrap();
    let drain = idempotency.drain();
    let parts = |parts: &[Part], inner: Stack| {
        parts
            .iter()
            .fold(inner, |inner, part| part.around(inner, &registry(false)))
    };
    let server = parts(&world.below, handler(world, &ledger));
    let server = parts(&world.above, stack(idempotency.layer(server)));
    let client = client(world, server);
    let mut calls = JoinSet::new();
    for (operation, pause) in &world.calls {
        sleep(milliseconds(*pause)).await;
        let client = client.clone();
        let (tenant, path, key) = OPERATIONS[*operation];
        let name = format!("{tenant} {path} {key}");
        let request = Request::post(format!("http://bank.example{path}"))
            .header("x-tenant", tenant)
            .header("idempotency-key", key)
            .header("x-operation", &name)
            .body(Full::from("100 EUR"))
            .unwrap();
        calls.spawn(async move {
            // A handler may hang, and nothing in the stack may mind.
            let called = timeout(Duration::from_secs(120), client.oneshot(request));
            let Ok(Ok(reply)) = called.await else {
                return;
            };
            let (head, body) = reply.into_parts();
            let Ok(body) = body.collect().await else {
                return;
            };
            // No reply comes from the handler of another operation.
            let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
            let foreign = OPERATIONS.iter().any(|(tenant, path, key)| {
                let other = format!("{tenant} {path} {key}");
                other != name && body == other
            });
            assert!(!foreign, "{name} got {:?} {body:?}", head.status);
        });
    }
    while let Some(called) = calls.join_next().await {
        if let Err(error) = called
            && let Ok(panic) = error.try_into_panic()
        {
            let text = panic.downcast_ref::<&str>().copied();
            assert_eq!(text, Some("the handler panics on demand"), "{world:?}");
        }
    }
    store.heal();
    drain.wait(Duration::from_secs(60)).await;
    assert!(ledger.most() <= 1, "{:?} in {world:?}", ledger.effects);
}

fn any_part() -> impl Strategy<Value = Part> {
    let status = prop::sample::select(vec![408_u16, 503, 504]);
    prop_oneof![
        4 => (status, 1_u64..2000).prop_map(|(status, n)| Part::Timeout(status, n)),
        1 => (1_u64..2000).prop_map(Part::Elapsed),
        1 => Just(Part::CatchPanic),
        1 => Just(Part::LoadShed),
        1 => (1_usize..4).prop_map(Part::Limit),
        1 => Just(Part::Problem),
        1 => Just(Part::InboundBudget),
        1 => Just(Part::Breaker),
    ]
}

fn any_course() -> impl Strategy<Value = Course> {
    let statuses = vec![
        200, 201, 400, 401, 404, 408, 409, 425, 429, 500, 502, 503, 504,
    ];
    let marks = vec![
        HandlerOutcome::Committed,
        HandlerOutcome::NoEffect,
        HandlerOutcome::Unknown,
    ];
    let end = prop_oneof![
        6 => prop::sample::select(statuses).prop_map(End::Status),
        2 => Just(End::Busy),
        2 => prop::sample::select(marks).prop_map(End::Marked),
        1 => Just(End::Panic),
        1 => Just(End::Hang),
        1 => Just(End::Refused),
        1 => Just(End::Reset),
    ];
    let time = prop_oneof![Just(0_u64), 1_u64..5000];
    (time.clone(), any::<bool>(), time, end).prop_map(|(before, takes_effect, after, end)| Course {
        before,
        takes_effect,
        after,
        end,
    })
}

fn any_fault() -> impl Strategy<Value = (Verb, Fault, usize)> {
    let verbs = vec![Verb::Claim, Verb::Renew, Verb::Complete, Verb::Release];
    let faults = vec![
        Fault::Error(StoreErrorKind::Unavailable),
        Fault::Error(StoreErrorKind::Full),
        Fault::Lost,
        Fault::Hang,
        Fault::Slow(Duration::from_secs(2)),
    ];
    let (verb, fault) = (prop::sample::select(verbs), prop::sample::select(faults));
    (verb, fault, 1_usize..6)
}

fn any_world() -> impl Strategy<Value = World> {
    let policies = vec![CrashPolicy::Unknown, CrashPolicy::Reexecute];
    let errors = vec![
        ServerErrors::Keep,
        ServerErrors::Keep,
        ServerErrors::KeepAll,
    ];
    let wires = vec![Wire::Passes, Wire::Passes, Wire::NeverSent, Wire::ReplyLost];
    let client = prop_oneof![
        any::<bool>().prop_map(|honours_keys| Client::Stack { honours_keys }),
        Just(Client::ByHand),
        Just(Client::None),
    ];
    let settings = (
        prop::sample::select(policies),
        prop::sample::select(errors),
        any::<bool>(),
        client,
    );
    use prop::collection::vec as list;
    let layers = (list(any_part(), 0..3), list(any_part(), 0..3));
    let events = (
        list(any_course(), 1..8),
        list(prop::sample::select(wires), 1..8),
        list(any_fault(), 0..3),
        list(
            (0..OPERATIONS.len(), prop_oneof![Just(0), 0..4000_u64]),
            1..16,
        ),
    );
    (settings, layers, events).prop_map(|(settings, layers, events)| {
        let (crash_policy, server_errors, waits, client) = settings;
        let ((above, below), (courses, wires, store, calls)) = (layers, events);
        World {
            crash_policy,
            server_errors,
            waits,
            above,
            below,
            client,
            courses,
            wires,
            store,
            calls,
        }
    })
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let ended = runtime.block_on(test);
    // A handler that hangs is not waited for.
    runtime.shutdown_background();
    ended
}

/// SQLite on the runtime's clock, which stands still while SQLite works.
#[derive(Debug, Clone)]
struct Paused {
    store: SqliteStore,
    began: tokio::time::Instant,
    micros: Arc<AtomicU64>,
}

impl Paused {
    fn open(folder: &Folder) -> Self {
        let micros = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&micros);
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let store = SqliteStore::builder()
            .clock(move || start + Duration::from_micros(clock.load(Ordering::SeqCst)))
            .open(folder.path().join("records.db"))
            .unwrap();
        Self {
            store,
            began: tokio::time::Instant::now(),
            micros,
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        verb: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let now = u64::try_from(self.began.elapsed().as_micros()).unwrap();
        self.micros.store(now, Ordering::SeqCst);
        let runtime = Handle::current();
        // Paused time does not go on while a blocking task runs.
        tokio::task::spawn_blocking(move || runtime.block_on(verb))
            .await
            .unwrap()
    }
}

impl IdempotencyStore for Paused {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let store = self.store.clone();
        self.run(async move { store.claim(claim).await }).await
    }

    async fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let store = self.store.clone();
        self.run(async move { store.renew(key, token, lease, retention).await })
            .await
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let store = self.store.clone();
        self.run(async move { store.complete(key, token, stored, retention).await })
            .await
    }

    async fn release(&self, key: RecordKey, token: FencingToken) -> Result<Ownership, StoreError> {
        let store = self.store.clone();
        self.run(async move { store.release(key, token).await })
            .await
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn i_12_i_14_whatever_the_stack_nothing_takes_effect_twice_in_memory(world in any_world()) {
        run(try_out(&world, Flaky::default()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn i_12_i_14_whatever_the_stack_nothing_takes_effect_twice_in_sqlite(world in any_world()) {
        run(async {
            let folder = Folder::new();
            try_out(&world, Flaky::new(Paused::open(&folder))).await;
        });
    }
}
