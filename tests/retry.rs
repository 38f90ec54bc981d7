//! The retry loop, poll by poll and under paused time.
//!
//! Every service here panics when it is called without having been readied, so that each test is
//! also one of D-7.
#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

mod support;

use std::{
    collections::HashSet,
    convert::Infallible,
    error::Error,
    fmt,
    future::{Future, pending},
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
    header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, RETRY_AFTER},
};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use tokio::time::{Instant, Sleep, advance, sleep, timeout};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    limit::ConcurrencyLimitLayer,
    service_fn,
    util::{BoxCloneService, Either},
};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKey, IdempotencyKeyLayer, Policy,
    RetryAfterLayer, RetryBudgetLayer, RetryLayer, RetryOutcome, RetryOverride,
    backoff::Backoff,
    call::{Attempt, Cause, Guidance, Health, RetryError, Retryable, StopReason, Verdict},
    classify::{Classify, Rules, Standard},
    client::retry::{ReplayBody, ReplayLimits, Retry},
    dependency::BreakerState,
    error::{BoxError, Elapsed, Refusal, Refused, Rule},
    policy::{Exhaustion, PolicyBuilder},
};

use support::{call, outcome};

const HOST: &str = "a.example";
const MILLISECOND: Duration = Duration::from_millis(1);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What a server does with one attempt.
enum Step {
    Reply(Response<Bytes>),
    Fail(BoxError),
    After(Duration, Box<Step>),
    Never,
}

impl Step {
    fn after(self, wait: Duration) -> Self {
        Self::After(wait, Box::new(self))
    }

    async fn run(self) -> Result<Response<Bytes>, BoxError> {
        match self {
            Self::Reply(response) => Ok(response),
            Self::Fail(error) => Err(error),
            Self::After(wait, step) => {
                sleep(wait).await;
                Box::pin(step.run()).await
            }
            Self::Never => pending().await,
        }
    }
}

fn status(status: u16) -> Step {
    with_header(status, "x-plain", "1")
}

fn with_header(status: u16, name: &str, value: &str) -> Step {
    let response = Response::builder().status(status).header(name, value);
    Step::Reply(response.body(Bytes::from_static(b"body")).unwrap())
}

fn reset() -> Step {
    Step::Fail(io::Error::from(io::ErrorKind::ConnectionReset).into())
}

type Script = dyn Fn(usize) -> Step + Send + Sync;
type Log<B> = Arc<Mutex<Vec<(Instant, Request<B>)>>>;

/// Does what its script says for the n-th attempt, and remembers what it got and when.
struct Server<B = ()> {
    script: Arc<Script>,
    seen: Log<B>,
    readied: bool,
}

impl<B> Server<B> {
    fn new(script: impl Fn(usize) -> Step + Send + Sync + 'static) -> Self {
        Self {
            script: Arc::new(script),
            seen: Arc::default(),
            readied: false,
        }
    }

    /// Answers with these statuses; one attempt more is a panic.
    fn statuses<const N: usize>(statuses: [u16; N]) -> Self {
        Self::new(move |n| status(statuses[n]))
    }

    fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The waits between attempts, for a server that answers at once.
    fn waits(&self) -> Vec<Duration> {
        let seen = self.seen.lock().unwrap();
        seen.windows(2).map(|w| w[1].0 - w[0].0).collect()
    }

    fn requests(&self) -> Vec<Request<B>>
    where
        B: Clone,
    {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|(_, request)| request.clone()).collect()
    }

    /// A header over all attempts.
    fn header(&self, name: &str) -> Vec<Option<String>> {
        let seen = self.seen.lock().unwrap();
        let value = |request: &Request<B>| Some(request.headers().get(name)?.to_str().ok()?.into());
        seen.iter().map(|(_, request)| value(request)).collect()
    }
}

impl<B> Clone for Server<B> {
    fn clone(&self) -> Self {
        Self {
            script: Arc::clone(&self.script),
            seen: Arc::clone(&self.seen),
            readied: false,
        }
    }
}

impl<B> Service<Request<B>> for Server<B> {
    type Response = Response<Bytes>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.readied = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        assert!(std::mem::take(&mut self.readied), "called unreadied");
        let mut seen = self.seen.lock().unwrap();
        seen.push((Instant::now(), request));
        Box::pin((self.script)(seen.len() - 1).run())
    }
}

/// Waits the same time always, so that a test can foresee it.
#[derive(Debug, Clone, Copy)]
struct Fixed(Duration);

impl Backoff for Fixed {
    fn delay(&self, _retry: u32, _previous: Duration, _uniform: f64) -> Duration {
        self.0
    }
}

fn policy() -> PolicyBuilder {
    Policy::synchronous()
}

fn deps(policy: PolicyBuilder) -> Dependencies {
    Dependencies::new(policy.build().unwrap())
}

fn client<B>(policy: PolicyBuilder, server: &Server<B>) -> (Dependencies, Retry<Server<B>>) {
    let deps = deps(policy);
    let client = RetryLayer::new(deps.clone()).layer(server.clone());
    (deps, client)
}

fn request(method: Method) -> Request<()> {
    let uri = "http://a.example/items?page=2";
    let request = Request::builder().method(method).uri(uri);
    request.body(()).unwrap()
}

fn get() -> Request<()> {
    request(Method::GET)
}

fn stop_reason<B>(result: &Result<Response<B>, BoxError>) -> Option<StopReason> {
    outcome(result)?.1
}

fn code(result: &Result<Response<Bytes>, BoxError>) -> u16 {
    result.as_ref().unwrap().status().as_u16()
}

/// The first error of that type in a chain.
fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut chain = std::iter::successors(Some(error), |error| (*error).source());
    chain.find_map(|error| error.downcast_ref())
}

// Deadline and attempts

#[tokio::test(start_paused = true)]
async fn a_call_that_succeeds_at_once_carries_nothing() {
    let server = Server::statuses([200]);
    let (deps, mut client) = client(policy(), &server);
    let result = call(&mut client, get()).await;
    assert_eq!((code(&result), outcome(&result)), (200, None));
    let status = deps.get(HOST).status();
    assert_eq!((status.originals, status.retries), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_succeeds_in_the_end_says_how_many_attempts_it_took() {
    let server = Server::statuses([503, 502, 200]);
    let (deps, mut client) = client(policy(), &server);
    let result = call(&mut client, get()).await;
    assert_eq!((code(&result), outcome(&result)), (200, Some((3, None))));
    let status = deps.get(HOST).status();
    assert_eq!((status.originals, status.retries), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn d_1_the_whole_call_waits_included_ends_at_the_deadline() {
    let server = Server::new(|_| status(503).after(secs(4)));
    let (_, mut client) = client(policy().max_retries(5).total_timeout(secs(10)), &server);
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert!(start.elapsed() <= secs(10), "{:?}", start.elapsed());
    assert_eq!(
        (code(&result), stop_reason(&result)),
        (503, Some(StopReason::Deadline))
    );
}

#[tokio::test(start_paused = true)]
async fn d_1_a_stalled_attempt_is_clipped_and_the_earlier_response_returns() {
    let server = Server::new(|n| if n == 0 { status(503) } else { Step::Never });
    let (_, mut client) = client(policy().total_timeout(secs(5)), &server);
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!(start.elapsed(), secs(5));
    assert_eq!((code(&result), server.calls()), (503, 2));
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Deadline))));
}

#[tokio::test(start_paused = true)]
async fn d_1_a_stalled_attempt_is_clipped_and_the_earlier_error_returns() {
    let server = Server::new(|n| if n == 0 { reset() } else { Step::Never });
    let (_, mut client) = client(policy().total_timeout(secs(5)), &server);
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Deadline))));
    let error = result.unwrap_err();
    let io = find::<io::Error>(&*error).expect("the real error");
    assert_eq!(io.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn d_1_a_first_attempt_that_stalls_is_an_elapsed_call() {
    let server = Server::new(|_| Step::Never);
    let (_, mut client) = client(policy().total_timeout(secs(5)), &server);
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!(start.elapsed(), secs(5));
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
    let error = result.unwrap_err();
    let elapsed = find::<Elapsed>(&*error).expect("elapsed");
    assert!(elapsed.is_whole_call());
    assert_eq!(elapsed.limit(), secs(5));
}

#[tokio::test(start_paused = true)]
async fn d_1_a_stalled_hook_is_clipped() {
    let server = Server::statuses([503]);
    let deps = deps(policy().total_timeout(secs(5)));
    let hook = |_: Request<()>, _| pending::<Result<Request<()>, BoxError>>();
    let layer = RetryLayer::new(deps.clone()).with_prepare(hook);
    let mut client = layer.layer(server.clone());
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!(start.elapsed(), secs(5));
    assert_eq!(code(&result), 503);
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
    assert_eq!(deps.get(HOST).status().retries, 0);
}

#[tokio::test(start_paused = true)]
async fn d_1_a_service_that_does_not_get_ready_is_clipped() {
    let (mock, mut handle) = tower_test::mock::pair::<Request<()>, Response<()>>();
    handle.allow(1);
    let deps = deps(policy().total_timeout(secs(5)));
    let mut client = RetryLayer::new(deps.clone()).layer(mock);
    let start = Instant::now();
    let answer = async {
        let (_, reply) = handle.next_request().await.unwrap();
        reply.send_response(Response::builder().status(503).body(()).unwrap());
    };
    let (result, ()) = tokio::join!(call(&mut client, get()), answer);
    assert_eq!(start.elapsed(), secs(5));
    assert_eq!(result.as_ref().unwrap().status(), 503);
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
    assert_eq!(deps.get(HOST).status().retries, 0);
}

#[tokio::test(start_paused = true)]
async fn d_1_no_attempt_is_begun_after_the_deadline() {
    let server = Server::statuses([503, 200]);
    let (deps, mut client) = client(policy().total_timeout(secs(5)), &server);
    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll());
    advance(secs(60)).await; // a busy executor comes back late
    let result = assert_ready!(future.poll());
    assert_eq!((code(&result), server.calls()), (503, 1));
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
    drop(future);
    assert_eq!(deps.get(HOST).status().retries, 0);
}

