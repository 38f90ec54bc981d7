//! Request bodies that stream: what is recorded of them, and when they can be sent again.
#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

#[path = "support/pieces.rs"]
mod pieces;
mod support;

use std::{
    collections::VecDeque,
    future::pending,
    io,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{
    BodyExt, StreamBody,
    combinators::{BoxBody, UnsyncBoxBody},
};
use proptest::prelude::*;
use tokio::time::{advance, sleep};
use tokio_test::{assert_pending, task};
use tower::{Layer, Service, ServiceExt, util::BoxCloneService};
use tower_reprise::{
    Dependencies, Policy, RetryLayer, RetryOverride, call::StopReason, client::retry::ReplayBody,
    error::BoxError, policy::PolicyBuilder,
};

use pieces::{Broken, Piece, Pieces, all_data, any_pieces, data, paused, read, trailers};
use support::{call, outcome};

type Boxed = BoxBody<Bytes, Broken>;
type Client<B> = BoxCloneService<Request<B>, Response<()>, BoxError>;
type Outcome = Result<Response<()>, BoxError>;

const LOST: Option<(u32, Option<StopReason>)> = Some((1, Some(StopReason::NotReplayable)));
const SECOND: Option<(u32, Option<StopReason>)> = Some((2, None));

/// What a server does with the body of an attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reader {
    /// Drops it.
    Nothing,
    /// Asks for its size and whether it is at its end.
    Hints,
    /// Reads so many frames and drops it.
    Frames(usize),
    /// Reads so many frames and keeps it.
    Holds(usize),
    /// Reads until it is said to be over, or is.
    Announced,
    /// Reads until there is nothing more.
    All,
    /// Reads so many bytes and drops it, as a transport does that was told the size.
    Bytes(usize),
}

/// What a server does with an attempt in the end.
#[derive(Debug, Clone, Copy)]
enum Then {
    Status(u16),
    /// The connection was refused.
    Refused,
    /// The connection was reset.
    Reset,
    Later(u64, u16),
    Never,
}

/// What a server saw of a body.
#[derive(Debug, Clone)]
struct Seen {
    hint: (u64, Option<u64>),
    ended: bool,
    pieces: Vec<Piece>,
}

impl Seen {
    fn data(&self) -> Vec<u8> {
        all_data(&self.pieces)
    }

    fn trailers(&self) -> Option<&HeaderMap> {
        match self.pieces.last() {
            Some(Piece::Trailers(trailers)) => Some(trailers),
            _ => None,
        }
    }
}

/// Does what its script says, attempt by attempt, and answers 200 after that.
struct Server<B> {
    script: Arc<Mutex<VecDeque<(Reader, Then)>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    held: Arc<Mutex<Vec<B>>>,
}

impl<B> Clone for Server<B> {
    fn clone(&self) -> Self {
        Self {
            script: Arc::clone(&self.script),
            seen: Arc::clone(&self.seen),
            held: Arc::clone(&self.held),
        }
    }
}

