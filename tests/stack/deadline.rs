//! The caller's deadline and attempt number, from a server's layer to its clients and to the next hop.

use std::{convert::Infallible, sync::Mutex, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use proptest::prelude::*;
use tokio::time::{Instant, advance, sleep, timeout};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    DeadlineLayer, Dependencies, ProblemLayer,
    call::{CallerContext, StopReason},
    dependency::BreakerState,
    error::{BoxError, Refusal},
    policy::PolicyBuilder,
};

use crate::{
    setup::{
        Client, HOST, PARTS, Part, counted, get, grpc, lenient, policy, post, stack, with,
        with_header,
    },
    support::{
        deps, outcome, refusal,
        scripted::{Reply, Server, Step},
        secs, stop_reason,
    },
};

const PLAIN: &str = "x-envoy-expected-rq-timeout-ms";
const COUNT: &str = "x-envoy-attempt-count";

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn client(policy: PolicyBuilder, server: &Server) -> (Dependencies, Client) {
    let deps = deps(policy);
    let client = stack(&PARTS, &deps, server);
    (deps, client)
}

async fn ask(client: &Client, request: Request<()>) -> Reply {
    client.clone().oneshot(request).await
}

/// The attempts made, and why there were no more, of a call that failed.
fn ended(reply: &Reply) -> (u32, Option<StopReason>) {
    outcome(reply).expect("an outcome")
}

fn keyed_grpc() -> Request<()> {
    with_header(grpc(), "idempotency-key", "k")
}

#[tokio::test(start_paused = true)]
async fn x_1_a_call_ends_by_its_callers_deadline() {
    let server = Server::steps(|_| Step::Never);
    let (_, client) = client(policy(), &server);
    let began = Instant::now();
    let caller = CallerContext::within(millis(300));
    let reply = client.oneshot(with(get(), caller)).await;
    assert_eq!(began.elapsed(), millis(300));
    assert_eq!(ended(&reply), (1, Some(StopReason::Deadline)));
}

/// A caller that has more time than the policy gives does not lengthen the call.
#[tokio::test(start_paused = true)]
async fn x_5_a_long_deadline_lengthens_no_call() {
    let server = Server::steps(|_| Step::Never);
    let (_, client) = client(policy().total_timeout(secs(2)), &server);
    let began = Instant::now();
    let caller = CallerContext::within(secs(60));
    let reply = client.oneshot(with(get(), caller)).await;
    assert_eq!(began.elapsed(), secs(2));
    assert_eq!(ended(&reply), (1, Some(StopReason::Deadline)));
}

#[tokio::test(start_paused = true)]
async fn x_1_each_attempt_tells_the_next_hop_what_is_left_then() {
    let plain = || with(get(), CallerContext::within(millis(3500)));
    let left = ["3500", "2500", "1500", "500"].map(|left| Some(left.to_owned()));
    let counts = [None, Some("2"), Some("3"), Some("4")];
    let counts = counts.map(|count| count.map(ToOwned::to_owned));

    let server = Server::always(503);
    let (_, to_plain) = client(policy(), &server);
    ask(&to_plain, plain()).await.unwrap();
    assert_eq!(server.header(PLAIN), left);
    assert_eq!(server.header(COUNT), counts);

    // In a header of choice.
    let server = Server::always(503);
    let name = http::HeaderName::from_static("x-time-left");
    let (_, to_other) = client(policy().deadline_header(name), &server);
    ask(&to_other, plain()).await.unwrap();
    assert_eq!(server.header("x-time-left"), left);
    assert_eq!(server.header(PLAIN), [const { None }; 4]);

    // gRPC has its own.
    let server = Server::always(503);
    let (_, to_grpc) = client(policy(), &server);
    let caller = CallerContext::within(millis(3500));
    ask(&to_grpc, with(keyed_grpc(), caller)).await.unwrap();
    let left = ["3500000u", "2500000u", "1500000u", "500000u"];
    assert_eq!(
        server.header("grpc-timeout"),
        left.map(|left| Some(left.to_owned()))
    );
    let previous = [None, Some("1"), Some("2"), Some("3")];
    assert_eq!(
        server.header("grpc-previous-rpc-attempts"),
        previous.map(|count| count.map(ToOwned::to_owned))
    );
    assert_eq!(server.header(PLAIN), [const { None }; 4]);
}

