//! Certificates, and handshakes that stall.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use reqwest::{Certificate, Client};
use tokio::io::BufReader;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_reprise::call::{Cause, Health, Retryable, StopReason};

use crate::{
    Form, builder, cause, get, impatient, original, outcome, post,
    support::{
        authority::{Authority, Identity},
        deps,
        http1::{read_request, say},
        outcome_of,
        ports::listen,
        quick, verdict,
    },
};

/// A client that trusts nobody else.
fn trusting(authority: &Authority) -> Client {
    let trusted = Certificate::from_der(authority.certificate.der()).unwrap();
    builder().tls_certs_only([trusted]).build().unwrap()
}

/// A TLS server: stalls so many connections, then answers 200.
struct TlsServer {
    uri: String,
    connections: Arc<AtomicUsize>,
}

impl TlsServer {
    async fn start(identity: Identity, stalls: usize) -> Self {
        let acceptor = identity.acceptor(&[]);
        let listener = listen().await;
        let uri = format!("https://{}/", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        tokio::spawn(async move {
            let mut stalled = Vec::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                if counted.fetch_add(1, Ordering::SeqCst) < stalls {
                    stalled.push(stream);
                    continue;
                }
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    match acceptor.accept(stream).into_fallible().await {
                        Ok(stream) => {
                            let mut stream = BufReader::new(stream);
                            if read_request(&mut stream).await.is_ok() {
                                let ok = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                                say(&mut stream, ok).await;
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
        Self { uri, connections }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn c_3_a_good_certificate_is_no_obstacle() {
    let authority = Authority::new();
    for form in Form::BOTH {
        let server = TlsServer::start(authority.issue("127.0.0.1", false), 0).await;
        let response = form
            .call(&deps(quick()), &trusting(&authority), get(&server.uri))
            .await
            .unwrap();
        assert_eq!(response.text().await.unwrap(), "ok");
    }
}

#[tokio::test]
async fn c_3_a_bad_certificate_is_never_retried() {
    let authority = Authority::new();
    for form in Form::BOTH {
        for (what, identity) in [
            ("expired", authority.issue("127.0.0.1", true)),
            ("wrong name", authority.issue("other.example", false)),
            ("self-signed", Identity::self_signed("127.0.0.1")),
            (
                "another authority's",
                Authority::new().issue("127.0.0.1", false),
            ),
        ] {
            let server = TlsServer::start(identity, 0).await;
            let called = form
                .call(&deps(quick()), &trusting(&authority), get(&server.uri))
                .await;
            let error = called.unwrap_err();
            assert_eq!(
                outcome_of(&error),
                (1, Some(StopReason::NotRetryable)),
                "{what}"
            );
            assert_eq!(server.connections(), 1, "{what}");
            let verdict = verdict(&error);
            assert_eq!(verdict.cause, Cause::Certificate, "{what}: {error:?}");
            assert_eq!(
                (verdict.retry, verdict.health),
                (Retryable::Never, Health::Neutral)
            );
            assert!(original(&error).is_connect());
        }
    }
}

#[tokio::test]
async fn c_3_a_handshake_that_stalls_is_a_timeout() {
    let authority = Authority::new();
    for form in Form::BOTH {
        let server = TlsServer::start(authority.issue("127.0.0.1", false), 1).await;
        let client = trusting(&authority);
        let response = form
            .call(&impatient(), &client, post(&server.uri))
            .await
            .unwrap();
        // The second may take its time as well.
        assert!(outcome(&response).0 >= 2);

        let server = TlsServer::start(authority.issue("127.0.0.1", false), 9).await;
        let error = form
            .call(&impatient(), &client, get(&server.uri))
            .await
            .unwrap_err();
        assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
        assert_eq!(cause(&error), Cause::Timeout);
        assert!(server.connections() <= 4);
    }
}
