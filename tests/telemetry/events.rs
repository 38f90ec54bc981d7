//! O-1: one event for each retry.

use http::{HeaderValue, Request};
use tower::{ServiceBuilder, ServiceExt};
use tower_http::request_id::RequestId;
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKey, RetryLayer,
    error::{Refused, Rule},
};
use tracing::Level;

use crate::{
    setup::{Body, URI, deps, get, peer, policy, refused, reply, retry_only, stack},
    support::telemetry::Log,
};

#[tokio::test(start_paused = true)]
async fn o_1_each_retry_is_one_event_with_exactly_these_fields() {
    let (log, _guard) = Log::listen();
    let replies = [reply(503, &[("retry-after", "7")]), refused()];
    let mut request = Request::post(URI)
        .header("x-request-id", "req-1")
        .body(Body::from("pay"))
        .unwrap();
    let key = IdempotencyKey::new("order-42").unwrap();
    request.extensions_mut().insert(key);
    let response = stack(&deps(), peer(replies))
        .oneshot(request)
        .await
        .unwrap();
    assert_eq!(response.status(), 200);

    let retries = log.retries();
    assert_eq!(retries.len(), 2);
    for retry in &retries {
        assert_eq!(retry.level, Level::INFO);
        let fields: Vec<_> = retry.fields.keys().copied().collect();
        assert_eq!(
            fields,
            [
                "attempt",
                "backoff_ms",
                "correlation_id",
                "dependency",
                "error_type",
                "idempotency_key",
                "max_attempts",
                "message",
            ]
        );
        assert_eq!(retry.fields["correlation_id"], "req-1");
        assert_eq!(retry.fields["dependency"], "stock.example:8080");
        assert_eq!(retry.fields["idempotency_key"], "order-42");
        assert_eq!(retry.fields["max_attempts"], "3");
    }
    let field = |name| [&*retries[0].fields[name], &*retries[1].fields[name]];
    assert_eq!(field("attempt"), ["1", "2"]);
    assert_eq!(field("error_type"), ["http_503", "connect"]);
    assert_eq!(field("backoff_ms")[0].parse(), Ok(7000.0));
    let second: f64 = field("backoff_ms")[1].parse().unwrap();
    assert!((0.0..2.0).contains(&second), "{second}");
}

#[tokio::test(start_paused = true)]
async fn o_1_no_retry_is_no_event() {
    let (log, _guard) = Log::listen();
    let client = stack(&deps(), peer([reply(200, &[]), reply(404, &[])]));
    client.clone().oneshot(get(URI)).await.unwrap();
    assert!(log.all().is_empty(), "a success is not worth a line");
    client.oneshot(get(URI)).await.unwrap();
    assert!(log.retries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn o_1_the_correlation_id_is_the_first_there_is() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let long = "x".repeat(129);
    let cases = [
        (Some("req-1"), Some(TRACE), Some("ext-1"), "req-1"),
        (None, Some(TRACE), Some("ext-1"), TRACE),
        (None, None, Some("ext-1"), "ext-1"),
        (None, None, None, ""),
        // An invalid id is not logged.
        (Some("two words"), Some(TRACE), None, TRACE),
        (Some(&long), None, Some("ext-1"), "ext-1"),
        (Some("caf\u{e9}"), None, None, ""),
    ];
    for (request_id, trace, extension, expected) in cases {
        let (log, _guard) = Log::listen();
        let mut request = get(URI);
        let headers = request.headers_mut();
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).unwrap();
        if let Some(id) = request_id {
            headers.insert("x-request-id", value(id));
        }
        if let Some(trace) = trace {
            headers.insert("traceparent", value(trace));
        }
        if let Some(id) = extension {
            request.extensions_mut().insert(RequestId::new(value(id)));
        }
        let client = retry_only(&deps(), peer([reply(503, &[])]));
        client.oneshot(request).await.unwrap();
        let retries = log.retries();
        assert_eq!(retries.len(), 1);
        assert_eq!(retries[0].fields["correlation_id"], expected);
        assert_eq!(retries[0].fields["idempotency_key"], "");
    }
}

