//! The layer that answers where others fail.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Service, ServiceExt};
use tower_reprise::{ProblemLayer, error::BoxError};

/// Fails to become ready so many times.
#[derive(Clone)]
struct Failing(Arc<AtomicUsize>);

impl Service<Request<()>> for Failing {
    type Response = Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            self.0.store(left - 1, Ordering::Relaxed);
            return Poll::Ready(Err("not ready".into()));
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::default()))
    }
}

/// A caller that readies a service and calls its clone gets one error, not one for ever.
#[tokio::test]
async fn d_7_a_service_that_failed_to_become_ready_once_fails_one_call() {
    let failing = Failing(Arc::new(AtomicUsize::new(1)));
    let mut service = tower::Layer::layer(&ProblemLayer::new(), failing);
    for expected in [502, 200, 200] {
        service.ready().await.unwrap();
        let clone = service.clone();
        let mut readied = mem::replace(&mut service, clone);
        let response = readied.call(Request::new(())).await.unwrap();
        assert_eq!(response.status(), expected);
    }
}
