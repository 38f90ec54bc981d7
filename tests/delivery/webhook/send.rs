use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, extract::ConnectInfo, routing::post};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::channel::Channel;
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
    sync::Notify,
};
use tower_reprise::{
    call::Cause,
    delivery::{
        guard::Guard,
        webhooks::{
            Delivery, DeliveryFailure, DeliveryOutcome, Sender, UserHeaders, verify::Verifier,
        },
    },
};

use super::{SECRET, deliver, failure, guard::Recorder, id, only, signer, target};
use crate::support::http1::{Act, Server, reply};

const BODY: &str = r#"{"test": 2432232314}"#;

fn local() -> Guard {
    only("127.0.0.1:0".parse().unwrap())
}

fn sender() -> Sender {
    Sender::builder(local()).build().unwrap()
}

async fn deliver_to(server: &Server) -> DeliveryOutcome {
    deliver(&sender(), target(&server.uri(), &local())).await
}

async fn failed(act: Act) -> DeliveryFailure {
    let server = Server::start(vec![act]).await;
    failure(deliver_to(&server).await)
}

#[tokio::test]
async fn w_4_each_delivery_is_signed_anew_under_the_same_id() {
    let server = Server::start(vec![reply(503, ""), reply(202, "")]).await;
    let url = format!("{}orders?token=1", server.uri());
    let headers = UserHeaders::new([("x-tenant", "acme"), ("authorization", "Bearer 1")]);
    let delivery = Delivery::new(target(&url, &local()), id(), BODY).headers(headers.unwrap());
    let sender = sender();
    let first = {
        // As a worker sends it.
        let (sender, delivery) = (sender.clone(), delivery.clone());
        tokio::spawn(async move { sender.send(&delivery, &signer()).await })
    };
    let first = failure(first.await.unwrap());
    assert_eq!(first.status(), Some(StatusCode::SERVICE_UNAVAILABLE));
    let second = sender.send(&delivery, &signer()).await;
    assert_eq!(second, DeliveryOutcome::Delivered(StatusCode::ACCEPTED));

    let arrivals = server.arrivals();
    assert_eq!(arrivals.len(), 2);
    for arrival in arrivals {
        let line = "POST /orders?token=1 HTTP/1.1\r\n";
        assert!(arrival.head.starts_with(line), "{}", arrival.head);
        assert_eq!(arrival.body, BODY.as_bytes());
        let header = |name| arrival.header(name).unwrap();
        assert_eq!(header("webhook-id"), id().as_str());
        assert_eq!(header("content-type"), "application/json");
        assert_eq!(header("host"), server.address.to_string());
        assert_eq!(header("x-tenant"), "acme");
        assert_eq!(header("authorization"), "Bearer 1");
        assert!(header("user-agent").starts_with("tower-reprise/"));
        let verifier = Verifier::new(SECRET).unwrap();
        verifier.verify(&arrival.headers, &arrival.body).unwrap();
    }
}

#[tokio::test]
async fn w_5_what_kind_of_body_it_is_and_who_sends_it_can_be_said() {
    let server = Server::start(vec![reply(200, "")]).await;
    let delivery = || Delivery::new(target(&server.uri(), &local()), id(), "<a/>");
    let agent = UserHeaders::new([("user-agent", "mine/1")]).unwrap();
    let xml = delivery().content_type("text/xml").unwrap().headers(agent);
    let _ = sender().send(&xml, &signer()).await;
    let arrival = &server.arrivals()[0];
    assert_eq!(arrival.header("content-type"), Some("text/xml"));
    assert_eq!(arrival.headers.get_all("user-agent").iter().count(), 1);
    assert_eq!(arrival.header("user-agent"), Some("mine/1"));
    for bad in ["", "a\r\nb: c", "a\tb", "é", &"x".repeat(256)] {
        let error = delivery().content_type(bad).unwrap_err();
        assert_eq!(error.field(), "webhook.content_type", "{bad:?}");
    }
    assert!(!format!("{:?}", delivery()).contains("<a/>"));
}

