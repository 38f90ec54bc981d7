//! Credentials, interceptors, and errors of layers below.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use http::{Request as HttpRequest, Response as HttpResponse};
use tonic::{
    Code, GrpcMethod, Request, Status, body::Body, metadata::MetadataValue,
    service::InterceptorLayer,
};
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    PeekLayer, RetryBudgetLayer, RetryLayer,
    call::StopReason,
    client::retry::{BearerToken, Token},
    error::{BoxError, Refusal, Refused},
    stacks::tonic::StatusLayer,
};

use crate::{
    client::{CHECK, channel, check, full, keyless, named, outcome, policy, served},
    support::{
        grpc::{Act, Server},
        ports,
    },
};

#[tokio::test]
async fn s_1_an_expired_token_is_refreshed_once() {
    let server = Server::start(vec![Act::fail(16), Act::Serve, Act::fail(16)]).await;
    let tokens = Arc::new(AtomicUsize::new(0));
    let asked = tokens.clone();
    let token = BearerToken::new(move || {
        let number = asked.fetch_add(1, Ordering::SeqCst);
        async move { Token::new(&format!("t{number}")) }
    });
    let deps = named(policy());
    let stack = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .layer(RetryLayer::new(deps.clone()).with_refresh(token.clone()))
        .layer(PeekLayer::new(deps))
        .service(channel(server.address));
    let mut client = HealthClient::new(stack);
    let request = async || {
        let mut request = Request::new(check());
        let current = token.current().await.unwrap();
        let current = MetadataValue::try_from(current.as_bytes()).unwrap();
        request.metadata_mut().insert("authorization", current);
        request
    };
    assert_eq!(served(&client.check(request().await).await.unwrap()), 2);
    let sent = server.header("authorization");
    assert_eq!(sent, [Some("Bearer t0".into()), Some("Bearer t1".into())]);

    // A server that refuses the new one too gets no third.
    let status = client.check(request().await).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert_eq!(outcome(&status), (2, Some(StopReason::Exhausted)));
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn s_1_without_a_hook_an_unauthenticated_call_is_not_repeated() {
    let server = Server::start(vec![Act::fail(16), Act::Serve]).await;
    let mut client = HealthClient::new(full(&named(policy()), channel(server.address)));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (1, Some(StopReason::NotRetryable)));
}

/// D-4: what tonic and a caller put on a request is on every attempt.
#[tokio::test(start_paused = true)]
async fn d_4_extensions_are_on_every_attempt() {
    for more in [false, true] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let server = {
            let seen = Arc::clone(&seen);
            service_fn(move |request: HttpRequest<Body>| {
                let found = request.extensions();
                let method = found
                    .get::<GrpcMethod<'static>>()
                    .map(|m| m.method().to_owned());
                let mut seen = seen.lock().unwrap();
                seen.push((method, found.get::<u8>().copied()));
                let status = if seen.len() < 3 { 503 } else { 200 };
                let response = HttpResponse::builder().status(status).body(Body::empty());
                async move { Ok::<_, BoxError>(response.unwrap()) }
            })
        };
        let deps = named(policy());
        let mut client = ServiceBuilder::new()
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps))
            .service(server);
        let mut request = HttpRequest::put(format!("http://a.example/{CHECK}"))
            .body(Body::empty())
            .unwrap();
        request
            .extensions_mut()
            .insert(GrpcMethod::new("Health", "Check"));
        if more {
            request.extensions_mut().insert(7_u8);
        }
        client.ready().await.unwrap().call(request).await.unwrap();
        let expected = (Some("Check".to_owned()), more.then_some(7_u8));
        assert_eq!(*seen.lock().unwrap(), vec![expected; 3]);
    }
}

#[tokio::test]
async fn c_2_an_interceptor_below_is_asked_for_each_attempt() {
    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let interceptor = move |mut request: Request<()>| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        match number {
            0 => Err(Status::unavailable("no token yet")),
            _ => {
                let number = MetadataValue::from(number);
                request.metadata_mut().insert("x-intercepted", number);
                Ok(request)
            }
        }
    };
    let inner = InterceptorLayer::new(interceptor).layer(channel(server.address));
    let mut client = HealthClient::new(keyless(&named(policy()), inner));
    assert_eq!(served(&client.check(check()).await.unwrap()), 3);
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    let seen = server.header("x-intercepted");
    assert_eq!(seen, [Some("1".into()), Some("2".into())]);
}

#[tokio::test]
async fn c_2_a_status_of_an_interceptor_is_the_callers() {
    let refuse = |_: Request<()>| Err::<Request<()>, _>(Status::permission_denied("not you"));
    let (_socket, address) = ports::deaf();
    let inner = InterceptorLayer::new(refuse).layer(channel(address));
    let mut below = HealthClient::new(keyless(&named(policy()), inner));
    let status = below.check(check()).await.unwrap_err();
    assert_eq!(status.message(), "not you");
    assert_eq!(outcome(&status), (1, Some(StopReason::NotRetryable)));

    let stack = full(&named(policy()), channel(address));
    let mut above = HealthClient::with_interceptor(stack, refuse);
    let status = above.check(check()).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::PermissionDenied, "not you")
    );
}

#[tokio::test]
async fn c_3_a_status_that_a_layer_returns_as_an_error_is_judged_by_its_code() {
    let calls = Arc::new(AtomicUsize::new(0));
    for (code, attempts) in [(Code::Unavailable, 4), (Code::InvalidArgument, 1)] {
        let calls = calls.clone();
        calls.store(0, Ordering::SeqCst);
        let counted = calls.clone();
        let failing = service_fn(move |_: HttpRequest<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut status = Status::new(code, "said by a layer");
            let metadata = status.metadata_mut();
            metadata.insert("x-kept", MetadataValue::from_static("yes"));
            std::future::ready(Err::<HttpResponse<Body>, _>(status))
        });
        let mut client = HealthClient::new(keyless(&named(policy()), failing));
        let status = client.check(check()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, "said by a layer"));
        assert_eq!(status.metadata().get("x-kept").unwrap(), "yes");
        assert_eq!(outcome(&status).0, attempts);
        assert_eq!(calls.load(Ordering::SeqCst), attempts as usize);
    }
}

#[tokio::test]
async fn d_7_a_readiness_error_is_a_status_too() {
    #[derive(Clone)]
    struct NeverReady;
    impl Service<HttpRequest<Body>> for NeverReady {
        type Response = HttpResponse<Body>;
        type Error = Refused;
        type Future = std::future::Ready<Result<HttpResponse<Body>, Refused>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Refused>> {
            std::task::Poll::Ready(Err(Refused::new(Refusal::Breaker, "ledger", None)))
        }

        fn call(&mut self, _: HttpRequest<Body>) -> Self::Future {
            unreachable!()
        }
    }
    let mut service = StatusLayer::new().layer(NeverReady);
    let status = std::future::poll_fn(|cx| service.poll_ready(cx))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(Refused::find(&status).is_some());
}
