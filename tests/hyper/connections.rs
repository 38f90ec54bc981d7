//! Connections that fail.

use std::{
    io,
    sync::{Arc, Mutex},
};

use http::Request;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, sync::Notify};
use tower::{ServiceBuilder, ServiceExt};
use tower_reprise::{
    CircuitBreakerLayer, RetryLayer, RetryOutcome,
    call::{Attempt, Cause, Health, Retryable, StopReason},
    error::BoxError,
};

use crate::{
    client::{Body, get, outcome, parts, plain, post, send, send_keyless, text},
    support::{
        deps, find,
        http1::{Act, Server, reply},
        outcome_of,
        ports::deaf_uri,
        quick, verdict,
    },
};

#[tokio::test]
async fn c_3_a_refused_connection_is_retried_until_exhausted() {
    let (_socket, uri) = deaf_uri();
    let error = send(get(&uri)).await.unwrap_err();
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert_eq!(
        parts(&error),
        (Cause::Connect, Retryable::Yes, Health::Failure, true)
    );
    let io: &io::Error = find(&*error).expect("the socket's error");
    assert_eq!(io.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn c_4_a_post_without_a_key_is_repeated_when_the_connection_was_refused() {
    let (socket, uri) = deaf_uri();
    let socket = Arc::new(Mutex::new(Some(socket)));
    let server = Arc::new(Mutex::new(None));
    // The server comes up between the first attempt and the second.
    let (waiting, up) = (socket.clone(), server.clone());
    let come_up = move |request: Request<Body>, _: Attempt| {
        if let Some(socket) = waiting.lock().unwrap().take() {
            let listener = socket.listen(8).unwrap();
            *up.lock().unwrap() = Some(Server::on(listener, vec![reply(200, "")]));
        }
        async { Ok::<_, BoxError>(request) }
    };
    let deps = deps(quick());
    let response = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()).with_prepare(come_up))
        .layer(CircuitBreakerLayer::new(deps))
        .service(plain())
        .oneshot(post(&uri))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(outcome(&response), (2, None));
    let server = server.lock().unwrap().take().unwrap();
    assert_eq!(server.requests().len(), 1);
    assert_eq!(server.keys(), [None]);
}

#[tokio::test]
async fn c_3_a_connection_closed_before_the_request_is_read_is_retried() {
    let server = Server::start(vec![Act::Close, reply(200, "")]).await;
    let response = send(get(&server.uri())).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(outcome(&response), (2, None));

    let server = Server::start(vec![Act::Close]).await;
    let error = send(get(&server.uri())).await.unwrap_err();
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert_eq!(server.connections(), 4);
    // Which of them it is depends on who was faster.
    let cause = verdict(&error).cause;
    assert!(matches!(cause, Cause::Reset | Cause::Incomplete), "{cause}");
}

#[tokio::test]
async fn c_4_a_request_that_its_connection_never_took_was_never_sent() {
    let server = Server::start(vec![Act::Stall]).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    drop(connection);
    let error = sender.send_request(post("/")).await.unwrap_err();
    assert!(error.is_canceled());
    assert_eq!(
        parts(&error.into()),
        (Cause::Reset, Retryable::Yes, Health::Failure, true)
    );
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn c_3_a_reply_that_never_begins_is_retried() {
    let server = Server::start(vec![Act::ReadAndClose]).await;
    let error = send(get(&server.uri())).await.unwrap_err();
    assert_eq!(server.requests().len(), 4);
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert_eq!(
        parts(&error),
        (Cause::Incomplete, Retryable::Yes, Health::Failure, false)
    );
}

#[tokio::test]
async fn c_3_half_a_response_head_is_retried() {
    let half = Act::Say("HTTP/1.1 200 OK\r\ncontent-le".into());
    let server = Server::start(vec![half.clone(), reply(200, "")]).await;
    let response = send(get(&server.uri())).await.unwrap();
    assert_eq!(text(response).await, "ok");
    assert_eq!(server.requests().len(), 2);

    let server = Server::start(vec![half]).await;
    let error = send(get(&server.uri())).await.unwrap_err();
    assert_eq!(server.requests().len(), 4);
    assert_eq!(
        parts(&error),
        (Cause::Incomplete, Retryable::Yes, Health::Failure, false)
    );
}

#[tokio::test]
async fn c_3_a_reset_is_retried() {
    let server = Server::start(vec![Act::Reset, reply(200, "")]).await;
    let response = send(get(&server.uri())).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(server.requests().len(), 2);

    let server = Server::start(vec![Act::Reset]).await;
    let error = send(get(&server.uri())).await.unwrap_err();
    assert_eq!(server.requests().len(), 4);
    assert_eq!(
        parts(&error),
        (Cause::Reset, Retryable::Yes, Health::Failure, false)
    );
}

#[tokio::test]
async fn c_5_a_post_that_may_have_been_processed_is_repeated_with_a_key_only() {
    for lost in [Act::ReadAndClose, Act::Reset] {
        let server = Server::start(vec![lost.clone(), reply(200, "")]).await;
        let error = send_keyless(post(&server.uri())).await.unwrap_err();
        assert_eq!(outcome_of(&error), (1, Some(StopReason::NotIdempotent)));
        assert_eq!(server.requests().len(), 1);

        let server = Server::start(vec![lost, reply(200, "")]).await;
        let response = send(post(&server.uri())).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(server.requests().len(), 2);
    }
}

#[tokio::test]
async fn c_3_a_reply_that_is_not_http_is_never_retried() {
    let server = Server::start(vec![Act::Say("SSH-2.0-OpenSSH_9.9\r\n\r\n".into())]).await;
    let error = send(get(&server.uri())).await.unwrap_err();
    assert_eq!(server.requests().len(), 1);
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    assert_eq!(
        parts(&error),
        (
            Cause::Serialization,
            Retryable::Never,
            Health::Failure,
            false
        )
    );
}

#[tokio::test]
async fn d_1_a_body_that_comes_late_is_the_callers_to_read() {
    let late = Arc::new(Notify::new());
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nsl".into();
    let act = Act::SayLater(head, late.clone(), "ow".into());
    let server = Server::start(vec![act]).await;
    let response = send(get(&server.uri())).await.unwrap();
    assert!(RetryOutcome::of(&response).is_none());
    late.notify_one();
    assert_eq!(text(response).await, "slow");
}

#[tokio::test]
async fn d_4_a_body_that_breaks_off_is_the_callers_error() {
    let broken = Act::Say("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbro".into());
    let server = Server::start(vec![broken]).await;
    let response = send(get(&server.uri())).await.unwrap();
    let error = response.into_body().collect().await.unwrap_err();
    assert!(!error.is_user(), "{error:?}");
    assert_eq!(server.requests().len(), 1);
}
