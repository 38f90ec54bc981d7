//! Retry loops of others, and servers that refuse their retries.

use std::{
    convert::Infallible,
    future::{Ready, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    Dependencies, InboundBudgetLayer, RetryBudgetLayer, RetryLayer, RetryOverride,
    call::{Attempt, StopReason},
    classify::Standard,
    dependency::Named,
    error::{BoxError, Refusal},
    policy::{Exhaustion, PolicyBuilder},
};

use crate::{
    setup::{Client, counted, get, grpc, lenient, numbered, policy, with, with_header},
    support::{
        call, deps, outcome, refusal,
        scripted::{Reply, Server, status},
    },
};

/// The sign by which another retry loop marks a request as a repeat.
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
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("served")))
        });
        let layer = inbound(policy());
        let layer = layer.status(StatusCode::from_u16(code).unwrap()).unwrap();
        // The error type is still the server's own.
        let mut server = layer.layer(server);
        let mut ask = async |request| {
            let result: Result<_, Infallible> = call(&mut server, request).await;
            let (head, body) = result.unwrap().into_parts();
            Response::from_parts(head, body.collect().await.unwrap().to_bytes())
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
        let server = headed(inbound(policy()).layer(failing.clone()));
        let deps = deps(policy());
        let mut client = stack_over(&deps, server);
        let result = call(&mut client, request).await;
        assert_eq!(outcome(&result), Some((2, Some(StopReason::Pushback))));
        assert_eq!(result.unwrap().headers()["x-should-retry"], "false");
        assert_eq!(failing.calls(), 1);
    }
}

/// With replies of which only the head is looked at.
fn headed<S, B>(
    server: S,
) -> impl Service<Request<()>, Response = Response<Bytes>, Error = S::Error, Future: Send> + Clone + Send
where
    S: Service<Request<()>, Response = Response<B>, Future: Send> + Clone + Send,
{
    server.map_response(|reply: Response<B>| reply.map(|_| Bytes::new()))
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
        let server = headed(inbound(self::policy()).layer(failing.clone()));
        let mut client = stack_over(&deps(policy), elsewhere(server));
        let result = call(&mut client, get()).await;
        assert_eq!((failing.calls(), outcome(&result).unwrap()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn g_6_a_first_attempt_tells_nothing_and_retries_tell_their_number() {
    let server = Server::always(503);
    let mut client = stack_over(&deps(policy().send_attempt_count()), server.clone());
    // Our retries replace the attempt count of the caller's own retries.
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
