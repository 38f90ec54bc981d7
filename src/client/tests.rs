use std::{
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body_util::Full;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use super::{
    circuit_breaker::CircuitBreakerLayer, peek::PeekLayer, retry::RetryLayer,
    retry_after::RetryAfterLayer,
};
use crate::{
    call::{RetryOutcome, Verdict},
    classify::{Classify, Rules, Standard},
    dependency::Dependencies,
    error::BoxError,
    http::{BufferedBody, ResponseHead},
    policy::Policy,
};

type Body = Full<Bytes>;
type Reply = Response<BufferedBody<Body>>;

/// The standard classifier, which counts.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicU32>);

impl Classify<Request<Body>, Reply> for Counting {
    fn repeatable(&self, rules: &Rules, request: &Request<Body>) -> bool {
        Classify::<_, Reply>::repeatable(&Standard, rules, request)
    }

    fn classify(&self, rules: &Rules, outcome: Result<&Reply, &(dyn Error + 'static)>) -> Verdict {
        self.0.fetch_add(1, Ordering::Relaxed);
        Classify::<Request<Body>, _>::classify(&Standard, rules, outcome)
    }

    fn request_extensions<'a>(&self, request: &'a Request<Body>) -> Option<&'a Extensions> {
        Some(request.extensions())
    }

    fn response_head<'a>(&self, response: &'a mut Reply) -> Option<&'a mut dyn ResponseHead> {
        Some(response)
    }
}

#[tokio::test(start_paused = true)]
async fn c_8_a_failed_response_is_classified_once_however_many_layers_need_its_verdict() {
    // An error has no place for a verdict, so each of the three layers classifies it.
    for (reply, each) in [(Some(503), 1), (Some(500), 1), (Some(404), 1), (None, 3)] {
        let counting = Counting::default();
        let policy = Policy::http().budget_floor(9).build().expect("a policy");
        let deps = Dependencies::builder(policy)
            .with_classifier(counting.clone())
            .build();
        let sent = Arc::new(AtomicU32::new(0));
        let calls = Arc::clone(&sent);
        let mut client = ServiceBuilder::new()
            .layer(RetryLayer::new(deps.clone()))
            .layer(RetryAfterLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .layer(PeekLayer::new(deps))
            .service(service_fn(move |_: Request<Body>| {
                calls.fetch_add(1, Ordering::Relaxed);
                let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
                let response = reply.map(|status| {
                    let response = Response::builder().status(status);
                    response.body(Body::default()).expect("a response")
                });
                async move { response.ok_or_else(reset) }
            }));
        let request = Request::get("http://a.example/").body(Body::default());
        let request = request.expect("a request");
        let client = client.ready().await.expect("a ready service");
        let result = client.call(request).await;
        let sent = sent.load(Ordering::Relaxed);
        assert_eq!(sent, if reply == Some(404) { 1 } else { 4 }, "{reply:?}");
        assert_eq!(counting.0.load(Ordering::Relaxed), sent * each, "{reply:?}");
        match result {
            Ok(response) => assert!(RetryOutcome::of(&response).is_some()),
            Err(error) => {
                let source: Option<&io::Error> = source(&error);
                assert!(source.is_some(), "the error itself is next in the chain");
            }
        }
    }
}

fn source<E: Error + 'static>(error: &BoxError) -> Option<&E> {
    error.source()?.downcast_ref()
}
