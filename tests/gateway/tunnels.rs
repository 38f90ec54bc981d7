//! Upgrades through the gateway, such as WebSocket.

use std::{convert::Infallible, time::Duration};

use axum::{Router, body::Body, routing::any};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, channel::Channel};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

use crate::{
    gateway::{Folder, Gateway, caller, policy},
    shop::Shop,
    support::{authority::Authority, database::eventually},
};

/// Agrees to change to `echo`, once it may, and refuses other protocols.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin, mut agrees: watch::Receiver<bool>) {
    let mut head = vec![0; 4096];
    let read = stream.read(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..read]).to_ascii_lowercase();
    let asks = head.contains("upgrade: echo") && head.contains("connection: upgrade");
    let reply = match asks {
        true => "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n",
        false => {
            "HTTP/1.1 426 Upgrade Required\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno"
        }
    };
    agrees.wait_for(|agrees| *agrees).await.unwrap();
    stream.write_all(reply.as_bytes()).await.unwrap();
    if !asks {
        return;
    }
    let (mut reads, mut writes) = tokio::io::split(stream);
    let _ = tokio::io::copy(&mut reads, &mut writes).await;
}

/// Returns the URL of an [echo], and what lets it agree.
async fn echoes(agrees: bool) -> (String, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (agree, agrees) = watch::channel(agrees);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(echo(stream, agrees.clone()));
        }
    });
    (url, agree)
}

async fn connect(gateway: &Gateway) -> TcpStream {
    let address = gateway.url("").replace("http://", "");
    TcpStream::connect(address).await.unwrap()
}

async fn ask(stream: &mut TcpStream, protocol: &str) {
    let head = format!(
        "GET /socket HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: {protocol}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
}

async fn hear(stream: &mut TcpStream) -> String {
    let mut heard = vec![0; 4096];
    let read = stream.read(&mut heard).await.unwrap();
    String::from_utf8_lossy(&heard[..read]).into_owned()
}

async fn echoed(stream: &mut TcpStream, said: &[u8; 5]) {
    let mut echoed = [0; 5];
    stream.write_all(said).await.unwrap();
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, said);
}

/// Asks the gateway for an upgrade as a call.
fn upgrade(gateway: &Gateway) -> http::request::Builder {
    let request = Request::get(gateway.url("/socket")).header("connection", "Upgrade");
    request.header("upgrade", "echo")
}

/// an upgrade passes, and its bytes both ways.
#[tokio::test]
async fn a_3_upgrades_pass() {
    let (url, _agree) = echoes(true).await;
    let mut gateway = Gateway::start(&url, &[]).await;
    for (protocol, status) in [("other", "426"), ("echo", "101")] {
        let mut stream = connect(&gateway).await;
        ask(&mut stream, protocol).await;
        let heard = hear(&mut stream).await;
        assert!(heard.starts_with(&format!("HTTP/1.1 {status}")), "{heard}");
        if status != "101" {
            continue;
        }
        echoed(&mut stream, b"first").await;
        // It outlives SIGTERM, as a reply that streams does.
        gateway.signal("TERM");
        gateway.says("finishing what is under way").await;
        echoed(&mut stream, b"later").await;
    }
    assert_eq!(gateway.ended().await.code(), Some(0));
}

/// nothing is sent to the upstream in maintenance, no upgrade either.
#[tokio::test]
async fn a_3_maintenance_holds_for_upgrades() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &[]).await;
    gateway.do_("/maintenance/on").await;
    let reply = gateway.send(upgrade(&gateway), "").await;
    assert_eq!(reply.status, 503);
    assert!(shop.came().is_empty());
}

/// CB-11, D-1: a breaker that is open and the total time hold for upgrades, too.
#[tokio::test]
async fn cb_11_upgrades_do_not_pass_an_open_breaker() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let policy = folder.file("policy.toml", &(policy(1) + "total_timeout = '1s'\n"));
    let gateway = Gateway::start(&shop.url(), &["--policy", &policy]).await;
    shop.answers(0);
    let reply = timeout(
        Duration::from_secs(30),
        gateway.send(upgrade(&gateway), Body::empty()),
    );
    assert_eq!(reply.await.unwrap().status, 504);
    shop.answers(usize::MAX);
    let came = shop.came().len();
    let force = format!("/dependencies/upstream/open?name={}", shop.address);
    assert_eq!(gateway.do_(&force).await.status, 200);
    assert_eq!(gateway.send(upgrade(&gateway), "").await.status, 503);
    assert_eq!(shop.came().len(), came);
}

/// RA-9: nor do they while the upstream has asked for time.
#[tokio::test]
async fn ra_9_upgrades_do_not_pass_a_hold() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().fallback(any(async || {
        (
            http::StatusCode::SERVICE_UNAVAILABLE,
            [("retry-after", "50")],
        )
    }));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let gateway = Gateway::start(&url, &[]).await;
    gateway.get("/").await;
    let reply = gateway.send(upgrade(&gateway), "").await;
    assert_eq!(
        reply.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(reply.status, 503);
    let after: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=50).contains(&after), "{after}");
}

