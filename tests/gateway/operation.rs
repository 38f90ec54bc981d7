//! Operation: reload, inspection, stop.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    gateway::{Folder, Gateway, Reply, caller, policy},
    shop::Shop,
    support::database::eventually,
};

async fn retries(gateway: &Gateway) -> u64 {
    let known = gateway.look("/dependencies").await.json();
    known["upstream"][0]["policy"]["max_retries"]
        .as_u64()
        .unwrap()
}

#[tokio::test]
async fn p_4_sighup_reads_the_policy_again() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    shop.answers(0);
    let path = folder.file("policy.toml", &policy(1));
    let gateway = Gateway::start(&shop.url(), &["--policy", &path]).await;
    assert_eq!(retries(&gateway).await, 1);
    // A call that is under way is not dropped.
    let request = Request::get(gateway.url("/")).body(Body::empty()).unwrap();
    let held = tokio::spawn(async move { caller().request(request).await });
    shop.has(1).await;

    folder.file("policy.toml", &policy(2));
    gateway.signal("HUP");
    eventually("there are two", async || retries(&gateway).await == 2).await;
    // One that breaks a rule, and one that is none, change nothing. (Signals that come together are
    // one signal.)
    for (times, wrong) in [(1, policy(50)), (2, "profile =".to_owned())] {
        folder.file("policy.toml", &wrong);
        gateway.signal("HUP");
        eventually("it says so", async || {
            gateway
                .said()
                .matches("the configuration stays as it was")
                .count()
                == times
        })
        .await;
    }
    gateway.says("R-2").await;
    assert_eq!(retries(&gateway).await, 2);
    shop.answers(usize::MAX);
    assert_eq!(held.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn sigterm_finishes_what_is_under_way() {
    let shop = Shop::open().await;
    shop.answers(0);
    for (signal, number) in [("TERM", 1), ("INT", 2)] {
        let mut gateway = Gateway::start(&shop.url(), &[]).await;
        assert_eq!(gateway.look("/readyz").await.status, 200);
        let request = Request::get(gateway.url("/")).body(Body::empty()).unwrap();
        let held =
            tokio::spawn(async move { Reply::of(caller().request(request).await.unwrap()).await });
        shop.has(number).await;
        gateway.signal(signal);
        eventually("it is not ready", async || {
            gateway.look("/readyz").await.status == 503
        })
        .await;
        assert_eq!(gateway.look("/healthz").await.status, 200);
        let late = Request::get(gateway.url("/")).body(Body::empty()).unwrap();
        assert!(
            caller().request(late).await.is_err(),
            "nobody new is served"
        );
        shop.answers(number);
        assert_eq!(held.await.unwrap().text(), number.to_string());
        assert_eq!(gateway.ended().await.code(), Some(0));
    }
}

/// Requests that do not end within the grace period are aborted.
#[tokio::test]
async fn grace_has_an_end() {
    let shop = Shop::open().await;
    shop.answers(0);
    let mut gateway = Gateway::start(&shop.url(), &["--grace", "100ms"]).await;
    let request = Request::get(gateway.url("/")).body(Body::empty()).unwrap();
    let held = tokio::spawn(async move { caller().request(request).await });
    shop.has(1).await;
    gateway.signal("TERM");
    let ended = timeout(Duration::from_secs(60), gateway.ended()).await;
    assert_eq!(ended.unwrap().code(), Some(0));
    assert!(held.await.unwrap().is_err());
    assert!(gateway.said().contains("something was broken off"));
}

/// Nor is a connection that waits for a place waited for.
#[tokio::test]
async fn i_25_grace_has_an_end_at_the_connection_limit() {
    let shop = Shop::open().await;
    shop.answers(0);
    let flags = ["--grace", "100ms", "--max-connections", "1"];
    let mut gateway = Gateway::start(&shop.url(), &flags).await;
    let request = Request::get(gateway.url("/")).body(Body::empty()).unwrap();
    let held = tokio::spawn(async move { caller().request(request).await });
    shop.has(1).await;
    let address = gateway.url("").replace("http://", "");
    let _waits = TcpStream::connect(&address).await.unwrap();
    gateway.signal("TERM");
    assert_eq!(gateway.ended().await.code(), Some(0));
    assert!(held.await.unwrap().is_err());
}

/// G-6: a client that repeats itself more than a fifth of the time, and some times more, is told to stop.
/// O-2: whichever host it asks for, which makes no metric of its own and chooses no policy.
#[tokio::test]
async fn g_6_inbound_retries_over_the_budget_are_refused() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let policy =
        policy(1) + "budget = { floor = 4 }\n[dependencies.lavish]\nbudget = { floor = 10 }\n";
    let policy = folder.file("policy.toml", &policy);
    let gateway = Gateway::start(&shop.url(), &["--policy", &policy]).await;
    let mut statuses = Vec::new();
    for number in 0..7 {
        let host = match number % 2 {
            0 => format!("{number}.example"),
            _ => "lavish".to_owned(),
        };
        let retry = Request::get(gateway.url("/"))
            .header("x-envoy-attempt-count", "2")
            .header("host", host);
        statuses.push(gateway.send(retry, Body::empty()).await.status.as_u16());
    }
    assert_eq!(statuses, [&[200; 4][..], &[429; 3]].concat());
    let known = gateway.look("/dependencies").await.json();
    let inbound = known["inbound"].as_array().unwrap();
    assert_eq!(inbound.len(), 1, "{known}");
    assert_eq!(inbound[0]["name"], "inbound");
    assert_eq!(inbound[0]["budget"]["retries"], 4);
    assert_eq!(known["upstream"].as_array().unwrap().len(), 1, "{known}");
    let metrics = gateway.look("/metrics").await;
    for host in ["0.example", "lavish"] {
        assert!(!metrics.text().contains(host), "{}", metrics.text());
    }
    assert!(
        metrics.text().contains("dependency=\"inbound\""),
        "{}",
        metrics.text()
    );
}

