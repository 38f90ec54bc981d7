//! A client with a policy of `tower::retry`, which is bounded first and replaced later.

use std::{
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use http::{Request, Response, StatusCode};
use tower::{Service, ServiceBuilder, ServiceExt, retry, service_fn};
use tower_reprise::{
    Dependencies, Policy, RetryBudgetLayer, RetryLayer, call::Attempt, error::BoxError,
};
use tower_reprise_users::Result;

#[derive(Clone)]
struct Loop(u32);

impl retry::Policy<Request<String>, Response<()>, BoxError> for Loop {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        request: &mut Request<String>,
        result: &mut std::result::Result<Response<()>, BoxError>,
    ) -> Option<Ready<()>> {
        let failed = result
            .as_ref()
            .is_ok_and(|reply| reply.status().is_server_error());
        self.0 += 1;
        request.extensions_mut().insert(Attempt::retry(self.0));
        (failed && self.0 <= 3).then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<String>) -> Option<Request<String>> {
        Some(request.clone())
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result {
    let sent = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&sent);
    let down = service_fn(move |_: Request<String>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let mut reply = Response::new(());
        *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        ready(Ok::<_, BoxError>(reply))
    });
    let get = || Request::get("http://stock.example/").body(String::new());

    let deps = Dependencies::new(Policy::http().build()?);
    let mut bounded = ServiceBuilder::new()
        .layer(retry::RetryLayer::new(Loop(0)))
        .layer(RetryBudgetLayer::new(deps))
        .service(down.clone());
    for _ in 0..100 {
        let _ = bounded.ready().await?.call(get()?).await;
    }
    let loads = sent.swap(0, Ordering::SeqCst);
    println!("{loads} requests for 100 calls, instead of 400");
    assert!(loads <= 130);

    let deps = Dependencies::new(Policy::http().build()?);
    let mut replaced = ServiceBuilder::new()
        .layer(RetryLayer::new(deps))
        .service(down);
    let last = replaced.ready().await?.call(get()?).await?;
    assert_eq!(
        (last.status().as_u16(), sent.load(Ordering::SeqCst)),
        (503, 4)
    );
    Ok(())
}
