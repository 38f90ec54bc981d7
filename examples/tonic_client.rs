//! A generated tonic client over the layers, and a server with bad moments:
//!
//! ```text
//! cargo run --features tonic --example tonic_client
//! ```
//!
//! The server is tonic's health service behind an interceptor that fails as it is told. You see
//! each call as the server saw it, and what the caller got: a unary call, a stream, a call that
//! is not safe to repeat, and a server that stays down. It takes a second.

use std::{
    collections::VecDeque,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::net::TcpListener;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Code, Request, Response, Status,
    service::InterceptorLayer,
    transport::{Channel, Endpoint, Server},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::ServiceBuilder;
use tower_reprise::{
    Dependencies, Policy, RetryLayer, RetryOutcome,
    error::{BoxError, Refused},
    stacks::{self, tonic::StatusLayer},
};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let (channel, script) = serve().await?;
    let policy = Policy::grpc_unary()
        // Every call of this demonstration fails first.
        .budget_floor(10)
        .service("tonic-example")
        .base(Duration::from_millis(50))
        .idempotent_methods(["grpc.health.v1.Health"])
        .build()?;
    let deps = Dependencies::named("health", policy.clone());
    let mut client = HealthClient::new(
        ServiceBuilder::new()
            .layer(stacks::tonic::client(deps.clone()))
            .service(channel.clone()),
    );
    let request = HealthCheckRequest::default();

    println!("A unary call that fails twice");
    script.say([Code::Unavailable, Code::ResourceExhausted]);
    tell(client.check(request.clone()).await);

    println!("A stream that fails to begin");
    script.say([Code::Unavailable]);
    let stream = client.watch(request.clone()).await;
    let mut messages = tell(stream).ok_or("no stream")?;
    let first = messages.message().await?;
    println!("  stream  {first:?}\n");
    drop(messages);

    println!("A failure that another call would not mend");
    script.say([Code::InvalidArgument]);
    tell(client.check(request.clone()).await);

    println!("A method that is not declared idempotent, without a key");
    let undeclared = Policy::grpc_unary().service("tonic-example").build()?;
    let mut keyless = HealthClient::new(
        ServiceBuilder::new()
            .layer(StatusLayer::new())
            .layer(RetryLayer::new(Dependencies::named("health", undeclared)))
            .service(channel.clone()),
    );
    script.say([Code::Unavailable]);
    tell(keyless.watch(request.clone()).await);

    println!("A call with a timeout, which each attempt has less of");
    script.say([Code::Unavailable, Code::Unavailable]);
    let mut hurried = Request::new(request.clone());
    hurried.set_timeout(Duration::from_secs(2));
    tell(client.check(hurried).await);

    println!("A server that stays down");
    script.say([Code::Unavailable; 20]);
    for _ in 0..3 {
        tell(client.check(request.clone()).await);
    }
    Ok(())
}

/// Prints the caller's result, and its attempts and stop reason.
fn tell<T>(result: Result<Response<T>, Status>) -> Option<T> {
    match result {
        Ok(response) => {
            let outcome = response.extensions().get::<RetryOutcome>();
            let attempts = outcome.map_or(1, RetryOutcome::attempts);
            println!("  caller  OK at attempt {attempts}\n");
            Some(response.into_inner())
        }
        Err(status) => {
            let why = match (Refused::find(&status), RetryOutcome::of_error(&status)) {
                (Some(refused), _) => format!("({refused})"),
                (None, Some(outcome)) => match (outcome.attempts(), outcome.stop_reason()) {
                    (attempts, None) => format!("at attempt {attempts}"),
                    (attempts, Some(why)) => format!("at attempt {attempts}, the last: {why}"),
                },
                (None, None) => status.message().to_owned(),
            };
            println!("  caller  {:?} {why}\n", status.code());
            None
        }
    }
}

/// The statuses of the next calls.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<VecDeque<Code>>>);

impl Script {
    fn say(&self, codes: impl IntoIterator<Item = Code>) {
        self.lines().extend(codes);
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, VecDeque<Code>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn play(&self, request: Request<()>) -> Result<Request<()>, Status> {
        let code = self.lines().pop_front().unwrap_or(Code::Ok);
        let metadata = request.metadata();
        let said = |name| metadata.get(name).and_then(|value| value.to_str().ok());
        let previous = said("grpc-previous-rpc-attempts").unwrap_or("none");
        let key = said("idempotency-key").unwrap_or("none");
        let timeout = said("grpc-timeout").map_or(String::new(), |time| format!(", {time} left"));
        println!("  server  before it {previous}, key {key:.8}{timeout}: {code:?}");
        match code {
            Code::Ok => Ok(request),
            code => Err(Status::new(code, "a bad moment")),
        }
    }
}

async fn serve() -> Result<(Channel, Script), BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let (send, incoming) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(()) = send.send(listener.accept().await.map(|(stream, _)| stream)) {}
    });
    let script = Script::default();
    let played = script.clone();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .layer(InterceptorLayer::new(move |request| played.play(request)))
        .add_service(health)
        .serve_with_incoming(UnboundedReceiverStream::new(incoming));
    tokio::spawn(server);
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok((endpoint.connect_lazy(), script))
}
