//! The replies that are kept and replayed, and those that are not: I-8 to I-13, I-17, I-18.

use http::{HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};
use tower_reprise::{
    server::idempotency::{HandlerOutcome, ServerErrors},
    store::{CrashPolicy, MemoryStore},
};

use crate::setup::{
    Answer, Builder, DAY, Frames, Handler, SECOND, Server, builder, keyless, post, send, status,
};

fn in_memory() -> Builder {
    builder(MemoryStore::new(), CrashPolicy::Reexecute)
}

/// The first reply, and the one to a repeat.
async fn twice(server: &Server) -> (Answer, Answer) {
    (send(server, post("k")).await, send(server, post("k")).await)
}

#[tokio::test(start_paused = true)]
async fn i_8_the_same_reply() {
    let handler = Handler::new();
    let server = handler.serve(in_memory(), |run| {
        let response = Response::builder()
            .status(201)
            .header("location", format!("/payments/{run}"))
            .header("x-many", "a, b")
            .header("x-many", "c")
            .header("x-bytes", HeaderValue::from_bytes(b"\xe4").unwrap())
            .header("content-type", "application/json");
        let body = Frames::default().data("{\"id\":").data(format!("{run}}}"));
        response.body(body).unwrap()
    });
    let (first, again) = twice(&server).await;
    assert!(!first.is_replayed());
    assert!(again.is_replayed());
    for answer in [&first, &again] {
        assert_eq!((answer.status, &*answer.body), (201, "{\"id\":1}"));
        let many: Vec<_> = answer.headers.get_all("x-many").iter().collect();
        assert_eq!(many, ["a, b", "c"]);
        assert_eq!(answer.headers["x-bytes"].as_bytes(), b"\xe4");
        assert_eq!(answer.headers["location"], "/payments/1");
        assert_eq!(answer.headers["content-type"], "application/json");
    }
    assert_eq!(again.headers.len(), first.headers.len() + 1);
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn i_8_a_reply_without_a_body() {
    let server = Handler::new().serve(in_memory(), |_| {
        let mut response = Response::new(Frames::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    });
    let (first, again) = twice(&server).await;
    assert_eq!((first.status, again.status), (204, 204));
    assert!(again.is_replayed() && again.body.is_empty() && again.trailers.is_none());
}

#[tokio::test(start_paused = true)]
async fn i_9_what_belongs_to_a_connection_a_caller_or_a_moment() {
    const PASSING: &[&str] = &[
        "connection",
        "x-named",
        "x-named-too",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-authentication-info",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
        "via",
        "set-cookie",
        "set-cookie2",
        "www-authenticate",
        "authentication-info",
        "date",
        "age",
        "server-timing",
        "traceparent",
        "tracestate",
        "traceresponse",
        "baggage",
        "b3",
        "x-b3-traceid",
        "x-b3-spanid",
        "x-request-id",
        "request-id",
        "x-correlation-id",
        "x-trace-id",
        "x-amzn-requestid",
        "x-amzn-trace-id",
        "x-cloud-trace-context",
        "x-mine",
    ];
    let server = Handler::new().serve(in_memory().unstored(["x-mine".parse().unwrap()]), |_| {
        let mut response = Response::builder().header("x-kept", "kept");
        for name in PASSING {
            let value = match *name {
                "connection" => "close, X-Named ,x-named-too",
                _ => "value",
            };
            response = response.header(*name, value);
        }
        response.body(Frames::from("body")).unwrap()
    });
    let (first, again) = twice(&server).await;
    for name in PASSING {
        assert!(first.headers.contains_key(*name), "{name} is the handler's");
        assert!(!again.headers.contains_key(*name), "{name} was stored");
    }
    assert_eq!(again.headers["x-kept"], "kept");
    assert_eq!(again.headers.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn i_10_trailers() {
    let server = Handler::new().serve(in_memory(), |_| {
        let body = Frames::from("body").trailer("x-checksum", "abc");
        Response::new(body.trailer("set-cookie", "a=b"))
    });
    let (first, again) = twice(&server).await;
    assert_eq!(first.trailers.unwrap().len(), 2);
    let trailers = again.trailers.unwrap();
    assert_eq!(trailers["x-checksum"], "abc");
    assert_eq!(trailers.len(), 1, "a cookie is not stored there either");
}

fn grpc(body: Frames, header: Option<&'static str>) -> Response<Frames> {
    let response = Response::builder().header("content-type", "application/grpc");
    let response = match header {
        Some(status) => response.header("grpc-status", status),
        None => response,
    };
    response.body(body).unwrap()
}

/// I-10, I-12: for gRPC the status is in the trailers, and it decides.
#[tokio::test(start_paused = true)]
async fn i_10_the_grpc_status_decides() {
    const RELEASED: [&str; 3] = ["8", "14", "16"];
    let all: Vec<&'static str> = (0..17)
        .map(|n| &*Box::leak(n.to_string().into_boxed_str()))
        .collect();
    for status in all {
        for trailers_only in [false, true] {
            let handler = Handler::new();
            let server = handler.serve(in_memory(), move |_| match trailers_only {
                true => grpc(Frames::default(), Some(status)),
                false => grpc(Frames::from("msg").trailer("grpc-status", status), None),
            });
            let (first, again) = twice(&server).await;
            let runs = if RELEASED.contains(&status) { 2 } else { 1 };
            assert_eq!(handler.runs(), runs, "{status}, {trailers_only}");
            for answer in [first, again] {
                let place = match trailers_only {
                    true => answer.headers,
                    false => answer.trailers.unwrap(),
                };
                assert_eq!(place["grpc-status"], status);
            }
        }
    }
    // No status at all is no success, but it was executed.
    let handler = Handler::new();
    let server = handler.serve(in_memory(), |_| grpc(Frames::from("msg"), None));
    twice(&server).await;
    assert_eq!(handler.runs(), 1);
}

/// I-10: who speaks gRPC is refused in gRPC.
#[tokio::test(start_paused = true)]
async fn i_10_refusals_of_grpc_calls() {
    let server = Handler::new().serve(in_memory(), |_| {
        grpc(Frames::from("msg").trailer("grpc-status", "0"), None)
    });
    let call = |body: &'static str| {
        Request::post("/shop.Payments/Pay")
            .header("x-tenant", "alice")
            .header("content-type", "application/grpc+proto")
            .header("idempotency-key", "k")
            .body(Frames::from(body))
            .unwrap()
    };
    assert_eq!(send(&server, call("one")).await.status, 200);
    let refused = send(&server, call("two")).await;
    assert_eq!((refused.status, &*refused.body), (200, ""));
    assert_eq!(refused.headers["content-type"], "application/grpc");
    assert_eq!(refused.headers["grpc-status"], "3");
    assert_eq!(refused.headers["grpc-retry-pushback-ms"], "-1");

    let handler = Handler::held();
    let server = handler.serve(in_memory(), |_| status(200, ""));
    let first = crate::setup::start(&server, call("one"));
    crate::setup::settle().await;
    let processing = send(&server, call("one")).await;
    assert_eq!(processing.headers["grpc-status"], "10");
    assert_eq!(processing.headers["grpc-retry-pushback-ms"], "1000");
    handler.let_through(1);
    first.await.unwrap();
}

/// Returns the number of runs of a handler that always replies like this, for two requests.
async fn runs(
    builder: Builder,
    reply: impl Fn() -> Response<Frames> + Clone + Send + Sync + 'static,
) -> usize {
    let handler = Handler::new();
    let server = handler.serve(builder, move |_| reply());
    let (first, again) = twice(&server).await;
    assert_eq!(first.status, again.status);
    handler.runs()
}

/// I-11 and I-12: every status there is, without and with `Retry-After`. The outcome of a 408 and of
/// a bare 503 is unknown.
#[tokio::test(start_paused = true)]
async fn i_11_i_12_kept_or_released_by_status() {
    for code in 200..=599 {
        for comes_back in [false, true] {
            let handler = Handler::new();
            let careful = builder(MemoryStore::new(), CrashPolicy::Unknown);
            let server = handler.serve(careful, move |_| {
                let mut reply = status(code, "");
                let told = comes_back.then(|| (RETRY_AFTER, HeaderValue::from_static("1")));
                reply.headers_mut().extend(told);
                reply
            });
            let (first, again) = twice(&server).await;
            assert_eq!(first.status, code);
            let found = (handler.runs(), again.is_replayed(), again.problem());
            let unknown = Some("outcome-unknown".to_owned());
            let expected = match (code, comes_back) {
                (401 | 425 | 429, _) | (503, true) => (2, false, None),
                (408, _) | (503, false) => (1, false, unknown),
                _ => (1, true, None),
            };
            assert_eq!(found, expected, "{code} {comes_back}");
        }
    }
}

/// I-12: the user's word for statuses that prove nothing by themselves.
#[tokio::test(start_paused = true)]
async fn i_12_statuses_that_the_handler_means_nothing_done_by() {
    let careful = || builder(MemoryStore::new(), CrashPolicy::Unknown);
    let declared = |code| careful().no_effect_statuses([StatusCode::from_u16(code).unwrap()]);
    for code in [408, 503, 409] {
        assert_eq!(runs(declared(code), move || status(code, "")).await, 2);
    }
    let unavailable = || grpc(Frames::default(), Some("14"));
    assert_eq!(runs(declared(503), unavailable).await, 2);
    assert_eq!(
        runs(declared(503), || marked(503, HandlerOutcome::Committed)).await,
        1
    );
    let refused = careful().no_effect_statuses([StatusCode::OK]).build();
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("no_effect_statuses is 200"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn i_11_kept_for_a_day() {
    for code in [200, 404, 500] {
        let handler = Handler::new();
        let server = handler.serve(in_memory(), move |_| status(code, "kept"));
        send(&server, post("k")).await;
        tokio::time::advance(DAY - SECOND).await;
        assert!(send(&server, post("k")).await.is_replayed());
        tokio::time::advance(2 * SECOND).await;
        assert!(!send(&server, post("k")).await.is_replayed());
        assert_eq!(handler.runs(), 2);
    }
    let handler = Handler::new();
    let server = handler.count(in_memory().retention(7 * DAY));
    send(&server, post("k")).await;
    tokio::time::advance(7 * DAY - SECOND).await;
    assert!(send(&server, post("k")).await.is_replayed());
}

/// I-12: released at once, and not just when the lease ends; the first reply streams as it is.
#[tokio::test(start_paused = true)]
async fn i_12_a_retry_executes_at_once() {
    let handler = Handler::new();
    let server = handler.serve(in_memory(), |run| match run {
        1 => status(429, "slow down"),
        _ => status(200, "paid"),
    });
    let started = tokio::time::Instant::now();
    let (first, again) = twice(&server).await;
    assert_eq!((first.status, &*first.body), (429, "slow down"));
    assert_eq!((again.status, &*again.body), (200, "paid"));
    assert!(!again.is_replayed());
    assert_eq!(started.elapsed(), std::time::Duration::ZERO);
}

fn marked(code: u16, outcome: HandlerOutcome) -> Response<Frames> {
    let mut response = status(code, "");
    response.extensions_mut().insert(outcome);
    response
}

#[tokio::test(start_paused = true)]
async fn i_13_the_handler_knows_better() {
    let kept = async |code, outcome| runs(in_memory(), move || marked(code, outcome)).await == 1;
    for code in [200, 409, 500] {
        assert!(!kept(code, HandlerOutcome::NoEffect).await, "{code}");
    }
    for code in [401, 429, 503] {
        assert!(kept(code, HandlerOutcome::Committed).await, "{code}");
    }
    // gRPC too, whatever the trailers say.
    let mark = |outcome| {
        move || {
            let mut response = grpc(Frames::default().trailer("grpc-status", "14"), None);
            response.extensions_mut().insert(outcome);
            response
        }
    };
    assert_eq!(runs(in_memory(), mark(HandlerOutcome::Committed)).await, 1);
    assert_eq!(runs(in_memory(), mark(HandlerOutcome::NoEffect)).await, 2);
}

/// I-13: an outcome that the handler does not know is as that of one that vanished.
#[tokio::test(start_paused = true)]
async fn i_13_an_unknown_outcome_is_an_orphan() {
    let reply = || marked(502, HandlerOutcome::Unknown);
    assert_eq!(runs(in_memory(), reply).await, 2);

    let handler = Handler::new();
    let careful = builder(MemoryStore::new(), CrashPolicy::Unknown);
    let server = handler.serve(careful, move |_| reply());
    let (first, again) = twice(&server).await;
    assert_eq!(first.status, 502);
    assert_eq!(again.refusal(), (409, "outcome-unknown".into()));
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn i_13_the_policy_for_5xx() {
    for (policy, code, expected) in [
        (ServerErrors::Keep, 500, 1),
        (ServerErrors::Keep, 503, 2),
        (ServerErrors::KeepAll, 500, 1),
        (ServerErrors::KeepAll, 503, 1),
        (ServerErrors::KeepAll, 429, 2),
        (ServerErrors::ReleaseAll, 500, 2),
        (ServerErrors::ReleaseAll, 504, 2),
        (ServerErrors::ReleaseAll, 503, 2),
        (ServerErrors::ReleaseAll, 404, 1),
    ] {
        let builder = in_memory().server_errors(policy);
        let runs = runs(builder, move || status(code, "")).await;
        assert_eq!(runs, expected, "{policy:?} {code}");
    }
    for (policy, code, expected) in [
        (ServerErrors::KeepAll, "14", 1),
        (ServerErrors::KeepAll, "8", 2),
        (ServerErrors::ReleaseAll, "13", 2),
        (ServerErrors::ReleaseAll, "5", 1),
    ] {
        let builder = in_memory().server_errors(policy);
        let runs = runs(builder, move || grpc(Frames::default(), Some(code))).await;
        assert_eq!(runs, expected, "{policy:?} {code}");
    }
    // A mark goes before the policy.
    let builder = in_memory().server_errors(ServerErrors::ReleaseAll);
    assert_eq!(
        runs(builder, || marked(500, HandlerOutcome::Committed)).await,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn i_17_a_request_beyond_the_limit() {
    let store = MemoryStore::new();
    let handler = Handler::new();
    let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute).request_limit(10));
    let request = |pieces: &[&'static str]| {
        let body = pieces
            .iter()
            .fold(Frames::default(), |body, piece| body.data(*piece));
        keyless().header("idempotency-key", "k").body(body).unwrap()
    };
    for pieces in [&["12345678901"][..], &["1234567890", "1"]] {
        let answer = send(&server, request(pieces)).await;
        assert_eq!(answer.refusal(), (413, "request-too-large".into()));
        assert!(answer.body.contains("At most 10 bytes"));
    }
    assert_eq!((handler.runs(), store.len()), (0, 0));
    assert_eq!(
        send(&server, request(&["12345", "67890"])).await.status,
        200
    );
}

/// A body that breaks off was not asked for.
#[tokio::test(start_paused = true)]
async fn i_17_a_request_that_breaks_off() {
    let store = MemoryStore::new();
    let handler = Handler::new();
    let server = handler.count(builder(store.clone(), CrashPolicy::Reexecute));
    let body = Frames::from("100").error("connection reset");
    let request = keyless().header("idempotency-key", "k").body(body);
    let answer = send(&server, request.unwrap()).await;
    assert_eq!(answer.refusal(), (400, "request-unreadable".into()));
    assert_eq!((handler.runs(), store.len()), (0, 0));
}

/// The handler gets the request as it was sent.
#[tokio::test(start_paused = true)]
async fn the_handler_gets_the_request_whole() {
    use http_body_util::BodyExt;
    use tower::{Layer, ServiceExt};

    let inner = tower::service_fn(|request: Request<Frames>| async move {
        assert_eq!(request.uri().path(), "/payments");
        assert_eq!(request.headers()["x-tenant"], "alice");
        assert_eq!(request.extensions().get::<u32>(), Some(&7));
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, std::convert::Infallible>(Response::new(Frames::from(body)))
    });
    let server = in_memory().build().unwrap().layer(inner);
    let body = Frames::from("one, ").data("").data("two, ").data("three");
    let request = keyless().header("idempotency-key", "k").body(body);
    let mut request = request.unwrap();
    request.extensions_mut().insert(7_u32);
    let response = server.oneshot(request).await.unwrap();
    let answer = crate::setup::read(response).await;
    assert_eq!(answer.body, "one, two, three");
}

#[tokio::test(start_paused = true)]
async fn i_18_a_reply_beyond_the_limit() {
    for pieces in [
        &["12345678901"][..],
        &["1234567890", "1"],
        &["12345", "67890", "1", "2"],
    ] {
        let handler = Handler::new();
        let server = handler.serve(in_memory().response_limit(10), move |_| {
            let body = pieces
                .iter()
                .fold(Frames::default(), |body, piece| body.data(*piece));
            Response::new(body.trailer("x-checksum", "abc"))
        });
        let (first, again) = twice(&server).await;
        assert_eq!((first.status, first.body), (200, pieces.concat()));
        assert_eq!(first.trailers.unwrap()["x-checksum"], "abc");
        assert_eq!(again.refusal(), (409, "reply-not-retained".into()));
        assert!(!again.headers.contains_key("retry-after"));
        assert_eq!(handler.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn i_18_a_reply_at_the_limit_is_kept() {
    let server = Handler::new().serve(in_memory().response_limit(10), |_| {
        Response::new(Frames::from("12345").data("67890"))
    });
    let (first, again) = twice(&server).await;
    assert_eq!((&*first.body, &*again.body), ("1234567890", "1234567890"));
    assert!(again.is_replayed());
}

/// I-18: what breaks off was executed all the same.
#[tokio::test(start_paused = true)]
async fn i_18_a_reply_that_breaks_off() {
    let handler = Handler::new();
    let server = handler.serve(in_memory(), |_| {
        Response::new(Frames::from("half").error("disk gone"))
    });
    let (first, again) = twice(&server).await;
    assert_eq!((&*first.body, first.broken), ("half", true));
    assert_eq!(again.refusal(), (409, "reply-not-retained".into()));
    assert_eq!(handler.runs(), 1);
}
