//! The deadline of a call, and the timeout of an attempt.

use std::{
    convert::Infallible,
    future::{Future, pending},
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep, advance, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_reprise::{
    RetryLayer,
    call::StopReason,
    error::{BoxError, Elapsed},
};

use crate::{
    setup::{HOST, MILLISECOND, client, get, policy, request},
    support::{
        Fixed, call, code, deps, find, outcome,
        scripted::{Server, Step},
        secs, stop_reason,
    },
};

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
    let server = Server::steps(|_| Step::status(503).after(secs(4)));
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
    let server = Server::steps(|n| {
        if n == 0 {
            Step::status(503)
        } else {
            Step::Never
        }
    });
    let (_, mut client) = client(policy().total_timeout(secs(5)), &server);
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!(start.elapsed(), secs(5));
    assert_eq!((code(&result), server.calls()), (503, 2));
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Deadline))));
}

#[tokio::test(start_paused = true)]
async fn d_1_a_stalled_attempt_is_clipped_and_the_earlier_error_returns() {
    let server = Server::steps(|n| if n == 0 { Step::reset() } else { Step::Never });
    let (_, mut client) = client(policy().total_timeout(secs(5)), &server);
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::Deadline))));
    let error = result.unwrap_err();
    let io = find::<io::Error>(&*error).expect("the real error");
    assert_eq!(io.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn d_1_a_first_attempt_that_stalls_is_an_elapsed_call() {
    let server = Server::steps(|_| Step::Never);
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
    let server = Server::steps(|_| Step::status(503).after(secs(1)));
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
    let server = Server::steps(|n| {
        if n < 2 {
            Step::Never
        } else {
            Step::status(200)
        }
    });
    let policy = policy().attempt_timeout(secs(3)).backoff(Fixed(secs(1)));
    let (_, mut client) = client(policy, &server);
    let start = Instant::now();
    let result = call(&mut client, get()).await;
    assert_eq!((code(&result), outcome(&result)), (200, Some((3, None))));
    assert_eq!(start.elapsed(), secs(8));
}

#[tokio::test(start_paused = true)]
async fn d_3_attempts_that_all_take_too_long_end_in_an_elapsed_attempt() {
    let server = Server::steps(|_| Step::Never);
    let (_, mut client) = client(policy().attempt_timeout(secs(1)), &server);
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((4, Some(StopReason::Exhausted))));
    let error = result.unwrap_err();
    let elapsed = find::<Elapsed>(&*error).expect("elapsed");
    assert_eq!((elapsed.is_whole_call(), elapsed.limit()), (false, secs(1)));
}

#[tokio::test(start_paused = true)]
async fn d_3_the_last_attempt_is_clipped_by_the_deadline_before_its_own_time() {
    let server = Server::steps(|_| Step::Never);
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
    let server = Server::steps(|_| Step::Never);
    let (_, mut client) = client(policy().attempt_timeout(secs(1)), &server);
    let result = call(&mut client, request(Method::POST)).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotIdempotent))));
}
