use std::sync::{Arc, Mutex};

use rustls::ClientConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
};
use tower_reprise::{
    call::Cause,
    delivery::{Failure, Outcome, Sender, guard::Guard},
};

use super::{Answers, deliver, failure, target};
use crate::support::{
    authority::{Authority, Identity},
    http1::{Act, Server, read_request, say},
};

/// A receiver that speaks TLS, and remembers the name that each client asked for.
struct Receiver {
    port: u16,
    names: Arc<Mutex<Vec<Option<String>>>>,
}

impl Receiver {
    async fn start(identity: Identity) -> Self {
        let acceptor = identity.acceptor(&["h2", "http/1.1"]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let names = Arc::<Mutex<Vec<_>>>::default();
        let heard = names.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                match acceptor.accept(stream).into_fallible().await {
                    Ok(mut stream) => {
                        let name = stream.get_ref().1.server_name().map(str::to_owned);
                        heard.lock().unwrap().push(name);
                        let mut reader = BufReader::new(&mut stream);
                        if read_request(&mut reader).await.is_ok() {
                            let ok = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
                            say(&mut stream, ok).await;
                            let _ = stream.shutdown().await;
                        }
                    }
                    // Read to the end, so that closing does not overtake the alert.
                    Err((_, mut stream)) => {
                        heard.lock().unwrap().push(None);
                        let _ = stream.read_to_end(&mut Vec::new()).await;
                    }
                }
            }
        });
        Self { port, names }
    }

    fn names(&self) -> Vec<Option<String>> {
        self.names.lock().unwrap().clone()
    }

    /// Sends it a message, by this name.
    async fn deliver(&self, tls: Option<ClientConfig>, host: &str) -> Outcome {
        deliver_to(tls, &format!("https://{host}:{}/hook", self.port)).await
    }
}

async fn deliver_to(tls: Option<ClientConfig>, url: &str) -> Outcome {
    let guard = Guard::new().allow("127.0.0.1").unwrap();
    let mut sender = Sender::builder(guard.clone()).resolver(Answers::new(&[&["127.0.0.1"]]));
    if let Some(tls) = tls {
        sender = sender.tls(tls);
    }
    deliver(&sender.build().unwrap(), target(url, &guard)).await
}

fn refused(failure: Failure) -> bool {
    failure.cause() == Cause::Certificate
        && !failure.is_retryable(0)
        && failure.is_alarming()
        && failure.status().is_none()
}

#[tokio::test]
async fn w_6_the_certificate_is_for_the_name_in_the_url() {
    let authority = Authority::new();
    let receiver = Receiver::start(authority.issue("hooks.example", false)).await;
    let outcome = receiver
        .deliver(Some(authority.trusted()), "hooks.example")
        .await;
    assert!(
        matches!(outcome, Outcome::Delivered(status) if status == 204),
        "{outcome:?}"
    );
    // The address was pinned, the name was not given up for it.
    assert_eq!(receiver.names(), [Some("hooks.example".to_owned())]);

    // A configuration that was made for other clients too.
    let mut shared = authority.trusted();
    shared.alpn_protocols = vec![b"h2".to_vec()];
    let outcome = receiver.deliver(Some(shared), "hooks.example").await;
    assert!(matches!(outcome, Outcome::Delivered(_)), "{outcome:?}");

    // An address has a certificate of its own.
    let receiver = Receiver::start(authority.issue("127.0.0.1", false)).await;
    let outcome = receiver
        .deliver(Some(authority.trusted()), "127.0.0.1")
        .await;
    assert!(matches!(outcome, Outcome::Delivered(_)), "{outcome:?}");
}

#[tokio::test]
async fn w_3_a_certificate_that_is_not_to_be_trusted_ends_it() {
    let authority = Authority::new();
    for (what, identity) in [
        ("expired", authority.issue("hooks.example", true)),
        ("wrong name", authority.issue("other.example", false)),
        ("self-signed", Identity::self_signed("hooks.example")),
        (
            "another authority's",
            Authority::new().issue("hooks.example", false),
        ),
    ] {
        let receiver = Receiver::start(identity).await;
        let outcome = receiver
            .deliver(Some(authority.trusted()), "hooks.example")
            .await;
        let failure = failure(outcome);
        assert!(refused(failure), "{what}: {failure:?}");
    }
    // Unless told otherwise, the world's authorities are trusted, and this is none of them.
    let receiver = Receiver::start(authority.issue("hooks.example", false)).await;
    let failure = failure(receiver.deliver(None, "hooks.example").await);
    assert!(refused(failure), "{failure:?}");
}

#[tokio::test]
async fn w_3_a_receiver_without_tls_gets_nothing() {
    let server = Server::start(vec![Act::Say("HTTP/1.1 200 OK\r\n\r\n".to_owned()).part(0)]).await;
    let url = format!("https://hooks.example:{}/", server.address.port());
    let outcome = deliver_to(Some(Authority::new().trusted()), &url).await;
    let failure = failure(outcome);
    assert!(
        matches!(failure.cause(), Cause::Tls | Cause::Reset),
        "{failure:?}"
    );
    assert!(server.requests().is_empty());
}
