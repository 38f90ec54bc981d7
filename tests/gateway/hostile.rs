//! Hostile callers: requests that two servers could read differently, huge heads, many idle
//! connections, callers that do not read.

use std::{
    convert::Infallible,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use http_body_util::channel::Channel;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{gateway::Gateway, shop::Shop, streaming::peak};

/// S-3: what the upstream reads is what the gateway read: as many requests as the caller gets replies
/// to, and none with two lengths.
#[tokio::test]
async fn s_3_no_request_is_smuggled() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &["--head-timeout", "1s"]).await;
    let next = "GET /smuggled HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let chunks = format!("0\r\n\r\n{next}");
    let refused = &["400"][..];
    for (head, body, statuses) in [
        // Two lengths, of which one server may take the one and another the other.
        (
            "content-length: 6\r\ntransfer-encoding: chunked",
            &*chunks,
            &["400", "200"][..],
        ),
        (
            "transfer-encoding: chunked\r\ncontent-length: 6",
            &chunks,
            &["400", "200"],
        ),
        ("content-length: 0\r\ncontent-length: 60", next, refused),
        ("content-length: 0, 60", next, refused),
        ("content-length: +5", next, refused),
        ("content-length: 0x5", next, refused),
        ("content-length: -1", next, refused),
        ("content-length: 99999999999999999999", next, refused),
        // Encodings that only one of them knows.
        ("transfer-encoding: xchunked", &chunks, refused),
        ("transfer-encoding: chunked, identity", &chunks, refused),
        (
            "transfer-encoding: identity\r\ncontent-length: 5",
            &chunks,
            refused,
        ),
        ("transfer-encoding : chunked", &chunks, refused),
        ("transfer-encoding:\u{b}chunked", &chunks, refused),
        ("x: y\r\n transfer-encoding: chunked", &chunks, refused),
        ("x: y\rtransfer-encoding: chunked", &chunks, refused),
        ("\0: y", "", refused),
        // Chunks of a size that is none.
        (
            "transfer-encoding: chunked",
            "fffffffffffffffff\r\n",
            &["400", "502", "200"],
        ),
        (
            "transfer-encoding: chunked",
            "5x\r\nhello\r\n0\r\n\r\n",
            &["400", "502", "200"],
        ),
        (
            "transfer-encoding: chunked",
            "-1\r\n\r\n0\r\n\r\n",
            &["400", "502", "200"],
        ),
    ] {
        let before = shop.came().len();
        let said = format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n{body}");
        let heard = gateway.raw(&said).await;
        let got: Vec<_> = heard
            .match_indices("HTTP/1.1 ")
            .map(|(at, _)| &heard[at + 9..at + 12])
            .collect();
        assert!(
            got.iter().all(|status| statuses.contains(status)),
            "{said:?}: {got:?}"
        );
        let answered = got.iter().filter(|status| **status == "200").count();
        let came = shop.came().split_off(before);
        assert_eq!(came.len(), answered, "{said:?}: {got:?}");
        for came in came {
            let lengths = ["content-length", "transfer-encoding"];
            let lengths = lengths
                .iter()
                .filter(|name| came.headers.contains_key(**name));
            assert!(lengths.count() <= 1, "{said:?}");
        }
    }
    assert_eq!(gateway.get("/").await.status, 200);
}

/// S-3: a head has a bound, and so has what is kept of it.
#[tokio::test]
async fn s_3_huge_heads_are_refused() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &["--head-timeout", "5s"]).await;
    let before = peak(gateway.pid());
    let many = "x: y\r\n".repeat(10_000);
    let long = format!("x: {}\r\n", "y".repeat(16 << 20));
    for (path, headers, status) in [
        ("/", &*many, "431"),
        ("/", &*long, "431"),
        (&format!("/{}", "a".repeat(70_000)), "", "414"),
    ] {
        let address = gateway.url("").replace("http://", "");
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
        // It stops listening before it has all.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut heard = vec![0; 4096];
        let read = stream.read(&mut heard).await.unwrap_or(0);
        let heard = String::from_utf8_lossy(&heard[..read]).into_owned();
        // What was not read resets the connection, and may take the reply with it.
        let refused = heard.is_empty() || heard.starts_with(&format!("HTTP/1.1 {status}"));
        assert!(refused, "{heard}");
    }
    assert_eq!(shop.came().len(), 0);
    let grown = peak(gateway.pid()) - before;
    assert!(grown < 16, "{grown} MiB more");
    assert_eq!(gateway.get("/").await.status, 200);
}