/// A reply that is no upgrade passes as others do, whatever its length and as it comes.
#[tokio::test]
async fn an_upgrade_that_is_ignored_gets_its_reply() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (go_on, goes_on) = watch::channel(false);
    let app = Router::new().fallback(any(async move || {
        let (mut reply, replied) = Channel::<Bytes, Infallible>::new(1);
        let mut goes_on = goes_on.clone();
        tokio::spawn(async move {
            reply.send_data("first".into()).await.unwrap();
            goes_on.wait_for(|on| *on).await.unwrap();
            let rest = Bytes::from(vec![7; 2 << 20]);
            reply.send_data(rest).await.unwrap();
        });
        Body::new(replied)
    }));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let gateway = Gateway::start(&url, &[]).await;
    let request = upgrade(&gateway).body(Body::empty()).unwrap();
    let reply = timeout(Duration::from_secs(30), caller().request(request));
    let mut reply = reply.await.unwrap().unwrap();
    assert_eq!(reply.status(), 200);
    let first = reply.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "first");
    go_on.send_replace(true);
    let rest = reply.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(rest.len(), 2 << 20);
}

/// S-3: a tunnel takes the place of a connection until it ends.
#[tokio::test]
async fn s_3_tunnels_are_connections() {
    let (url, _agree) = echoes(true).await;
    let gateway = Gateway::start(&url, &["--max-connections", "1"]).await;
    let mut stream = connect(&gateway).await;
    ask(&mut stream, "echo").await;
    assert!(hear(&mut stream).await.starts_with("HTTP/1.1 101"));
    let mut second = connect(&gateway).await;
    ask(&mut second, "other").await;
    let early = timeout(Duration::from_millis(300), hear(&mut second)).await;
    assert!(early.is_err(), "{early:?}");
    echoed(&mut stream, b"still").await;
    let metrics = gateway.look("/metrics").await;
    assert!(
        metrics.text().contains("gateway_connections 1\n"),
        "{}",
        metrics.text()
    );
    drop(stream);
    assert!(hear(&mut second).await.starts_with("HTTP/1.1 426"));
    drop(second);
    eventually("no connection is left", async || {
        let metrics = gateway.look("/metrics").await;
        metrics.text().contains("gateway_connections 0\n")
    })
    .await;
}

/// an upstream that offers HTTP/2 is asked in HTTP/1.1, which has upgrades.
#[tokio::test]
async fn a_3_upgrades_pass_to_an_upstream_behind_tls() {
    let (folder, authority) = (Folder::new(), Authority::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let identity = authority.issue("localhost", false);
    let acceptor = identity.acceptor(&["h2", "http/1.1"]);
    let (_agree, agrees) = watch::channel(true);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let stream = acceptor.accept(stream).await.unwrap();
            if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                tokio::spawn(echo(stream, agrees.clone()));
            }
        }
    });
    let ca = folder.file("ca.pem", &authority.certificate.pem());
    let url = format!("https://localhost:{port}");
    let gateway = Gateway::start(&url, &["--upstream-ca", &ca]).await;
    let mut stream = connect(&gateway).await;
    ask(&mut stream, "echo").await;
    let heard = hear(&mut stream).await;
    assert!(heard.starts_with("HTTP/1.1 101"), "{heard}");
    echoed(&mut stream, b"hello").await;
}

/// once it was told to stop, the gateway opens no tunnel, and finishes one that is asked for.
#[tokio::test]
async fn a_3_no_tunnel_opens_after_sigterm() {
    let (url, agree) = echoes(false).await;
    let mut gateway = Gateway::start(&url, &[]).await;
    let (mut before, mut after) = (connect(&gateway).await, connect(&gateway).await);
    // The replays' path, which is the gateway's own: the connection is served.
    let none = b"GET /.replays/none HTTP/1.1\r\nhost: a\r\n\r\n";
    after.write_all(none).await.unwrap();
    assert!(hear(&mut after).await.starts_with("HTTP/1.1 40"));
    ask(&mut before, "echo").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    gateway.signal("TERM");
    gateway.says("finishing what is under way").await;
    ask(&mut after, "echo").await;
    let heard = hear(&mut after).await;
    assert!(heard.starts_with("HTTP/1.1 503"), "{heard}");
    assert!(heard.contains("connection: close"), "{heard}");
    agree.send_replace(true);
    let heard = hear(&mut before).await;
    assert!(heard.starts_with("HTTP/1.1 101"), "{heard}");
    assert!(heard.contains("connection: upgrade"), "{heard}");
    echoed(&mut before, b"hello").await;
    drop(before);
    assert_eq!(gateway.ended().await.code(), Some(0));
}
