//! Found with real clients and an operator's hands.

use std::{fs, os::unix::fs::PermissionsExt};

use http::Request;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    gateway::{Folder, Gateway},
    shop::Shop,
    support::{
        database::eventually,
        promql::{Exported, alerts, assert_documented, panels},
    },
};

/// Sends a GET on a connection, and returns the head of the reply as far as it came.
async fn ask(stream: &mut TcpStream) -> String {
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let mut heard = vec![0; 4096];
    let read = stream.read(&mut heard).await.unwrap_or(0);
    String::from_utf8_lossy(&heard[..read]).to_ascii_lowercase()
}

/// a connection that is kept alive is answered once more after SIGTERM, and told that it ends.
#[tokio::test]
async fn a_3_kept_connections_are_not_cut_by_sigterm() {
    let shop = Shop::open().await;
    let mut gateway = Gateway::start(&shop.url(), &[]).await;
    let address = gateway.url("").replace("http://", "");
    let mut kept = TcpStream::connect(&address).await.unwrap();
    assert!(ask(&mut kept).await.starts_with("http/1.1 200"));
    gateway.signal("TERM");
    gateway.says("finishing what is under way").await;
    let last = ask(&mut kept).await;
    assert!(last.starts_with("http/1.1 200"), "{last:?}");
    assert!(last.contains("connection: close"), "{last}");
    assert_eq!(kept.read(&mut [0; 16]).await.unwrap(), 0);
    assert_eq!(gateway.ended().await.code(), Some(0));
}

/// I-3, I-5: quotes are no part of a key, and a comma is none of a bare one: it joins two fields.
#[tokio::test]
async fn i_5_a_key_is_one_key_however_it_is_written() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &["--maintenance"]).await;
    let mut ids = Vec::new();
    for key in ["k-1", "\"k-1\""] {
        let request = gateway.order(key).header("replay", "true");
        let reply = gateway.send(request, "x").await;
        assert_eq!(reply.status, 202, "{}", reply.text());
        ids.push(reply.json()["replay_id"].clone());
    }
    assert_eq!(ids[0], ids[1], "one operation, one replay");
    gateway.do_("/maintenance/off").await;
    assert_eq!(gateway.send(gateway.order("a,b"), "x").await.status, 400);
    assert_eq!(
        gateway.send(gateway.order("\"a,b\""), "x").await.status,
        200
    );
}

/// I-20: nothing is no name.
#[tokio::test]
async fn i_20_an_empty_scope_is_none() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &[]).await;
    for scope in ["", "  "] {
        let request = Request::post(gateway.url("/orders"))
            .header("x-tenant", scope)
            .header("idempotency-key", "k");
        let reply = gateway.send(request, "x").await;
        assert!(reply.status.is_client_error(), "{}", reply.status);
    }
    assert_eq!(shop.came().len(), 0);
}

/// O-2: each metric says what it is, and the proxy's own are there.
#[tokio::test]
async fn o_2_metrics_have_help_latency_bytes_and_connections() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &[]).await;
    assert_eq!(
        gateway
            .send(gateway.order("k"), "twelve bytes")
            .await
            .status,
        200
    );
    let mut text = String::new();
    eventually("the reply is counted", async || {
        text = gateway.look("/metrics").await.text().to_owned();
        text.contains("gateway_request_seconds_count 1")
    })
    .await;
    for line in [
        "gateway_bytes_total{direction=\"in\"} 12",
        "gateway_bytes_total{direction=\"out\"} 1",
        "gateway_connections ",
        "gateway_replies_total{status=\"2xx\"} 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let exported = Exported::parse(&text);
    assert!(exported.0.values().all(|family| family.help.is_some()));
    assert_documented(&exported, |name| name.starts_with("gateway_"));
    let dashboard = include_str!("../../examples/operate/gateway_dashboard.json");
    for expr in panels(&serde_json::from_str(dashboard).unwrap()) {
        assert_eq!(exported.misses(&expr), [""; 0], "{expr}");
    }
    let mut alerts = alerts(include_str!("../../examples/operate/alerts.yml"));
    alerts.retain(|(name, _)| name.starts_with("Gateway"));
    assert_eq!(alerts.len(), 2);
    for (name, expr) in alerts {
        assert_eq!(exported.misses(&expr), [""; 0], "{name}: {expr}");
    }
}