#[tokio::test]
async fn w_2_redirects_are_failures_and_lead_nowhere() {
    let inside = Recorder::on("127.0.0.1");
    for status in [300, 301, 302, 303, 304, 307, 308] {
        let location = format!("location: http://127.0.0.1:{}/\r\n", inside.port());
        let failure = failed(reply(status, &location)).await;
        assert_eq!(failure.status().map(|s| s.as_u16()), Some(status));
        assert!(!failure.is_retryable(0), "{status}");
        assert_eq!(inside.connections(), 0);
    }
}

#[tokio::test]
async fn w_2_statuses() {
    for status in [200, 201, 202, 204, 208, 299] {
        let server = Server::start(vec![reply(status, "")]).await;
        let outcome = deliver_to(&server).await;
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(outcome, DeliveryOutcome::Delivered(status));
    }
    for (status, retryable) in [
        (400, false),
        (401, false),
        (403, false),
        (404, false),
        (405, false),
        (408, true),
        (409, false),
        (410, false),
        (413, false),
        (422, false),
        (425, true),
        (429, true),
        (500, true),
        (501, false),
        (502, true),
        (503, true),
        (504, true),
        (505, false),
        (599, false),
    ] {
        let failure = failed(reply(status, "")).await;
        assert_eq!(failure.status().map(|s| s.as_u16()), Some(status));
        assert_eq!(failure.is_retryable(0), retryable, "{status}");
        // 425 once.
        assert_eq!(
            failure.is_retryable(1),
            retryable && status != 425,
            "{status}"
        );
        assert_eq!(failure.is_gone(), status == 410);
        assert!(!failure.is_alarming());
        assert_eq!(
            failure.to_string(),
            format!("delivery failed: http_{status}")
        );
    }
}

#[tokio::test]
async fn w_2_the_receiver_says_when() {
    for (status, headers, expected) in [
        (503, "retry-after: 120\r\n", Some(120)),
        (429, "retry-after: 0\r\n", Some(0)),
        (
            429,
            "ratelimit-remaining: 0\r\nratelimit-reset: 30\r\n",
            Some(30),
        ),
        (
            500,
            "retry-after: 99999999999999999999999\r\n",
            Some(u64::MAX),
        ),
        (500, "retry-after: soon\r\n", None),
        (500, "", None),
    ] {
        let failure = failed(reply(status, headers)).await;
        assert_eq!(
            failure.retry_after(),
            expected.map(Duration::from_secs),
            "{headers}"
        );
        assert!(failure.is_retryable(0));
    }
    let failure = failed(reply(503, "x-should-retry: false\r\n")).await;
    assert!(!failure.is_retryable(0));
}

/// C-3.
#[tokio::test]
async fn w_2_a_connection_that_fails_is_tried_again() {
    for act in [Act::Close, Act::ReadAndClose, Act::Reset] {
        let failure = failed(act.clone()).await;
        assert!(failure.is_retryable(7), "{act:?}: {failure:?}");
        assert!(failure.status().is_none() && !failure.is_alarming());
    }
    // Bound, and nobody listens.
    let deaf = TcpSocket::new_v4().unwrap();
    deaf.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/", deaf.local_addr().unwrap());
    let failure = failure(deliver(&sender(), target(&url, &local())).await);
    assert_eq!(failure.cause(), Cause::Connect);
    assert!(failure.is_retryable(7));
}

#[tokio::test]
async fn w_2_a_receiver_that_says_nothing_is_given_up() {
    let server = Server::start(vec![Act::Stall]).await;
    let impatient = Sender::builder(local()).timeout(Duration::from_millis(150));
    let impatient = impatient.build().unwrap();
    let failure = failure(deliver(&impatient, target(&server.uri(), &local())).await);
    assert_eq!(failure.cause(), Cause::Timeout);
    assert!(failure.is_retryable(7));
    for bad in [Duration::ZERO, Duration::from_secs(61)] {
        let error = Sender::builder(local()).timeout(bad).build().unwrap_err();
        assert_eq!(error.field(), "sender.timeout");
        let slow = Sender::builder(local()).connect_timeout(bad).build();
        assert_eq!(slow.unwrap_err().field(), "connector.timeout");
    }
}

