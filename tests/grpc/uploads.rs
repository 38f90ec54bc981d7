//! Requests that stream.

use std::{
    future::ready,
    sync::{Arc, Mutex},
};

use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use tokio_stream::Stream;
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};
use tonic_health::pb::health_client::HealthClient;
use tower::{ServiceBuilder, util::BoxCloneService};
use tower_reprise::{
    PeekLayer, RetryLayer,
    call::{Attempt, StopReason},
    error::BoxError,
    http::BufferedBody,
    policy::PolicyBuilder,
    stacks::tonic::StatusLayer,
};

use crate::{
    client::{Stack, channel, check, full, named, outcome, policy, served},
    connections::Rising,
    support::grpc::{Act, Server},
};

/// Messages as they are.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

/// A policy for which an import is safe to repeat; as a stream, it gets no key.
fn declared() -> PolicyBuilder {
    policy().idempotent_methods(["ledger.v1.Ledger/Import"])
}

async fn upload(
    stack: Stack<BufferedBody<Body>>,
    messages: impl Stream<Item = Vec<u8>> + Send + 'static,
) -> Result<Response<Vec<u8>>, Status> {
    let mut client = Grpc::new(stack);
    client.ready().await?;
    let path = PathAndQuery::from_static("/ledger.v1.Ledger/Import");
    client
        .client_streaming(Request::new(messages), path, Raw)
        .await
}

/// As they are on the wire.
fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut wire = Vec::new();
    for message in messages {
        wire.push(0);
        wire.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        wire.extend(message);
    }
    wire
}

#[tokio::test]
async fn c_2_a_streamed_request_is_replayed_from_tape_under_the_cap() {
    // With the five bytes before each of two messages, that is the cap to the byte.
    let messages = vec![vec![7; 40_000], vec![9; 64 * 1024 - 40_000 - 10]];
    let server = Server::start(vec![Act::fail(14), Act::fail(14), Act::Serve]).await;
    let stack = full(&named(declared()), channel(server.address));
    let reply = upload(stack, tokio_stream::iter(messages.clone())).await;
    assert_eq!(served(&reply.unwrap()), 3);
    let bodies = server.bodies();
    assert_eq!(bodies.len(), 3);
    let wire = framed(&messages);
    assert_eq!(wire.len(), 64 * 1024);
    assert!(bodies.iter().all(|body| *body == wire));
}

#[tokio::test]
async fn c_2_a_streamed_request_over_the_cap_goes_through_once() {
    let messages = vec![vec![7; 40_000], vec![9; 64 * 1024 - 40_000 - 9]];
    let server = Server::start(vec![Act::fail(14), Act::Serve]).await;
    let deps = named(declared());
    let stack = full(&deps, channel(server.address));
    let status = upload(stack.clone(), tokio_stream::iter(messages.clone()))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(outcome(&status), (1, Some(StopReason::NotReplayable)));
    assert_eq!(server.bodies(), [framed(&messages)]);

    upload(stack, tokio_stream::iter(messages)).await.unwrap();
    assert_eq!(server.requests().len(), 2);
}

/// A server that is too busy to read says so at once, which is when a retry matters.
#[tokio::test]
async fn c_2_an_answer_before_the_end_of_a_request_that_is_at_hand_is_retried() {
    // The transport has taken a message and waits until it may send it. It knows that it has to wait
    // from the second call on.
    let script = || vec![Act::EarlyEnd(3), Act::EarlyEnd(14), Act::Serve];
    let server = Server::start(script()).await;
    let mut client = HealthClient::new(full(&named(declared()), channel(server.address)));
    client.check(check()).await.unwrap_err();
    assert_eq!(served(&client.check(check()).await.unwrap()), 2);
    assert_eq!(server.bodies()[2], framed(&[vec![]]));

    let server = Server::start(script()).await;
    let stack = full(&named(declared()), channel(server.address));
    let messages = vec![vec![7; 40_000], vec![9; 20_000]];
    let upload = || upload(stack.clone(), tokio_stream::iter(messages.clone()));
    upload().await.unwrap_err();
    assert_eq!(served(&upload().await.unwrap()), 2);
    assert_eq!(server.bodies()[2], framed(&messages));
}

/// Messages are written while the call is under way. Its retry gets those that were written, and goes
/// on with those that come.
#[tokio::test]
async fn d_8_a_streamed_request_whose_rest_is_still_to_come_is_retried() {
    let first = vec![1; 10];
    let faults = [
        // The transport holds the first body: nothing tells it to stop.
        (Act::EarlyFail(14), 0),
        // The stream is closed halfway through.
        (Act::FailAfter(15, 14), 15),
    ];
    for (fault, read) in faults {
        let server = Server::start(vec![fault, Act::FailAfter(40, 14), Act::Serve]).await;
        let (send, messages) = tokio::sync::mpsc::unbounded_channel();
        send.send(first.clone()).unwrap();
        // One message more for each retry, and then the end.
        let send = Mutex::new(Some(send));
        let more = move |request: http::Request<Body>, attempt: Attempt| {
            let mut send = send.lock().unwrap();
            send.as_ref().unwrap().send(vec![2; 20]).unwrap();
            if attempt.number() == 3 {
                *send = None;
            }
            ready(Ok::<_, BoxError>(request))
        };
        let deps = named(declared());
        let more = Arc::new(more);
        let stack = BoxCloneService::new(
            ServiceBuilder::new()
                .layer(StatusLayer::new())
                .layer(
                    RetryLayer::new(deps.clone())
                        .with_prepare(move |request, attempt| more(request, attempt)),
                )
                .layer(PeekLayer::new(deps))
                .service(channel(server.address)),
        );
        let messages = tokio_stream::wrappers::UnboundedReceiverStream::new(messages);
        let reply = upload(stack, messages).await.unwrap();
        assert_eq!(served(&reply), 3);
        let wire = framed(&[first.clone(), vec![2; 20], vec![2; 20]]);
        assert_eq!(server.bodies(), [&wire[..read], &wire[..40], &wire[..]]);
    }
}

#[tokio::test]
async fn c_4_a_streamed_request_that_was_never_read_is_sent_as_it_is() {
    // However long it is: nothing of it was asked for while there was no connection.
    let server = Rising::new();
    let deps = named(declared());
    let stack = BoxCloneService::new(
        ServiceBuilder::new()
            .layer(StatusLayer::new())
            .layer(RetryLayer::new(deps.clone()).with_prepare(server.hook()))
            .layer(PeekLayer::new(deps))
            .service(channel(server.address)),
    );
    let messages = vec![vec![5; 100_000]; 3];
    let reply = upload(stack, tokio_stream::iter(messages.clone())).await;
    assert_eq!(served(&reply.unwrap()), 2);
    assert_eq!(server.bodies(), [framed(&messages)]);
}
