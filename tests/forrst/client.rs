//! A client's obedience to a server's guidance about calling again.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::{ServiceBuilder, service_fn};
use tower_reprise::{
    Dependencies, IdempotencyKeyLayer, PeekLayer, Policy, RetryAfterLayer, RetryLayer,
    call::{Attempt, StopReason},
    classify::Codes,
    error::BoxError,
    forrst::RetryGuidanceLayer,
    policy::PolicyBuilder,
};

use crate::support::{call, outcome};

const SECOND: Duration = Duration::from_secs(1);

/// Time enough for any wait, as many retries as are allowed, and hardly a backoff, so that waits
/// are what the server asks for.
pub(crate) fn patient() -> PolicyBuilder {
    Policy::events()
        .max_retries(10)
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(1))
        .retry_after_spread(Duration::ZERO)
        .codes(Codes::forrst())
}

fn reply(status: u16, envelope: &Value) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Full::new(envelope.to_string().into()))
        .unwrap()
}

fn envelope(code: &str, extensions: Value) -> Value {
    let mut envelope = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "req_1",
        "result": null,
        "errors": [{"code": code, "message": "no"}],
    });
    envelope["extensions"] = extensions;
    envelope
}

fn guided(code: &str, data: Value) -> Value {
    let mut extension = json!({"urn": "urn:forrst:ext:retry"});
    extension["data"] = data;
    envelope(code, json!([extension]))
}

fn post() -> Request<Full<Bytes>> {
    Request::post("http://api.example/forrst")
        .body(Full::default())
        .unwrap()
}

/// The result of a call: the waits between its attempts, and the reason that there were no more.
#[derive(Debug, PartialEq)]
pub(crate) struct Called {
    pub(crate) waits: Vec<Duration>,
    pub(crate) stop_reason: Option<StopReason>,
}

impl Called {
    pub(crate) fn seconds(&self) -> Vec<u64> {
        // Backoffs are shorter than a second, and count as 0.
        self.waits.iter().map(Duration::as_secs).collect()
    }
}

/// Calls something that replies so to the attempt of each number.
pub(crate) async fn run(
    policy: PolicyBuilder,
    reply: impl Fn(usize) -> Response<Full<Bytes>>,
) -> Called {
    let deps = Dependencies::new(policy.build().unwrap());
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let replies: Vec<_> = (0..12).map(reply).collect();
    let server = {
        let times = Arc::clone(&times);
        service_fn(move |_: Request<Full<Bytes>>| {
            let mut times = times.lock().unwrap();
            let reply = replies[times.len()].clone();
            times.push(Instant::now());
            async { Ok::<_, Infallible>(reply) }
        })
    };
    let mut client = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new())
        .layer(RetryLayer::new(deps.clone()))
        .layer(RetryAfterLayer::new(deps.clone()))
        .layer(PeekLayer::new(deps))
        .service(server);
    let result = call(&mut client, post()).await;
    let stop_reason = outcome(&result).and_then(|(_, why)| why);
    let body = result.unwrap().into_body().collect().await;
    assert!(!body.unwrap().to_bytes().is_empty(), "the reply is whole");
    let times = times.lock().unwrap();
    Called {
        waits: times.windows(2).map(|pair| pair[1] - pair[0]).collect(),
        stop_reason,
    }
}

/// The whole table, as our own server tells it, whatever the status is.
#[tokio::test(start_paused = true)]
async fn ra_6_the_guidance_of_our_server_is_obeyed_for_every_code() {
    let cases: [(&str, &[u64]); 20] = [
        ("RATE_LIMITED", &[60, 60, 60]),
        ("UNAVAILABLE", &[1, 2, 4, 8, 16]),
        ("DEADLINE_EXCEEDED", &[0]),
        ("INTERNAL_ERROR", &[1, 2, 4]),
        ("DEPENDENCY_ERROR", &[2, 4, 8]),
        ("IDEMPOTENCY_PROCESSING", &[1, 1, 1]),
        ("SERVER_MAINTENANCE", &[60]),
        ("FUNCTION_MAINTENANCE", &[60]),
        ("FUNCTION_DISABLED", &[30, 30]),
        ("INVALID_ARGUMENTS", &[]),
        ("NOT_FOUND", &[]),
        ("UNAUTHORIZED", &[]),
        ("FORBIDDEN", &[]),
        ("CANCELLED", &[]),
        ("VALIDATION_ERROR", &[]),
        ("IDEMPOTENCY_CONFLICT", &[]),
        ("REPLAY_NOT_FOUND", &[]),
        ("REPLAY_EXPIRED", &[]),
        ("REPLAY_ALREADY_COMPLETE", &[]),
        ("REPLAY_CANCELLED", &[]),
    ];
    for (code, waits) in cases {
        for status in [200, 400, 409, 503] {
            let told = tell(reply(status, &envelope(code, json!([])))).await;
            let called = run(patient(), |_| told.clone()).await;
            assert_eq!(called.seconds(), waits, "{code} {status}");
            let why = match waits.is_empty() {
                true => StopReason::Pushback,
                false => StopReason::Exhausted,
            };
            assert_eq!(called.stop_reason, Some(why), "{code} {status}");
        }
    }
}

