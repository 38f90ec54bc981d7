//! The gateway's edge: TLS, ids, and the access log.

use std::{os::unix::net::UnixDatagram, process::Command, sync::Arc, time::Duration};

use http::Request;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    gateway::{Folder, Gateway},
    shop::Shop,
    support::{
        authority::{Authority, Identity},
        database::eventually,
    },
};

async fn connect(
    gateway: &Gateway,
    authority: &Authority,
) -> std::io::Result<TlsStream<TcpStream>> {
    let address = gateway.url("").replace("https://", "");
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("gateway.test").unwrap();
    TlsConnector::from(Arc::new(authority.trusted()))
        .connect(name, stream)
        .await
}

async fn get(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> String {
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut heard = vec![0; 4096];
    let read = stream.read(&mut heard).await.unwrap();
    String::from_utf8_lossy(&heard[..read]).into_owned()
}

/// a renewed certificate is shown to new connections; those that are there go on.
#[tokio::test]
async fn a_3_tls_in_front_is_reloaded() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let (old, new) = (Authority::new(), Authority::new());
    let write = |Identity { certificate, key }: Identity| {
        let certificate = folder.file("certificate.pem", &certificate.pem());
        (certificate, folder.file("key.pem", &key.serialize_pem()))
    };
    let (certificate, key) = write(old.issue("gateway.test", false));
    let flags = ["--tls-certificate", &certificate, "--tls-key", &key];
    let gateway = Gateway::start(&shop.url(), &flags).await;
    let mut kept = connect(&gateway, &old).await.unwrap();
    assert!(get(&mut kept).await.starts_with("HTTP/1.1 200"));
    assert_eq!(shop.came()[0].header("x-forwarded-proto"), Some("https"));

    folder.file("certificate.pem", "nonsense");
    gateway.signal("HUP");
    gateway.says("the certificate stays as it was").await;
    write(new.issue("gateway.test", false));
    gateway.signal("HUP");
    gateway.says("the certificate was read again").await;
    assert!(connect(&gateway, &old).await.is_err());
    let mut fresh = connect(&gateway, &new).await.unwrap();
    assert!(get(&mut fresh).await.starts_with("HTTP/1.1 200"));
    assert!(get(&mut kept).await.starts_with("HTTP/1.1 200"));
}

/// a line for each request, when it is over, without what is secret.
#[tokio::test]
async fn a_3_requests_have_ids_and_are_logged() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let log = folder.path("access.log");
    let gateway = Gateway::start(&shop.url(), &["--access-log", &log]).await;
    let request = Request::get(gateway.url("/a?token=hunter2")).header("x-request-id", "mine");
    assert_eq!(
        gateway.send(request, "").await.header("x-request-id"),
        Some("mine")
    );
    let made = gateway
        .get("/b")
        .await
        .header("x-request-id")
        .unwrap()
        .to_owned();
    assert_eq!(made.len(), 32);
    let came: Vec<_> = shop
        .came()
        .iter()
        .map(|came| came.header("x-request-id").unwrap().to_owned())
        .collect();
    assert_eq!(came, ["mine", &made]);
    let mut lines = Vec::new();
    eventually("both are logged", async || {
        let text = std::fs::read_to_string(&log).unwrap();
        lines = text.lines().map(str::to_owned).collect();
        lines.len() == 2
    })
    .await;
    assert!(!lines.concat().contains("hunter2"));
    let line: Value = serde_json::from_str(&lines[0]).unwrap();
    for (field, value) in [
        ("request_id", Value::from("mine")),
        ("remote", "127.0.0.1".into()),
        ("method", "GET".into()),
        ("path", "/a".into()),
        ("status", 200.into()),
        ("bytes", 1.into()),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
}

#[tokio::test]
async fn a_3_systemd_is_told() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let path = folder.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let told = || {
        let mut heard = [0; 64];
        let length = socket.recv(&mut heard).unwrap();
        String::from_utf8_lossy(&heard[..length]).into_owned()
    };
    let variable = format!("NOTIFY_SOCKET={path}");
    let mut gateway = Gateway::start_by(&["env", &variable], &shop.url(), &[]).await;
    assert_eq!(told(), "READY=1");
    gateway.signal("TERM");
    assert_eq!(told(), "STOPPING=1");
    assert_eq!(gateway.ended().await.code(), Some(0));
}

/// the socket may be systemd's, which keeps it while the gateway restarts.
#[tokio::test]
async fn a_3_systemd_gives_the_socket() {
    // Opens a socket, and becomes the gateway with it.
    let script = "import os, socket, sys\n\
        sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(int(sys.argv[1]))]\n\
        for number, opened in enumerate(sockets):\n    os.dup2(opened.fileno(), 3 + number)\n    os.set_inheritable(3 + number, True)\n\
        os.environ.update(LISTEN_FDS=sys.argv[1], LISTEN_PID=str(os.getpid()))\n\
        os.execvp(sys.argv[2], sys.argv[2:])";
    let shop = Shop::open().await;
    let by = ["python3", "-c", script, "1"];
    let gateway = Gateway::run_by(&by, &["--upstream", &shop.url()]).await;
    assert_eq!(gateway.get("/").await.status, 200);
    // There is still none of its own after a reload.
    gateway.signal("HUP");
    gateway.says("the configuration was read again").await;
    assert_eq!(gateway.get("/").await.status, 200);

    let program = env!("CARGO_BIN_EXE_reprise");
    let flags = ["2", program, "gateway", "--upstream", "http://127.0.0.1:1"];
    let many = Command::new("python3")
        .args(["-c", script])
        .args(flags)
        .output();
    let many = many.unwrap();
    let said = String::from_utf8_lossy(&many.stderr);
    assert!(said.contains("LISTEN_FDS is 2, allowed: one"), "{said}");
    assert_eq!(many.status.code(), Some(2));
}