#[tokio::test(start_paused = true)]
async fn o_1_the_key_is_read_from_the_header_that_the_policy_names() {
    let (log, _guard) = Log::listen();
    let policy = policy().key_header("x-operation".parse().unwrap());
    let deps = Dependencies::new(policy.build().unwrap());
    let request = Request::post(URI)
        .header("x-operation", "order-42")
        .header("idempotency-key", "another")
        .body(Body::default())
        .unwrap();
    let client = retry_only(&deps, peer([reply(503, &[])]));
    client.oneshot(request).await.unwrap();
    assert_eq!(log.retries()[0].fields["idempotency_key"], "order-42");
}

/// One line for a call that failed for good, that needs no other to be understood.
#[tokio::test(start_paused = true)]
async fn o_1_a_call_that_is_given_up_is_one_warning() {
    for (failures, reason, attempts) in [(4, "exhausted", "4"), (9, "exhausted", "4")] {
        let (log, _guard) = Log::listen();
        let mut request = get(URI);
        let id = HeaderValue::from_static("req-1");
        request.headers_mut().insert("x-request-id", id);
        let replies = (0..failures).map(|_| reply(503, &[]));
        let client = retry_only(&deps(), peer(replies.collect::<Vec<_>>()));
        client.oneshot(request).await.unwrap();
        let last = log.retries().pop().unwrap();
        assert_eq!(last.fields["message"], "retry 3 of 3");
        let mut warned = log.all();
        warned.retain(|event| event.level == Level::WARN);
        assert_eq!(warned.len(), 1, "{warned:?}");
        let fields = &warned[0].fields;
        assert_eq!(fields["message"], "gave up");
        assert_eq!(fields["correlation_id"], "req-1");
        assert_eq!(fields["dependency"], "stock.example:8080");
        assert_eq!(fields["error_type"], "http_503");
        assert_eq!(
            (&*fields["reason"], &*fields["attempts"]),
            (reason, attempts)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn o_1_a_gave_up_call_says_why() {
    let (log, _guard) = Log::listen();
    let client = stack(
        &deps(),
        peer([const { 404 }].map(|status| reply(status, &[]))),
    );
    client.oneshot(get(URI)).await.unwrap();
    let stop_reason = log.with_message("gave up");
    assert_eq!(stop_reason.len(), 1);
    assert_eq!(stop_reason[0].level, Level::DEBUG);
    assert_eq!(stop_reason[0].fields["reason"], "not_retryable");
    assert_eq!(stop_reason[0].fields["error_type"], "http_404");
    assert_eq!(stop_reason[0].fields["attempts"], "1");
}

/// A call that is refused is one warning too: of the retry loop, or of the layer without one.
#[tokio::test(start_paused = true)]
async fn o_1_a_refused_call_is_one_warning() {
    let warned = async |looped: bool| {
        let (log, _guard) = Log::listen();
        let deps = deps();
        deps.get("stock.example:8080").force_open();
        let breaker = CircuitBreakerLayer::new(deps.clone());
        let retry = looped.then(|| RetryLayer::new(deps.clone()));
        let stack = ServiceBuilder::new().option_layer(retry).layer(breaker);
        let error = stack.service(peer([])).oneshot(get(URI)).await.unwrap_err();
        assert!(Refused::find(&*error).is_some());
        let mut warned = log.all();
        warned.retain(|event| {
            event.level == Level::WARN && event.fields["message"] != "circuit breaker opened"
        });
        assert_eq!(warned.len(), 1, "{warned:?}");
        warned.remove(0).fields
    };
    let alone = warned(false).await;
    assert_eq!(alone["message"], "call refused");
    assert_eq!(
        (&*alone["dependency"], &*alone["by"]),
        ("stock.example:8080", "breaker")
    );
    let looped = warned(true).await;
    assert_eq!(looped["message"], "gave up");
    assert_eq!(
        (&*looped["reason"], &*looped["error_type"]),
        ("breaker", "refused_breaker")
    );
}

/// A certificate that is not trusted is no reply that a caller expects.
#[tokio::test(start_paused = true)]
async fn o_1_an_error_that_is_not_retried_is_a_warning() {
    let (log, _guard) = Log::listen();
    let error = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
    let client = retry_only(&deps(), peer([Err(error.into())]));
    client.oneshot(get(URI)).await.unwrap_err();
    let gave_up = log.with_message("gave up").remove(0);
    assert_eq!(gave_up.level, Level::WARN);
    assert_eq!(gave_up.fields["reason"], "not_retryable");
    assert_eq!(gave_up.fields["error_type"], "certificate");
}

#[tokio::test(start_paused = true)]
async fn p_2_an_approval_is_logged_once() {
    let (log, _guard) = Log::listen();
    let approved = policy()
        .max_retries(9)
        .approve(Rule::R2, "legacy mainframe")
        .build()
        .unwrap();
    let deps = Dependencies::builder(approved.clone())
        .policy_for("stock.example:8080", approved.clone())
        .build();
    let client = stack(&deps, peer([reply(503, &[]), reply(503, &[])]));
    for _ in 0..3 {
        client.clone().oneshot(get(URI)).await.unwrap();
    }
    let _ = (approved.audit(), deps.audit());

    let approvals = log.with_message("policy approved beyond a rule");
    assert_eq!(approvals.len(), 1);
    assert_eq!(approvals[0].level, Level::WARN);
    assert_eq!(approvals[0].fields["rule"], "R-2");
    assert_eq!(approvals[0].fields["reason"], "legacy mainframe");
    assert_eq!(approvals[0].fields["service"], "checkout");
}

#[test]
fn p_2_a_policy_within_the_rules_logs_nothing() {
    let (log, _guard) = Log::listen();
    let _ = deps();
    policy().max_retries(9).build().unwrap_err();
    assert!(log.all().is_empty());
}

/// O-4: the ids of an event are its type's to say.
#[tokio::test(start_paused = true)]
async fn o_4_retries_of_events_are_logged_with_their_ids() {
    use std::error::Error;
    use tower::{Layer, service_fn};
    use tower_reprise::{
        RetryLayer,
        call::{Cause, Verdict},
        client::retry::RequestIds,
        error::BoxError,
    };

    #[derive(Clone)]
    struct OrderPlaced {
        id: &'static str,
        trace: &'static str,
    }

    impl RequestIds for OrderPlaced {
        fn correlation_id(&self) -> Option<&str> {
            Some(self.trace)
        }

        fn idempotency_key(&self) -> Option<&str> {
            Some(self.id)
        }
    }

    let (log, _guard) = Log::listen();
    let deps = Dependencies::builder(policy().build().unwrap())
        .with_locate_message(|_: &OrderPlaced| "orders".into())
        .with_classifier(
            |outcome: Result<&(), &(dyn Error + 'static)>| match outcome {
                Ok(()) => Verdict::SUCCESS,
                Err(_) => Verdict::transient(Cause::Other("handler")),
            },
        )
        .build();
    let consumer = service_fn(|_: OrderPlaced| async { Err::<(), BoxError>("busy".into()) });
    let event = OrderPlaced {
        id: "evt-1",
        trace: "trace-7",
    };
    let plain = RetryLayer::new(deps.clone()).cloning();
    let _ = plain.layer(consumer).oneshot(event.clone()).await;
    let named = RetryLayer::new(deps).cloning().with_request_ids();
    let _ = named.layer(consumer).oneshot(event).await;
    let retries = log.retries();
    assert_eq!(retries.len(), 6);
    for (n, retry) in retries.iter().enumerate() {
        let ids = if n < 3 {
            ("", "")
        } else {
            ("trace-7", "evt-1")
        };
        assert_eq!(
            (
                &*retry.fields["correlation_id"],
                &*retry.fields["idempotency_key"]
            ),
            ids
        );
    }
}
