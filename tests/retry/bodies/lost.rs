//! Bodies that were read in part, and when they are sent again.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::advance;
use tokio_test::{assert_pending, task};
use tower_reprise::{RetryOverride, call::StopReason, error::BoxError};

use super::{LOST, Reader, SECOND, Server, Then, boxed, cut, once, policy, put, soon};
use crate::support::{
    call, outcome,
    pieces::{Broken, Piece, Pieces, all_data, data, read, trailers},
};

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
    // An unread body is no proof that the request was never sent.
    let server = Server::new([(Reader::Nothing, Then::Reset)]);
    let request = Request::post("http://a.example/").body(boxed([data("pay")]));
    let result = call(&mut server.client(policy()), request.unwrap()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::NotIdempotent))));
}

#[tokio::test(start_paused = true)]
async fn d_8_a_body_read_in_part_is_sent_again_with_the_rest_that_is_still_to_come() {
    let sent = [data("ab"), data("cd"), trailers([("x-sum", "1")])];
    let awaited = [data("ab"), soon(), data("cd"), soon(), sent[2].clone()];
    for then in [Then::Refused, Then::Reset, Then::Status(503)] {
        // Twice, since what was read for the first retry serves the second too.
        for script in [
            [(Reader::Frames(1), then), (Reader::Frames(2), then)],
            [(Reader::Frames(2), then), (Reader::Frames(1), then)],
            [(Reader::Nothing, then), (Reader::Frames(1), then)],
        ] {
            for pieces in [&sent[..], &awaited] {
                let (result, seen) = once(policy(), boxed(pieces.to_vec()), &script).await;
                assert_eq!(outcome(&result), Some((3, None)), "{then:?}");
                assert_eq!(seen[2].data(), b"abcd");
                assert_eq!(seen[2].trailers().unwrap()["x-sum"], "1");
            }
        }
    }
    // However long the rest is: an attempt that was sent past the limit is the last one.
    let few = boxed([vec![data("a")], vec![data(""); 2000]].concat());
    let long = boxed(cut(64 * 1024 + 1));
    let read_all = (Reader::All, Then::Status(503));
    for (body, expected) in [
        (few, Some((3, None))),
        (long, Some((2, Some(StopReason::NotReplayable)))),
    ] {
        let script = [(Reader::Frames(1), Then::Status(503)), read_all];
        let (result, _) = once(policy(), body, &script).await;
        assert_eq!(outcome(&result), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn d_4_a_body_read_to_its_announced_size_is_sent_again_with_what_follows_it() {
    let first = [data("ab"), data("cd")];
    let fields = || trailers([("x-sum", "1")]);
    for rest in [
        vec![],
        vec![fields()],
        // A frame that is not there yet might still come.
        vec![soon()],
        vec![soon(), fields()],
        vec![Piece::Fail],
    ] {
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
            assert_eq!(outcome(&result), SECOND, "{rest:?}");
            let seen = &server.seen()[1];
            assert_eq!(seen.data(), b"abcd");
            assert_eq!(seen.trailers().is_some(), rest.contains(&fields()));
            assert_eq!(seen.pieces.contains(&Piece::Fail), rest == [Piece::Fail]);
        }
    }
    // A server that reads on gets the frames that follow.
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
        // The retry takes the rest over that is still to come.
        let script = || [(Reader::Holds(frames), Then::Status(503))];
        let server = Server::new(script());
        let result = call(&mut server.client(policy()), put(boxed(awaited.clone()))).await;
        assert_eq!(outcome(&result), SECOND);
        assert_eq!(server.seen()[1].data(), b"abcd");
        assert_eq!(server.seen()[1].trailers().unwrap()["x-sum"], "1");
        let mut held = server.held();
        assert!(!held.is_end_stream());
        assert_pending!(task::spawn(held.frame()).poll());

        let server = Server::new(script());
        let body = Pieces::new(awaited.clone()).map_err(BoxError::from).boxed();
        let result = call(&mut server.client(policy()), put(body)).await;
        assert_eq!(outcome(&result), SECOND);
        let error = server.held().frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("another one sends the rest"));
    }
    // A body that fails fails for who holds it.
    let server = Server::new([(Reader::Holds(1), Then::Status(503))]);
    let failing = boxed([data("ab"), data("cd"), Piece::Fail]);
    let result = call(&mut server.client(policy()), put(failing)).await;
    assert_eq!(outcome(&result), LOST);
    let left = [data("cd"), Piece::Fail];
    assert_eq!(read(&mut server.held(), 9).await, left);
}

/// The transport of the first attempt asks for more of the body when the retry takes it over.
#[tokio::test(start_paused = true)]
async fn d_8_the_retry_is_woken_for_more_of_the_body_and_not_the_attempt_before_it() {
    let (mut more, channel) = http_body_util::channel::Channel::<Bytes, Broken>::new(1);
    let answers = [503, 200].map(Then::Status);
    let server = Server::new([(Reader::Holds(0), answers[0]), (Reader::All, answers[1])]);
    let mut client = server.client(policy());
    let mut first = task::spawn(call(&mut client, put(channel.boxed())));
    assert_pending!(first.poll());
    let mut held = server.held();
    let mut reading = task::spawn(held.frame());
    assert_pending!(reading.poll());
    while !server.script.lock().unwrap().is_empty() {
        advance(Duration::from_secs(1)).await;
        assert_pending!(first.poll());
    }
    assert!(reading.is_woken(), "its turn is over");
    assert_pending!(reading.poll());
    more.send_data(Bytes::from_static(b"ab")).await.unwrap();
    assert!(first.is_woken() && !reading.is_woken());
    drop(reading);
    drop(held);
    assert_pending!(first.poll());
    drop(more);
    assert!(first.is_woken());
    assert_eq!(outcome(&first.await), SECOND);
    assert_eq!(server.seen()[1].data(), b"ab");
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