/// Returns a reply after our own server's layer has added its guidance.
async fn tell(reply: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    let handler = service_fn(move |_: Request<()>| {
        let reply = reply.clone();
        async { Ok::<_, BoxError>(reply) }
    });
    let mut server = ServiceBuilder::new()
        .layer(RetryGuidanceLayer::new().http_retry_after(None))
        .service(handler);
    let (head, body) = call(&mut server, Request::new(()))
        .await
        .unwrap()
        .into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(head, Full::new(body))
}

#[tokio::test(start_paused = true)]
async fn section_0_floors_by_strategy() {
    let after = json!({"value": 3, "unit": "second"});
    for (strategy, waits) in [
        (json!("immediate"), [0, 0, 0]),
        (json!("fixed"), [3, 3, 3]),
        (json!("exponential"), [3, 6, 12]),
        (Value::Null, [3, 3, 3]),
    ] {
        let mut data = json!({"allowed": true, "after": after, "max_attempts": 3});
        data["strategy"] = strategy;
        let called = run(patient(), |_| {
            reply(500, &guided("INTERNAL_ERROR", data.clone()))
        })
        .await;
        assert_eq!(called.seconds(), waits, "{data}");
    }
}

/// Section 0: without `after` a second is the floor, as in the loop of the specification.
#[tokio::test(start_paused = true)]
async fn section_0_a_second_is_the_floor_where_after_is_absent() {
    for (strategy, waits) in [
        (json!("immediate"), [0, 0, 0]),
        (json!("fixed"), [1, 1, 1]),
        (json!("exponential"), [1, 2, 4]),
        (Value::Null, [0, 0, 0]),
    ] {
        let mut data = json!({"allowed": true, "max_attempts": 3});
        data["strategy"] = strategy;
        let envelope = guided("INTERNAL_ERROR", data.clone());
        let called = run(patient(), |_| reply(500, &envelope)).await;
        assert_eq!(called.seconds(), waits, "{data}");
    }
}

/// RA-6: where there is no retry extension, the reset of a limit that was reached is the floor.
#[tokio::test(start_paused = true)]
async fn ra_6_the_reset_of_a_limit_is_the_floor_without_guidance() {
    let seconds = |value: u64| json!({"value": value, "unit": "second"});
    for (code, remaining, details, waits) in [
        ("RATE_LIMITED", json!(0), Value::Null, &[45, 45, 45][..]),
        ("RATE_LIMITED", Value::Null, Value::Null, &[45, 45, 45]),
        ("DEPENDENCY_ERROR", json!(0), Value::Null, &[45, 45, 45]),
        ("DEPENDENCY_ERROR", json!(7), Value::Null, &[0, 0, 0]),
        ("RATE_LIMITED", json!(0), seconds(60), &[60, 60, 60]),
        ("RATE_LIMITED", json!(0), seconds(2), &[45, 45, 45]),
    ] {
        let data = json!({"limit": 100, "remaining": remaining, "reset": seconds(45)});
        let limit = json!([{"urn": "urn:cline:forrst:ext:rate-limit", "data": data}]);
        let mut envelope = envelope(code, limit);
        envelope["errors"][0]["details"] = json!({"retry_after": details});
        let called = run(patient(), |_| reply(200, &envelope)).await;
        assert_eq!(called.seconds(), waits, "{code} {remaining} {details}");
    }
}

/// Section 0: the wait is the larger of the floor and the backoff, and a little is added.
#[tokio::test(start_paused = true)]
async fn section_0_a_floor_is_no_interval() {
    let data = json!({"allowed": true, "strategy": "fixed", "after": {"value": 5, "unit": "second"}, "max_attempts": 10});
    let longer = patient().base(SECOND * 20).cap(SECOND * 30);
    let longer = longer.retry_after_spread(SECOND);
    let mut waits = Vec::new();
    for _ in 0..5 {
        let data = &data;
        let called = run(longer.clone(), |_| {
            reply(500, &guided("BUSY", data.clone()))
        })
        .await;
        assert_eq!(called.waits.len(), 10);
        waits.extend(called.waits);
    }
    let most = SECOND * 30 + SECOND / 2;
    assert!(waits.iter().all(|w| (SECOND * 5..=most).contains(w)));
    assert!(waits.iter().any(|wait| *wait > SECOND * 6), "backoff");
    let near = waits.iter().filter(|wait| **wait < SECOND * 11 / 2);
    assert!(
        near.collect::<std::collections::HashSet<_>>().len() > 1,
        "spread"
    );
}

