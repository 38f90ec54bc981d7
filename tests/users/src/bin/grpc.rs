//! A tonic server with keys for one method beside a stream, and a client whose calls are retried.

use tonic::{
    Code,
    transport::{Channel, Server},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::ServiceBuilder;
use tower_http::trace::TraceLayer;
use tower_reprise::{
    Dependencies, IdempotencyLayer, InboundBudgetLayer, Policy,
    error::Refused,
    server::dialect::Scope,
    stacks,
    store::{CrashPolicy, MemoryStore},
};
use tower_reprise_users::Result;

const CHECK: &str = "grpc.health.v1.Health/Check";

fn client(
    address: String,
) -> Result<
    HealthClient<
        impl Clone
        + tonic::client::GrpcService<
            tonic::body::Body,
            ResponseBody: http_body_util::BodyExt<
                Data = bytes::Bytes,
                Error: Into<tonic::codegen::StdError> + Send,
            > + Send
                              + 'static,
            Error: Into<tonic::codegen::StdError>,
        >,
    >,
> {
    let policy = Policy::grpc_unary()
        .unary_methods([CHECK])
        .honours_keys()
        .build()?;
    let deps = Dependencies::named("health", policy);
    let channel = Channel::from_shared(address)?.connect_lazy();
    let channel = ServiceBuilder::new()
        .layer(stacks::tonic::client(deps))
        .service(channel);
    Ok(HealthClient::new(channel))
}

#[tokio::main]
async fn main() -> Result {
    let idempotency = IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::anonymous("everybody"))
        .crash_policy(CrashPolicy::Reexecute)
        .requirement(stacks::tonic::keys_for([CHECK]))
        .build()?;
    let inbound = Dependencies::new(Policy::grpc_unary().build()?);
    let (_, health) = tonic_health::server::health_reporter();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    drop(listener);
    tokio::spawn(
        Server::builder()
            .layer(TraceLayer::new_for_grpc())
            .layer(InboundBudgetLayer::new(inbound))
            .layer(idempotency)
            .add_service(health)
            .serve(address),
    );

    let mut client_of_server = client(format!("http://{address}"))?;
    // The client stamps the key that the server asks for, and tries until the server is there.
    client_of_server
        .check(HealthCheckRequest::default())
        .await?;
    let mut stream = client_of_server
        .watch(HealthCheckRequest::default())
        .await?
        .into_inner();
    println!("{:?}", stream.message().await?);

    let mut nobody = client("http://127.0.0.1:1".to_owned())?;
    let status = nobody
        .check(HealthCheckRequest::default())
        .await
        .unwrap_err();
    println!("{status}");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(Refused::find(&status).is_none());
    Ok(())
}
