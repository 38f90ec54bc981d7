//! C-5: methods that their `.proto` declares.

use prost::Message;
use prost_types::{
    FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, MethodOptions,
    ServiceDescriptorProto, method_options::IdempotencyLevel,
};
use tonic_health::pb::health_client::HealthClient;
use tower_reprise::Policy;

use crate::{
    client::{CHECK, channel, check, keyless, named, served},
    support::grpc::{Act, Server},
};

fn method(name: &str, level: Option<IdempotencyLevel>, streams: bool) -> MethodDescriptorProto {
    let options = level.map(|level| MethodOptions {
        idempotency_level: Some(level.into()),
        ..MethodOptions::default()
    });
    MethodDescriptorProto {
        name: Some(name.into()),
        options,
        server_streaming: Some(streams),
        ..MethodDescriptorProto::default()
    }
}

fn set(package: &str, service: &str, method: Vec<MethodDescriptorProto>) -> Vec<u8> {
    let service = ServiceDescriptorProto {
        name: Some(service.into()),
        method,
        ..ServiceDescriptorProto::default()
    };
    let file = FileDescriptorProto {
        package: (!package.is_empty()).then(|| package.into()),
        service: vec![service],
        ..FileDescriptorProto::default()
    };
    FileDescriptorSet { file: vec![file] }.encode_to_vec()
}

#[test]
fn c_5_the_idempotency_level_of_a_method_is_its_declaration() {
    use IdempotencyLevel::{IdempotencyUnknown, Idempotent, NoSideEffects};

    let methods = vec![
        method("Balance", Some(NoSideEffects), false),
        method("Close", Some(Idempotent), false),
        method("Pay", Some(IdempotencyUnknown), false),
        method("Send", None, false),
        method("Watch", Some(NoSideEffects), true),
    ];
    let bytes = set("ledger.v1", "Ledger", methods.clone());
    let found = Policy::grpc_unary()
        .descriptor_set(&bytes)
        .unwrap()
        .build()
        .unwrap();
    let named = |names: &[&str]| -> Vec<_> {
        names
            .iter()
            .map(|name| format!("ledger.v1.Ledger/{name}"))
            .collect()
    };
    assert_eq!(
        found.rules().idempotent_methods,
        named(&["Balance", "Close", "Watch"])
    );
    assert_eq!(
        found.rules().unary_methods,
        named(&["Balance", "Close", "Pay", "Send"])
    );

    let bytes = set("", "Ledger", methods[..1].to_vec());
    let found = Policy::grpc_unary()
        .descriptor_set(&bytes)
        .unwrap()
        .build()
        .unwrap();
    assert_eq!(found.rules().idempotent_methods, ["Ledger/Balance"]);

    let error = Policy::grpc_unary()
        .descriptor_set(b"\xff\xff")
        .unwrap_err();
    assert_eq!(error.field(), "descriptor_set");
}

#[tokio::test]
async fn c_5_a_method_that_its_proto_declares_is_retried() {
    for (level, attempts) in [
        (Some(IdempotencyLevel::NoSideEffects), Some(2)),
        (None, None),
    ] {
        let bytes = set(
            "grpc.health.v1",
            "Health",
            vec![method("Check", level, false)],
        );
        let undeclared = Policy::grpc_unary()
            .base(std::time::Duration::from_millis(1))
            .cap(std::time::Duration::from_millis(2));
        let declared = undeclared.descriptor_set(&bytes).unwrap();
        let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
        let mut client = HealthClient::new(keyless(&named(declared), channel(server.address)));
        let reply = client.check(check()).await;
        assert_eq!(
            reply.ok().as_ref().map(served),
            attempts,
            "{level:?} {CHECK}"
        );
    }
}
