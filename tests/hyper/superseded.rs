//! D-8: a server that answered early reads on, and never takes the part that it got for the whole.

use bytes::Bytes;
use http::Response;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    streaming::{SECOND, policy, send_rest},
    support::outcome,
};

/// Reads until this text came, or the end.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(text) {
        match stream.read_buf(&mut read).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => break,
        }
    }
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn d_8_over_http1_the_first_connection_is_closed_before_its_body_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        read_until(&mut first, "abc\r\n").await;
        let busy = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";
        first.write_all(busy).await.unwrap();
        let second = async {
            let (mut second, _) = listener.accept().await.unwrap();
            let read = read_until(&mut second, "\r\n0\r\n\r\n").await;
            let good = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            second.write_all(good).await.unwrap();
            read
        };
        tokio::join!(read_until(&mut first, "no text of the body's"), second)
    });
    let result = send_rest(policy(), false, &uri, false).await;
    assert_eq!(outcome(&result), SECOND);
    let (first, second) = server.await.unwrap();
    assert_eq!(first, "", "neither a part of the rest nor an end");
    let (_, body) = second.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "3\r\nabc\r\n6\r\ndefghi\r\n0\r\n\r\n");
}

/// Reads a body, and returns it if it ends well.
async fn read(mut body: h2::RecvStream) -> Option<Bytes> {
    let mut whole = Vec::new();
    while let Some(data) = body.data().await {
        whole.extend_from_slice(&data.ok()?);
    }
    Some(whole.into())
}

#[tokio::test]
async fn d_8_over_http2_the_first_stream_is_reset_before_its_body_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let mut body = request.into_body();
        let first = tokio::spawn(async move {
            let begun = body.data().await.unwrap().unwrap();
            assert_eq!(begun, "abc");
            let busy = Response::builder().status(503).body(()).unwrap();
            respond.send_response(busy, true).unwrap();
            read(body).await
        });
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let second = tokio::spawn(async move {
            let whole = read(request.into_body()).await;
            respond.send_response(Response::new(()), true).unwrap();
            whole
        });
        // Drives the connection until the client closes it.
        while connection.accept().await.is_some() {}
        (first.await.unwrap(), second.await.unwrap())
    });
    let result = send_rest(policy(), true, &uri, false).await;
    assert_eq!(outcome(&result), SECOND);
    drop(result);
    let (first, second) = server.await.unwrap();
    assert_eq!(first, None, "it was reset");
    assert_eq!(second.as_deref(), Some(&b"abcdefghi"[..]));
}
