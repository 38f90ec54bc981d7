//! Customers, who call through all layers of a client.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
    vec,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{HttpConnector, dns::Name},
    },
    rt::{TokioExecutor, TokioTimer},
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    Dependencies,
    error::{BoxError, Refused},
    stacks,
};

use crate::{
    DEPENDENCIES, KEYS,
    dice::{Dice, mix},
    witness::{End, Witness, name, number},
};

const CUSTOMERS: usize = 200;
/// Calls a second of all of them together, when all keys were used once.
const RATE: f64 = 1500.0;
/// A connection that is not used for so long is closed.
const IDLE: Duration = Duration::from_secs(10);
/// A body has no deadline of its own.
const READING: Duration = Duration::from_secs(2);
const CUSTOMER: &str = "x-customer";

pub(crate) struct Customers {
    calling: JoinSet<()>,
    leave: Arc<AtomicBool>,
}

/// One request of a customer.
struct Wish {
    host: String,
    key: Option<usize>,
    request: Request<Full<Bytes>>,
}

impl Customers {
    pub(crate) fn start(
        seed: u64,
        server: SocketAddr,
        deps: Dependencies,
        witness: &Arc<Witness>,
    ) -> Self {
        let sent: Arc<[AtomicU32]> = (0..CUSTOMERS).map(|_| AtomicU32::new(0)).collect();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(2)
            .build::<_, Full<Bytes>>(connector(server));
        let watched = watched(client, Arc::clone(&sent), Arc::clone(witness));
        let client = ServiceBuilder::new()
            .layer(stacks::client(deps))
            .service(watched);
        let leave = Arc::new(AtomicBool::new(false));
        let mut calling = JoinSet::new();
        for customer in 0..CUSTOMERS {
            let (client, sent, witness) = (client.clone(), Arc::clone(&sent), Arc::clone(witness));
            let leave = Arc::clone(&leave);
            let mut dice = Dice::new(mix(seed, customer as u64));
            calling.spawn(async move {
                while !leave.load(Ordering::Relaxed) {
                    let wish = Wish::draw(customer, &mut dice, &witness);
                    sent[customer].store(0, Ordering::Relaxed);
                    let impatient = dice.uniform() < 0.02;
                    let patience = match impatient {
                        true => Duration::from_secs_f64(dice.uniform() * 0.005),
                        false => Duration::MAX,
                    };
                    witness.called(&wish.host);
                    let call = call(client.clone(), wish, &witness);
                    let end = timeout(patience, call).await.unwrap_or(End::HungUp);
                    witness.ended(end);
                    if witness.all_keys_were_used() {
                        let pause = dice.exponential(RATE / CUSTOMERS as f64);
                        sleep(Duration::from_secs_f64(pause)).await;
                    }
                }
            });
        }
        Self { calling, leave }
    }

    /// They end their calls and go.
    pub(crate) async fn leave(self) {
        self.leave.store(true, Ordering::Relaxed);
        self.calling.join_all().await;
    }
}

/// All dependencies are one server; any other name leads nowhere.
fn connector(
    server: SocketAddr,
) -> HttpConnector<
    impl Service<Name, Response = vec::IntoIter<SocketAddr>, Error = io::Error, Future: Send> + Clone,
> {
    let resolve = service_fn(move |name: Name| async move {
        match number(name.as_str()) {
            Some(_) => Ok(vec![server].into_iter()),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    });
    let mut connector = HttpConnector::new_with_resolver(resolve);
    connector.set_nodelay(true);
    connector
}

/// The client below all layers: counts what goes out again.
fn watched<C, B>(
    client: C,
    sent: Arc<[AtomicU32]>,
    witness: Arc<Witness>,
) -> impl Service<Request<Full<Bytes>>, Response = Response<B>, Error = C::Error, Future: Send> + Clone
where
    C: Service<Request<Full<Bytes>>, Response = Response<B>, Future: Send> + Clone,
{
    let mut client = client;
    service_fn(move |request: Request<Full<Bytes>>| {
        let customer = request
            .headers()
            .get(CUSTOMER)
            .and_then(|value| value.to_str().ok());
        let customer: usize = customer
            .and_then(|customer| customer.parse().ok())
            .unwrap_or(0);
        if sent[customer].fetch_add(1, Ordering::Relaxed) > 0 {
            witness.retried(request.uri().host().unwrap_or_default());
        }
        client.call(request)
    })
}

impl Wish {
    fn draw(customer: usize, dice: &mut Dice, witness: &Witness) -> Self {
        let below = |dice: &mut Dice, limit: usize| (dice.uniform() * limit as f64) as usize;
        let unused = witness.unused_key();
        let kind = dice.uniform();
        let host = match kind < 0.01 && unused.is_none() {
            true => format!("stranger-{}.soak", below(dice, 1 << 30)),
            false => name(below(dice, DEPENDENCIES)),
        };
        let key = match unused {
            Some(key) => Some(key),
            None => (kind < 0.5).then(|| below(dice, KEYS)),
        };
        let request = Request::builder()
            .header(CUSTOMER, customer)
            .header("accept", "text/plain");
        let request = match key {
            Some(key) => request
                .method("POST")
                .uri(format!("http://{host}/orders"))
                .header("idempotency-key", format!("order-{key}"))
                .body(Full::from(key.to_string())),
            // One that gets its key from the stack.
            None if kind < 0.505 => request
                .method("POST")
                .uri(format!("http://{host}/orders"))
                .body(Full::from("something")),
            None => request
                .uri(format!("http://{host}/items"))
                .body(Full::default()),
        };
        let request = request.expect("a request");
        Self { host, key, request }
    }
}

async fn call<S, B>(client: S, wish: Wish, witness: &Witness) -> End
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = BoxError>,
    B: Body<Data = Bytes>,
{
    let response = match client.oneshot(wish.request).await {
        Ok(response) => response,
        Err(error) if Refused::find(&*error).is_some() => return End::Refused,
        Err(_) => return End::Broken,
    };
    let status = response.status();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let body = timeout(READING, response.into_body().collect()).await;
    let Ok(Ok(body)) = body else {
        return End::Broken;
    };
    let body = body.to_bytes();
    if status == StatusCode::SERVICE_UNAVAILABLE && is_of_the_store(&body) {
        witness.no_room();
    }
    if !status.is_success() {
        return End::Failed;
    }
    let text = std::str::from_utf8(&body).unwrap_or_default().trim_end();
    if wish.key.is_some_and(|key| text != key.to_string()) {
        witness.wrong_reply();
    }
    if replayed { End::Replayed } else { End::Served }
}

/// Whether it is the problem document of a store that can't take any more.
fn is_of_the_store(body: &[u8]) -> bool {
    body.windows(5).any(|word| word == b"store")
}
