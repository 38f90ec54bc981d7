//! Repeats while the first is under way, and keys that are used for something else: I-6, I-7.

use std::time::Duration;

use http::Response;
use tokio::task::JoinSet;
use tower_reprise::store::{CrashPolicy, MemoryStore};

use crate::setup::{
    Answer, Builder, Frames, Handler, SECOND, builder, keyless, post, send, settle, start, status,
};

fn in_memory() -> Builder {
    builder(MemoryStore::new(), CrashPolicy::Reexecute)
}

#[tokio::test(start_paused = true)]
async fn i_6_a_hundred_at_once_execute_once() {
    let handler = Handler::held();
    let server = handler.count(in_memory());
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let server = server.clone();
        calls.spawn(async move { send(&server, post("k")).await });
    }
    settle().await;
    handler.let_through(1);
    let answers = calls.join_all().await;
    assert_eq!(handler.runs(), 1);
    let (done, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((done.len(), refused.len()), (1, 99));
    for answer in refused {
        assert_eq!(answer.refusal(), (409, "processing".into()));
        assert_eq!(answer.headers["retry-after"], "1");
    }
}

/// And on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_6_a_hundred_at_once_on_threads() {
    let handler = Handler::new();
    let server = handler.count(in_memory().wait(Duration::from_secs(30)));
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let server = server.clone();
        calls.spawn(async move { send(&server, post("k")).await });
    }
    for answer in calls.join_all().await {
        assert_eq!((answer.status, &*answer.body), (200, "run 1"));
    }
    assert_eq!(handler.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn i_6_repeats_that_wait_get_the_stored_reply() {
    let handler = Handler::held();
    let server = handler.count(in_memory().wait(10 * SECOND));
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let server = server.clone();
        calls.spawn(async move { send(&server, post("k")).await });
    }
    tokio::time::sleep(5 * SECOND).await;
    handler.let_through(1);
    let answers = calls.join_all().await;
    assert_eq!(handler.runs(), 1);
    let replayed = answers.iter().filter(|answer| answer.is_replayed()).count();
    assert_eq!(replayed, 99);
    for answer in answers {
        assert_eq!((answer.status, &*answer.body), (200, "run 1"));
    }
}

#[tokio::test(start_paused = true)]
async fn i_6_no_longer_than_configured() {
    let handler = Handler::held();
    let server = handler.count(in_memory().wait(10 * SECOND));
    let first = start(&server, post("k"));
    settle().await;
    let started = tokio::time::Instant::now();
    let answer = send(&server, post("k")).await;
    assert_eq!(answer.refusal(), (409, "processing".into()));
    assert_eq!(started.elapsed().as_secs(), 10);
    handler.let_through(1);
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn i_6_one_of_those_that_wait_executes_when_the_first_had_no_effect() {
    let handler = Handler::held();
    let server = handler.serve(in_memory().wait(10 * SECOND), |run| match run {
        1 => status(429, "not now"),
        _ => status(200, "second"),
    });
    let first = start(&server, post("k"));
    settle().await;
    let waiting = [start(&server, post("k")), start(&server, post("k"))];
    settle().await;
    handler.let_through(2);
    assert_eq!(first.await.unwrap().status, 429);
    for waiting in waiting {
        let answer = waiting.await.unwrap();
        assert_eq!((answer.status, &*answer.body), (200, "second"));
    }
    assert_eq!(handler.runs(), 2);
}

/// The same key on a request that differs in one thing.
fn others() -> Vec<(&'static str, http::Request<Frames>)> {
    let body = keyless().header("idempotency-key", "k");
    let body = body.body(Frames::from("999 EUR")).unwrap();
    let mut query = post("k");
    *query.uri_mut() = "/payments?currency=USD".parse().unwrap();
    let mut content_type = post("k");
    let json = "application/json".parse().unwrap();
    content_type.headers_mut().insert("content-type", json);
    vec![
        ("body", body),
        ("query", query),
        ("content type", content_type),
    ]
}

#[tokio::test(start_paused = true)]
async fn i_7_another_request_with_the_same_key() {
    let handler = Handler::held();
    let server = handler.serve(in_memory(), |_| {
        let mut response = Response::new(Frames::from("secret"));
        let secret = "secret".parse().unwrap();
        response.headers_mut().insert("x-secret", secret);
        response
    });
    let first = start(&server, post("k"));
    settle().await;
    let mut refused: Vec<Answer> = Vec::new();
    for (what, other) in others() {
        let answer = send(&server, other).await;
        assert_eq!(answer.refusal(), (422, "key-reused".into()), "{what}");
        refused.push(answer);
    }
    handler.let_through(1);
    assert_eq!(first.await.unwrap().body, "secret");
    for (what, other) in others() {
        let answer = send(&server, other).await;
        assert_eq!(answer.refusal(), (422, "key-reused".into()), "{what}, done");
        refused.push(answer);
    }
    // Whether it is in flight or done, and what it was, does not show.
    for answer in &refused {
        assert_eq!(answer.body, refused[0].body);
        assert_eq!(answer.headers, refused[0].headers);
        assert!(!format!("{answer:?}").contains("secret"));
    }
    assert_eq!(handler.runs(), 1);
    assert_eq!(send(&server, post("k")).await.body, "secret");
}

/// A mismatch does not wait: it will not become a match.
#[tokio::test(start_paused = true)]
async fn i_7_a_mismatch_does_not_wait() {
    let handler = Handler::held();
    let server = handler.count(in_memory().wait(10 * SECOND));
    let first = start(&server, post("k"));
    settle().await;
    let started = tokio::time::Instant::now();
    let (_, other) = others().remove(0);
    assert_eq!(send(&server, other).await.status, 422);
    assert_eq!(started.elapsed(), Duration::ZERO);
    handler.let_through(1);
    assert_eq!(first.await.unwrap().status, 200);
}
