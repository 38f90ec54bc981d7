//! Three ways to call the same server.

use std::{
    future::{Ready, ready},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{client::legacy::Client as HttpClient, rt::TokioExecutor};
use tokio::task::JoinSet;
use tower::{ServiceBuilder, ServiceExt, retry::Policy as Again, util::BoxCloneService};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKeyLayer, Policy, RetryAfterLayer,
    RetryBudgetLayer, RetryLayer, error::BoxError,
};

use crate::timeline::Timeline;

pub(crate) const CLIENTS: usize = 10;
pub(crate) const CALLS_PER_SECOND: u32 = 300;
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_millis(500);
pub(crate) const NAIVE_RETRIES: u32 = 3;

type Order = Request<Full<Bytes>>;
pub(crate) type Client = BoxCloneService<Order, Response<Incoming>, BoxError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fleet {
    None,
    Naive,
    Reprise,
}

impl Fleet {
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::Naive, Self::Reprise];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Naive => "naive",
            Self::Reprise => "reprise",
        }
    }

    /// Clients with connections of their own that share what they know about the server.
    pub(crate) fn clients(self, policy: &Policy) -> Vec<Client> {
        let deps = Dependencies::new(policy.clone());
        (0..CLIENTS).map(|_| self.client(&deps)).collect()
    }

    fn client(self, deps: &Dependencies) -> Client {
        let http = HttpClient::builder(TokioExecutor::new()).build_http();
        match self {
            Self::None => ServiceBuilder::new()
                .timeout(CLIENT_TIMEOUT)
                .service(http)
                .boxed_clone(),
            Self::Naive => ServiceBuilder::new()
                .retry(AtOnce(NAIVE_RETRIES))
                .timeout(CLIENT_TIMEOUT)
                .service(http)
                .boxed_clone(),
            // The time limit of a request is the policy's.
            Self::Reprise => ServiceBuilder::new()
                .layer(IdempotencyKeyLayer::new())
                .layer(RetryBudgetLayer::new(deps.clone()))
                .layer(RetryLayer::new(deps.clone()))
                .layer(RetryAfterLayer::new(deps.clone()))
                .layer(CircuitBreakerLayer::new(deps.clone()))
                .service(http)
                .boxed_clone(),
        }
    }
}

/// Repeats whatever failed, so many times, without waiting.
#[derive(Debug, Clone)]
struct AtOnce(u32);

impl Again<Order, Response<Incoming>, BoxError> for AtOnce {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _order: &mut Order,
        result: &mut Result<Response<Incoming>, BoxError>,
    ) -> Option<Ready<()>> {
        if succeeded(result) {
            return None;
        }
        self.0 = self.0.checked_sub(1)?;
        Some(ready(()))
    }

    fn clone_request(&mut self, order: &Order) -> Option<Order> {
        Some(order.clone())
    }
}

fn succeeded(result: &Result<Response<Incoming>, BoxError>) -> bool {
    matches!(result, Ok(response) if response.status().is_success())
}

/// Makes calls at a fixed rate, whatever becomes of them, as the world outside does. Calls that
/// are not over when the time is are called off and count neither way.
pub(crate) async fn load(
    clients: &[Client],
    server: SocketAddr,
    timeline: &Arc<Timeline>,
) -> Result<(), BoxError> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / CALLS_PER_SECOND);
    let mut calls = JoinSet::new();
    for (number, client) in clients.iter().cycle().enumerate() {
        ticks.tick().await;
        if timeline.is_over() {
            break;
        }
        let order = Request::post(format!("http://{server}/orders/{number}"))
            .body(Full::from("1 espresso"))?;
        let (client, timeline) = (client.clone(), Arc::clone(timeline));
        calls.spawn(async move {
            timeline.call_made();
            let result = client.oneshot(order).await;
            timeline.call_ended(succeeded(&result));
        });
    }
    Ok(())
}