/// Three frames, a minute apart.
struct SlowBody {
    sleep: Pin<Box<Sleep>>,
    left: u8,
}

impl Body for SlowBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        ready!(self.sleep.as_mut().poll(cx));
        self.left -= 1;
        self.sleep = Box::pin(sleep(secs(60)));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
    }
}

#[tokio::test(start_paused = true)]
async fn d_1_a_response_body_streams_on_after_the_deadline() {
    let deps = deps(policy().total_timeout(secs(5)));
    let slow = service_fn(|_: Request<()>| async {
        let sleep = Box::pin(sleep(secs(60)));
        Ok::<_, BoxError>(Response::new(SlowBody { sleep, left: 3 }))
    });
    let mut client = RetryLayer::new(deps).layer(slow);
    let start = Instant::now();
    let response = call(&mut client, get()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!((&*body, start.elapsed()), (&b"xxx"[..], secs(180)));
}

#[tokio::test(start_paused = true)]
async fn d_2_a_wait_that_does_not_fit_returns_the_last_result_at_once() {
    for (wait, fits) in [
        (secs(10), false),
        (secs(11), false),
        (secs(10) - MILLISECOND, true),
    ] {
        let server = Server::statuses([503, 200]);
        let (deps, mut client) = client(
            policy().total_timeout(secs(10)).backoff(Fixed(wait)),
            &server,
        );
        let start = Instant::now();
        let result = call(&mut client, get()).await;
        if fits {
            assert_eq!((code(&result), start.elapsed()), (200, wait));
        } else {
            assert_eq!((code(&result), start.elapsed()), (503, Duration::ZERO));
            assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
            assert_eq!(deps.get(HOST).status().retries, 0, "G-3");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn d_2_later_waits_count_what_is_left_not_what_there_was() {
    let server = Server::new(|_| status(503).after(secs(1)));
    let policy = policy().total_timeout(secs(10)).backoff(Fixed(secs(4)));
    let (_, mut client) = client(policy, &server);
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    // 1 + 4 + 1 + 4 is the deadline itself.
    assert_eq!((start.elapsed(), server.calls()), (secs(6), 2));
    assert_eq!(
        (code(&result), stop_reason(&result)),
        (503, Some(StopReason::Deadline))
    );
}

#[tokio::test(start_paused = true)]
async fn d_3_an_attempt_that_takes_too_long_is_retried() {
    let server = Server::new(|n| if n < 2 { Step::Never } else { status(200) });
    let policy = policy().attempt_timeout(secs(3)).backoff(Fixed(secs(1)));
    let (_, mut client) = client(policy, &server);
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!((code(&result), outcome(&result)), (200, Some((3, None))));
    assert_eq!(start.elapsed(), secs(8));
}

#[tokio::test(start_paused = true)]
async fn d_3_attempts_that_all_take_too_long_end_in_an_elapsed_attempt() {
    let server = Server::new(|_| Step::Never);
    let (_, mut client) = client(policy().attempt_timeout(secs(1)), &server);
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((4, Some(StopReason::Exhausted))));
    let error = result.unwrap_err();
    let elapsed = find::<Elapsed>(&*error).expect("elapsed");
    assert_eq!((elapsed.is_whole_call(), elapsed.limit()), (false, secs(1)));
}

#[tokio::test(start_paused = true)]
async fn d_3_the_last_attempt_is_clipped_by_the_deadline_before_its_own_time() {
    let server = Server::new(|_| Step::Never);
    let policy = policy()
        .total_timeout(secs(10))
        .attempt_timeout(secs(6))
        .backoff(Fixed(secs(1)));
    let (_, mut client) = client(policy, &server);
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!(start.elapsed(), secs(10));
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Deadline))));
}

#[tokio::test(start_paused = true)]
async fn d_3_an_elapsed_attempt_may_have_had_an_effect() {
    let server = Server::new(|_| Step::Never);
    let (_, mut client) = client(policy().attempt_timeout(secs(1)), &server);
    let result = call(&mut client, request(Method::POST)).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotIdempotent))));
}

/// An error that can be told from its equals.
#[derive(Debug)]
struct Marked(BoxError);

impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("marked")
    }
}

impl Error for Marked {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

type Client = BoxCloneService<Request<()>, Response<Bytes>, BoxError>;

/// A client that gives up for that reason, if its attempts fail in a way that is worth a retry.
fn gives_up(reason: StopReason, server: Server) -> (Client, Request<()>) {
    let policy = policy().backoff(Fixed(secs(1)));
    let policy = match reason {
        StopReason::Deadline => policy.total_timeout(secs(1)),
        StopReason::Budget => policy.budget_ratio(0.0).budget_floor(0),
        StopReason::Breaker => policy.consecutive_failures(1).cooldown(secs(9), secs(9)),
        StopReason::NotReplayable => policy.replay_limit(8),
        _ => policy,
    };
    let deps = deps(policy);
    let retry = RetryLayer::new(deps.clone());
    let client = match reason {
        StopReason::Breaker => {
            let guarded = CircuitBreakerLayer::new(deps).layer(server);
            BoxCloneService::new(retry.layer(guarded))
        }
        StopReason::Prepare => {
            let hook = |_, _| async { Err::<Request<()>, BoxError>("no token".into()) };
            BoxCloneService::new(retry.with_prepare(hook).layer(server))
        }
        _ => BoxCloneService::new(retry.layer(server)),
    };
    let method = match reason {
        StopReason::NotIdempotent => Method::PATCH,
        _ => Method::GET,
    };
    (client, request(method))
}

const REASONS: [StopReason; 9] = [
    StopReason::Exhausted,
    StopReason::Deadline,
    StopReason::Budget,
    StopReason::Breaker,
    StopReason::NotRetryable,
    StopReason::NotIdempotent,
    StopReason::NotReplayable,
    StopReason::Pushback,
    StopReason::Prepare,
];

#[tokio::test(start_paused = true)]
async fn d_4_every_reason_is_in_the_extensions_of_an_unchanged_response() {
    for reason in REASONS {
        let server = Server::new(move |n| {
            let last = n
                == if reason == StopReason::Exhausted {
                    3
                } else {
                    0
                };
            let status = if reason == StopReason::NotRetryable {
                404
            } else {
                503
            };
            let response = Response::builder()
                .status(status)
                .version(Version::HTTP_10)
                .header("x-trace", "first")
                .header("x-trace", "second")
                .extension(last);
            let response = match reason {
                StopReason::Pushback => response.header("x-should-retry", "false"),
                _ => response,
            };
            Step::Reply(response.body(Bytes::from(format!("{n}"))).unwrap())
        });
        let (mut client, request) = gives_up(reason, server.clone());
        let start = Instant::now();
        let result = call(&mut client, request).await;
        let waits = matches!(reason, StopReason::Exhausted | StopReason::Prepare);
        assert_eq!(start.elapsed().is_zero(), !waits, "{reason}");
        let attempts = if reason == StopReason::Exhausted {
            4
        } else {
            1
        };
        assert_eq!(outcome(&result), Some((attempts, Some(reason))), "{reason}");
        assert_eq!(server.calls(), attempts as usize, "{reason}");
        let response = result.unwrap();
        assert_eq!(response.version(), Version::HTTP_10);
        let trace: Vec<_> = response.headers().get_all("x-trace").iter().collect();
        assert_eq!(trace, ["first", "second"]);
        let others = usize::from(reason == StopReason::Pushback);
        assert_eq!(response.headers().len(), 2 + others, "nothing was added");
        assert_eq!(response.extensions().get(), Some(&true), "the last one");
        assert_eq!(*response.body(), format!("{}", attempts - 1));
    }
}

#[tokio::test(start_paused = true)]
async fn d_4_every_reason_is_around_the_error_which_is_unchanged() {
    for reason in REASONS {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let server = Server::new({
            let sent = Arc::clone(&sent);
            move |_| {
                let cause: BoxError = match reason {
                    StopReason::NotRetryable => "unheard of".into(),
                    StopReason::Pushback => Refused::new(Refusal::RetryAfter, HOST, None).into(),
                    _ => io::Error::from(io::ErrorKind::BrokenPipe).into(),
                };
                let error = Box::new(Marked(cause));
                sent.lock()
                    .unwrap()
                    .push(std::ptr::from_ref(&*error) as usize);
                Step::Fail(error)
            }
        });
        let (mut client, request) = gives_up(reason, server.clone());
        let result = call(&mut client, request).await;
        let attempts = match reason {
            StopReason::Exhausted => 4,
            StopReason::Pushback => 0, // refused on its way out
            _ => 1,
        };
        assert_eq!(outcome(&result), Some((attempts, Some(reason))), "{reason}");
        let error = result.unwrap_err();
        let last = sent.lock().unwrap().last().copied();
        let address = |error: &(dyn Error + 'static)| {
            let marked = error.downcast_ref::<Marked>().expect("marked");
            Some(std::ptr::from_ref(marked) as usize)
        };
        assert_eq!(address(error.source().unwrap()), last, "{reason}");
        let source = error.downcast::<RetryError>().unwrap().into_source();
        assert_eq!(address(&*source), last, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn d_4_a_later_error_wins_over_an_earlier_response() {
    let server = Server::new(|n| match n {
        0 => status(503),
        _ => Step::Fail("unheard of".into()),
    });
    let (_, mut client) = client(policy(), &server);
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::NotRetryable))));
    assert_eq!(
        result.unwrap_err().source().unwrap().to_string(),
        "unheard of"
    );
}

