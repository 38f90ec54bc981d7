//! TLS: certificates and handshakes.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::CertificateDer,
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;
use tower_reprise::call::{Cause, Health, Retryable, StopReason};

use crate::{
    client::{Client, get, impatient, keyless, over, parts, post, stack, text},
    support::{
        authority::{Authority, Identity},
        deps,
        http1::{Act, Server, read_request, reply, say},
        outcome_of, quick, verdict,
    },
};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn roots(trusted: impl IntoIterator<Item = CertificateDer<'static>>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate).unwrap();
    }
    roots
}

pub(crate) fn trusting(trusted: impl IntoIterator<Item = CertificateDer<'static>>) -> ClientConfig {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots(trusted))
        .with_no_client_auth()
}

pub(crate) fn https(trusted: &Authority) -> Client<HttpsConnector<HttpConnector>> {
    over(
        HttpsConnectorBuilder::new()
            .with_tls_config(trusted.trusted())
            .https_only()
            .enable_http1()
            .build(),
    )
}

/// A TLS server: stalls so many connections, then answers 200.
pub(crate) struct TlsServer {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
}

impl TlsServer {
    pub(crate) async fn start(identity: Identity, stalls: usize) -> Self {
        Self::with(identity.acceptor(&[]), stalls).await
    }

    pub(crate) async fn with(acceptor: TlsAcceptor, stalls: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            requests: Arc::default(),
        };
        let (connections, requests) = (server.connections.clone(), server.requests.clone());
        tokio::spawn(async move {
            let mut stalled = Vec::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                if connections.fetch_add(1, Ordering::SeqCst) < stalls {
                    stalled.push(stream);
                    continue;
                }
                let (acceptor, requests) = (acceptor.clone(), requests.clone());
                tokio::spawn(async move {
                    match acceptor.accept(stream).into_fallible().await {
                        Ok(stream) => {
                            let mut stream = BufReader::new(stream);
                            if let Ok(request) = read_request(&mut stream).await {
                                requests.lock().unwrap().push(request.head);
                                let Act::Say(text) = reply(200, "") else {
                                    unreachable!()
                                };
                                say(&mut stream, &text).await;
                                let _ = stream.shutdown().await;
                            }
                        }
                        // Read to the end, so that closing does not overtake the alert.
                        Err((_, mut stream)) => {
                            let _ = stream.read_to_end(&mut Vec::new()).await;
                        }
                    }
                });
            }
        });
        server
    }

    pub(crate) fn uri(&self) -> String {
        format!("https://{}/", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn c_3_a_good_certificate_is_no_obstacle() {
    let authority = Authority::new();
    let server = TlsServer::start(authority.issue("127.0.0.1", false), 0).await;
    let response = stack(&deps(quick()), https(&authority))
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(text(response).await, "ok");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn c_3_a_bad_certificate_is_never_retried() {
    let authority = Authority::new();
    for request in [get, post] {
        let bad = [
            ("self-signed", Identity::self_signed("127.0.0.1")),
            (
                "unknown authority",
                Authority::new().issue("127.0.0.1", false),
            ),
            ("expired", authority.issue("127.0.0.1", true)),
            ("another's name", authority.issue("other.example", false)),
        ];
        for (what, identity) in bad {
            let server = TlsServer::start(identity, 0).await;
            let error = keyless(&deps(quick()), https(&authority))
                .oneshot(request(&server.uri()))
                .await
                .unwrap_err();
            assert_eq!(server.connections(), 1, "{what}");
            assert_eq!(server.requests.lock().unwrap().len(), 0, "{what}");
            assert_eq!(
                outcome_of(&error),
                (1, Some(StopReason::NotRetryable)),
                "{what}"
            );
            assert_eq!(
                parts(&error),
                (Cause::Certificate, Retryable::Never, Health::Neutral, true),
                "{what}"
            );
        }
    }
}

#[tokio::test]
async fn c_3_a_client_without_the_certificate_that_is_asked_for_does_not_insist() {
    let authority = Authority::new();
    let (certificate, key) = authority.issue("127.0.0.1", false).der();
    let trusted = Arc::new(roots([authority.certificate.der().clone()]));
    let verifier = WebPkiClientVerifier::builder_with_provider(trusted, provider())
        .build()
        .unwrap();
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let server = TlsServer::with(TlsAcceptor::from(Arc::new(config)), 0).await;
    // The alert comes after the client's side of the handshake, in place of a reply.
    let error = stack(&deps(quick()), https(&authority))
        .oneshot(get(&server.uri()))
        .await
        .unwrap_err();
    assert_eq!(server.connections(), 1);
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    assert_eq!(verdict(&error).cause, Cause::Certificate);
}

#[tokio::test]
async fn c_3_a_handshake_that_stalls_is_retried() {
    let authority = Authority::new();
    let server = TlsServer::start(authority.issue("127.0.0.1", false), 1).await;
    let response = stack(&impatient(), https(&authority))
        .oneshot(get(&server.uri()))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert!(server.connections() >= 2);
}

#[tokio::test]
async fn c_3_a_handshake_that_breaks_off_is_retried_for_any_method() {
    let authority = Authority::new();
    let server = Server::start(vec![Act::Close]).await;
    let error = keyless(&deps(quick()), https(&authority))
        .oneshot(post(&server.uri().replace("http:", "https:")))
        .await
        .unwrap_err();
    assert_eq!(server.connections(), 4);
    assert_eq!(
        parts(&error),
        (Cause::Reset, Retryable::Yes, Health::Failure, true)
    );
}

#[tokio::test]
async fn c_3_a_server_that_speaks_no_tls_is_not_retried() {
    // The server's greeting is no TLS record, and long enough to be read as one.
    let server = PlainTalker::start().await;
    let error = stack(&deps(quick()), https(&Authority::new()))
        .oneshot(get(&format!("https://{}/", server.address)))
        .await
        .unwrap_err();
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    assert_eq!(
        parts(&error),
        (Cause::Tls, Retryable::Never, Health::Failure, true)
    );
}

/// Greets whoever connects in plain text, and listens until they leave.
struct PlainTalker {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl PlainTalker {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    say(&mut stream, "220 mail.example ESMTP ready\r\n").await;
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                });
            }
        });
        Self {
            address,
            connections,
        }
    }
}
