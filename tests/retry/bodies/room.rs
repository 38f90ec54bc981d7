//! The room that recordings share.

use std::time::Duration;

use http::Request;
use tokio::time::advance;
use tokio_test::{assert_pending, task};
use tower::ServiceExt;
use tower_reprise::{Policy, policy::PolicyBuilder};

use super::{Boxed, LOST, Reader, SECOND, Server, Then, boxed, cut, policy, put, soon};
use crate::support::{
    call, outcome,
    pieces::{Piece, all_data, data, read},
};

/// Room for one body of 1000 bytes.
fn tight() -> PolicyBuilder {
    policy()
        .budget_floor(10)
        .replay_limit(1000)
        .replay_pool(1000)
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

/// The limit is about bodies: a request without one is sent again whatever it is.
#[tokio::test(start_paused = true)]
async fn s_3_a_replay_limit_of_zero_keeps_no_body_and_every_head() {
    for (length, expected) in [(0, SECOND), (1, LOST)] {
        let server = Server::new([(Reader::All, Then::Status(503))]);
        let client = server.client(policy().replay_limit(0));
        let result = client.oneshot(put(boxed(cut(length)))).await;
        assert_eq!(outcome(&result), expected, "{length}");
    }
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

/// Returns whether a call of 1000 bytes still holds its room after the server followed this script.
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
            "it answered early, and this is the last attempt",
            slow(),
            vec![
                (Reader::Holds(1), Then::Status(503)),
                (Reader::Holds(2), Then::Never),
            ],
        ),
        (
            "it is too long",
            boxed(cut(1001)),
            hangs(Reader::All).into(),
        ),
        (
            "it was read in part, and this is the last attempt",
            slow(),
            vec![
                (Reader::Frames(1), Then::Status(503)),
                (Reader::Frames(1), Then::Never),
            ],
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

/// Frames that were read ahead for a retry take room until the client has sent them.
#[tokio::test(start_paused = true)]
async fn s_3_what_was_read_ahead_takes_room_until_it_is_sent() {
    let server = Server::new([(Reader::Holds(1), Then::Status(503))]);
    let policy = || policy().budget_floor(10).replay_limit(1500);
    let mut client = server.client(policy().replay_pool(1900));
    let body = || boxed([data(vec![1; 200]), data(vec![2; 300]), data(vec![3; 500])]);
    assert_eq!(outcome(&call(&mut client, put(body())).await), SECOND);
    let mut held = server.held();
    // The call is over, and 800 bytes of it are still to be sent.
    let mut again = async |length| {
        server.then([(Reader::All, Then::Status(503))]);
        outcome(&call(&mut client, put(boxed(cut(length)))).await)
    };
    for (left, fits) in [(800, 1100), (500, 1400)] {
        assert_eq!(again(fits + 1).await, LOST, "{left}");
        assert_eq!(again(fits).await, SECOND, "{left}");
        assert_eq!(read(&mut held, 1).await.len(), 1);
    }
    assert_eq!(again(1500).await, SECOND);
    // There is no room to keep the rest twice, so the retry takes it over.
    server.then([(Reader::Holds(1), Then::Status(503))]);
    let mut tight = server.client(policy().replay_pool(1900));
    assert_eq!(outcome(&call(&mut tight, put(body())).await), SECOND);
    let mut first = server.held();
    server.then([(Reader::Holds(1), Then::Status(503))]);
    assert_eq!(outcome(&call(&mut tight, put(body())).await), SECOND);
    assert_eq!(server.seen().last().unwrap().data().len(), 1000);
    assert_pending!(task::spawn(read(&mut server.held(), 1)).poll());
    assert_eq!(all_data(&read(&mut first, 9).await).len(), 800);
}

#[tokio::test(start_paused = true)]
async fn g_8_a_dependency_that_keeps_bodies_is_not_idle() {
    let server = Server::new([(Reader::All, Then::Never)]);
    // Asynchronous calls have time for an upload of hours.
    let policy = Policy::events().dead_letters("dlq");
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
