//! Four ways to call the same server.

use std::{
    future::{Ready, ready},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{client::legacy::Client as HttpClient, rt::TokioExecutor};
use tokio::{task::JoinSet, time::interval};
use tower::{
    ServiceBuilder, ServiceExt,
    retry::{
        Policy as Again,
        backoff::{ExponentialBackoffMaker, MakeBackoff},
    },
    util::{BoxCloneService, rng::HasherRng},
};
use tower_reprise::{Dependencies, Policy, backoff, error::BoxError, stacks};

use crate::{timeline::Timeline, tower_retry::Budgeted};

pub(crate) const CLIENTS: usize = 4;
pub(crate) const CALLS_PER_SECOND: u32 = 120;
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_millis(500);
pub(crate) const RETRIES: u32 = 3;
/// The time after which a caller gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

type Order = Request<Full<Bytes>>;
type Outcome = Result<Response<Incoming>, BoxError>;
type TowerPolicy = Budgeted<HasherRng, fn(&Outcome) -> bool>;
pub(crate) type Client = BoxCloneService<Order, StatusCode, BoxError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fleet {
    None,
    Naive,
    Tower,
    Ours,
}

impl Fleet {
    pub(crate) const ALL: [Self; 4] = [Self::None, Self::Naive, Self::Tower, Self::Ours];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Naive => "naive",
            Self::Tower => "tower::retry",
            Self::Ours => "ours",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::None => "none: no retries",
            Self::Naive => "naive: a retry loop",
            Self::Tower => "tower::retry",
            Self::Ours => "ours: stacks::client",
        }
    }

    /// Clients that share nothing but the server, as processes on many machines do.
    pub(crate) fn clients(self, policy: &Policy) -> Result<Vec<Client>, BoxError> {
        (0..CLIENTS).map(|_| self.client(policy)).collect()
    }

    fn client(self, policy: &Policy) -> Result<Client, BoxError> {
        let http = HttpClient::builder(TokioExecutor::new()).build_http();
        let timed = ServiceBuilder::new().timeout(CLIENT_TIMEOUT);
        let client = ServiceBuilder::new().timeout(PATIENCE).map_response(status);
        Ok(match self {
            Self::None => client.service(timed.service(http)).boxed_clone(),
            Self::Naive => client
                .retry(AtOnce(RETRIES))
                .service(timed.service(http))
                .boxed_clone(),
            Self::Tower => client
                .retry(budgeted()?)
                .service(timed.service(http))
                .boxed_clone(),
            // The time limits are the policy's.
            Self::Ours => ServiceBuilder::new()
                .map_response(status)
                .layer(stacks::client(Dependencies::new(policy.clone())))
                .service(http)
                .boxed_clone(),
        })
    }
}

fn status<B>(response: Response<B>) -> StatusCode {
    response.into_parts().0.status
}

/// Repeats whatever failed, so many times, without waiting.
#[derive(Debug, Clone)]
struct AtOnce(u32);

impl Again<Order, Response<Incoming>, BoxError> for AtOnce {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Order, result: &mut Outcome) -> Option<Ready<()>> {
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

/// tower's policy, with the backoff of our default policy.
fn budgeted() -> Result<TowerPolicy, BoxError> {
    let (base, cap) = (backoff::DEFAULT_BASE, backoff::DEFAULT_CAP);
    let mut backoff = ExponentialBackoffMaker::new(base, cap, 0.99, HasherRng::new())?;
    Ok(Budgeted {
        left: RETRIES,
        backoff: backoff.make_backoff(),
        budget: Arc::default(),
        succeeded,
    })
}

fn succeeded(result: &Outcome) -> bool {
    matches!(result, Ok(response) if response.status().is_success())
}

/// Makes calls at a fixed rate, whatever their results, as the world outside does, and waits for the
/// last ones.
pub(crate) async fn load(
    clients: Vec<Client>,
    server: SocketAddr,
    timeline: Arc<Timeline>,
) -> Result<(), BoxError> {
    let mut ticks = interval(Duration::from_secs(1) / CALLS_PER_SECOND);
    let mut calls = JoinSet::new();
    for (number, client) in clients.into_iter().cycle().enumerate() {
        ticks.tick().await;
        let Some(made) = timeline.now() else {
            break;
        };
        let order = Request::post(format!("http://{server}/orders/{number}"))
            .body(Full::from("1 espresso"))?;
        timeline.call_made(made);
        let timeline = Arc::clone(&timeline);
        calls.spawn(async move {
            if matches!(client.oneshot(order).await, Ok(status) if status.is_success()) {
                timeline.call_succeeded(made);
            }
        });
        while calls.try_join_next().is_some() {}
    }
    while calls.join_next().await.is_some() {}
    Ok(())
}
