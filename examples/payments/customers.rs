//! Customers, who want to pay each order once and will not take no for an answer.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::task::JoinSet;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{Dependencies, IdempotencyKey, Policy, error::BoxError, stacks};

use crate::ledger::amount_of;

const AT_ONCE: u64 = 12;

pub(crate) struct Customers {
    tasks: JoinSet<Result<(), String>>,
    asked: Arc<Asked>,
    orders: u64,
}

#[derive(Default)]
pub(crate) struct Asked {
    paid: AtomicU64,
    requests: AtomicU64,
    pressed_again: AtomicU64,
    replayed: AtomicU64,
}

/// The customers' figures.
pub(crate) struct Figures {
    pub(crate) requests: u64,
    pub(crate) pressed_again: u64,
    pub(crate) replayed: u64,
}

impl Customers {
    pub(crate) fn start(bank: SocketAddr, orders: u64) -> Result<Self, BoxError> {
        let policy = Policy::http()
            .honours_keys()
            .service("customers")
            .max_retries(5)
            .base(Duration::from_millis(50))
            .cap(Duration::from_secs(1))
            .attempt_timeout(Duration::from_secs(3))
            .cooldown(Duration::from_millis(200), Duration::from_millis(800))
            .build()?;
        let deps = Dependencies::new(policy);
        let asked = Arc::new(Asked::default());
        let network = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let mut tasks = JoinSet::new();
        for customer in 0..AT_ONCE {
            let mut client = ServiceBuilder::new()
                .layer(stacks::client(deps.clone()))
                .service(counting(network.clone(), Arc::clone(&asked)));
            let asked = Arc::clone(&asked);
            tasks.spawn(async move {
                for order in (customer..orders).step_by(AT_ONCE as usize) {
                    let key = IdempotencyKey::random();
                    // A person would not press forever; a hundred times is a broken bank.
                    let mut presses = 0..100;
                    loop {
                        presses
                            .next()
                            .ok_or_else(|| format!("order {order} was never paid"))?;
                        match pay(&mut client, bank, customer, order, &key).await {
                            Ok(replayed) => {
                                asked
                                    .replayed
                                    .fetch_add(u64::from(replayed), Ordering::Relaxed);
                                break;
                            }
                            Err(_) => {
                                asked.pressed_again.fetch_add(1, Ordering::Relaxed);
                                tokio::time::sleep(Duration::from_millis(200)).await;
                            }
                        }
                    }
                    asked.paid.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
        }
        Ok(Self {
            tasks,
            asked,
            orders,
        })
    }

    pub(crate) fn paid(&self) -> u64 {
        self.asked.paid.load(Ordering::Relaxed)
    }

    pub(crate) fn are_done(&self) -> bool {
        self.paid() == self.orders || self.tasks.is_empty()
    }

    pub(crate) async fn finish(mut self) -> Result<Figures, BoxError> {
        while let Some(task) = self.tasks.join_next().await {
            task??;
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(Figures {
            requests: count(&self.asked.requests),
            pressed_again: count(&self.asked.pressed_again),
            replayed: count(&self.asked.replayed),
        })
    }
}

/// Pays an order; whether the reply came from the bank's store.
async fn pay<S, B>(
    client: &mut S,
    bank: SocketAddr,
    customer: u64,
    order: u64,
    key: &IdempotencyKey,
) -> Result<bool, BoxError>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = BoxError>,
    B: http_body::Body<Error: Into<BoxError>>,
{
    let body = format!("{order} {}", amount_of(order));
    let mut request = Request::post(format!("http://{bank}/payments"))
        .header("authorization", format!("Bearer customer-{customer}"))
        .body(Full::from(body))?;
    request.extensions_mut().insert(key.clone());
    let response = client.ready().await?.call(request).await?;
    let status = response.status();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let reply = response.into_body().collect().await.map_err(Into::into)?;
    if !status.is_success() {
        return Err(format!("{status}: {:?}", reply.to_bytes()).into());
    }
    Ok(replayed)
}

/// Counts what is really sent.
fn counting(
    client: Client<HttpConnector, Full<Bytes>>,
    asked: Arc<Asked>,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = Response<hyper::body::Incoming>,
    Error = hyper_util::client::legacy::Error,
    Future: Send,
> + Clone
+ Send {
    service_fn(move |request| {
        asked.requests.fetch_add(1, Ordering::Relaxed);
        client.request(request)
    })
}
