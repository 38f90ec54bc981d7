//! A handler that calls another service, more than once if need be: what the last attempt says is
//! not what became of the call. I-12, I-14.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    Dependencies, IdempotencyKeyLayer, Policy, RetryLayer, RetryOutcome,
    call::StopReason,
    error::BoxError,
    server::idempotency::{IdempotencyLayer, ServerErrors},
    store::{CrashPolicy, MemoryStore},
};

use crate::setup::{LEASE, SECOND};

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy)]
enum Meets {
    Status(u16),
    /// A 503 that says when to come back.
    Busy,
    /// It arrived, and then the connection was reset.
    Reset,
    /// Nobody listens.
    Refused,
    /// There is no answer, ever.
    Silence,
}
use Meets::{Busy, Refused, Reset, Silence, Status};

/// A service that meets these, and then succeeds.
fn upstream(
    meets: &[Meets],
) -> BoxCloneService<Request<Full<Bytes>>, Response<Full<Bytes>>, BoxError> {
    let script = Arc::new(Mutex::new(VecDeque::from(meets.to_vec())));
    let answer = move |_| {
        let next = script.lock().unwrap().pop_front();
        async move {
            let failed = |kind: io::ErrorKind| Err(BoxError::from(io::Error::from(kind)));
            let status = match next {
                None => 200,
                Some(Status(status)) => status,
                Some(Busy) => 503,
                Some(Reset) => return failed(io::ErrorKind::ConnectionReset),
                Some(Refused) => return failed(io::ErrorKind::ConnectionRefused),
                Some(Silence) => std::future::pending().await,
            };
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            if let Some(Busy) = next {
                let headers = response.headers_mut();
                headers.insert("retry-after", "1".parse().unwrap());
            }
            Ok(response)
        }
    };
    let policy = Policy::http().service("shop").build().unwrap();
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(RetryLayer::new(Dependencies::new(policy)))
            .service(service_fn(answer)),
    )
}

fn post() -> Request<Full<Bytes>> {
    let request = Request::post("http://bank.example/pay").header("idempotency-key", "k");
    request.body(Full::default()).unwrap()
}

/// Returns the replies to two repeats, one at once and one after the lease.
async fn repeats(
    errors: ServerErrors,
    crash_policy: CrashPolicy,
    meets: &[Meets],
) -> [(u16, String); 2] {
    let layer = IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::new(|_| Some("everybody")))
        .crash_policy(crash_policy)
        .server_errors(errors);
    let app = ServiceBuilder::new()
        .layer(layer.build().unwrap())
        .service(upstream(meets));
    let call = async || {
        let response = app.clone().oneshot(post()).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let problem: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        let name = problem.and_then(|it| Some(it["type"].as_str()?.to_owned()));
        let name = name.unwrap_or_default();
        let name = name.trim_start_matches("urn:tower-reprise:problem:idempotency-");
        Ok::<_, BoxError>((status, name.to_owned()))
    };
    let first = call().await;
    assert!(
        first.as_ref().map_or(500, |(status, _)| *status) >= 400,
        "{meets:?}: {first:?}"
    );
    let again = call().await.unwrap();
    tokio::time::advance(LEASE + SECOND).await;
    [again, call().await.unwrap()]
}

/// I-12: nothing was executed, however often it was tried, so that a repeat is.
#[tokio::test(start_paused = true)]
async fn i_12_a_call_that_no_attempt_of_was_processed_is_released() {
    use ServerErrors::{Keep, KeepAll, ReleaseAll};
    let cases: [(ServerErrors, &[Meets]); 8] = [
        (Keep, &[Refused, Refused, Refused, Refused]),
        (Keep, &[Busy, Busy, Busy, Busy]),
        (Keep, &[Busy, Status(429), Refused, Refused]),
        (Keep, &[Refused, Status(429), Refused, Busy]),
        (KeepAll, &[Refused, Status(429), Status(429), Status(429)]),
        (
            ReleaseAll,
            &[Status(500), Status(502), Refused, Status(504)],
        ),
        (
            ReleaseAll,
            &[Status(500), Status(502), Status(500), Status(503)],
        ),
        // Not retried at all.
        (Keep, &[Status(401)]),
    ];
    for (errors, meets) in cases {
        let [again, _] = repeats(errors, CrashPolicy::Unknown, meets).await;
        assert_eq!(again, (200, String::new()), "{errors:?} {meets:?}");
    }
}

