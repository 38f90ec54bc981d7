//! Classification decides which results are retried.

use std::{error::Error, io};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use tower::{Layer, ServiceBuilder};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, Policy, RetryLayer,
    call::{Cause, Guidance, Health, Retryable, StopReason, Verdict},
    classify::{Classify, Rules, Standard},
    dependency::BreakerState,
    error::Rule,
};

use crate::{
    setup::{HOST, client, get, grpc, policy, request},
    support::{
        call, code, deps, outcome,
        scripted::{Server, Step},
        secs, stop_reason,
    },
};

#[tokio::test(start_paused = true)]
async fn c_1_of_all_statuses_only_the_listed_are_retried_and_425_once() {
    for code in 400..=599 {
        let server = Server::steps(move |_| Step::status(code));
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

#[tokio::test(start_paused = true)]
async fn c_10_a_cause_is_counted_by_what_it_is_whatever_came_between() {
    // Each is retried once. More than four share a count.
    let once = |outcome: Result<&Response<Bytes>, &(dyn Error + 'static)>| match outcome {
        Ok(response) if response.status() != 200 => {
            Verdict::transient(Cause::Status(response.status())).retry(Retryable::MaxPerCause(1))
        }
        _ => Verdict::SUCCESS,
    };
    for (statuses, calls) in [
        (&[425, 502, 425][..], 3),
        (&[425, 502, 503, 502], 4),
        (&[425, 502, 503, 504, 200], 5),
        (&[425, 502, 503, 504, 425], 5),
        (&[425, 502, 503, 504, 500], 5),
    ] {
        let server = Server::steps(move |n| Step::status(statuses[n]));
        let policy = policy().max_retries(9).approve(Rule::R2, "test");
        let deps = Dependencies::builder(policy.build().unwrap())
            .with_classifier(once)
            .build();
        let mut client = RetryLayer::new(deps).layer(server.clone());
        let _ = call(&mut client, get()).await;
        assert_eq!(server.calls(), calls, "{statuses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn c_2_grpc_statuses_in_the_headers_are_retried_by_their_table() {
    let codes = [
        "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14",
    ];
    for code in codes.into_iter().chain(["15", "16", "99", "+14", "x", ""]) {
        let server = Server::steps(move |_| Step::with_header(200, "grpc-status", code));
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
        let server = Server::steps(move |_| refused());
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
        let server = Server::steps(move |_| Step::with_header(503, "idempotent-replayed", value));
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
        let server = Server::steps(move |_| match grpc {
            "" => Step::status(status),
            grpc => Step::with_header(status, "grpc-status", grpc),
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
