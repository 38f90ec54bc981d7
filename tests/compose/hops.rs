//! Three hops over real connections: an axum edge, a tonic service and an axum backend, with tonic and
//! reqwest clients between them. No handler passes anything on.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use http::HeaderMap;
use tokio::net::TcpListener;
use tokio_stream::{Empty, wrappers::TcpListenerStream};
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Server},
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_client::HealthClient,
    health_server::{Health, HealthServer},
};
use tower::{ServiceBuilder, ServiceExt};
use tower_reprise::{
    DeadlineLayer, Dependencies, Policy, RetryOutcome,
    call::{CallerContext, StopReason},
    classify::Standard,
    dependency::Named,
    policy::PolicyBuilder,
    stacks::{
        self,
        reqwest::{HttpClient, TowerMiddleware},
    },
};

const PLAIN: &str = "x-envoy-expected-rq-timeout-ms";
const MINUTE: Duration = Duration::from_secs(60);

/// Retries soon, and nothing keeps it from that but what comes from the caller.
fn patient(policy: PolicyBuilder) -> PolicyBuilder {
    policy
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
        .budget_floor(10)
        .consecutive_failures(10_000)
        .failure_rate(1.0, 10_000, Duration::from_secs(30))
}

fn http_deps() -> Dependencies {
    Dependencies::new(patient(Policy::http()).build().unwrap())
}

fn grpc_deps() -> Dependencies<Standard, Named> {
    let policy = patient(Policy::grpc_unary());
    let policy = policy.idempotent_methods(["grpc.health.v1.Health/Check"]);
    Dependencies::builder(policy.build().unwrap())
        .named("middle")
        .build()
}

/// The headers of all requests that came to each hop.
#[derive(Clone, Default)]
struct Seen {
    middle: Arc<Mutex<Vec<HeaderMap>>>,
    backend: Arc<Mutex<Vec<HeaderMap>>>,
}

fn values(requests: &Mutex<Vec<HeaderMap>>, name: &str) -> Vec<Option<String>> {
    let requests = requests.lock().unwrap();
    let value = |headers: &HeaderMap| Some(headers.get(name)?.to_str().unwrap().to_owned());
    requests.iter().map(value).collect()
}

/// The way in which the middle hop calls the backend.
#[derive(Debug, Clone, Copy)]
enum Form {
    Service,
    Middleware,
}

struct Middle {
    seen: Seen,
    form: Form,
    backend: SocketAddr,
    deps: Dependencies,
    client: reqwest::Client,
    ended: Arc<Mutex<Vec<Option<StopReason>>>>,
}

impl Middle {
    async fn call_backend(&self) -> Result<reqwest::Response, StatusCode> {
        let uri = format!("http://{}/", self.backend);
        let layers = stacks::client(self.deps.clone());
        let reply = match self.form {
            Form::Service => {
                let client = HttpClient::new(self.client.clone());
                let stack = ServiceBuilder::new().layer(layers).service(client);
                let request = http::Request::get(uri).body(reqwest::Body::default());
                stack.oneshot(request.unwrap()).await.ok()
            }
            Form::Middleware => {
                let client = reqwest_middleware::ClientBuilder::new(self.client.clone());
                let client = client.with(TowerMiddleware::new(layers)).build();
                client.get(uri).send().await.ok()
            }
        };
        reply.ok_or(StatusCode::BAD_GATEWAY)
    }
}

#[tonic::async_trait]
impl Health for Middle {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let headers = request.metadata().clone().into_headers();
        self.seen.middle.lock().unwrap().push(headers);
        let reply = self.call_backend().await;
        if let Ok(reply) = &reply {
            let ended = RetryOutcome::of(reply).and_then(RetryOutcome::stop_reason);
            self.ended.lock().unwrap().push(ended);
        }
        match reply.is_ok_and(|reply| reply.status().is_success()) {
            true => Ok(Response::new(HealthCheckResponse::default())),
            false => Err(Status::unavailable("the backend failed")),
        }
    }

    type WatchStream = Empty<Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn serve(app: Router) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A chain of three, whose backend always replies with one status.
struct Chain {
    seen: Seen,
    edge: SocketAddr,
    /// Why the calls of the middle hop ended.
    ended: Arc<Mutex<Vec<Option<StopReason>>>>,
    /// The time that was left at the backend, by its context.
    left: Arc<Mutex<Vec<Duration>>>,
}

impl Chain {
    async fn start(form: Form, status: u16, deadline: Duration, middle: DeadlineLayer) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (seen, ended, left) = (Seen::default(), Arc::default(), Arc::default());

