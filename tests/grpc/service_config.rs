//! P-5: a tonic client over real connections, configured by a gRPC service config.

use std::sync::Arc;

use tokio::sync::Notify;
use tonic::Code;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;
use tower_reprise::{Policy, call::StopReason, config::ServiceConfig, stacks};

use crate::{
    client::{channel, check, outcome, served},
    support::grpc::{Act, Server},
};

const CONFIG: &str = r#"{
    "methodConfig": [{
        "name": [{"service": "grpc.health.v1.Health", "method": "Check"}],
        "timeout": "20s",
        "retryPolicy": {
            "maxAttempts": 4,
            "initialBackoff": "0.001s",
            "maxBackoff": "0.002s",
            "backoffMultiplier": 1.5,
            "retryableStatusCodes": ["UNAVAILABLE", "ABORTED"]
        }
    }],
    "retryThrottling": {"maxTokens": 20, "tokenRatio": 0.1}
}"#;

#[tokio::test]
async fn p_5_a_tonic_client_retries_as_its_service_config_says() {
    for (config, script, expected) in [
        (CONFIG, vec![14, 10, 14, 0], Ok(4)),
        (
            CONFIG,
            vec![14, 14, 14, 14, 0],
            Err((Code::Unavailable, 4, StopReason::Exhausted)),
        ),
        (
            CONFIG,
            vec![8, 0],
            Err((Code::ResourceExhausted, 1, StopReason::NotRetryable)),
        ),
        (
            CONFIG,
            vec![14, 13, 0],
            Err((Code::Internal, 2, StopReason::NotRetryable)),
        ),
        // A method that the document does not retry.
        (
            "{}",
            vec![14, 0],
            Err((Code::Unavailable, 1, StopReason::NotRetryable)),
        ),
    ] {
        let acts = script.iter().map(|code| match code {
            0 => Act::Serve,
            code => Act::fail(*code),
        });
        let server = Server::start(acts.collect()).await;
        let config = ServiceConfig::from_json(config).unwrap();
        let deps = config
            .dependencies("health", Policy::grpc_unary())
            .unwrap()
            .build();
        let stack = ServiceBuilder::new()
            .layer(stacks::tonic::client(deps))
            .service(channel(server.address));
        let found = match HealthClient::new(stack).check(check()).await {
            Ok(reply) => Ok(served(&reply)),
            Err(status) => {
                let (attempts, reason) = outcome(&status);
                Err((status.code(), attempts, reason.unwrap()))
            }
        };
        assert_eq!(found, expected, "{script:?}");
    }
}

const HEDGED: &str = r#"{
    "methodConfig": [{
        "name": [{"service": "grpc.health.v1.Health", "method": "Check"}],
        "timeout": "20s",
        "hedgingPolicy": {
            "maxAttempts": MOST,
            "hedgingDelay": "0.05s",
            "nonFatalStatusCodes": ["UNAVAILABLE"]
        }
    }]
}"#;

/// No answer for the delay: one more goes out. A status that is listed leaves the call to the other one,
/// and any other status ends it.
#[tokio::test]
async fn p_5_a_tonic_client_hedges_as_its_service_config_says() {
    let (stall, serve) = (|| Act::Stall, || Act::Serve);
    // The first one fails after its hedge.
    let both = || {
        let gate = Arc::<Notify>::default();
        vec![Act::FailWhen(Arc::clone(&gate)), Act::FailAnd(gate)]
    };
    for (n, (most, script, expected, sent)) in [
        ("2", vec![stall(), serve()], Ok(()), 2),
        (
            "2",
            vec![stall(), Act::fail(13), serve()],
            Err(Code::Internal),
            2,
        ),
        ("2", vec![Act::fail(14), serve()], Ok(()), 2),
        (
            "2",
            vec![Act::fail(14), Act::fail(14), serve()],
            Err(Code::Unavailable),
            2,
        ),
        ("2", vec![Act::fail(13), serve()], Err(Code::Internal), 1),
        ("4", vec![Act::fail(14), stall(), serve()], Ok(()), 3),
        (
            "4",
            vec![
                Act::fail(14),
                Act::fail(14),
                Act::fail(14),
                Act::fail(14),
                serve(),
            ],
            Err(Code::Unavailable),
            4,
        ),
        // An attempt and its hedge that fail are two.
        ("2", both(), Err(Code::Unavailable), 2),
        ("3", [both(), vec![serve()]].concat(), Ok(()), 3),
        (
            "4",
            [both(), both(), vec![serve()]].concat(),
            Err(Code::Unavailable),
            4,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let server = Server::start(script).await;
        let config = ServiceConfig::from_json(&HEDGED.replace("MOST", most)).unwrap();
        let deps = config
            .dependencies("health", Policy::grpc_unary())
            .unwrap()
            .build();
        let dependency = deps.get("health/grpc.health.v1.health/check");
        (0..2000).for_each(|_| dependency.deposit());
        let stack = ServiceBuilder::new()
            .layer(stacks::tonic::client(deps))
            .service(channel(server.address));
        let found = HealthClient::new(stack).check(check()).await;
        let found = found.map(drop).map_err(|status| status.code());
        assert_eq!(found, expected, "{n}");
        assert_eq!(server.requests().len(), sent, "{n}");
    }
}