/// I-14: one of the attempts may have been processed, and the last knows nothing of it.
#[tokio::test(start_paused = true)]
async fn i_14_a_call_that_an_attempt_of_may_have_been_processed_is_not_released() {
    use ServerErrors::{Keep, KeepAll, ReleaseAll};
    let unknown = (409, "outcome-unknown".to_owned());
    let responses: [(ServerErrors, &[Meets]); 8] = [
        (Keep, &[Reset, Busy, Busy, Busy]),
        (Keep, &[Busy, Reset, Refused, Status(429)]),
        (Keep, &[Status(502), Busy, Busy, Busy]),
        (Keep, &[Status(503), Busy, Busy, Busy]),
        (Keep, &[Busy, Busy, Busy, Status(503)]),
        (
            KeepAll,
            &[Status(503), Status(429), Status(429), Status(429)],
        ),
        (ReleaseAll, &[Status(500), Reset, Status(500), Status(500)]),
        // The second is given up, but not taken back.
        (Keep, &[Busy, Silence]),
    ];
    for (errors, meets) in responses {
        let answers = repeats(errors, CrashPolicy::Unknown, meets).await;
        assert_eq!(
            answers,
            [unknown.clone(), unknown.clone()],
            "{errors:?} {meets:?}"
        );
        let [again, _] = repeats(errors, CrashPolicy::Reexecute, meets).await;
        assert_eq!(again.0, 200, "{errors:?} {meets:?}");
    }
    let processing = (409, "processing".to_owned());
    let errors: [(ServerErrors, &[Meets]); 4] = [
        (Keep, &[Reset, Refused, Refused, Refused]),
        (Keep, &[Refused, Status(500), Refused, Refused]),
        (KeepAll, &[Status(503), Refused, Refused, Refused]),
        (Keep, &[Refused, Silence]),
    ];
    for (errors, meets) in errors {
        let answers = repeats(errors, CrashPolicy::Unknown, meets).await;
        assert_eq!(
            answers,
            [processing.clone(), unknown.clone()],
            "{errors:?} {meets:?}"
        );
    }
}

/// The outcome of a call through the client stack, without any idempotency layer.
#[tokio::test(start_paused = true)]
async fn c_4_the_outcome_of_a_call_tells_whether_an_attempt_before_may_have_been_processed() {
    let in_doubt = async |meets: &[Meets]| {
        let outcome = match upstream(meets).oneshot(post()).await {
            Ok(response) => *RetryOutcome::of(&response).unwrap(),
            Err(error) => *RetryOutcome::of_error(&*error).unwrap(),
        };
        (outcome.attempts(), outcome.in_doubt())
    };
    assert_eq!(
        in_doubt(&[Reset, Refused, Refused, Refused]).await,
        (4, true)
    );
    assert_eq!(
        in_doubt(&[Refused, Refused, Refused, Reset]).await,
        (4, false)
    );
    assert_eq!(in_doubt(&[Busy, Status(429)]).await, (3, false));
    assert_eq!(in_doubt(&[Status(503)]).await, (2, true));
    assert_eq!(in_doubt(&[Status(500)]).await, (2, true));
    assert_eq!(in_doubt(&[Silence]).await, (1, false));
    assert_eq!(in_doubt(&[Refused, Silence]).await, (2, true));
    assert_eq!(in_doubt(&[Status(404)]).await, (1, false));
}

/// a call whose key is stamped below has another key each time that it is repeated from above.
#[tokio::test(start_paused = true)]
async fn c_4_c_5_a_retry_above_a_retry_knows_what_the_one_below_did() {
    let why = async |meets: &[Meets]| {
        let policy = Policy::http().service("outer").max_retries(1);
        let outer = ServiceBuilder::new()
            .layer(RetryLayer::new(Dependencies::new(policy.build().unwrap())))
            .layer(IdempotencyKeyLayer::new())
            .service(upstream(meets));
        let mut request = post();
        request.headers_mut().clear();
        let error = outer.oneshot(request).await.unwrap_err();
        RetryOutcome::of_error(&*error).unwrap().stop_reason()
    };
    let never_sent = [Refused; 8];
    assert_eq!(why(&never_sent).await, Some(StopReason::Exhausted));
    let lost = [Reset, Refused, Refused, Refused];
    assert_eq!(why(&lost).await, Some(StopReason::NotIdempotent));
}