/// S-3: a page in an operator's browser can't steer the gateway.
#[tokio::test]
async fn s_3_a_web_page_is_no_operator() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &[]).await;
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("sec-fetch-site", "cross-site"),
    ] {
        let request = Request::post(gateway.admin("/maintenance/on")).header(name, value);
        assert_eq!(
            gateway.send(request, Body::empty()).await.status,
            403,
            "{name}"
        );
    }
    assert_eq!(gateway.look("/maintenance").await.json()["on"], false);
    assert_eq!(gateway.do_("/maintenance/on?for=ever").await.status, 400);
    assert!(
        gateway
            .look("/")
            .await
            .text()
            .contains("POST /dead-letters/ID/redrive")
    );
    assert_eq!(gateway.look("/nothing").await.status, 404);
    // Neither is a path that is no text.
    for path in [
        "/keys/%ff",
        "/dead-letters/%ff",
        "/redrives/%ff",
        "/replays/%ff",
        "/%ff",
    ] {
        let reply = gateway.look(path).await;
        assert!(reply.status.is_client_error(), "{path} {reply:?}");
        assert!(reply.json()["error"].is_string(), "{path} {reply:?}");
    }
}

/// S-3: a body that does not go on is waited for no longer than a head, with a key or without.
#[tokio::test]
async fn s_3_bodies_that_stop_are_given_up() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &["--head-timeout", "1s"]).await;
    for fields in ["", "idempotency-key: half\r\n", "replay: true\r\n"] {
        let said = format!(
            "POST /orders HTTP/1.1\r\nhost: a\r\nx-tenant: ada\r\n{fields}content-length: 10\r\n\r\nhalf"
        );
        let heard = timeout(Duration::from_secs(20), gateway.raw(&said)).await;
        let heard = heard.unwrap();
        assert!(heard.starts_with("HTTP/1.1 408 "), "{heard}");
        assert!(
            heard.contains("content-type: application/problem+json"),
            "{heard}"
        );
    }
    // Nothing was done for that key.
    let reply = gateway.send(gateway.order("half"), "whole").await;
    assert_eq!(reply.status, 200);
}

/// S-3: who connects and says nothing, or not enough, or is gone without a word, does not keep its
/// place.
#[tokio::test]
async fn s_3_silent_connections_are_closed() {
    let shop = Shop::open().await;
    let flags = ["--head-timeout", "1s", "--max-connections", "1"];
    let gateway = Gateway::start(&shop.url(), &flags).await;
    let address = gateway.url("").replace("http://", "");
    // With a SETTINGS frame, empty: an HTTP/2 connection without a fault.
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for said in [
        &b""[..],
        b"P",
        b"PRI * HTTP/2.0\r\n\r\nSM",
        b"GET / HTTP/1.1\r\nhost:",
        // It answers, and then hears nothing more.
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        http2,
    ] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(said).await.unwrap();
        let mut heard = Vec::new();
        let closed = timeout(Duration::from_secs(60), stream.read_to_end(&mut heard)).await;
        assert!(closed.is_ok(), "{said:?}");
        let said = String::from_utf8_lossy(said);
        let answered = heard.windows(4).any(|part| part == b"200 ");
        assert_eq!(answered, said.ends_with("\r\n\r\n"), "{said}");
    }
    assert_eq!(gateway.get("/").await.status, 200);
}
