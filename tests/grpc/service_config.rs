//! P-5: a tonic client over real connections, configured by a gRPC service config.

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