#[tokio::test]
async fn w_7_a_reply_without_end_is_cut() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let receiver = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 64 * 1024];
        let _ = stream.read(&mut request).await.unwrap();
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let chunk = [b"4000\r\n".to_vec(), vec![b'x'; 0x4000], b"\r\n".to_vec()].concat();
        // Until the sender hangs up.
        let mut written = 0;
        while stream.write_all(&chunk).await.is_ok() {
            written += chunk.len();
        }
        written
    });
    let outcome = deliver(&sender(), target(&url, &local())).await;
    assert_eq!(outcome, DeliveryOutcome::Delivered(StatusCode::OK));
    // The bytes that the sender read, and those in the buffers of both sockets.
    assert!(receiver.await.unwrap() < 32 << 20);
}

/// It has the message, and said so: that the rest of its reply does not come is nobody's loss.
#[tokio::test]
async fn w_7_a_reply_that_stalls_is_not_waited_for() {
    let never = Arc::new(Notify::new());
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_owned();
    let server = Server::start(vec![Act::SayLater(head, never, String::new())]).await;
    let outcome = deliver_to(&server).await;
    assert_eq!(outcome, DeliveryOutcome::Delivered(StatusCode::OK));
}

/// S-2.
#[tokio::test]
async fn w_7_nothing_of_a_reply_or_of_the_url_is_told() {
    let words = "HTTP/1.1 500 s3cret\r\nx-s3cret: s3cret\r\ncontent-length: 6\r\n\
                 connection: close\r\n\r\ns3cret";
    let garbage = "s3cret s3cret\r\n\r\n";
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "s3cret".repeat(10_000));
    for reply in [words, garbage, &huge] {
        let server = Server::start(vec![Act::Say(reply.to_owned())]).await;
        let url = format!("{}s3cret?token=s3cret", server.uri());
        let failure = failure(deliver(&sender(), target(&url, &local())).await);
        let told = format!("{failure} {failure:?} {:?}", sender());
        assert!(
            !told.contains("s3cret") && !told.contains("127.0.0.1"),
            "{told}"
        );
    }
}

#[tokio::test]
async fn w_7_a_short_reply_leaves_its_connection_to_the_next_delivery() {
    let peers = Arc::<Mutex<Vec<SocketAddr>>>::default();
    let seen = peers.clone();
    let handler = async move |ConnectInfo(peer): ConnectInfo<SocketAddr>| {
        seen.lock().unwrap().push(peer);
        // In pieces, so that it is not there as a whole when its head is.
        let (mut pieces, body) = Channel::<Bytes>::new(1);
        tokio::spawn(async move {
            for _ in 0..10 {
                tokio::task::yield_now().await;
                let _ = pieces.send_data(vec![b'x'; 1000].into()).await;
            }
        });
        (StatusCode::INTERNAL_SERVER_ERROR, Body::new(body))
    };
    let app = Router::new().route("/", post(handler));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let sender = sender();
    for _ in 0..2 {
        let failure = failure(deliver(&sender, target(&url, &local())).await);
        assert!(failure.is_retryable(0));
    }
    let peers = peers.lock().unwrap();
    assert_eq!(peers[0], peers[1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// S-3.
    #[test]
    fn w_7_no_reply_panics(reply in prop_oneof![
        any::<String>(),
        "HTTP/1.[01] [0-9]{1,4} [a-z ]{0,9}\r\n([a-z-]{1,17}: [ -~]{0,20}\r\n){0,3}\r\n",
        "HTTP/1.1 (429|503) x\r\nretry-after: [ -~]{0,25}\r\n\r\n",
    ]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::start(vec![Act::Say(reply)]).await;
            let _ = deliver_to(&server).await;
        });
    }
}
