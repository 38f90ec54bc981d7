//! Traffic through the gateway.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request as Inbound, routing::any};
use http::{Request, StatusCode};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

use crate::{
    gateway::{Folder, Gateway, policy},
    shop::Shop,
    support::{authority::Authority, database::left_out},
};

/// Killed when dropped.
struct Python(Child);

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn in_front_of_a_server_of_python() {
    let folder = Folder::new();
    folder.file("hello.txt", "hello from a file\n");
    let python = Command::new("python3")
        .args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1"])
        .current_dir(&folder.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(python) = python else {
        return left_out("the gateway in front of http.server", "there is no python3");
    };
    let mut python = Python(python);
    // Serving HTTP on 127.0.0.1 port 41234 (http://127.0.0.1:41234/) ...
    let mut line = String::new();
    let stdout = python.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let url = line.split(['(', ')']).nth(1).unwrap();

    let gateway = Gateway::start(url, &[]).await;
    let reply = gateway.get("/hello.txt").await;
    assert_eq!(
        (reply.status, reply.text()),
        (StatusCode::OK, "hello from a file\n")
    );
    assert_eq!(reply.header("content-length"), Some("18"));
    assert!(gateway.get("/").await.text().contains("hello.txt"));
    assert_eq!(gateway.get("/none").await.status, 404);
    let head = Request::head(gateway.url("/hello.txt"));
    let reply = gateway.send(head, Body::empty()).await;
    assert_eq!(
        (reply.status.as_u16(), reply.header("content-length")),
        (200, Some("18"))
    );
    // It can't do this, and says so: that is its answer, once and for all.
    for replayed in [None, Some("true")] {
        let reply = gateway.send(gateway.order("1"), "{}").await;
        assert_eq!(reply.status, 501);
        assert_eq!(reply.header("idempotent-replayed"), replayed);
    }
}

/// C-1, C-5: what fails half of the time does not for callers, as far as it may be sent again.
#[tokio::test]
async fn c_5_a_flaky_upstream_is_mended() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    shop.does(|before| match before % 2 {
        0 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    });
    let policy = policy(3)
        + "rules = { idempotent_methods = ['shop.Shop/Look'] }\n"
        + "budget = { floor = 10 }\n";
    let policy = folder.file("policy.toml", &policy);
    for (resend, unkeyed, keyed) in [
        ("default", 503, 503),
        ("keyed", 503, 200),
        ("unsent", 503, 503),
        ("stamped", 200, 200),
    ] {
        let mut flags = vec!["--policy", &policy, "--resend", resend];
        flags.truncate(if resend == "default" { 2 } else { 4 });
        let gateway = Gateway::start(&shop.url(), &flags).await;
        let even = || match shop.came().len() % 2 {
            0 => None,
            _ => Some(gateway.get("/even")),
        };
        for _ in 0..3 {
            assert_eq!(gateway.get("/").await.status, 200);
        }
        // A method that the policy declares idempotent is idempotent with a key, too.
        let look = gateway.order(&format!("look-{resend}"));
        let look = look.uri(gateway.url("/shop.Shop/Look"));
        let look = look.header("content-type", "application/grpc");
        assert_eq!(gateway.send(look, "x").await.status, 200, "{resend}");
        let post = Request::post(gateway.url("/orders"));
        assert_eq!(gateway.send(post, "x").await.status, unkeyed, "{resend}");
        if let Some(even) = even() {
            even.await;
        }
        let reply = gateway.send(gateway.order(resend), "x").await;
        assert_eq!(reply.status, keyed, "{resend}");
        if let Some(even) = even() {
            even.await;
        }
        let metrics = gateway.look("/metrics").await;
        let retries = "retry_attempts_total{service=\"test\"";
        assert!(metrics.text().contains(retries), "{}", metrics.text());
    }
    let keys = shop.keys();
    for (key, times) in [("default", 1), ("unsent", 1), ("keyed", 2), ("stamped", 2)] {
        assert_eq!(keys[key], times, "{key}");
        assert_eq!(keys[&format!("look-{key}")], 2, "{key}");
    }
    assert_eq!(
        keys.len(),
        10,
        "one that was stamped, and those without: {keys:?}"
    );
}

