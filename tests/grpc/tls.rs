//! TLS: certificates and handshakes.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tonic::{
    Code,
    transport::{Certificate, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig},
};
use tonic_health::pb::health_client::HealthClient;
use tower_reprise::call::{Cause, Retryable, StopReason};

use crate::{
    client::{check, full, keyless, named, outcome, policy, served, verdict},
    support::{
        authority::{self, Authority},
        grpc,
    },
};

fn pem(identity: &authority::Identity) -> Identity {
    Identity::from_pem(identity.certificate.pem(), identity.key.serialize_pem())
}

async fn tls_server(identity: &authority::Identity) -> (SocketAddr, Arc<AtomicUsize>) {
    let (_, health) = tonic_health::server::health_reporter();
    let (incoming, address, connections) = grpc::incoming().await;
    let router = tonic::transport::Server::builder()
        .tls_config(ServerTlsConfig::new().identity(pem(identity)))
        .unwrap()
        .add_service(health);
    tokio::spawn(router.serve_with_incoming(incoming));
    (address, connections)
}

fn tls(address: SocketAddr, authority: &Authority) -> Endpoint {
    let config = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.certificate.pem()))
        .timeout(Duration::from_secs(10));
    Endpoint::from_shared(format!("https://{address}"))
        .unwrap()
        .tls_config(config)
        .unwrap()
}

#[tokio::test]
async fn c_3_a_good_certificate_is_no_obstacle() {
    let authority = Authority::new();
    let (address, connections) = tls_server(&authority.issue("127.0.0.1", false)).await;
    let channel = tls(address, &authority).connect_lazy();
    let mut client = HealthClient::new(full(&named(policy()), channel));
    let reply = client.check(check()).await.unwrap();
    assert_eq!((served(&reply), reply.into_inner().status), (1, 1));
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn c_3_a_bad_certificate_surfaces_at_once() {
    let authority = Authority::new();
    let bad = [
        ("self-signed", authority::Identity::self_signed("127.0.0.1")),
        (
            "unknown authority",
            Authority::new().issue("127.0.0.1", false),
        ),
        ("expired", authority.issue("127.0.0.1", true)),
        ("another's name", authority.issue("other.example", false)),
    ];
    for (what, identity) in bad {
        let (address, connections) = tls_server(&identity).await;
        let channel = tls(address, &authority).connect_lazy();
        let mut client = HealthClient::new(full(&named(policy()), channel));
        let status = client.check(check()).await.unwrap_err();
        assert_eq!(
            outcome(&status),
            (1, Some(StopReason::NotRetryable)),
            "{what}: {status:?}"
        );
        let verdict = verdict(&status);
        assert_eq!(
            (verdict.cause, verdict.retry),
            (Cause::Certificate, Retryable::Never),
            "{what}"
        );
        assert_eq!(connections.load(Ordering::SeqCst), 1, "{what}");
    }
}

#[tokio::test]
async fn c_3_a_handshake_that_stalls_is_retried_for_any_method() {
    let (mut stalling, address, connections) = grpc::incoming().await;
    // Connections are accepted, and nothing is said.
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(stream) = tokio_stream::StreamExt::next(&mut stalling).await {
            kept.push(stream);
        }
    });
    let authority = Authority::new();
    let config = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.certificate.pem()))
        .timeout(Duration::from_millis(20));
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    let channel = endpoint.tls_config(config).unwrap().connect_lazy();
    let mut client = HealthClient::new(keyless(&named(policy()), channel));
    let status = client.watch(check()).await.unwrap_err();
    assert_eq!(outcome(&status), (4, Some(StopReason::Exhausted)));
    let verdict = verdict(&status);
    assert_eq!(
        (verdict.cause, verdict.retry, verdict.never_sent),
        (Cause::Timeout, Retryable::Yes, true)
    );
    assert_eq!(status.code(), Code::Unavailable, "there was no connection");
    // The server may not have seen them all yet.
    assert!(connections.load(Ordering::SeqCst) <= 4);
}

#[tokio::test]
async fn c_3_a_channel_that_can_not_work_is_never_retried() {
    // A server that speaks TLS, and not HTTP/2.
    let authority = Authority::new();
    let identity = authority.issue("127.0.0.1", false);
    let (address, connections) = grpc::tls_without_http2(identity).await;
    let not_http2 = tls(address, &authority).connect_lazy();
    // A channel that was not told how to speak TLS.
    let not_tls = Endpoint::from_shared(format!("https://{address}")).unwrap();
    for channel in [not_http2, not_tls.connect_lazy()] {
        let mut client = HealthClient::new(full(&named(policy()), channel));
        let status = client.check(check()).await.unwrap_err();
        assert_eq!(verdict(&status).cause, Cause::Configuration, "{status:?}");
        assert_eq!(outcome(&status), (1, Some(StopReason::NotRetryable)));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}