/// A call that is held back tells what is left after that.
#[tokio::test(start_paused = true)]
async fn x_1_a_call_that_was_held_tells_what_is_left_when_it_goes_out() {
    let server = Server::steps(|n| match n {
        0 => Step::with_header(503, "retry-after", "2"),
        _ => Step::status(200),
    });
    let (_, client) = client(policy().max_retries(0), &server);
    ask(&client, get()).await.unwrap();
    let caller = CallerContext::within(secs(10));
    ask(&client, with(get(), caller)).await.unwrap();
    let left: u64 = server.header(PLAIN)[1].as_deref().unwrap().parse().unwrap();
    assert!((7_500..=8_000).contains(&left), "{left}");
}

#[tokio::test(start_paused = true)]
async fn x_1_a_policy_says_whether_the_next_hop_is_told() {
    let caller = || CallerContext::within(secs(5));
    for (policy, caller, expected) in [
        (policy(), None, None),
        (policy(), Some(caller()), Some("5000")),
        (policy().send_deadline(false), Some(caller()), None),
        (policy().send_deadline(true), None, Some("30000")),
        (policy().send_deadline(true), Some(caller()), Some("5000")),
    ] {
        let server = Server::always(200);
        let (_, client) = client(policy, &server);
        let request = match caller {
            Some(caller) => with(get(), caller),
            None => get(),
        };
        ask(&client, request).await.unwrap();
        assert_eq!(server.header(PLAIN), [expected.map(ToOwned::to_owned)]);
    }
}

#[tokio::test(start_paused = true)]
async fn x_1_a_handler_that_passes_nothing_on_has_its_caller_in_its_task() {
    let server = Server::always(200);
    let (_, nested) = client(policy(), &server);
    let handler = move |_: Request<()>| {
        let nested = nested.clone();
        async move {
            sleep(millis(100)).await;
            nested.oneshot(get()).await
        }
    };
    for (scoped, left) in [(true, Some("200")), (false, None)] {
        let layer = DeadlineLayer::new().trust_callers().task_local(scoped);
        let service = layer.layer(service_fn(handler.clone()));
        let request = with_header(get(), PLAIN, "300");
        service.oneshot(request).await.unwrap();
        let told = server.header(PLAIN).pop().unwrap();
        assert_eq!(told.as_deref(), left);
    }
    assert!(CallerContext::current().is_none());
}

