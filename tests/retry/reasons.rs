//! The reason for which a call is not retried any more, and the result that it returns.

use std::{
    error::Error,
    io,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, Version};
use tokio::time::Instant;
use tower::{Layer, util::BoxCloneService};
use tower_reprise::{
    CircuitBreakerLayer, RetryLayer,
    call::{RetryError, StopReason},
    error::{BoxError, Refusal, Refused},
};

use crate::{
    setup::{Client, HOST, Marked, client, get, policy, request},
    support::{
        Fixed, call, code, deps, outcome,
        scripted::{Server, Step},
        secs, stop_reason,
    },
};

/// A client that gives up for that reason, if its attempts fail in a way that is worth a retry.
fn gives_up(reason: StopReason, server: Server) -> (Client, Request<()>) {
    let policy = policy().backoff(Fixed(secs(1)));
    let policy = match reason {
        StopReason::Deadline => policy.total_timeout(secs(1)),
        StopReason::Budget => policy.budget_ratio(0.0).budget_floor(0),
        StopReason::Breaker => policy.consecutive_failures(1).cooldown(secs(9), secs(9)),
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
    let mut request = request(method);
    if reason == StopReason::NotReplayable {
        // A head that is too large to be kept.
        let value = HeaderValue::from_bytes(&[b'v'; 64 * 1024]).unwrap();
        request.headers_mut().insert("x-large", value);
    }
    (client, request)
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
        let server = Server::steps(move |n| {
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
        let server = Server::steps({
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
    let server = Server::steps(|n| match n {
        0 => Step::status(503),
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
        let server = Server::steps(move |n| match n {
            0 => Step::status(503),
            _ => Step::Fail(Refused::new(refusal, HOST, None).into()),
        });
        let (_, mut client) = client(policy(), &server);
        let result = call(&mut client, get()).await;
        assert_eq!((code(&result), stop_reason(&result)), (503, Some(reason)));
    }
}
