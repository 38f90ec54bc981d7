//! Bodies that are replayed, byte for byte and without being read ahead.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use tokio::time::advance;
use tokio_test::{assert_pending, task};
use tower::{Service, ServiceExt};

use super::{Client, LOST, Reader, SECOND, Server, Then, boxed, cut, once, policy, put};
use crate::support::{
    call, outcome,
    pieces::{Broken, Piece, Pieces, all_data, data, read, trailers},
};

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