/// S-3: a caller that does not read keeps the upstream waiting, and no memory.
#[tokio::test]
async fn s_3_a_caller_that_does_not_read_costs_no_memory() {
    const PIECE: usize = 1 << 16;
    const PIECES: usize = 1600;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new()
        .route("/small", get(|| async { "small" }))
        .fallback(get(|| async {
            let (mut sender, body) = Channel::<Bytes, Infallible>::new(1);
            tokio::spawn(async move {
                let piece = Bytes::from(vec![7; PIECE]);
                for _ in 0..PIECES {
                    if sender.send_data(piece.clone()).await.is_err() {
                        return;
                    }
                }
            });
            Body::new(body)
        }));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let gateway = Gateway::start(&url, &[]).await;
    let address = gateway.url("").replace("http://", "");
    let mut slow = TcpStream::connect(address).await.unwrap();
    let before = peak(gateway.pid());
    let head = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    slow.write_all(head.as_bytes()).await.unwrap();
    // Others are served meanwhile.
    for _ in 0..100 {
        assert_eq!(gateway.get("/small").await.text(), "small");
    }
    let grown = peak(gateway.pid()) - before;
    assert!(grown < 16, "{grown} MiB more for a reply that nobody reads");
    let mut read = 0;
    let mut piece = vec![0; PIECE];
    loop {
        match slow.read(&mut piece).await.unwrap() {
            0 => break,
            more => read += more,
        }
    }
    assert!(read > PIECE * PIECES, "{read} bytes came in the end");
}

/// S-3: 10,000 callers that say nothing are no burden.
#[tokio::test]
async fn s_3_ten_thousand_idle_connections() {
    const MANY: u64 = 10_000;
    let shop = Shop::open().await;
    // Both ends need a descriptor for each.
    let shell = "ulimit -n 12000 || exit 77; exec \"$@\"";
    let limit = Command::new("sh").args(["-c", "ulimit -n 12000"]).status();
    if !limit.unwrap().success() {
        crate::support::database::left_out("10,000 connections", "a process may have fewer files");
        return;
    }
    let flags = [
        "--max-connections",
        "11000",
        "--head-timeout",
        "5min",
        "--grace",
        "0s",
    ];
    let gateway = Gateway::start_by(&["sh", "-c", shell, "sh"], &shop.url(), &flags).await;
    let before = peak(gateway.pid());
    let script = "import socket, sys\n\
        host, port = sys.argv[1].split(':')\n\
        kept = [socket.create_connection((host, int(port))) for _ in range(int(sys.argv[2]))]\n\
        print('open', flush=True)\nsys.stdin.read()";
    let address = gateway.url("").replace("http://", "");
    let mut callers = Command::new("sh")
        .args([
            "-c",
            shell,
            "sh",
            "python3",
            "-c",
            script,
            &address,
            &MANY.to_string(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = callers.stdout.take().unwrap();
    let said = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        line
    });
    assert_eq!(said.await.unwrap(), "open\n");
    crate::support::database::eventually("all are accepted", async || {
        let metrics = gateway.look("/metrics").await;
        let line = metrics
            .text()
            .lines()
            .find_map(|line| line.strip_prefix("gateway_connections "));
        line.is_some_and(|count| count.parse::<f64>().unwrap() >= MANY as f64)
    })
    .await;
    assert_eq!(gateway.get("/").await.status, 200);
    let grown = peak(gateway.pid()) - before;
    assert!(grown < 128, "{grown} MiB more");
    drop(callers.stdin.take());
    callers.wait().unwrap();
}