/// Hop-by-hop headers go no further; the caller's address, the host and the scheme are forwarded.
#[tokio::test]
async fn headers_are_those_of_a_proxy() {
    let shop = Shop::open().await;
    let plain = Gateway::start(&format!("{}/base/", shop.url()), &[]).await;
    let trusting = ["--preserve-host", "--trust-forwarded"];
    let trusting = Gateway::start(&shop.url(), &trusting).await;
    for gateway in [&plain, &trusting] {
        let request = Request::get(gateway.url("/a%20b?c=d&e"))
            .header("host", "shop.example")
            .header("connection", "close, x-mine")
            .header("x-mine", "1")
            .header("keep-alive", "5")
            .header("te", "trailers, deflate")
            .header("proxy-authorization", "secret")
            .header("upgrade", "websocket")
            .header("x-yours", "2")
            .header("x-forwarded-for", "1.2.3.4")
            .header("x-forwarded-proto", "https")
            .header("forwarded", "for=1.2.3.4");
        let reply = gateway.send(request, Body::empty()).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("via"), Some("1.1 gateway"));
    }
    let came = shop.came();
    assert_eq!(came[0].path, "/base/a%20b?c=d&e");
    assert_eq!(came[1].path, "/a%20b?c=d&e");
    let address = shop.address.to_string();
    for (came, host, [addresses, hosts, protocol], forwarded) in [
        (
            &came[0],
            &*address,
            ["127.0.0.1", "shop.example", "http"],
            None,
        ),
        (
            &came[1],
            "shop.example",
            ["1.2.3.4, 127.0.0.1", "shop.example", "https"],
            Some("for=1.2.3.4"),
        ),
    ] {
        for gone in [
            "connection",
            "x-mine",
            "keep-alive",
            "proxy-authorization",
            "upgrade",
        ] {
            assert_eq!(came.header(gone), None, "{gone}");
        }
        for (name, value) in [
            ("host", Some(host)),
            ("x-yours", Some("2")),
            ("te", Some("trailers")),
            ("via", Some("1.1 gateway")),
            ("x-forwarded-for", Some(addresses)),
            ("x-forwarded-host", Some(hosts)),
            ("x-forwarded-proto", Some(protocol)),
            ("forwarded", forwarded),
        ] {
            assert_eq!(came.header(name), value, "{name}");
        }
    }
    // HTTP/1.0 may name no host: the upstream gets its own.
    let heard = trusting.raw("GET /old HTTP/1.0\r\n\r\n").await;
    assert!(heard.contains(" 200 OK"), "{heard}");
    assert_eq!(shop.came()[2].header("host"), Some(&*address));
}

/// S-3: whatever is asked for, nothing is sent to what is not below the upstream's path.
#[tokio::test]
async fn s_3_no_path_leads_out_of_the_upstreams() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&format!("{}/base", shop.url()), &[]).await;
    let ask = async |method: &str, path: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\nx-tenant: ada\r\nreplay: true\r\n\
             connection: close\r\n\r\n"
        );
        let reply = gateway.raw(&head).await;
        let status = reply.split(' ').nth(1).unwrap().to_owned();
        assert_eq!(
            status.starts_with('4'),
            reply.contains("content-type: application/problem+json"),
            "{reply}"
        );
        status
    };
    // As long as a path can be, with what comes before it.
    let fits = format!("/{}?b=c", "a".repeat(65_534 - "/base/?b=c".len()));
    for (method, path, there) in [
        ("GET", &*fits, &*format!("/base{fits}")),
        ("GET", "/a/../b", "/base/a/../b"),
        ("GET", "/a..b/...?c=../..", "/base/a..b/...?c=../.."),
        ("GET", "http://evil.example/x", "/base/x"),
        ("OPTIONS", "*", "/base"),
    ] {
        assert_eq!(ask(method, path).await, "200", "{path:.40}");
        assert_eq!(shop.came().last().unwrap().path, there);
    }
    let came = shop.came().len();
    let long = format!("{fits}d");
    for maintenance in ["off", "on"] {
        gateway.do_(&format!("/maintenance/{maintenance}")).await;
        for (path, status) in [
            (&*long, "414"),
            ("/../x", "400"),
            ("/a/../../x", "400"),
            ("/%2e%2E/x", "400"),
            ("/a/..%2f..%2Fx", "400"),
            ("/.%2e%5cx", "400"),
            ("/..;a=b/x", "400"),
        ] {
            for method in ["GET", "POST"] {
                assert_eq!(ask(method, path).await, status, "{path:.40}");
            }
        }
    }
    assert_eq!(shop.came().len(), came);
    assert_eq!(gateway.replays("queued").await, 0);
}

/// J-13, S-2: a host is told without who asked for it, and a password is written down nowhere.
#[tokio::test]
async fn j_13_a_user_in_a_uri_goes_no_further() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let store = format!("sqlite:{}", folder.path("gateway.db"));
    let flags = ["--preserve-host", "--store", &store, "--maintenance"];
    let gateway = Gateway::start(&shop.url(), &flags).await;
    let reply = gateway
        .raw(
            "POST http://me:hunter2@shop.example:8/x?y HTTP/1.1\r\nhost: other\r\nx-tenant: ada\r\n\
             replay: true\r\nconnection: close\r\ncontent-length: 5\r\n\r\nthing",
        )
        .await;
    assert!(reply.starts_with("HTTP/1.1 202 "), "{reply}");
    assert!(folder.holds("shop.example:8") && !folder.holds("hunter2"));
    gateway.do_("/maintenance/off").await;
    shop.has(1).await;
    let came = &shop.came()[0];
    assert_eq!((&*came.path, &*came.body), ("/x?y", "thing"));
    for name in ["host", "x-forwarded-host"] {
        assert_eq!(came.header(name), Some("shop.example:8"), "{name}");
    }
}