        let recorded = (seen.clone(), Arc::clone(&left));
        let backend = get(
            async move |State((seen, left)): State<(Seen, Arc<Mutex<Vec<Duration>>>)>,
                        headers: HeaderMap| {
                seen.backend.lock().unwrap().push(headers);
                let remaining = CallerContext::current().and_then(|caller| caller.remaining());
                left.lock().unwrap().extend(remaining);
                StatusCode::from_u16(status).unwrap()
            },
        );
        let backend = Router::new()
            .route("/", backend)
            .layer(DeadlineLayer::new().trust_callers())
            .with_state(recorded);
        let backend = serve(backend).await;

        let service = HealthServer::new(Middle {
            seen: seen.clone(),
            form,
            backend,
            deps: http_deps(),
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            ended: Arc::clone(&ended),
        });
        let (listener, address) = listen().await;
        let server = Server::builder().layer(middle).add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));

        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        let channel = ServiceBuilder::new()
            .layer(stacks::tonic::client(grpc_deps()))
            .service(channel.connect_lazy());
        let edge = get(async move || {
            let mut client = HealthClient::new(channel);
            let reply = client.check(HealthCheckRequest::default()).await;
            reply.map(|_| "well").map_err(|status| match status.code() {
                Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
                _ => StatusCode::BAD_GATEWAY,
            })
        });
        let deadlines = DeadlineLayer::new().default_deadline(deadline).unwrap();
        let edge = Router::new().route("/", edge).layer(deadlines);
        let edge = serve(edge).await;
        Self {
            seen,
            edge,
            ended,
            left,
        }
    }

    async fn call(&self) -> reqwest::Response {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let uri = format!("http://{}/", self.edge);
        // From outside, where nothing is believed.
        let request = client.get(uri).header(PLAIN, "3600000");
        request.send().await.unwrap()
    }
}

/// The edge gives 300 ms. A machine that is busy may take longer than that to get to the last hop, so
/// the call is repeated until one does.
#[tokio::test]
async fn x_1_a_deadline_of_the_edge_is_seen_at_the_last_hop_and_shrinks() {
    for form in [Form::Service, Form::Middleware] {
        let trusting = DeadlineLayer::new().trust_callers();
        let chain = Chain::start(form, 200, Duration::from_millis(300), trusting).await;
        for _ in 0..100 {
            if chain.call().await.status() == 200 {
                break;
            }
        }
        let at_middle = values(&chain.seen.middle, "grpc-timeout");
        let at_middle = at_middle.last().unwrap().as_deref();
        let at_middle = at_middle.and_then(|left| left.strip_suffix('u')).unwrap();
        let at_middle = Duration::from_micros(at_middle.parse().unwrap());
        let at_backend = values(&chain.seen.backend, PLAIN);
        let at_backend = at_backend.last().unwrap().as_deref().unwrap();
        let at_backend = Duration::from_millis(at_backend.parse().unwrap());
        let in_context = *chain.left.lock().unwrap().last().unwrap();
        assert!(at_middle < Duration::from_millis(300), "{at_middle:?}");
        assert!(at_backend <= at_middle, "{at_backend:?} of {at_middle:?}");
        assert!(in_context <= at_backend, "{in_context:?} of {at_backend:?}");
    }
}

/// The middle hop retries what it began for an original, and nothing for a retry.
#[tokio::test]
async fn x_2_a_retry_by_the_edge_is_not_multiplied_below() {
    for form in [Form::Service, Form::Middleware] {
        let middle = DeadlineLayer::new().trust_callers().final_failures(false);
        let chain = Chain::start(form, 503, MINUTE, middle).await;
        assert_eq!(chain.call().await.status(), 502);
        let previous = values(&chain.seen.middle, "grpc-previous-rpc-attempts");
        let expected = [None, Some("1"), Some("2"), Some("3")];
        assert_eq!(previous, expected.map(|it| it.map(ToOwned::to_owned)));
        let stop = Some(StopReason::ChainStop);
        let ended = [Some(StopReason::Exhausted), stop, stop, stop];
        assert_eq!(*chain.ended.lock().unwrap(), ended);
        let counts = values(&chain.seen.backend, "x-envoy-attempt-count");
        // Four attempts for the original, and one for each retry, which says which one it serves.
        let expected = [
            None,
            Some("2"),
            Some("3"),
            Some("4"),
            Some("2"),
            Some("3"),
            Some("4"),
        ];
        assert_eq!(counts, expected.map(|it| it.map(ToOwned::to_owned)));
    }
}

/// A call that the middle hop gave up is not repeated by the edge at all.
#[tokio::test]
async fn x_4_the_edge_does_not_repeat_what_the_hop_below_gave_up() {
    for form in [Form::Service, Form::Middleware] {
        let middle = DeadlineLayer::new().trust_callers();
        let chain = Chain::start(form, 503, MINUTE, middle).await;
        assert_eq!(chain.call().await.status(), 502);
        assert_eq!(chain.seen.middle.lock().unwrap().len(), 1);
        assert_eq!(chain.seen.backend.lock().unwrap().len(), 4);
    }
}