#[tokio::test(start_paused = true)]
async fn d_4_a_refusal_from_below_yields_the_last_real_result() {
    for (refusal, reason) in [
        (Refusal::Breaker, StopReason::Breaker),
        (Refusal::RetryAfter, StopReason::Pushback),
        (Refusal::Budget, StopReason::Budget),
    ] {
        let server = Server::new(move |n| match n {
            0 => status(503),
            _ => Step::Fail(Refused::new(refusal, HOST, None).into()),
        });
        let (_, mut client) = client(policy(), &server);
        let result = call(&mut client, get()).await;
        assert_eq!((code(&result), stop_reason(&result)), (503, Some(reason)));
    }
}

async fn overridden(policy: PolicyBuilder, wish: RetryOverride) -> (usize, Duration) {
    let server = Server::new(|_| status(503).after(secs(1)));
    let (_, mut client) = client(policy.backoff(Fixed(MILLISECOND)), &server);
    let mut request = get();
    request.extensions_mut().insert(wish);
    let start = Instant::now();
    let result = call(&mut client, request).await;
    assert_eq!(code(&result), 503);
    (server.calls(), start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn d_5_a_request_lowers_or_raises_retries_inside_the_range() {
    for (asked, calls) in [(0, 1), (1, 2), (3, 4), (5, 6), (6, 6), (u32::MAX, 6)] {
        let wish = RetryOverride::new().max_retries(asked);
        assert_eq!(overridden(policy(), wish).await.0, calls, "{asked}");
    }
    let wish = RetryOverride::off();
    assert_eq!(overridden(policy(), wish).await.0, 1);
    // An approved policy of more than the range is its own ceiling.
    let approved = policy().max_retries(7).approve(Rule::R2, "test");
    let wish = RetryOverride::new().max_retries(50);
    assert_eq!(overridden(approved, wish).await.0, 8);
}

#[tokio::test(start_paused = true)]
async fn d_5_a_request_lowers_or_raises_its_deadline_inside_the_range() {
    let stalled = |total: Duration| async move {
        let server = Server::new(|_| Step::Never);
        let (_, mut client) = client(policy().total_timeout(secs(10)), &server);
        let mut request = get();
        let wish = RetryOverride::new().total_timeout(total);
        request.extensions_mut().insert(wish);
        let start = Instant::now();
        let error = call(&mut client, request).await.unwrap_err();
        assert_eq!(find::<Elapsed>(&*error).unwrap().limit(), start.elapsed());
        start.elapsed()
    };
    assert_eq!(stalled(secs(2)).await, secs(2));
    assert_eq!(stalled(secs(20)).await, secs(20));
    assert_eq!(stalled(secs(31)).await, secs(30));
    assert_eq!(stalled(Duration::MAX).await, secs(30));
    assert_eq!(stalled(Duration::ZERO).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn d_5_a_request_names_another_dependency_with_its_own_policy() {
    let server = Server::new(|_| status(503));
    let one = policy().max_retries(1).build().unwrap();
    let deps = Dependencies::builder(policy().build().unwrap())
        .policy_for("ledger", one)
        .build();
    let mut client = RetryLayer::new(deps.clone()).layer(server.clone());
    let mut request = get();
    let wish = RetryOverride::new().dependency("Ledger");
    request.extensions_mut().insert(wish);
    let result = call(&mut client, request).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Exhausted))));
    let (ledger, host) = (deps.get("ledger").status(), deps.get(HOST).status());
    assert_eq!((ledger.originals, ledger.retries), (1, 1));
    assert_eq!((host.originals, host.retries), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn d_6_dropped_in_the_middle_of_a_wait_the_charge_is_given_back() {
    let server = Server::statuses([503, 200]);
    let (deps, mut client) = client(policy().backoff(Fixed(secs(5))), &server);
    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll());
    assert_eq!(deps.get(HOST).status().retries, 1, "granted");
    advance(secs(3)).await;
    assert_pending!(future.poll());
    drop(future);
    assert_eq!(deps.get(HOST).status().retries, 0, "given back");
    advance(secs(60)).await;
    assert_eq!(server.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn d_6_dropped_while_a_retry_is_out_the_charge_stays_and_the_attempt_is_cancelled() {
    let alive = Arc::new(());
    let attempts = Arc::new(AtomicU32::new(0));
    let service = service_fn({
        let alive = Arc::clone(&alive);
        let attempts = Arc::clone(&attempts);
        move |_: Request<()>| {
            let held = Arc::clone(&alive);
            let first = attempts.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                if first {
                    return Ok::<_, BoxError>(Response::builder().status(503).body(())?);
                }
                pending::<()>().await;
                drop(held);
                unreachable!()
            }
        }
    });
    let deps = deps(policy().backoff(Fixed(secs(1))));
    let mut client = RetryLayer::new(deps.clone()).layer(service);
    client.ready().await.unwrap();
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll());
    advance(secs(1)).await;
    assert_pending!(future.poll());
    assert_eq!(attempts.load(Ordering::Relaxed), 2);
    let services = Arc::strong_count(&alive);
    drop(future);
    // The attempt's own, and that of the service which the call kept.
    assert_eq!(Arc::strong_count(&alive), services - 2);
    assert_eq!(deps.get(HOST).status().retries, 1, "it was sent");
}

// Readiness

#[tokio::test(start_paused = true)]
async fn d_7_every_attempt_waits_for_readiness() {
    let (mock, mut handle) = tower_test::mock::pair::<Request<()>, Response<()>>();
    handle.allow(1);
    let deps = deps(policy().backoff(Fixed(secs(1))));
    let mut client = task::spawn(RetryLayer::new(deps).layer(mock));
    assert_ready_ok!(client.enter(|cx, mut client| client.poll_ready(cx)));
    let mut future = task::spawn(client.call(get()));
    let fail = |reply: tower_test::mock::SendResponse<Response<()>>| {
        reply.send_response(Response::builder().status(503).body(()).unwrap());
    };

    assert_pending!(future.poll());
    let (first, reply) = assert_ready!(handle.poll_request()).unwrap();
    assert!(first.extensions().get::<Attempt>().is_none());
    fail(reply);
    assert_pending!(future.poll(), "in its wait");
    assert_pending!(handle.poll_request());

    advance(secs(1)).await;
    assert!(future.is_woken());
    assert_pending!(future.poll(), "the service is not ready");
    assert_pending!(handle.poll_request());

    handle.allow(1);
    assert!(future.is_woken());
    assert_pending!(future.poll());
    let (second, reply) = assert_ready!(handle.poll_request()).unwrap();
    let attempt = second.extensions().get::<Attempt>().copied();
    assert_eq!(attempt.map(|attempt| attempt.number()), Some(2));

    handle.allow(1);
    reply.send_response(Response::new(()));
    let response = assert_ready_ok!(future.poll());
    assert_eq!(response.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn d_7_a_readiness_error_returns_unchanged() {
    let (mock, mut handle) = tower_test::mock::pair::<Request<()>, Response<()>>();
    let deps = deps(policy().backoff(Fixed(secs(1))));
    let mut client = task::spawn(RetryLayer::new(deps.clone()).layer(mock));
    let broken = || Marked("closed".into());

    handle.send_error(broken());
    let error = assert_ready_err!(client.enter(|cx, mut client| client.poll_ready(cx)));
    assert!(error.is::<Marked>(), "before the first attempt: {error:?}");

    assert_ready_ok!(client.enter(|cx, mut client| client.poll_ready(cx)));
    let mut future = task::spawn(client.call(get()));
    assert_pending!(future.poll());
    let (_, reply) = assert_ready!(handle.poll_request()).unwrap();
    reply.send_response(Response::builder().status(503).body(()).unwrap());
    assert_pending!(future.poll());
    handle.send_error(broken());
    advance(secs(1)).await;
    let error = assert_ready_err!(future.poll());
    assert!(error.is::<Marked>(), "before a retry: {error:?}");
    drop(future);
    assert_eq!(deps.get(HOST).status().retries, 0, "it was not sent");
}

#[tokio::test(start_paused = true)]
async fn d_7_a_concurrency_limit_of_one_below_never_deadlocks() {
    for stacked in [false, true] {
        let deps = deps(
            policy()
                .backoff(Fixed(MILLISECOND))
                .approve(Rule::R7, "test")
                .budget_floor(100)
                .consecutive_failures(100)
                .failure_rate(1.0, 1000, secs(30)),
        );
        // Fails the first attempt of each call, and takes a while for each.
        let server = service_fn(|request: Request<()>| async move {
            sleep(Duration::from_millis(10)).await;
            let retry = request.extensions().get::<Attempt>().is_some();
            let status = if retry { 200 } else { 503 };
            let response = Response::builder().status(status);
            Ok::<_, BoxError>(response.body(Bytes::new())?)
        });
        let limited = ConcurrencyLimitLayer::new(1).layer(server);
        let client: Client = if stacked {
            BoxCloneService::new(
                ServiceBuilder::new()
                    .layer(IdempotencyKeyLayer::new().with_persist(|_| async {
                        sleep(MILLISECOND).await;
                        Ok::<_, BoxError>(())
                    }))
                    .layer(RetryBudgetLayer::new(deps.clone()))
                    .layer(RetryLayer::new(deps.clone()))
                    .layer(RetryAfterLayer::new(deps.clone()))
                    .layer(CircuitBreakerLayer::new(deps.clone()))
                    .service(limited),
            )
        } else {
            BoxCloneService::new(RetryLayer::new(deps.clone()).layer(limited))
        };
        // One service, as a caller with a loop has it.
        let mut own = client.clone();
        for method in [Method::PUT, Method::GET, Method::POST] {
            let keyless = method == Method::POST && !stacked;
            let call = call(&mut own, request(method));
            let result = timeout(secs(3600), call).await.expect("a deadlock");
            assert_eq!(code(&result), if keyless { 503 } else { 200 });
        }
        // And many clones at a time, while that one is idle but alive.
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..20 {
            let mut client = client.clone();
            let method = if stacked && i % 2 == 0 {
                Method::POST
            } else {
                Method::GET
            };
            tasks.spawn(async move { call(&mut client, request(method)).await });
        }
        let results = timeout(secs(3600), tasks.join_all()).await;
        for result in results.expect("a deadlock") {
            assert_eq!((code(&result), outcome(&result)), (200, Some((2, None))));
        }
    }
}

/// Whether the place in a concurrency limit is free again once `layer` has `refused` a call,
/// though that service and its future are alive.
async fn frees_the_place<L>(layer: L, first: Option<Request<()>>, refused: Request<()>)
where
    L: Layer<tower::limit::ConcurrencyLimit<Server>>,
    L::Service:
        Service<Request<()>, Response = Response<Bytes>, Error = BoxError> + Clone + Send + 'static,
    <L::Service as Service<Request<()>>>::Future: Send,
{
    let server = Server::new(|_| with_header(503, "retry-after", "5"));
    let limited = ConcurrencyLimitLayer::new(1).layer(server.clone());
    let mut one = layer.layer(limited);
    let mut other = one.clone();
    let mut calls = 0;
    if let Some(first) = first {
        assert_eq!(code(&call(&mut one, first).await), 503);
        calls = 1;
    }
    one.ready().await.unwrap();
    let mut waiting = task::spawn(other.ready());
    assert!(waiting.poll().is_pending(), "the place is taken");
    let mut future = task::spawn(one.call(refused));
    let _refused = future.poll();
    assert_eq!(server.calls(), calls, "it was refused, or waits");
    assert!(waiting.is_woken());
    assert!(waiting.poll().is_ready());
}

#[tokio::test(start_paused = true)]
async fn d_7_a_refused_or_waiting_call_keeps_no_place_in_a_limit_below() {
    let breaker = deps(policy().consecutive_failures(1));
    frees_the_place(CircuitBreakerLayer::new(breaker), Some(get()), get()).await;

    let gate = deps(policy());
    frees_the_place(RetryAfterLayer::new(gate), Some(get()), get()).await;

    let gate = deps(policy().total_timeout(secs(1)));
    frees_the_place(RetryAfterLayer::new(gate), Some(get()), get()).await;

    let budget = deps(policy().budget_ratio(0.0).budget_floor(0));
    let mut repeat = get();
    repeat.extensions_mut().insert(Attempt::retry(1));
    frees_the_place(RetryBudgetLayer::new(budget), None, repeat).await;

    let keys = IdempotencyKeyLayer::new();
    let mut long = request(Method::POST);
    let key = IdempotencyKey::new("k".repeat(65)).unwrap();
    long.extensions_mut().insert(key);
    frees_the_place(keys.clone(), None, long).await;

    let persist = keys.with_persist(|_| pending::<Result<(), BoxError>>());
    frees_the_place(persist, None, request(Method::POST)).await;
}

#[tokio::test(start_paused = true)]
async fn d_7_between_attempts_a_call_keeps_no_place_in_a_limit_below() {
    let server = Server::statuses([503, 200, 200]);
    let limited = ConcurrencyLimitLayer::new(1).layer(server.clone());
    let deps = deps(policy().backoff(Fixed(secs(5))));
    let mut one = RetryLayer::new(deps).layer(limited);
    let mut other = one.clone();
    one.ready().await.unwrap();
    let mut future = task::spawn(one.call(get()));
    assert_pending!(future.poll(), "in its wait");
    assert_eq!(code(&call(&mut other, get()).await), 200);
    advance(secs(5)).await;
    assert_eq!(code(&assert_ready!(future.poll())), 200);
}

// Classification

#[tokio::test(start_paused = true)]
async fn c_1_of_all_statuses_only_the_listed_are_retried_and_425_once() {
    for code in 400..=599 {
        let server = Server::new(move |_| status(code));
        let (_, mut client) = client(policy(), &server);
        let result = call(&mut client, get()).await;
        let (calls, reason) = match code {
            408 | 429 | 500 | 502 | 503 | 504 => (4, StopReason::Exhausted),
            425 => (2, StopReason::Exhausted),
            _ => (1, StopReason::NotRetryable),
        };
        assert_eq!(server.calls(), calls, "{code}");
        assert_eq!(
            outcome(&result),
            Some((calls as u32, Some(reason))),
            "{code}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn c_1_success_and_redirects_are_final() {
    for code in [200, 204, 299, 301, 304, 307, 308, 399] {
        let server = Server::statuses([code]);
        let (_, mut client) = client(policy(), &server);
        assert_eq!(outcome(&call(&mut client, get()).await), None, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn c_1_a_second_425_ends_a_call_even_after_something_else() {
    let server = Server::statuses([425, 503, 425]);
    let (_, mut client) = client(policy(), &server);
    let result = call(&mut client, get()).await;
    assert_eq!(code(&result), 425);
    assert_eq!(outcome(&result), Some((3, Some(StopReason::Exhausted))));
}

fn grpc(key: bool) -> Request<()> {
    let mut request = request(Method::POST);
    let headers = request.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/grpc+proto"),
    );
    if key {
        headers.insert("idempotency-key", HeaderValue::from_static("k"));
    }
    request
}

#[tokio::test(start_paused = true)]
async fn c_2_grpc_statuses_in_the_headers_are_retried_by_their_table() {
    let codes = [
        "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14",
    ];
    for code in codes.into_iter().chain(["15", "16", "99", "+14", "x", ""]) {
        let server = Server::new(move |_| with_header(200, "grpc-status", code));
        let (_, mut client) = client(Policy::grpc_unary(), &server);
        let result = call(&mut client, grpc(true)).await;
        let (calls, reason) = match code {
            "0" => (1, None),
            "4" | "8" | "10" | "14" => (4, Some(StopReason::Exhausted)),
            _ => (1, Some(StopReason::NotRetryable)),
        };
        assert_eq!(
            (server.calls(), stop_reason(&result)),
            (calls, reason),
            "{code}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn c_4_what_was_never_sent_is_retried_whatever_the_method() {
    let refused = || Step::Fail(io::Error::from(io::ErrorKind::ConnectionRefused).into());
    for request in [request(Method::POST), request(Method::PATCH), grpc(false)] {
        let server = Server::new(move |_| refused());
        let (_, mut client) = client(policy(), &server);
        let result = call(&mut client, request).await;
        assert_eq!(outcome(&result), Some((4, Some(StopReason::Exhausted))));
    }
}

#[tokio::test(start_paused = true)]
async fn c_5_methods_and_keys_decide_what_is_safe_to_repeat() {
    let safe = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"];
    let unsafe_ = ["POST", "PATCH", "CONNECT", "PROPFIND", "get", "LOCK"];
    for method in safe.into_iter().chain(unsafe_) {
        for key in [false, true] {
            // gRPC is always POST.
            for grpc in [false, method == "POST"] {
                let server = Server::statuses([503, 200]);
                let (_, mut client) = client(policy(), &server);
                let mut request = request(method.parse().unwrap());
                if key {
                    let name = HeaderName::from_static("idempotency-key");
                    request
                        .headers_mut()
                        .insert(name, HeaderValue::from_static("k"));
                }
                if grpc {
                    let value = HeaderValue::from_static("application/grpc");
                    request.headers_mut().insert(CONTENT_TYPE, value);
                }
                let result = call(&mut client, request).await;
                let repeated = key || safe.contains(&method);
                let expected = match repeated {
                    true => (200, Some((2, None))),
                    false => (503, Some((1, Some(StopReason::NotIdempotent)))),
                };
                let got = (code(&result), outcome(&result));
                assert_eq!(got, expected, "{method}, key {key}, grpc {grpc}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_5_another_key_header_and_an_approved_exception() {
    let name = HeaderName::from_static("x-once");
    let server = Server::statuses([503, 200]);
    let (_, mut client) = client(policy().key_header(name.clone()), &server);
    let mut keyed = request(Method::POST);
    keyed
        .headers_mut()
        .insert(name, HeaderValue::from_static("k"));
    assert_eq!(code(&call(&mut client, keyed).await), 200);

    let server = Server::statuses([503, 200]);
    let approved = policy().retry_without_key().approve(Rule::R6, "test");
    let (_, mut client) = self::client(approved, &server);
    assert_eq!(code(&call(&mut client, request(Method::POST)).await), 200);
}

#[tokio::test(start_paused = true)]
async fn c_7_a_replayed_response_is_final_whatever_its_status() {
    for (value, calls) in [("true", 1), ("True", 1), ("false", 4), ("", 4)] {
        let server = Server::new(move |_| with_header(503, "idempotent-replayed", value));
        let (_, mut client) = client(policy(), &server);
        let result = call(&mut client, get()).await;
        assert_eq!((code(&result), server.calls()), (503, calls), "{value:?}");
        if calls == 1 {
            assert_eq!(stop_reason(&result), Some(StopReason::NotRetryable));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c_8_retry_and_health_are_independent() {
    // Attempts made, and whether one such failure is held against the dependency. The retries
    // of what is held against it are cut off by the breaker.
    for (status, grpc, calls, ill) in [
        (404, "", 1, false),
        (408, "", 4, false),
        (425, "", 2, false),
        (429, "", 4, false),
        (500, "", 1, true),
        (501, "", 1, false),
        (503, "", 1, true),
        (505, "", 1, false),
        (507, "", 1, true),
        (200, "5", 1, false),
        (200, "8", 4, false),
        (200, "10", 4, false),
        (200, "13", 1, true),
        (200, "14", 1, true),
    ] {
        let server = Server::new(move |_| match grpc {
            "" => self::status(status),
            grpc => with_header(status, "grpc-status", grpc),
        });
        let deps = deps(
            policy()
                .consecutive_failures(1)
                .cooldown(secs(60), secs(60)),
        );
        let mut client = ServiceBuilder::new()
            .layer(RetryLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .service(server.clone());
        let result = call(&mut client, get()).await;
        let open = matches!(deps.get(HOST).status().breaker, BreakerState::Open(_));
        assert_eq!((server.calls(), open), (calls, ill), "{status} {grpc}");
        let listed = matches!((status, grpc), (500 | 503, _) | (_, "14"));
        assert_eq!(
            stop_reason(&result) == Some(StopReason::Breaker),
            listed,
            "{status} {grpc}"
        );
    }
}

#[test]
fn c_8_not_before_is_independent_of_the_rest() {
    let rules = Rules::standard();
    let judge = |status: u16| {
        let response = Response::builder().status(status).header(RETRY_AFTER, "9");
        let response = response.body(()).unwrap();
        Classify::<Request<()>, _>::classify(&Standard, &rules, Ok(&response))
    };
    for (status, retry, health) in [
        (404, Retryable::Never, Health::Success),
        (429, Retryable::Yes, Health::Neutral),
        (501, Retryable::Never, Health::Success),
        (503, Retryable::Yes, Health::Failure),
    ] {
        let verdict = judge(status);
        assert_eq!((verdict.retry, verdict.health), (retry, health), "{status}");
        assert_eq!(
            verdict.guidance,
            Some(Guidance::AtLeast(secs(9))),
            "{status}"
        );
        assert_eq!(
            verdict.cause,
            Cause::Status(StatusCode::from_u16(status).unwrap())
        );
    }
    assert_eq!(judge(200), Verdict::SUCCESS);
}

// Budget

#[tokio::test(start_paused = true)]
async fn g_4_an_exhausted_budget_returns_the_original_result_at_once() {
    let server = Server::new(|_| status(503));
    let policy = policy()
        .budget_floor(2)
        .on_budget_exhausted(Exhaustion::Never);
    let (deps, mut client) = client(policy, &server);
    let result = call(&mut client, get()).await;
    assert_eq!(
        outcome(&result),
        Some((3, Some(StopReason::Budget))),
        "two of three"
    );
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!((code(&result), start.elapsed()), (503, Duration::ZERO));
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Budget))));
    assert_eq!(server.calls(), 4);
    let status = deps.get(HOST).status();
    assert_eq!((status.originals, status.retries), (2, 2));

    sleep(secs(31)).await;
    let result = call(&mut client, get()).await;
    assert_eq!(
        outcome(&result),
        Some((3, Some(StopReason::Budget))),
        "30 s later"
    );
}

#[cfg(feature = "metrics")]
#[tokio::test(start_paused = true)]
async fn g_4_a_suppressed_retry_is_counted() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let server = Server::new(|_| status(503));
    let (_, mut client) = client(policy().budget_ratio(0.0).budget_floor(0), &server);
    for _ in 0..3 {
        call(&mut client, get()).await.unwrap();
    }
    let metrics = snapshotter.snapshot().into_vec();
    let suppressed = metrics
        .iter()
        .find_map(|(key, _, _, value)| (key.key().name() == "retry_suppressed").then_some(value));
    let three = metrics_util::debugging::DebugValue::Counter(3);
    assert_eq!(suppressed, Some(&three));
}

// Retry-After and pushback

async fn wait_of(policy: PolicyBuilder, name: &'static str, value: &'static str) -> Duration {
    let server = Server::new(move |n| match n {
        0 => with_header(503, name, value),
        _ => status(200),
    });
    let (_, mut client) = client(policy, &server);
    assert_eq!(code(&call(&mut client, get()).await), 200);
    server.waits()[0]
}

#[tokio::test(start_paused = true)]
async fn ra_7_a_retry_after_above_the_backoff_wins_and_is_spread_upward_only() {
    let mut waits = HashSet::new();
    for _ in 0..50 {
        let wait = wait_of(policy(), "retry-after", "5").await;
        assert!(
            (secs(5)..=secs(5) + secs(1) / 2).contains(&wait),
            "{wait:?}"
        );
        waits.insert(wait);
    }
    assert!(waits.len() > 10, "they do not wake together");
    // A tenth of 20 s is more than a second.
    for _ in 0..20 {
        let wait = wait_of(policy(), "retry-after", "20").await;
        assert!((secs(20)..=secs(21)).contains(&wait), "{wait:?}");
    }
    let exact = policy().retry_after_spread(Duration::ZERO);
    assert_eq!(wait_of(exact, "retry-after", "5").await, secs(5));
}

#[tokio::test(start_paused = true)]
async fn ra_7_a_backoff_above_the_retry_after_wins() {
    let slow = || policy().backoff(Fixed(secs(8)));
    let wait = wait_of(slow(), "retry-after", "5").await;
    assert!((secs(8)..secs(9)).contains(&wait), "{wait:?}");
    assert_eq!(wait_of(slow(), "retry-after", "0").await, secs(8));
    assert_eq!(wait_of(slow(), "retry-after", "soon").await, secs(8));
}

#[tokio::test(start_paused = true)]
async fn ra_7_a_retry_after_beyond_the_remaining_time_fails_at_once() {
    for value in ["10", "3600", "99999999999999999999999999"] {
        let server = Server::new(move |_| with_header(429, "retry-after", value));
        let (deps, mut client) = client(policy().total_timeout(secs(10)), &server);
        let start = Instant::now();
        let result = call(&mut client, get()).await;
        assert_eq!((code(&result), start.elapsed()), (429, Duration::ZERO));
        assert_eq!(outcome(&result), Some((1, Some(StopReason::Deadline))));
        assert_eq!(result.unwrap().headers()[RETRY_AFTER], value);
        assert_eq!(deps.get(HOST).status().retries, 0, "G-3");
    }
}

#[tokio::test(start_paused = true)]
async fn ra_8_a_pushback_replaces_the_backoff() {
    let name = "grpc-retry-pushback-ms";
    let exact = || {
        let policy = policy().backoff(Fixed(secs(8)));
        policy.retry_after_spread(Duration::ZERO)
    };
    for (value, millis) in [("0", 0), ("1", 1), ("250", 250), ("9000", 9000)] {
        let wait = wait_of(exact(), name, value).await;
        assert_eq!(wait, Duration::from_millis(millis));
    }
    for _ in 0..20 {
        let wait = wait_of(policy(), name, "5000").await;
        assert!(
            (secs(5)..=secs(5) + secs(1) / 2).contains(&wait),
            "{wait:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn ra_8_a_negative_or_unreadable_pushback_stops() {
    for value in ["-1", "-250", "soon", "", "1.5", "+5"] {
        let server = Server::new(move |_| with_header(503, "grpc-retry-pushback-ms", value));
        let (_, mut client) = client(policy(), &server);
        let result = call(&mut client, get()).await;
        assert_eq!(
            outcome(&result),
            Some((1, Some(StopReason::Pushback))),
            "{value:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn ra_8_a_pushback_never_overrides_the_attempt_bound_or_the_table() {
    let server = Server::new(|_| with_header(503, "grpc-retry-pushback-ms", "0"));
    let (_, mut client) = client(policy().max_retries(2), &server);
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((3, Some(StopReason::Exhausted))));

    let server = Server::new(|_| with_header(404, "grpc-retry-pushback-ms", "0"));
    let (_, mut client) = self::client(policy(), &server);
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotRetryable))));
}

#[tokio::test(start_paused = true)]
async fn ra_8_previous_attempts_are_told_from_the_second_attempt_on() {
    let name = "grpc-previous-rpc-attempts";
    let told = |values: [&str; 3]| values.map(|v| Some(v.to_owned())).to_vec();
    let server = Server::new(|_| with_header(200, "grpc-status", "14"));
    let (_, mut client) = client(Policy::grpc_unary(), &server);
    call(&mut client, grpc(true)).await.unwrap();
    let seen = server.header(name);
    assert_eq!(seen[0], None);
    assert_eq!(seen[1..], told(["1", "2", "3"]));

    let server = Server::statuses([503, 200]);
    let (_, mut client) = self::client(policy(), &server);
    call(&mut client, get()).await.unwrap();
    assert_eq!(server.header(name), [None, None], "this is not gRPC");
}

// The hook

fn authorized(value: &'static str) -> Request<()> {
    let mut request = get();
    let headers = request.headers_mut();
    headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
    request
}

#[tokio::test(start_paused = true)]
async fn s_1_every_attempt_carries_the_original_credentials() {
    let server = Server::statuses([503, 503, 200]);
    let (_, mut client) = client(policy(), &server);
    let mut request = authorized("Bearer one");
    let headers = request.headers_mut();
    headers.append(COOKIE, HeaderValue::from_static("a=1"));
    headers.append(COOKIE, HeaderValue::from_static("b=2"));
    call(&mut client, request).await.unwrap();
    for request in server.requests() {
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer one");
        let cookies: Vec<_> = request.headers().get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_the_hook_runs_before_each_retry_and_not_before_the_first_attempt() {
    let server = Server::statuses([503, 503, 200]);
    let hook = |mut request: Request<()>, attempt: Attempt| async move {
        sleep(secs(1)).await;
        let token = format!("Bearer {}", attempt.number());
        request
            .headers_mut()
            .insert(AUTHORIZATION, token.try_into()?);
        Ok::<_, BoxError>(request)
    };
    let deps = deps(policy().backoff(Fixed(secs(2))));
    let mut client = RetryLayer::new(deps)
        .with_prepare(hook)
        .layer(server.clone());
    call(&mut client, authorized("Bearer 1")).await.unwrap();
    let tokens = ["Bearer 1", "Bearer 2", "Bearer 3"].map(|t| Some(t.to_owned()));
    assert_eq!(server.header("authorization"), tokens);
    assert_eq!(server.waits(), [secs(3), secs(3)], "after the wait");
}

#[tokio::test(start_paused = true)]
async fn s_1_a_401_is_retried_once_and_only_if_the_hook_brings_new_credentials() {
    let hook = |request: Request<()>, _| async { Ok::<_, BoxError>(request) };
    for (statuses, refresh, calls, end, reason) in [
        (&[401, 200][..], true, 2, 200, None),
        (&[401, 401], true, 2, 401, Some(StopReason::Exhausted)),
        (&[401, 503, 401], true, 3, 401, Some(StopReason::Exhausted)),
        (&[503, 401, 503, 200], true, 4, 200, None),
        (&[401], false, 1, 401, Some(StopReason::NotRetryable)),
        (&[403], true, 1, 403, Some(StopReason::NotRetryable)),
    ] {
        let server = Server::new(move |n| status(statuses[n]));
        let layer = RetryLayer::new(deps(policy()));
        let client = match refresh {
            true => Either::Left(layer.with_refresh(hook).layer(server.clone())),
            false => Either::Right(layer.with_prepare(hook).layer(server.clone())),
        };
        let mut client: Client = BoxCloneService::new(client);
        let result = call(&mut client, authorized("Bearer one")).await;
        assert_eq!(
            (code(&result), server.calls()),
            (end, calls),
            "{statuses:?}"
        );
        assert_eq!(stop_reason(&result), reason, "{statuses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_unauthenticated_grpc_calls_are_refreshed_too() {
    let server = Server::new(|n| match n {
        0 => with_header(200, "grpc-status", "16"),
        _ => with_header(200, "grpc-status", "0"),
    });
    let hook = |request: Request<()>, _| async { Ok::<_, BoxError>(request) };
    let layer = RetryLayer::new(deps(Policy::grpc_unary())).with_refresh(hook);
    let result = call(&mut layer.layer(server.clone()), grpc(true)).await;
    assert_eq!(outcome(&result), Some((2, None)));
}

/// How a call ends whose hook leaves these credentials on the retry.
async fn prepared(
    before: &[(HeaderName, &'static str)],
    after: &'static [(HeaderName, &'static str)],
) -> (usize, u16, Option<StopReason>) {
    let server = Server::statuses([503, 200]);
    let hook = move |mut request: Request<()>, _| async move {
        for name in [AUTHORIZATION, COOKIE, http::header::PROXY_AUTHORIZATION] {
            request.headers_mut().remove(name);
        }
        for (name, value) in after {
            let value = HeaderValue::from_static(value);
            request.headers_mut().append(name, value);
        }
        Ok::<_, BoxError>(request)
    };
    let deps = deps(policy());
    let layer = RetryLayer::new(deps.clone()).with_prepare(hook);
    let mut request = get();
    for (name, value) in before {
        let value = HeaderValue::from_static(value);
        request.headers_mut().append(name, value);
    }
    let result = call(&mut layer.layer(server.clone()), request).await;
    let retries = deps.get(HOST).status().retries;
    assert_eq!(retries as usize, server.calls() - 1, "charged if sent");
    (server.calls(), code(&result), stop_reason(&result))
}

#[tokio::test(start_paused = true)]
async fn s_1_a_hook_can_never_drop_or_weaken_credentials() {
    let refused = (1, 503, Some(StopReason::Prepare));
    let sent = (2, 200, None);
    let auth = |value| [(AUTHORIZATION, value)];
    assert_eq!(prepared(&auth("Bearer one"), &[]).await, refused);
    assert_eq!(
        prepared(&auth("Bearer one"), &[(AUTHORIZATION, "Basic one")]).await,
        refused
    );
    assert_eq!(
        prepared(&auth("Bearer one"), &[(COOKIE, "Bearer one")]).await,
        refused
    );
    assert_eq!(
        prepared(
            &[(http::header::PROXY_AUTHORIZATION, "Basic a")],
            &[(AUTHORIZATION, "Basic a")]
        )
        .await,
        refused
    );
    assert_eq!(prepared(&[(COOKIE, "a=1")], &[]).await, refused);
    assert_eq!(
        prepared(&auth("Bearer one"), &[(AUTHORIZATION, "bearer two")]).await,
        sent
    );
    assert_eq!(prepared(&[(COOKIE, "a=1")], &[(COOKIE, "a=2")]).await, sent);
    assert_eq!(prepared(&[], &[(AUTHORIZATION, "Bearer two")]).await, sent);
    assert_eq!(prepared(&[], &[]).await, sent);
}

#[tokio::test(start_paused = true)]
async fn s_1_credentials_without_a_scheme_or_a_value_are_no_obstacle() {
    let sent = (2, 200, None);
    let kept = prepared(&[(COOKIE, "")], &[(COOKIE, "")]).await;
    assert_eq!(kept, sent, "an empty cookie");
    let bare = [(AUTHORIZATION, "one")];
    let renewed = prepared(&bare, &[(AUTHORIZATION, "two")]).await;
    assert_eq!(renewed, sent, "a bare token");
    let emptied = prepared(&bare, &[(AUTHORIZATION, "")]).await;
    assert_eq!(emptied, (1, 503, Some(StopReason::Prepare)));
}

#[tokio::test(start_paused = true)]
async fn s_1_a_hook_cannot_empty_the_credentials() {
    let before = [(AUTHORIZATION, "Bearer one")];
    for after in [
        &[(AUTHORIZATION, "Bearer")][..],
        &[(AUTHORIZATION, "Bearer ")],
    ] {
        let after: &'static _ = Box::leak(after.to_vec().into_boxed_slice());
        let end = prepared(&before, after).await;
        assert_eq!(end, (1, 503, Some(StopReason::Prepare)), "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_a_hook_cannot_make_it_another_operation_or_drop_what_is_sensitive() {
    type Change = fn(&mut Request<()>);
    let changes: [(Change, usize); 3] = [
        (|request| *request.method_mut() = Method::DELETE, 1),
        (|request| drop(request.headers_mut().remove("x-api-key")), 1),
        (
            |request| {
                let renewed = HeaderValue::from_static("two");
                request.headers_mut().insert("x-api-key", renewed);
            },
            2,
        ),
    ];
    for (row, (change, calls)) in changes.into_iter().enumerate() {
        let server = Server::statuses([503, 200]);
        let hook = move |mut request: Request<()>, _| async move {
            change(&mut request);
            Ok::<_, BoxError>(request)
        };
        let layer = RetryLayer::new(deps(policy())).with_prepare(hook);
        let mut request = get();
        let mut key = HeaderValue::from_static("one");
        key.set_sensitive(true);
        request.headers_mut().insert("x-api-key", key);
        let result = call(&mut layer.layer(server.clone()), request).await;
        assert_eq!(server.calls(), calls, "row {row}");
        assert_eq!(
            stop_reason(&result),
            (calls == 1).then_some(StopReason::Prepare),
            "row {row}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_a_hook_cannot_leave_an_encrypted_connection() {
    for (before, after, calls) in [
        ("https://a.example/", "http://a.example/", 1),
        ("https://a.example/", "/", 1),
        ("https://a.example/", "https://a.example/renewed", 2),
        ("http://a.example/", "https://a.example/", 2),
    ] {
        let server = Server::statuses([503, 200]);
        let hook = move |mut request: Request<()>, _| async move {
            *request.uri_mut() = Uri::from_static(after);
            Ok::<_, BoxError>(request)
        };
        let layer = RetryLayer::new(deps(policy())).with_prepare(hook);
        let mut request = get();
        *request.uri_mut() = Uri::from_static(before);
        let result = call(&mut layer.layer(server.clone()), request).await;
        assert_eq!(server.calls(), calls, "{before} to {after}");
        let reason = (calls == 1).then_some(StopReason::Prepare);
        assert_eq!(stop_reason(&result), reason, "{before} to {after}");
    }
}

#[tokio::test(start_paused = true)]
async fn s_1_a_hook_that_fails_sends_nothing_and_the_last_result_returns() {
    let server = Server::statuses([503, 502]);
    let hook = |request: Request<()>, attempt: Attempt| async move {
        match attempt.number() {
            2 => Ok(request),
            _ => Err::<_, BoxError>("no token".into()),
        }
    };
    let deps = deps(policy());
    let layer = RetryLayer::new(deps.clone()).with_prepare(hook);
    let result = call(&mut layer.layer(server.clone()), get()).await;
    assert_eq!((code(&result), server.calls()), (502, 2));
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Prepare))));
    assert_eq!(
        deps.get(HOST).status().retries,
        1,
        "the second was given back"
    );
}

/// A hook that makes the request anew rather than changing it.
fn anew()
-> impl Fn(Request<()>, Attempt) -> std::future::Ready<Result<Request<()>, BoxError>> + Clone {
    |old, _| {
        let mut new = Request::new(());
        *new.method_mut() = old.method().clone();
        *new.uri_mut() = old.uri().clone();
        std::future::ready(Ok(new))
    }
}

#[tokio::test(start_paused = true)]
async fn g_3_a_request_made_anew_by_the_hook_is_still_a_retry() {
    let server = Server::statuses([503, 503, 200]);
    let deps = deps(policy());
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()).with_prepare(anew()))
        .layer(RetryBudgetLayer::new(deps.clone()))
        .service(server.clone());
    call(&mut client, get()).await.unwrap();
    let status = deps.get(HOST).status();
    assert_eq!((status.originals, status.retries), (1, 2));
    let numbers = server.requests().into_iter().map(|request| {
        let attempt = request.extensions().get::<Attempt>().copied();
        attempt.map_or(1, |attempt| attempt.number())
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn c_5_a_hook_that_loses_the_key_sends_nothing() {
    let server = Server::statuses([503, 200]);
    let layer = RetryLayer::new(deps(policy())).with_prepare(anew());
    let mut keyed = request(Method::POST);
    keyed
        .headers_mut()
        .insert("idempotency-key", HeaderValue::from_static("k"));
    let result = call(&mut layer.layer(server.clone()), keyed).await;
    assert_eq!(server.calls(), 1);
    assert_eq!(
        (code(&result), stop_reason(&result)),
        (503, Some(StopReason::Prepare))
    );
}

// Jitter

async fn waits_of_calls(seed: Option<u64>, calls: usize) -> Vec<Duration> {
    let server = Server::new(|n| status(if n % 2 == 0 { 503 } else { 200 }));
    let policy = policy().approve(Rule::R7, "test").budget_floor(1000);
    let mut deps = Dependencies::builder(policy.build().unwrap());
    if let Some(seed) = seed {
        deps = deps.seed(seed);
    }
    let mut client = RetryLayer::new(deps.build()).layer(server.clone());
    for _ in 0..calls {
        call(&mut client, get()).await.unwrap();
    }
    server.waits().into_iter().step_by(2).collect()
}

#[tokio::test(start_paused = true)]
async fn b_4_two_calls_of_one_client_draw_different_waits() {
    let waits = waits_of_calls(None, 40).await;
    assert!(waits.iter().all(|wait| *wait <= secs(1)), "{waits:?}");
    let distinct: HashSet<_> = waits.iter().collect();
    assert!(distinct.len() > 20, "{waits:?}");
    assert!(
        waits.iter().any(|wait| *wait < secs(1) / 2),
        "full jitter: {waits:?}"
    );
    assert!(
        waits.iter().any(|wait| *wait > secs(1) / 2),
        "full jitter: {waits:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn b_4_a_seed_makes_runs_repeat() {
    let runs = (
        waits_of_calls(Some(7), 10).await,
        waits_of_calls(Some(7), 10).await,
        waits_of_calls(Some(8), 10).await,
    );
    assert_eq!(runs.0, runs.1);
    assert_ne!(runs.0, runs.2);
}

// What is sent again

/// An extension of the caller's.
#[derive(Debug, Clone, PartialEq)]
struct Mark(u64);

fn methods() -> impl Strategy<Value = Method> {
    let token = "[A-Za-z0-9!#$%&'*+.^_`|~-]{1,24}";
    let custom = token.prop_filter_map("method", |m| Method::from_bytes(m.as_bytes()).ok());
    let known = prop::sample::select(vec![
        Method::GET,
        Method::HEAD,
        Method::PUT,
        Method::DELETE,
        Method::POST,
        Method::PATCH,
        Method::OPTIONS,
        Method::CONNECT,
        Method::TRACE,
    ]);
    prop_oneof![known, custom]
}

fn uris() -> impl Strategy<Value = Uri> {
    let path = "(/[A-Za-z0-9._~!$&'()*+,;=:@%-]{0,12}){1,4}";
    let query = "(\\?[A-Za-z0-9/?=&%.-]{0,16})?";
    let authority = "([a-z0-9]{1,8}(:[a-z0-9]{1,8})?@)?([A-Za-z0-9-]{1,12}(\\.[a-z]{2,5})?|\\[::1\\])(:[1-9][0-9]{0,3})?";
    let origin = format!("{path}{query}");
    let absolute = format!("(https?|[a-z][a-z0-9+.-]{{0,9}})://{authority}({path})?{query}");
    let text = prop_oneof![
        Just("*".to_owned()),
        Just("/".to_owned()),
        Just("http://a.example".to_owned()),
        Just("http://a.example?q=1".to_owned()),
        prop::string::string_regex(&origin).unwrap(),
        prop::string::string_regex(&absolute).unwrap(),
        prop::string::string_regex(authority).unwrap(),
    ];
    text.prop_filter_map("uri", |text| text.parse().ok())
}

fn versions() -> impl Strategy<Value = Version> {
    prop::sample::select(vec![
        Version::HTTP_09,
        Version::HTTP_10,
        Version::HTTP_11,
        Version::HTTP_2,
        Version::HTTP_3,
    ])
}

fn headers() -> impl Strategy<Value = Vec<(HeaderName, HeaderValue)>> {
    let known = prop::sample::select(vec!["accept", "cookie", "authorization", "x-a", "x-b"]);
    let name = prop_oneof![known.prop_map(String::from), "[a-zA-Z][a-zA-Z0-9_-]{0,20}"];
    let bytes = prop_oneof![Just(b'\t'), 0x20_u8..0x7f, 0x80_u8..=0xff];
    let value = prop::collection::vec(bytes, 0..24);
    let field = (name, value, any::<bool>()).prop_map(|(name, value, sensitive)| {
        let mut value = HeaderValue::from_bytes(&value).unwrap();
        value.set_sensitive(sensitive);
        (name.parse().unwrap(), value)
    });
    prop::collection::vec(field, 0..24)
}

fn paused() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap()
}

/// Everything of a request but what a retry adds to it.
fn head<B>(request: &Request<B>) -> impl PartialEq + fmt::Debug + use<B> {
    let uri = request.uri();
    let parts = (
        uri.scheme_str().map(str::to_owned),
        uri.authority().map(ToString::to_string),
        uri.path().to_owned(),
        uri.query().map(str::to_owned),
        uri.to_string(),
    );
    let headers: Vec<_> = request
        .headers()
        .iter()
        .map(|(name, value)| {
            (
                name.clone(),
                value.as_bytes().to_vec(),
                value.is_sensitive(),
            )
        })
        .filter(|(name, ..)| *name != "grpc-previous-rpc-attempts")
        .collect();
    let mark = request.extensions().get::<Mark>().cloned();
    (
        request.method().clone(),
        request.version(),
        parts,
        headers,
        mark,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_attempt_sends_the_same_request(
        method in methods(),
        uri in uris(),
        version in versions(),
        headers in headers(),
        removed in any::<bool>(),
        grpc in any::<bool>(),
        mark in any::<Option<u64>>(),
        body in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut request = Request::new(Full::new(Bytes::from(body.clone())));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.version_mut() = version;
        for (name, value) in headers {
            request.headers_mut().append(name, value);
        }
        if removed {
            request.headers_mut().remove("x-a");
        }
        request.headers_mut().insert("idempotency-key", HeaderValue::from_static("k"));
        if grpc {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        }
        request.extensions_mut().extend(mark.map(Mark).map_or_else(http::Extensions::new, |mark| {
            let mut extensions = http::Extensions::new();
            extensions.insert(mark);
            extensions
        }));
        let original = head(&request);
        let server = Server::new(|_| status(503));
        paused().block_on(async {
            let (_, mut client) = client(policy().max_retries(2), &server);
            call(&mut client, request).await.unwrap();
        });
        let seen = server.requests();
        prop_assert_eq!(seen.len(), 3);
        for request in seen {
            prop_assert_eq!(&head(&request), &original);
            let sent = paused().block_on(request.into_body().collect()).unwrap();
            prop_assert_eq!(sent.to_bytes(), &body);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn d_4_a_head_over_the_limit_is_sent_but_not_again() {
    // What is kept is the URI's parts, and each field with its two lengths of four bytes.
    let uri = "http".len() + HOST.len() + "/items?page=2".len();
    let (name, value) = ("x-large", "v".repeat(500));
    let size = uri + 8 + name.len() + value.len();
    for (limit, calls) in [(size, 2), (size - 1, 1), (0, 1)] {
        let server = Server::statuses([503, 200]);
        let (deps, mut client) = client(policy().replay_limit(limit), &server);
        let mut request = get();
        request.headers_mut().insert(name, value.parse().unwrap());
        let result = call(&mut client, request).await;
        assert_eq!(server.calls(), calls, "{limit} of {size}");
        assert_eq!(server.header(name)[0].as_ref(), Some(&value), "whole");
        if calls == 1 {
            assert_eq!(outcome(&result), Some((1, Some(StopReason::NotReplayable))));
            assert_eq!(deps.get(HOST).status().retries, 0, "G-3");
        }
    }
}

/// A body that can be kept to some degree.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kept {
    Not,
    NotWhole,
    NotReplayable,
    Once,
}

impl ReplayBody for Kept {
    type Recording = Self;

    fn record(&mut self, _room: &ReplayLimits<'_>) -> Option<Self> {
        (*self != Self::Not).then_some(*self)
    }

    fn is_complete(recording: &Self) -> bool {
        *recording != Self::NotWhole
    }

    fn replay(recording: &Self) -> Option<Self> {
        (*recording == Self::Once).then_some(*recording)
    }
}

#[tokio::test(start_paused = true)]
async fn d_4_a_body_that_cannot_be_kept_is_sent_but_not_again() {
    for (body, waits) in [
        (Kept::Not, false),
        (Kept::NotWhole, false),
        (Kept::NotReplayable, true),
    ] {
        let server = Server::statuses([503]);
        let (deps, mut client) = client(policy().backoff(Fixed(secs(1))), &server);
        let start = Instant::now();
        let result = call(&mut client, get().map(|()| body)).await;
        assert_eq!(start.elapsed().is_zero(), !waits, "{body:?}");
        assert_eq!(code(&result), 503);
        assert_eq!(
            outcome(&result),
            Some((1, Some(StopReason::NotReplayable))),
            "{body:?}"
        );
        assert_eq!(deps.get(HOST).status().retries, 0, "G-3: {body:?}");
    }
    let server = Server::statuses([503, 200]);
    let (_, mut client) = client(policy(), &server);
    let result = call(&mut client, get().map(|()| Kept::Once)).await;
    assert_eq!(code(&result), 200);
}

#[tokio::test(start_paused = true)]
async fn bodies_at_hand_are_sent_again_whatever_their_size() {
    let server = Server::statuses([503, 503, 503, 200]);
    let (_, mut client) = client(policy().replay_limit(100), &server);
    let body = "x".repeat(1000);
    let request = get().map(|()| body.clone());
    assert_eq!(code(&call(&mut client, request).await), 200);
    for request in server.requests() {
        assert_eq!(*request.body(), body);
    }
}

// Other protocols

#[derive(Debug, Clone, PartialEq)]
struct Event(u32);

/// Handles an event, failing so many times first.
#[derive(Clone)]
struct Consumer {
    failures: usize,
    poison: bool,
    seen: Arc<Mutex<Vec<Event>>>,
}

impl Consumer {
    fn new(failures: usize, poison: bool) -> Self {
        let seen = Arc::default();
        Self {
            failures,
            poison,
            seen,
        }
    }

    fn seen(&self) -> Vec<Event> {
        self.seen.lock().unwrap().clone()
    }

    async fn consume(&self, event: Event) -> Result<u32, BoxError> {
        let policy = Policy::asynchronous().dead_letters("orders.dlq").build()?;
        let deps = Dependencies::builder(policy)
            .with_locate(|_: &Event| "orders".into())
            .with_classifier(
                |outcome: Result<&u32, &(dyn Error + 'static)>| match outcome {
                    Ok(_) => Verdict::SUCCESS,
                    Err(error) if error.is::<fmt::Error>() => {
                        Verdict::terminal(Cause::Other("poison"))
                    }
                    Err(_) => Verdict::transient(Cause::Other("handler")),
                },
            )
            .build();
        let this = self.clone();
        let handler = service_fn(move |event: Event| {
            let mut seen = this.seen.lock().unwrap();
            seen.push(event.clone());
            let result = match (seen.len() <= this.failures, this.poison) {
                (false, _) => Ok(event.0),
                (true, false) => Err(BoxError::from("busy")),
                (true, true) => Err(fmt::Error.into()),
            };
            async move { result }
        });
        let mut consumer = RetryLayer::new(deps.clone()).cloning().layer(handler);
        let result = call(&mut consumer, event).await;
        let status = deps.get("orders").status();
        assert_eq!(status.originals, 1);
        assert_eq!(status.retries as usize, self.seen().len() - 1);
        result
    }
}

#[tokio::test(start_paused = true)]
async fn events_that_are_cloned_are_retried_by_a_closure() {
    let consumer = Consumer::new(2, false);
    assert_eq!(consumer.consume(Event(7)).await.unwrap(), 7);
    assert_eq!(consumer.seen(), vec![Event(7); 3]);

    let consumer = Consumer::new(5, false);
    assert_eq!(consumer.consume(Event(7)).await.unwrap(), 7);
    assert_eq!(consumer.seen(), vec![Event(7); 6]);

    let consumer = Consumer::new(usize::MAX, false);
    let error = consumer.consume(Event(7)).await.unwrap_err();
    let outcome = RetryOutcome::of_error(&*error).unwrap();
    assert_eq!(
        (outcome.attempts(), outcome.stop_reason()),
        (6, Some(StopReason::Exhausted))
    );
    assert_eq!(error.source().unwrap().to_string(), "busy");
}

#[tokio::test(start_paused = true)]
async fn poison_is_not_retried() {
    let consumer = Consumer::new(usize::MAX, true);
    let error = consumer.consume(Event(7)).await.unwrap_err();
    let outcome = RetryOutcome::of_error(&*error).unwrap();
    assert_eq!(
        (outcome.attempts(), outcome.stop_reason()),
        (1, Some(StopReason::NotRetryable))
    );
    assert!(error.source().unwrap().is::<fmt::Error>());
}

#[tokio::test(start_paused = true)]
async fn a_hook_works_on_events_too() {
    let deps = Dependencies::builder(policy().build().unwrap())
        .with_locate(|_: &Event| "orders".into())
        .with_classifier(
            |outcome: Result<&u32, &(dyn Error + 'static)>| match outcome {
                Ok(_) => Verdict::SUCCESS,
                Err(_) => Verdict::transient(Cause::Unknown),
            },
        )
        .build();
    let handler = service_fn(|event: Event| async move {
        match event.0 {
            0..3 => Err(BoxError::from("too few")),
            enough => Ok(enough),
        }
    });
    let hook = |event: Event, attempt: Attempt| async move {
        Ok::<_, BoxError>(Event(event.0 + attempt.previous()))
    };
    let layer = RetryLayer::new(deps).cloning().with_prepare(hook);
    assert_eq!(call(&mut layer.layer(handler), Event(0)).await.unwrap(), 3);
}