impl<B> Server<B>
where
    B: Body<Data = Bytes> + ReplayBody<Recording: Send> + Unpin + Send + 'static,
{
    fn new(script: impl IntoIterator<Item = (Reader, Then)>) -> Self {
        Self {
            script: Arc::new(Mutex::new(script.into_iter().collect())),
            seen: Arc::default(),
            held: Arc::default(),
        }
    }

    fn then(&self, script: impl IntoIterator<Item = (Reader, Then)>) {
        self.script.lock().unwrap().extend(script);
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn attempts(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn held(&self) -> B {
        self.held.lock().unwrap().pop().unwrap()
    }

    async fn serve(self, mut body: B) -> Result<Response<()>, BoxError> {
        let next = self.script.lock().unwrap().pop_front();
        let (reader, then) = next.unwrap_or((Reader::All, Then::Status(200)));
        let hint = body.size_hint();
        let mut seen = Seen {
            hint: (hint.lower(), hint.upper()),
            ended: body.is_end_stream(),
            pieces: Vec::new(),
        };
        match reader {
            Reader::Nothing | Reader::Hints => {}
            Reader::Frames(most) | Reader::Holds(most) => seen.pieces = read(&mut body, most).await,
            Reader::All => seen.pieces = read(&mut body, usize::MAX).await,
            Reader::Announced | Reader::Bytes(_) => {
                let enough = |seen: &Seen| match reader {
                    Reader::Bytes(length) => seen.data().len() >= length,
                    _ => false,
                };
                while !body.is_end_stream() && !enough(&seen) {
                    let more = read(&mut body, 1).await;
                    if more.is_empty() || more == [Piece::Fail] {
                        break;
                    }
                    seen.pieces.extend(more);
                }
            }
        }
        match reader {
            Reader::Holds(_) => self.held.lock().unwrap().push(body),
            _ => drop(body),
        }
        self.seen.lock().unwrap().push(seen);
        let status = match then {
            Then::Status(status) => status,
            Then::Refused => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            Then::Reset => return Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
            Then::Later(seconds, status) => {
                sleep(Duration::from_secs(seconds)).await;
                status
            }
            Then::Never => pending().await,
        };
        Ok(Response::builder().status(status).body(()).unwrap())
    }

    fn client(&self, policy: PolicyBuilder) -> Client<B> {
        let deps = Dependencies::new(policy.build().unwrap());
        let server = self.clone();
        let service =
            tower::service_fn(move |request: Request<B>| server.clone().serve(request.into_body()));
        BoxCloneService::new(RetryLayer::new(deps).layer(service))
    }
}

fn policy() -> PolicyBuilder {
    Policy::synchronous()
}

fn put<B>(body: B) -> Request<B> {
    Request::put("http://a.example/").body(body).unwrap()
}

fn boxed(pieces: impl IntoIterator<Item = Piece>) -> Boxed {
    Pieces::new(pieces).boxed()
}

/// One call with this body to a server that first does this.
async fn once(
    policy: PolicyBuilder,
    body: Boxed,
    script: &[(Reader, Then)],
) -> (Outcome, Vec<Seen>) {
    let server = Server::new(script.iter().copied());
    let result = call(&mut server.client(policy), put(body)).await;
    (result, server.seen())
}

// Byte for byte

/// Of this many bytes, cut unevenly.
fn cut(length: usize) -> Vec<Piece> {
    let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
    bytes
        .chunks(999)
        .map(|chunk| data(chunk.to_vec()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn d_4_a_body_of_64_kib_is_replayed_byte_for_byte_with_its_trailers() {
    // The default limit, filled to the last byte.
    let fields = [("x-sum", "12"), ("x-sum", "34")];
    let sent = [cut(64 * 1024 - 14), vec![trailers(fields)]].concat();
    let script = [(Reader::All, Then::Status(503)), (Reader::All, Then::Reset)];
    let (result, seen) = once(policy(), boxed(sent.clone()), &script).await;
    assert_eq!(result.unwrap().status(), 200);
    assert_eq!(seen.len(), 3);
    for seen in seen {
        assert_eq!(seen.data(), all_data(&sent));
        let sums: Vec<_> = seen.trailers().unwrap().get_all("x-sum").iter().collect();
        assert_eq!(sums, ["12", "34"]);
    }
}

#[tokio::test(start_paused = true)]
async fn s_3_a_body_at_the_cap_is_replayed_and_one_byte_more_is_not() {
    let script = [(Reader::All, Then::Status(503))];
    for sized in [false, true] {
        for (length, expected) in [(1024, SECOND), (1025, LOST)] {
            let body = Pieces::new(cut(length)).sized(sized).boxed();
            let (result, seen) = once(policy().replay_limit(1024), body, &script).await;
            assert_eq!(outcome(&result), expected, "{length}");
            assert!(seen.iter().all(|seen| seen.data().len() == length));
        }
    }
    // Trailers count.
    for (length, expected) in [(1018, SECOND), (1019, LOST)] {
        let sent = [cut(length), vec![trailers([("x-sum", "1")])]].concat();
        let (result, seen) = once(policy().replay_limit(1024), boxed(sent), &script).await;
        assert_eq!(outcome(&result), expected, "{length}");
        assert!(seen.iter().all(|seen| seen.trailers().is_some()));
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_sees_the_size_that_the_caller_gave() {
    let sent = [cut(2000), vec![trailers([("x-sum", "1")])]].concat();
    for (sized, hint) in [(false, (0, None)), (true, (2000, Some(2000)))] {
        for reader in [Reader::All, Reader::Nothing] {
            let body = Pieces::new(sent.clone()).sized(sized).boxed();
            let script = [
                (reader, Then::Status(503)),
                (Reader::Hints, Then::Status(503)),
            ];
            let (result, seen) = once(policy(), body, &script).await;
            assert_eq!(result.unwrap().status(), 200);
            let hints: Vec<_> = seen.iter().map(|seen| (seen.hint, seen.ended)).collect();
            assert_eq!(hints, [(hint, false); 3]);
        }
    }
    // A body that is at its end from the start stays so.
    let nothing = Pieces::new([]).announces_end(true).boxed();
    let (_, seen) = once(policy(), nothing, &[(Reader::Hints, Then::Status(503))]).await;
    assert!(seen.len() == 2 && seen.iter().all(|seen| seen.ended));
}

#[tokio::test(start_paused = true)]
async fn the_bodys_type_stays_the_same() {
    // A body that can't be shared between threads.
    let stream = tokio_stream::iter([1, 2, 3]);
    let stream = tokio_stream::StreamExt::map(stream, |n: u8| {
        Ok::<_, Broken>(Frame::data(Bytes::from(vec![n])))
    });
    let body: UnsyncBoxBody<Bytes, Broken> = StreamBody::new(stream).boxed_unsync();
    let server: Server<UnsyncBoxBody<Bytes, Broken>> =
        Server::new([(Reader::All, Then::Status(503))]);
    let mut client: Client<UnsyncBoxBody<Bytes, Broken>> = server.client(policy());
    let result = client.ready().await.unwrap().call(put(body)).await;
    assert_eq!(outcome(&result), SECOND);
    assert!(server.seen().iter().all(|seen| seen.data() == [1, 2, 3]));
}

// Nothing is read ahead

#[tokio::test(start_paused = true)]
async fn nothing_is_read_ahead() {
    let source = Pieces::new([data("ab"), data("cd"), data("ef")]);
    let polls = source.polls();
    let server = Server::new([(Reader::Holds(1), Then::Later(9, 200))]);
    let mut client = server.client(policy());
    let future = client.ready().await.unwrap().call(put(source.boxed()));
    assert_eq!(polls.load(Ordering::Relaxed), 0, "not before the call");
    let mut future = task::spawn(future);
    assert_pending!(future.poll());
    assert_eq!(polls.load(Ordering::Relaxed), 1, "as much as was asked for");
    advance(Duration::from_secs(10)).await;
    assert_eq!(future.await.unwrap().status(), 200);
    assert_eq!(polls.load(Ordering::Relaxed), 1);
    // The call is over, and the body streams on.
    assert_eq!(read(&mut server.held(), 9).await, [data("cd"), data("ef")]);
    assert_eq!(polls.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn a_frame_passes_as_soon_as_it_is_there() {
    let minute = Piece::Wait(Duration::from_secs(60));
    let source = Pieces::new([data("now"), minute.clone(), data("later")]);
    let server = Server::new([(Reader::Holds(1), Then::Status(200))]);
    let mut client = server.client(policy());
    call(&mut client, put(source.boxed())).await.unwrap();
    assert_eq!(server.seen()[0].pieces, [data("now")]);
    let mut body = server.held();
    let mut rest = task::spawn(read(&mut body, 9));
    assert_pending!(rest.poll());
    assert_eq!(rest.await, [data("later")]);
}

// When it can't be sent again

#[tokio::test(start_paused = true)]
async fn c_4_a_body_dropped_unread_is_sent_again_whatever_its_size() {
    for reader in [Reader::Nothing, Reader::Hints, Reader::Frames(0)] {
        let sent = cut(100_000);
        let server = Server::new([(reader, Then::Refused), (reader, Then::Refused)]);
        let request = Request::post("http://a.example/").body(boxed(sent.clone()));
        let result = call(&mut server.client(policy()), request.unwrap()).await;
        assert_eq!(outcome(&result), Some((3, None)));
        assert_eq!(server.seen()[2].data(), all_data(&sent));
    }
    // What is only unread is not what was never sent.
    let server = Server::new([(Reader::Nothing, Then::Reset)]);
    let request = Request::post("http://a.example/").body(boxed([data("pay")]));
    let result = call(&mut server.client(policy()), request.unwrap()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotIdempotent))));
}

/// Not there yet when it is asked for.
fn soon() -> Piece {
    Piece::Wait(Duration::ZERO)
}

#[tokio::test(start_paused = true)]
async fn d_4_a_body_read_in_part_is_sent_again_if_the_rest_is_at_hand() {
    let sent = [data("ab"), data("cd"), trailers([("x-sum", "1")])];
    let awaited = [data("ab"), soon(), data("cd")];
    for then in [Then::Refused, Then::Reset, Then::Status(503)] {
        // Twice, since what was read for the first retry serves the second too.
        let script = [(Reader::Frames(1), then), (Reader::Frames(2), then)];
        let (result, seen) = once(policy(), boxed(sent.clone()), &script).await;
        assert_eq!(outcome(&result), Some((3, None)), "{then:?}");
        assert_eq!(seen[2].data(), b"abcd");
        assert_eq!(seen[2].trailers().unwrap()["x-sum"], "1");

        let (result, seen) = once(policy(), boxed(awaited.clone()), &script).await;
        assert_eq!(outcome(&result), LOST, "{then:?}");
        assert_eq!(seen.len(), 1);
    }
    // Nor is one again of which an earlier attempt read nothing.
    let script = [
        (Reader::Nothing, Then::Refused),
        (Reader::Frames(1), Then::Refused),
    ];
    let (result, seen) = once(policy(), boxed(awaited), &script).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::NotReplayable))));
    assert_eq!(seen.len(), 2);
    // What is left of it has its bounds, in bytes and in frames.
    let few = boxed([vec![data("a")], vec![data(""); 1022]].concat());
    let many = boxed([vec![data("a")], vec![data(""); 1024]].concat());
    let long = boxed(cut(64 * 1024 + 1));
    for (body, expected) in [(few, SECOND), (many, LOST), (long, LOST)] {
        let script = [(Reader::Frames(1), Then::Status(503))];
        let (result, _) = once(policy(), body, &script).await;
        assert_eq!(outcome(&result), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn d_4_a_body_read_to_its_announced_size_is_sent_again_with_what_follows_it() {
    let first = [data("ab"), data("cd")];
    let fields = || trailers([("x-sum", "1")]);
    let cases = [
        (vec![], SECOND),
        (vec![fields()], SECOND),
        // What is not there yet might still come.
        (vec![soon()], LOST),
        (vec![soon(), fields()], LOST),
        (vec![Piece::Fail], LOST),
    ];
    for (rest, expected) in cases {
        let pieces = [first.to_vec(), rest.clone()].concat();
        for length in [None, Some(4)] {
            let server = Server::new([(Reader::Bytes(4), Then::Status(503))]);
            // The body says how long it is, or the head does.
            let body = Pieces::new(pieces.clone()).sized(length.is_none());
            let mut request = put(body.boxed());
            if let Some(length) = length {
                let headers = request.headers_mut();
                headers.insert("content-length", length.into());
            }
            let result = call(&mut server.client(policy()), request).await;
            assert_eq!(outcome(&result), expected, "{rest:?}");
            if expected == SECOND {
                assert_eq!(server.seen()[1].data(), b"abcd");
                assert_eq!(server.seen()[1].trailers().is_some(), rest == [fields()]);
            }
        }
    }
    // Who reads on gets what follows.
    for rest in [
        vec![],
        vec![fields()],
        vec![Piece::Fail],
        vec![data(""), fields()],
    ] {
        let pieces = [first.to_vec(), rest].concat();
        let body = Pieces::new(pieces.clone()).sized(true).boxed();
        let (_, seen) = once(policy(), body, &[(Reader::All, Then::Status(200))]).await;
        assert_eq!(seen[0].pieces, pieces);
    }
}

#[tokio::test(start_paused = true)]
async fn d_4_after_an_early_response_the_body_goes_on() {
    let rest = [data("cd"), trailers([("x-sum", "1")])];
    let at_hand = [&[data("ab")], &rest[..]].concat();
    let awaited = [&[data("ab"), soon()], &rest[..]].concat();
    for frames in [0, 1, 2, 3] {
        // The call is made again with what is at hand, and who holds the first body gets all of it.
        let server = Server::new([(Reader::Holds(frames), Then::Status(503))]);
        let body = Pieces::new(at_hand.clone()).sized(true).boxed();
        let result = call(&mut server.client(policy()), put(body)).await;
        assert_eq!(outcome(&result), SECOND);
        assert_eq!(server.seen()[1].pieces, [data("abcd"), rest[1].clone()]);
        let mut held = server.held();
        let data_left = all_data(&at_hand[frames..]).len() as u64;
        assert_eq!(held.size_hint().exact(), Some(data_left));
        assert!(!held.is_end_stream());
        assert_eq!(read(&mut held, 9).await, at_hand[frames..]);
        assert!(held.is_end_stream());
    }
    for frames in [0, 1] {
        let server = Server::new([(Reader::Holds(frames), Then::Status(503))]);
        let result = call(&mut server.client(policy()), put(boxed(awaited.clone()))).await;
        assert_eq!(outcome(&result), LOST);
        assert_eq!(server.attempts(), 1);
        assert_eq!(read(&mut server.held(), 9).await, at_hand[frames..]);
    }
    // A body that fails fails for who holds it.
    let server = Server::new([(Reader::Holds(1), Then::Status(503))]);
    let failing = boxed([data("ab"), data("cd"), Piece::Fail]);
    let result = call(&mut server.client(policy()), put(failing)).await;
    assert_eq!(outcome(&result), LOST);
    let left = [data("cd"), Piece::Fail];
    assert_eq!(read(&mut server.held(), 9).await, left);
}

/// A body is asked for its rest by the call too, and who holds it is still told when there is more.
#[tokio::test]
async fn d_4_who_waits_for_a_body_is_woken_though_the_call_asked_too() {
    let (mut more, channel) = http_body_util::channel::Channel::<Bytes, Broken>::new(1);
    let server = Server::new([(Reader::Holds(0), Then::Later(0, 503))]);
    let mut client = server.client(policy());
    let mut first = task::spawn(call(&mut client, put(channel.boxed())));
    assert_pending!(first.poll());
    let mut held = server.held();
    let mut reading = task::spawn(held.frame());
    assert_pending!(reading.poll());
    assert_eq!(outcome(&first.await), LOST);
    // It is asked again, and waits again.
    assert!(reading.is_woken());
    assert_pending!(reading.poll());
    more.send_data(Bytes::from_static(b"ab")).await.unwrap();
    assert!(reading.is_woken());
    let frame = reading.await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "ab");
}

#[tokio::test(start_paused = true)]
async fn d_4_a_body_that_fails_is_not_sent_again() {
    for pieces in [vec![Piece::Fail], vec![data("ab"), Piece::Fail]] {
        let (result, seen) = once(policy(), boxed(pieces), &[(Reader::All, Then::Reset)]).await;
        assert_eq!(outcome(&result), LOST);
        assert_eq!(
            seen[0].pieces.last(),
            Some(&Piece::Fail),
            "the error passes"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn d_5_with_retry_switched_off_nothing_is_kept() {
    let server = Server::new([(Reader::All, Then::Status(503))]);
    let mut request = put(boxed([data("ab")]));
    request.extensions_mut().insert(RetryOverride::off());
    let result = call(&mut server.client(policy().replay_pool(0)), request).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Exhausted))));
    assert_eq!(server.seen()[0].pieces, [data("ab")]);
}

#[tokio::test(start_paused = true)]
async fn s_1_sensitive_trailers_stay_sensitive() {
    let mut secret = HeaderValue::from_static("hunter2");
    secret.set_sensitive(true);
    let fields = HeaderMap::from_iter([("x-secret".parse().unwrap(), secret)]);
    let (_, seen) = once(
        policy(),
        boxed([Piece::Trailers(fields)]),
        &[(Reader::All, Then::Status(503))],
    )
    .await;
    assert!(seen[1].trailers().unwrap()["x-secret"].is_sensitive());
}

// Room

/// Room for one body of 1000 bytes.
fn tight() -> PolicyBuilder {
    policy().replay_limit(1000).replay_pool(1000)
}

#[tokio::test(start_paused = true)]
async fn s_3_recordings_of_one_dependency_share_a_bound() {
    let slow = |seconds| (Reader::All, Then::Later(seconds, 503));
    let server = Server::new([slow(9), slow(5), slow(7)]);
    let client = server.client(tight());
    let send = |length| client.clone().oneshot(put(boxed(cut(length))));
    // The first has taken all but one byte: the second goes on without, the third just fits.
    let (first, second, third) = tokio::join!(send(999), send(2), send(1));
    assert_eq!(outcome(&first), SECOND);
    assert_eq!(outcome(&second), LOST);
    assert_eq!(outcome(&third), SECOND);
    let lengths: Vec<_> = server.seen().iter().map(|seen| seen.data().len()).collect();
    assert_eq!(lengths, [999, 2, 1, 1, 999]);
    // When they are over there is room again.
    server.then([(Reader::All, Then::Status(503))]);
    assert_eq!(outcome(&send(1000).await), SECOND);
}

#[tokio::test(start_paused = true)]
async fn g_2_dependencies_do_not_share_room() {
    let server = Server::new([(Reader::All, Then::Never), (Reader::All, Then::Status(503))]);
    let client = server.client(tight());
    let mut first = task::spawn(client.clone().oneshot(put(boxed(cut(1000)))));
    assert_pending!(first.poll());
    let other = Request::put("http://b.example/").body(boxed(cut(1000)));
    assert_eq!(outcome(&client.oneshot(other.unwrap()).await), SECOND);
}

/// What a call of 1000 bytes holds on to that the server first does this to.
async fn holds_room(body: Boxed, script: &[(Reader, Then)], cancel: bool) -> bool {
    let server = Server::new(script.iter().copied());
    let client = server.client(tight().max_retries(1));
    let mut first = task::spawn(client.clone().oneshot(put(body)));
    while first.poll().is_pending() && !server.script.lock().unwrap().is_empty() {
        advance(Duration::from_secs(1)).await;
    }
    let first = (!cancel).then_some(first);
    server.then([(Reader::All, Then::Status(503))]);
    let second = client.oneshot(put(boxed(cut(1000)))).await;
    drop(first);
    match outcome(&second) {
        SECOND => false,
        LOST => true,
        other => unreachable!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn s_3_room_is_given_back_as_soon_as_a_retry_is_out_of_the_question() {
    let hangs = |reader| [(reader, Then::Never)];
    let body = || boxed(cut(1000));
    for reader in [Reader::All, Reader::Holds(1), Reader::Frames(1)] {
        let held = holds_room(body(), &hangs(reader), false).await;
        assert!(held, "it may be retried: {reader:?}");
    }
    let slow = || boxed([cut(999), vec![soon(), data("a")]].concat());

    let freed = [
        (
            "it succeeded",
            body(),
            vec![(Reader::Holds(9), Then::Status(200))],
        ),
        (
            "it failed for good",
            body(),
            vec![(Reader::Holds(9), Then::Status(400))],
        ),
        (
            "it answered early",
            slow(),
            vec![(Reader::Holds(1), Then::Status(503))],
        ),
        (
            "it is too long",
            boxed(cut(1001)),
            hangs(Reader::All).into(),
        ),
        (
            "it was read in part",
            slow(),
            vec![(Reader::Frames(1), Then::Status(503))],
        ),
        (
            "it failed",
            boxed([cut(999), vec![Piece::Fail]].concat()),
            hangs(Reader::All).into(),
        ),
        (
            "this is the last attempt",
            body(),
            vec![(Reader::All, Then::Status(503)), (Reader::All, Then::Never)],
        ),
        (
            "this is the last attempt, of a body that came back unread",
            body(),
            vec![
                (Reader::Nothing, Then::Status(503)),
                (Reader::All, Then::Never),
            ],
        ),
    ];
    for (why, body, script) in freed {
        assert!(!holds_room(body, &script, false).await, "{why}");
    }
    assert!(
        !holds_room(body(), &hangs(Reader::All), true).await,
        "it was cancelled"
    );
}

/// What was read of a body for a retry, and who sends it has yet to send, is kept too.
#[tokio::test(start_paused = true)]
async fn s_3_what_was_read_ahead_takes_room_until_it_is_sent() {
    let server = Server::new([(Reader::Holds(1), Then::Status(503))]);
    let mut client = server.client(policy().replay_limit(1500).replay_pool(1900));
    let body = || boxed([data(vec![1; 200]), data(vec![2; 300]), data(vec![3; 500])]);
    assert_eq!(outcome(&call(&mut client, put(body())).await), SECOND);
    let mut held = server.held();
    // The call is over, and 800 bytes of it are still to be sent.
    let mut again = async |length| {
        server.then([(Reader::All, Then::Status(503))]);
        outcome(&call(&mut client, put(boxed(cut(length)))).await)
    };
    assert_eq!(again(1101).await, LOST);
    assert_eq!(again(1100).await, SECOND);
    assert_eq!(read(&mut held, 1).await.len(), 1);
    assert_eq!(again(1101).await, LOST);
    assert_eq!(read(&mut held, 1).await.len(), 1);
    assert_eq!(again(1500).await, SECOND);
    // There is no room to read ahead, and the body goes on all the same.
    server.then([(Reader::Holds(1), Then::Status(503))]);
    let mut tight = server.client(policy().replay_limit(1500).replay_pool(1900));
    assert_eq!(outcome(&call(&mut tight, put(body())).await), SECOND);
    let first = server.held();
    server.then([(Reader::Holds(1), Then::Status(503))]);
    assert_eq!(outcome(&call(&mut tight, put(body())).await), LOST);
    let mut second = server.held();
    assert_eq!(all_data(&read(&mut second, 9).await).len(), 800);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn g_8_a_dependency_that_keeps_bodies_is_not_idle() {
    let server = Server::new([(Reader::All, Then::Never)]);
    // Asynchronous calls have time for an upload of hours.
    let policy = Policy::asynchronous().dead_letters("dlq");
    let client = server.client(policy.replay_limit(1000).replay_pool(1000));
    let mut first = task::spawn(client.clone().oneshot(put(boxed(cut(1000)))));
    assert_pending!(first.poll());
    for n in 0..9 {
        advance(Duration::from_secs(3600)).await;
        let other = Request::put(format!("http://{n}.example/")).body(boxed([]));
        client.clone().oneshot(other.unwrap()).await.unwrap();
    }
    server.then([(Reader::All, Then::Status(503))]);
    let second = client.oneshot(put(boxed(cut(1000)))).await;
    assert_eq!(outcome(&second), LOST, "the first has the room still");
}

// Any body, any reader

fn readers() -> impl Strategy<Value = Reader> {
    prop_oneof![
        1 => Just(Reader::Nothing),
        1 => Just(Reader::Hints),
        2 => (0_usize..6).prop_map(Reader::Frames),
        3 => Just(Reader::Announced),
        3 => Just(Reader::All),
    ]
}

/// Whether a body can be sent again after it was read so, by what the rules say.
fn comes_back(pieces: &[Piece], announces: bool, limit: usize, reader: Reader) -> Back {
    let waits = |piece: &Piece| matches!(piece, Piece::Wait(_));
    let frames: Vec<_> = (0..pieces.len()).filter(|n| !waits(&pieces[*n])).collect();
    let read = match reader {
        Reader::Nothing | Reader::Hints => 0,
        Reader::Frames(most) | Reader::Holds(most) => most,
        Reader::Announced if announces => frames.len(),
        Reader::Announced | Reader::All => frames.len() + 1,
        Reader::Bytes(_) => unreachable!(),
    };
    if announces && frames.is_empty() {
        return Back::Whole;
    }
    if read == 0 {
        return Back::Unread;
    }
    let rest = match frames.get(read - 1) {
        Some(last) => &pieces[last + 1..],
        None => &[],
    };
    // Trailers are the end, and so is what is said to be; else the end has to be asked for too.
    let tells_end = announces || matches!(pieces.last(), Some(Piece::Trailers(_)));
    let needed = match tells_end {
        true => rest
            .iter()
            .rposition(|piece| !waits(piece))
            .map_or(0, |last| last + 1),
        false => rest.len(),
    };
    let at_hand = !rest[..needed].iter().any(waits);
    let size = |piece: &Piece| match piece {
        Piece::Data(data) => data.len(),
        Piece::Trailers(map) => map
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum(),
        _ => 0,
    };
    let fits = pieces.iter().map(size).sum::<usize>() <= limit;
    match at_hand && fits && !pieces.contains(&Piece::Fail) {
        true => Back::Whole,
        false => Back::Lost,
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Back {
    Unread,
    Whole,
    Lost,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_body_is_replayed_exactly_or_not_at_all(
        pieces in any_pieces(),
        sized in any::<bool>(),
        announces in any::<bool>(),
        limit in prop_oneof![Just(64 * 1024), 256_usize..300],
        filler in prop_oneof![Just(0_usize), 200_usize..300],
        readers in prop::collection::vec(readers(), 3),
    ) {
        // The head takes part of a small limit, so bodies that reach it begin with a long frame.
        let mut pieces = pieces;
        if filler > 0 {
            pieces.insert(0, data(vec![7; filler]));
        }
        let fields = |piece: &Piece| match piece {
            Piece::Trailers(map) => Some(map.clone()),
            _ => None,
        };
        let all = (all_data(&pieces), pieces.last().and_then(fields));

        let mut expected = 1;
        let mut back = Back::Unread;
        for reader in &readers {
            if back == Back::Unread {
                back = comes_back(&pieces, announces, limit, *reader);
            }
            if back == Back::Lost {
                break;
            }
            expected += 1;
        }

        let body = Pieces::new(pieces).sized(sized).announces_end(announces);
        let hint = body.size_hint();
        let server = Server::<UnsyncBoxBody<Bytes, Broken>>::new(
            readers.iter().map(|reader| (*reader, Then::Reset)),
        );
        let result = paused().block_on(async {
            call(&mut server.client(policy().replay_limit(limit)), put(body.boxed_unsync())).await
        });
        let stop_reason = (expected < 4).then_some(StopReason::NotReplayable);
        prop_assert_eq!(outcome(&result), Some((expected, stop_reason)));

        let seen = server.seen();
        prop_assert_eq!(seen.len(), expected as usize);
        for (n, seen) in seen.iter().enumerate() {
            // What is at its end has no size to tell.
            prop_assert!(seen.ended || seen.hint == (hint.lower(), hint.upper()));
            let reader = readers.get(n).unwrap_or(&Reader::All);
            if matches!(reader, Reader::All | Reader::Announced) {
                prop_assert_eq!((seen.data(), seen.trailers().cloned()), all.clone());
            } else {
                prop_assert!(all.0.starts_with(&seen.data()));
            }
        }
    }
}