/// O-2: callers add no series, whatever they send: hosts, paths, methods, keys and names are no labels.
#[tokio::test]
async fn o_2_callers_add_no_series() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &[]).await;
    let series = async || {
        let metrics = gateway.look("/metrics").await;
        let samples = metrics.text().lines().filter(|line| !line.starts_with('#'));
        samples.count()
    };
    let mut before = 0;
    for number in 0..60 {
        // Series appear with the first requests.
        if number == 20 {
            before = series().await;
        }
        let method = ["GET", "POST", "PATCH", "DELETE", "BREW"][number % 5];
        let uri = gateway.url(&format!("/{number}?q={number}"));
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("host", format!("h{number}.example"))
            .header("x-tenant", format!("tenant {number}"))
            .header("x-request-id", format!("id-{number}"))
            .header("x-forwarded-for", format!("10.0.0.{number}"))
            .header("idempotency-key", format!("k-{number}"));
        assert_eq!(gateway.send(request, "x").await.status, 200);
    }
    assert_eq!(shop.came().len(), 60);
    let after = series().await;
    assert!(after <= before, "{before} series became {after}");
}

/// a gateway without its upstream is not ready, but in maintenance, when none is asked.
#[tokio::test]
async fn a_3_readiness_needs_the_upstream() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let gateway = Gateway::start(&shop.url(), &[]).await;
    assert_eq!(gateway.look("/readyz").await.json()["upstream"], true);
    drop(folder);
    let gateway = Gateway::start("http://127.0.0.1:1", &[]).await;
    let ready = gateway.look("/readyz").await;
    assert_eq!(
        (ready.status.as_u16(), &ready.json()["upstream"]),
        (503, &false.into())
    );
    gateway.do_("/maintenance/on").await;
    assert_eq!(gateway.look("/readyz").await.status, 200);
}

/// a store that can be read and not written to is none.
#[tokio::test]
async fn a_3_readiness_needs_a_disk_with_room() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let store = format!("sqlite:{}", folder.path("gateway.db"));
    // A file may have 300 KiB, as on a disk that has no more: too little for the room that is kept
    // for outcomes.
    let shell = "trap '' XFSZ; ulimit -f 600; exec \"$@\"";
    let gateway = Gateway::start_by(
        &["sh", "-c", shell, "sh"],
        &shop.url(),
        &["--store", &store],
    )
    .await;
    let ready = gateway.look("/readyz").await;
    assert_eq!(
        (ready.status.as_u16(), &ready.json()["store"]),
        (503, &false.into())
    );
    let order = gateway.order("k-1");
    assert_eq!(gateway.send(order, "an order").await.status, 503);
}

/// S-2: a secret that everybody may read is none.
#[tokio::test]
async fn s_2_a_secret_that_all_may_read_is_warned_of() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let token = folder.file("token", "0123456789abcdef");
    for (mode, warned) in [(0o600, false), (0o644, true)] {
        fs::set_permissions(&token, fs::Permissions::from_mode(mode)).unwrap();
        let gateway = Gateway::start(&shop.url(), &["--admin-token-file", &token]).await;
        let said = gateway.said().contains("others may read it");
        assert_eq!(said, warned, "{}", gateway.said());
    }
}

/// whatever is wrong with a question is told in one form.
#[tokio::test]
async fn a_1_errors_of_the_admin_port_have_one_form() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &[]).await;
    for path in [
        "/dead-letters?limit=many",
        "/dead-letters?nonsense=1",
        "/replays?status=lost",
        "/replays/nonsense",
        "/redrives/nonsense",
        "/maintenance/off",
        "/nothing",
    ] {
        let reply = gateway.look(path).await;
        assert!(reply.status.is_client_error(), "{path}");
        assert!(
            reply.json()["error"].is_string(),
            "{path}: {}",
            reply.text()
        );
    }
    let none = gateway
        .do_("/dead-letters/redrive?queue=replay&per_second=0")
        .await;
    assert_eq!(none.status, 400, "all at once, or none?");
}

/// the admin port is this machine's, or asks for a token.
#[tokio::test]
async fn a_3_the_admin_port_asks_for_a_token() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let token = folder.file("token", "0123456789abcdef\n");
    let gateway = Gateway::start(&shop.url(), &["--admin-token-file", &token]).await;
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/dependencies", 401)] {
        assert_eq!(gateway.look(path).await.status, status, "{path}");
    }
    assert_eq!(gateway.do_("/maintenance/on").await.status, 401);
    for (given, status) in [("0123456789abcdef", 200), ("0123456789abcdeg", 401)] {
        let request = Request::get(gateway.admin("/dependencies"))
            .header("authorization", format!("Bearer {given}"));
        assert_eq!(gateway.send(request, "").await.status, status);
    }
    let flags = [
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        "http://127.0.0.1:1",
    ];
    let open = [&flags[..], &["--admin", "0.0.0.0:0"]].concat();
    let (code, _, said) = crate::gateway::run(&open);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("admin is 0.0.0.0:0, allowed: an address of loopback"),
        "{said}"
    );

    // Without one: no other name for this machine, so that no page of that name is its origin.
    let gateway = Gateway::start(&shop.url(), &[]).await;
    let request = Request::get(gateway.admin("/dependencies")).header("host", "evil.example");
    assert_eq!(gateway.send(request, "").await.status, 421);
}