/// Returns the URL and the authority of a server behind TLS, which says back the HTTP version and the
/// host.
async fn behind_tls() -> (String, Authority) {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}",
        listener.local_addr().unwrap().port()
    );
    let acceptor = authority
        .issue("localhost", false)
        .acceptor(&["h2", "http/1.1"]);
    tokio::spawn(async move {
        let app = Router::new().fallback(any(async |request: Inbound| {
            let host = request.headers().get("host");
            let host = host.map_or("none", |host| host.to_str().unwrap());
            format!("{:?} {host}", request.version())
        }));
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, app) = (acceptor.clone(), app.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let service = TowerToHyperService::new(app);
                let _ = builder
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    (url, authority)
}

/// an upstream at https is trusted only if one of the authorities says so, and what it speaks
/// is negotiated.
#[tokio::test]
async fn c_3_an_upstream_behind_tls() {
    let folder = Folder::new();
    let (url, authority) = behind_tls().await;
    let ca = folder.file("ca.pem", &authority.certificate.pem());
    let preserving = ["--upstream-ca", &ca, "--preserve-host"];
    // In HTTP/2 there is no host to preserve.
    for (flags, text) in [(2, "HTTP/2.0 none"), (3, "HTTP/1.1 shop.example")] {
        let gateway = Gateway::start(&url, &preserving[..flags]).await;
        let request = Request::get(gateway.url("/")).header("host", "shop.example");
        let reply = gateway.send(request, Body::empty()).await;
        assert_eq!((reply.status, reply.text()), (StatusCode::OK, text));
    }

    let doubtful = Gateway::start(&url, &[]).await;
    let reply = doubtful.get("/").await;
    assert_eq!(reply.status, 502);
    assert_eq!(
        reply.header("content-type"),
        Some("application/problem+json")
    );
}

/// An HTTP/2 connection that is dead without a word is left within 15 seconds, and not used again.
#[tokio::test]
async fn a_dead_http2_connection_is_left() {
    let app = Router::new().fallback(any(async || "ok"));
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(server, app).await });
    // Between the two, the first connection can be silenced.
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", between.local_addr().unwrap());
    let (silence, mut silenced) = watch::channel(false);
    tokio::spawn(async move {
        let (mut first, _) = between.accept().await.unwrap();
        let mut server = TcpStream::connect(address).await.unwrap();
        tokio::select! {
            _ = copy_bidirectional(&mut first, &mut server) => {}
            _ = silenced.wait_for(|silenced| *silenced) => {}
        }
        loop {
            let (mut later, _) = between.accept().await.unwrap();
            let mut server = TcpStream::connect(address).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut later, &mut server).await });
        }
    });
    let gateway = Gateway::start(&url, &["--upstream-http2"]).await;
    assert_eq!(gateway.get("/").await.status, 200);
    silence.send_replace(true);
    let reply = timeout(Duration::from_secs(25), gateway.get("/")).await;
    assert_eq!(reply.unwrap().status, 200);
}

/// without the word, a caller's deadline and attempt number end at the gateway. With it, the
/// upstream is told what is left, and a retry is not retried.
#[tokio::test]
async fn x_5_deadlines_and_attempt_numbers_pass_only_if_callers_are_trusted() {
    for trusts in [false, true] {
        let folder = Folder::new();
        let policy = folder.file("policy.toml", &policy(3));
        let shop = Shop::open().await;
        shop.does(|_| StatusCode::SERVICE_UNAVAILABLE);
        let trust = format!("--trust-callers={trusts}");
        let gateway = Gateway::start(&shop.url(), &["--policy", &policy, &trust]).await;
        let request = Request::get(gateway.url("/stock"))
            .header("x-envoy-expected-rq-timeout-ms", "50000")
            .header("x-envoy-attempt-count", "2");
        let reply = gateway.send(request, Body::empty()).await;
        assert_eq!(reply.status, 503);
        let came = shop.came();
        assert_eq!(came.len() == 1, trusts, "{}", came.len());
        let left = came[0].header("x-envoy-expected-rq-timeout-ms");
        let left = left.map(|left| left.parse::<u64>().unwrap());
        assert_eq!(left.is_some_and(|left| left < 50_000), trusts, "{left:?}");
        assert_eq!(
            came[0].header("x-envoy-attempt-count"),
            trusts.then_some("2")
        );
        assert_eq!(reply.header("x-should-retry"), None, "retries are its own");
    }
}