#[tokio::test(start_paused = true)]
async fn section_0_max_attempts_lowers_and_never_raises() {
    let data = |most: Value| {
        let mut data = json!({"allowed": true, "strategy": "immediate"});
        data["max_attempts"] = most;
        data
    };
    for (ours, theirs, retries) in [
        (4, json!(2), 2),
        (4, json!(0), 0),
        (4, json!(9), 4),
        (4, json!(1e300), 4),
        // As the table has it for this code, if nothing is said.
        (10, Value::Null, 5),
        (10, json!(7), 7),
    ] {
        let envelope = guided("UNAVAILABLE", data(theirs.clone()));
        let called = run(patient().max_retries(ours), |_| reply(503, &envelope)).await;
        assert_eq!(called.waits.len(), retries, "{ours} {theirs}");
        assert_eq!(called.stop_reason, Some(StopReason::Exhausted));
    }
    // All retries count, of whatever code.
    let called = run(patient(), |attempt| {
        let code = ["UNAVAILABLE", "INTERNAL_ERROR"][attempt % 2];
        reply(503, &guided(code, data(json!(3))))
    });
    assert_eq!(called.await.waits.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn ra_6_what_is_not_allowed_is_final() {
    let never = json!({"allowed": false});
    for (code, status) in [("UNAVAILABLE", 503), ("STRANGE", 503), ("STRANGE", 200)] {
        let called = run(patient(), |_| reply(status, &guided(code, never.clone()))).await;
        assert!(called.waits.is_empty(), "{code}");
        assert_eq!(
            called.stop_reason,
            Some(StopReason::Pushback),
            "{code} {status}"
        );
    }
    // However strange the rest of it is, and in the other spelling.
    let strange = json!({"allowed": false, "strategy": "lunar", "after": "soon"});
    let mut strange = guided("UNAVAILABLE", strange);
    strange["extensions"][0]["urn"] = json!("urn:cline:forrst:ext:retry");
    let called = run(patient(), |_| reply(503, &strange)).await;
    assert_eq!(called.stop_reason, Some(StopReason::Pushback));
}

#[tokio::test(start_paused = true)]
async fn ra_6_what_is_allowed_is_so_where_no_rule_forbids_it() {
    let allowed = json!({"allowed": true, "strategy": "fixed", "after": {"value": 2, "unit": "second"}, "max_attempts": 2});
    for (code, status, waits) in [
        ("STRANGE", 200, &[2, 2][..]),
        ("STRANGE", 503, &[2, 2]),
        // R-4 comes before what a server says of a code that no table has.
        ("STRANGE", 400, &[]),
        ("STRANGE", 422, &[]),
        ("STRANGE", 501, &[]),
        // Section 0: a 409 only when the first request is still processing.
        ("STRANGE", 409, &[]),
        ("IDEMPOTENCY_PROCESSING", 409, &[2, 2]),
        ("IDEMPOTENCY_CONFLICT", 409, &[]),
        ("IDEMPOTENCY_CONFLICT", 503, &[]),
        ("VALIDATION_ERROR", 400, &[]),
    ] {
        let called = run(patient(), |_| reply(status, &guided(code, allowed.clone()))).await;
        assert_eq!(called.seconds(), waits, "{code} {status}");
    }
    // C-7: a store's reply is final whatever it says.
    let called = run(patient(), |_| {
        let mut reply = reply(200, &guided("STRANGE", allowed.clone()));
        let headers = reply.headers_mut();
        headers.insert("idempotent-replayed", "true".parse().unwrap());
        reply
    });
    assert!(called.await.waits.is_empty());
    let mut cached = guided("UNAVAILABLE", allowed.clone());
    let more = json!({"urn": "urn:forrst:ext:idempotency", "data": {"status": "cached"}});
    cached["extensions"].as_array_mut().unwrap().push(more);
    let called = run(patient(), |_| reply(503, &cached)).await;
    assert_eq!(
        (called.waits, called.stop_reason),
        (vec![], Some(StopReason::NotRetryable))
    );
}

#[tokio::test(start_paused = true)]
async fn ra_6_the_largest_floor_wins() {
    let data = json!({"allowed": true, "strategy": "exponential", "after": {"value": 2, "unit": "second"}, "max_attempts": 4});
    let called = run(patient(), |_| {
        let mut reply = reply(503, &guided("UNAVAILABLE", data.clone()));
        reply.headers_mut().insert("retry-after", 7.into());
        reply
    });
    assert_eq!(called.await.seconds(), [7, 7, 8, 16]);
    // But x-should-retry decides alone.
    let called = run(patient(), |_| {
        let mut reply = reply(503, &guided("UNAVAILABLE", data.clone()));
        let headers = reply.headers_mut();
        headers.insert("x-should-retry", "false".parse().unwrap());
        reply
    });
    assert_eq!(called.await.stop_reason, Some(StopReason::Pushback));
}

#[tokio::test(start_paused = true)]
async fn ra_7_a_wait_that_is_too_long_is_not_begun() {
    let data = json!({"allowed": true, "strategy": "fixed", "after": {"value": 99999999999999999999.0, "unit": "day"}});
    let began = Instant::now();
    for policy in [patient(), Policy::http().codes(Codes::forrst())] {
        let called = run(policy, |_| reply(503, &guided("UNAVAILABLE", data.clone()))).await;
        assert_eq!(called.stop_reason, Some(StopReason::Deadline));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn c_6_without_guidance_the_table_decides() {
    let mut processing = envelope("IDEMPOTENCY_PROCESSING", json!([]));
    let called = run(patient(), |_| reply(409, &processing)).await;
    assert_eq!(called.seconds(), [0, 0, 0]);
    // An error may say itself how long to wait.
    processing["errors"][0]["details"] = json!({"retry_after": {"value": 4, "unit": "second"}});
    let called = run(patient(), |_| reply(409, &processing)).await;
    assert_eq!(called.seconds(), [4, 4, 4]);
    // Guidance that can't be read is ignored.
    for data in [json!(null), json!({}), json!({"allowed": "no"}), json!([])] {
        let called = run(patient(), |_| {
            reply(503, &guided("INTERNAL_ERROR", data.clone()))
        })
        .await;
        assert_eq!(called.seconds(), [0, 0, 0], "{data}");
    }
    // Nor is it read where nothing failed.
    let mut success = guided("UNAVAILABLE", json!({"allowed": true}));
    success["errors"] = json!([]);
    let called = run(patient(), |_| reply(200, &success)).await;
    assert_eq!((called.waits, called.stop_reason), (vec![], None));
}

/// RA-9 is for what a response asks of everybody; a body speaks to one call.
#[tokio::test(start_paused = true)]
async fn ra_9_a_body_holds_no_other_call_back() {
    let data = json!({"allowed": true, "strategy": "fixed", "after": {"value": 9, "unit": "second"}, "max_attempts": 1});
    let deps = Dependencies::new(patient().build().unwrap());
    let disabled = reply(503, &guided("FUNCTION_DISABLED", data));
    let server = service_fn(move |request: Request<Full<Bytes>>| {
        let reply = match request.uri().path() {
            "/disabled" => disabled.clone(),
            _ => Response::new(Full::from("fine")),
        };
        async { Ok::<_, Infallible>(reply) }
    });
    let mut client = ServiceBuilder::new()
        .layer(RetryAfterLayer::new(deps.clone()))
        .layer(PeekLayer::new(deps))
        .service(server);
    let began = Instant::now();
    for path in ["/disabled", "/other"] {
        let request = Request::get(format!("http://api.example{path}"));
        let request = request.body(Full::default()).unwrap();
        call(&mut client, request).await.unwrap();
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// S-1: servers say of every 401 that a retry is not allowed, but one with new credentials is
/// another request.
#[tokio::test(start_paused = true)]
async fn s_1_new_credentials_are_tried_once_even_so() {
    let deps = Dependencies::new(patient().build().unwrap());
    let refused = reply(401, &guided("UNAUTHORIZED", json!({"allowed": false})));
    let server = service_fn(move |request: Request<Full<Bytes>>| {
        let reply = match request.headers()["authorization"].as_bytes() {
            b"Bearer new" => Response::new(Full::from("fine")),
            _ => refused.clone(),
        };
        async { Ok::<_, Infallible>(reply) }
    });
    let refresh = |mut request: Request<Full<Bytes>>, _: Attempt| async {
        let headers = request.headers_mut();
        headers.insert("authorization", "Bearer new".parse()?);
        Ok::<_, BoxError>(request)
    };
    let mut client = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new())
        .layer(RetryLayer::new(deps.clone()).with_refresh(refresh))
        .layer(PeekLayer::new(deps))
        .service(server);
    let mut request = post();
    let headers = request.headers_mut();
    headers.insert("authorization", "Bearer old".parse().unwrap());
    let result = call(&mut client, request).await;
    assert_eq!(outcome(&result), Some((2, None)));
}