#[tokio::test(start_paused = true)]
async fn x_1_what_the_request_carries_counts_before_the_task() {
    let server = Server::always(200);
    let (_, client) = client(policy(), &server);
    let request = with(get(), CallerContext::within(secs(1)));
    let task = CallerContext::within(secs(9));
    task.scope(ask(&client, request)).await.unwrap();
    assert_eq!(server.header(PLAIN), [Some("1000".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn x_2_a_call_that_serves_a_retry_is_not_retried_and_says_so() {
    for caller in [
        CallerContext::default().retry(1),
        CallerContext::within(secs(9)).retry(1),
    ] {
        let server = Server::always(503);
        let (deps, client) = client(policy(), &server);
        let reply = ask(&client, with(get(), caller)).await;
        assert_eq!(ended(&reply), (1, Some(StopReason::ChainStop)));
        // The next hop does not retry either, and no budget grows.
        assert_eq!(server.header(COUNT), [Some("2".to_owned())]);
        assert_eq!(counted(&deps), (0, 0));
    }
    let server = Server::always(503);
    let (_, client) = client(policy(), &server);
    let first = CallerContext::within(secs(9));
    let reply = ask(&client, with(get(), first)).await;
    assert_eq!(ended(&reply), (4, Some(StopReason::Exhausted)));

    // Unless the server says otherwise. Then the numbers add up.
    let server = Server::always(503);
    let (_, client) = self::client(policy(), &server);
    let caller = CallerContext::default().retry(1).retry_repeats();
    let reply = ask(&client, with(get(), caller)).await;
    assert_eq!(ended(&reply), (4, Some(StopReason::Exhausted)));
    let counts = ["2", "3", "4", "5"].map(|count| Some(count.to_owned()));
    assert_eq!(server.header(COUNT), counts);
}

/// A failure that is final anyway keeps its reason.
#[tokio::test(start_paused = true)]
async fn x_2_only_a_retry_that_would_have_been_made_is_stopped() {
    for (request, status, reason) in [
        (get(), 404, StopReason::NotRetryable),
        (post(), 503, StopReason::NotIdempotent),
    ] {
        let server = Server::always(status);
        let parts = [Part::Retry];
        let client = stack(&parts, &deps(policy()), &server);
        let caller = CallerContext::default().retry(2);
        let reply = ask(&client, with(request, caller)).await;
        assert_eq!(ended(&reply), (1, Some(reason)), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn x_3_nothing_goes_out_after_the_callers_deadline() {
    for request in [get(), keyed_grpc()] {
        let server = Server::always(200);
        let (deps, client) = client(policy(), &server);
        let caller = CallerContext::within(millis(300));
        advance(millis(300)).await;
        let reply = ask(&client, with(request, caller)).await;
        assert_eq!(ended(&reply), (0, Some(StopReason::Deadline)));
        assert_eq!(refusal(&reply), Some(Refusal::Deadline));
        assert_eq!((server.calls(), counted(&deps)), (0, (0, 0)));
    }
}

/// A server answers late requests itself, over HTTP and gRPC, and says not to come again.
#[tokio::test(start_paused = true)]
async fn x_3_a_request_that_comes_too_late_is_not_served() {
    let server = Server::always(200);
    let service = DeadlineLayer::new().trust_callers().layer(server.clone());
    let late = with_header(get(), PLAIN, "0");
    let reply = service.clone().oneshot(late).await.unwrap();
    assert_eq!(reply.status(), 504);
    assert_eq!(reply.headers()["x-should-retry"], "false");
    let late = with_header(grpc(), "grpc-timeout", "0m");
    let reply = service.oneshot(late).await.unwrap();
    assert_eq!(reply.headers()["grpc-status"], "4");
    assert_eq!(reply.headers()["grpc-retry-pushback-ms"], "-1");
    assert_eq!(server.calls(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the deadline, the service's times and its failures are.
    #[test]
    fn x_3_no_attempt_starts_after_the_callers_deadline(
        deadline in 0_u64..5_000,
        service in 0_u64..3_000,
        status in prop_oneof![Just(200_u16), Just(503), Just(429)],
        waits in 0_u64..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let server = Server::steps(move |_| {
                let wait = waits.to_string();
                Step::with_header(status, "retry-after", &wait).after(millis(service))
            });
            let (_, client) = client(policy(), &server);
            let by = Instant::now() + millis(deadline);
            let caller = CallerContext::within(millis(deadline));
            let reply = timeout(secs(60), ask(&client, with(get(), caller))).await;
            assert!(reply.is_ok() && Instant::now() <= by + millis(1));
            assert!(server.times().iter().all(|at| *at < by), "{:?}", server.times());
        });
    }
}

/// A dependency that says that the caller's time is over is not to blame; one that is slow by the
/// policy's own time is.
#[tokio::test(start_paused = true)]
async fn c_10_a_callers_short_deadline_opens_no_breaker() {
    for (caller, open) in [(true, false), (false, true)] {
        let server =
            Server::steps(|_| Step::with_header(200, "grpc-status", "4").after(millis(20)));
        let policy = policy().max_retries(0).consecutive_failures(3);
        let (deps, client) = client(policy.no_success_for(Duration::ZERO), &server);
        for _ in 0..10 {
            let request = match caller {
                true => with(keyed_grpc(), CallerContext::within(millis(30))),
                false => keyed_grpc(),
            };
            let _ = ask(&client, request).await;
        }
        let opened = deps.get(HOST).status().breaker != BreakerState::Closed;
        assert_eq!(opened, open, "with a caller: {caller}");
    }
}

type Service = BoxCloneService<Request<()>, Response<Bytes>, Infallible>;

/// A service whose handler calls `nested`, and makes a reply of its own of whatever comes of it.
fn service(layer: &DeadlineLayer, nested: Client, on_failure: u16) -> Service {
    let handler = service_fn(move |request: Request<()>| {
        let nested = nested.clone();
        async move {
            let grpc = request.headers().contains_key("content-type");
            let inner = match grpc {
                true => keyed_grpc(),
                false => get(),
            };
            let reply = nested.oneshot(inner).await;
            let failed = reply.is_ok_and(|reply| reply.status().is_success());
            let reply = match (failed, grpc) {
                (true, _) => Response::builder(),
                (false, true) => Response::builder().header("grpc-status", on_failure),
                (false, false) => Response::builder().status(on_failure),
            };
            Ok::<_, Infallible>(reply.body(Full::new(Bytes::new())).unwrap())
        }
    });
    BoxCloneService::new(
        layer
            .layer(handler)
            .map_response(|reply| reply.map(|_| Bytes::new())),
    )
}

#[tokio::test(start_paused = true)]
async fn x_4_a_failure_says_not_to_retry_if_a_nested_call_was_given_up() {
    let trusting = || DeadlineLayer::new().trust_callers();
    let mark = |on| if on { Some("false") } else { None };
    let no_budget = || policy().budget_floor(0);
    for (what, layer, policy, status, on_failure, marked) in [
        ("exhausted", trusting(), policy(), 503, 502, true),
        ("no budget left", trusting(), no_budget(), 503, 500, true),
        ("nothing to retry", trusting(), policy(), 404, 502, false),
        ("a success", trusting(), policy(), 200, 502, false),
        ("a fallback", trusting(), policy(), 503, 200, false),
        ("its own 404", trusting(), policy(), 503, 404, false),
        (
            "retries are the caller's",
            trusting(),
            policy().max_retries(0),
            503,
            502,
            false,
        ),
        (
            "an untrusted caller",
            DeadlineLayer::new(),
            policy(),
            503,
            502,
            false,
        ),
        (
            "told to",
            DeadlineLayer::new().final_failures(true),
            policy(),
            503,
            502,
            true,
        ),
        (
            "told not to",
            trusting().final_failures(false),
            policy(),
            503,
            502,
            false,
        ),
    ] {
        let server = Server::always(status);
        let (_, nested) = client(policy, &server);
        let service = service(&layer, nested, on_failure);
        let reply = service.oneshot(get()).await.unwrap();
        let told = reply.headers().get("x-should-retry");
        let told = told.map(|told| told.to_str().unwrap());
        assert_eq!(told, mark(marked), "{what}");
    }
}

/// Each refusal on the way travels back up: the hop above gets it as a failure, and does not repeat it.
#[tokio::test(start_paused = true)]
async fn x_4_the_hop_above_does_not_retry_what_the_one_below_gave_up() {
    for (request, on_failure) in [(get(), 503), (keyed_grpc(), 14)] {
        let backend = Server::always(503);
        let (_, nested) = client(policy(), &backend);
        let service = service(&DeadlineLayer::new().trust_callers(), nested, on_failure);
        let service = Mutex::new(service);
        let hop = Server::new(move |request: &Request<()>, _| {
            let (service, request) = (service.lock().unwrap().clone(), request.clone());
            async move { service.oneshot(request).await.map_err(BoxError::from) }
        });
        let (_, above) = client(policy(), &hop);
        let reply = ask(&above, request).await;
        assert_eq!(ended(&reply), (1, Some(StopReason::Pushback)));
        assert_eq!((hop.calls(), backend.calls()), (1, 4));
    }
}

/// the chain stop leaves retries to the caller, so it is not told that there is no use in them.
#[tokio::test(start_paused = true)]
async fn x_4_a_retry_whose_chain_stops_may_be_followed_by_another() {
    let backend = Server::always(503);
    let (_, nested) = client(policy(), &backend);
    let service = service(&DeadlineLayer::new().trust_callers(), nested, 503);
    let mut request = get();
    let second = http::HeaderValue::from_static("2");
    request
        .headers_mut()
        .insert("x-envoy-attempt-count", second);
    let reply = service.oneshot(request).await.unwrap();
    assert_eq!(
        (reply.status(), backend.calls()),
        (503.try_into().unwrap(), 1)
    );
    assert_eq!(reply.headers().get("x-should-retry"), None);
}

/// A proxy answers with the reply that its client's call ended with, or with a problem in its place.
#[tokio::test(start_paused = true)]
async fn x_4_a_proxy_tells_what_its_client_ended_with() {
    for (parts, status, policy, expected) in [
        (&PARTS[..], 503, policy(), Some("false")),
        (&PARTS[..], 404, policy(), None),
        // The breaker alone, which knows no caller.
        (&[Part::Breaker][..], 503, lenient(), None),
    ] {
        let server = Server::always(status);
        let proxied =
            stack(parts, &deps(policy), &server).map_response(|reply| reply.map(Full::new));
        let proxy = DeadlineLayer::new()
            .trust_callers()
            .layer(ProblemLayer::new().layer(proxied));
        let reply = proxy.oneshot(get()).await.unwrap();
        let told = reply.headers().get("x-should-retry");
        assert_eq!(
            told.map(|told| told.to_str().unwrap()),
            expected,
            "{status}"
        );
    }
    let deps = deps(policy());
    deps.get(HOST).force_open();
    let refusing = stack(&[Part::Breaker], &deps, &Server::always(200));
    let refusing = refusing.map_response(|reply| reply.map(Full::new));
    let proxy = DeadlineLayer::new()
        .trust_callers()
        .layer(ProblemLayer::new().layer(refusing));
    let reply = proxy.oneshot(get()).await.unwrap();
    assert_eq!(reply.status(), 503);
    assert_eq!(reply.headers()["x-should-retry"], "false");
}

/// C-5: a peer can stop retries, and never start them.
#[tokio::test(start_paused = true)]
async fn x_4_no_header_makes_a_post_repeatable() {
    for (name, value) in [("x-should-retry", "true"), ("grpc-retry-pushback-ms", "1")] {
        let server = Server::steps(move |_| Step::with_header(503, name, value));
        let client = stack(&[Part::Retry], &deps(policy()), &server);
        let caller = CallerContext::within(secs(9));
        let reply = ask(&client, with(post(), caller)).await;
        assert_eq!(stop_reason(&reply), Some(StopReason::NotIdempotent));
        assert_eq!(server.calls(), 1);
    }
}

#[test]
fn x_5_settings_that_make_no_sense_are_refused() {
    let layer = DeadlineLayer::new;
    let day = Duration::from_secs(24 * 3600);
    for (wrong, field) in [
        (
            layer().max_deadline(Duration::ZERO),
            "deadline.max_deadline",
        ),
        (
            layer().max_deadline(day + millis(1)),
            "deadline.max_deadline",
        ),
        (
            layer().default_deadline(Duration::ZERO),
            "deadline.default_deadline",
        ),
        (
            layer().header(http::HeaderName::from_static("grpc-timeout")),
            "deadline.header",
        ),
    ] {
        assert_eq!(wrong.unwrap_err().field(), field);
    }
    let header = http::HeaderName::from_static("x-envoy-attempt-count");
    let policy = policy().deadline_header(header).build();
    assert_eq!(policy.unwrap_err().field(), "rules.deadline_header");
}
