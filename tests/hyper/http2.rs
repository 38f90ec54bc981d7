//! HTTP/2: refused streams and connections that go away.

use h2::Reason;
use http::Response;
use hyper::body::Incoming;
use tower::ServiceExt;
use tower_reprise::{
    call::{Cause, Health, Retryable, StopReason},
    error::BoxError,
};

use crate::{
    client::{http2, keyless, outcome, parts, post, stack},
    support::{
        deps, find,
        http2::{Act2, Server2},
        outcome_of, quick, verdict,
    },
};

/// A request through all five layers.
async fn sent(server: &Server2) -> Result<Response<Incoming>, BoxError> {
    let client = stack(&deps(quick()), http2());
    client.oneshot(post(&server.uri())).await
}

/// The same without keys.
async fn sent_keyless(server: &Server2) -> Result<Response<Incoming>, BoxError> {
    let client = keyless(&deps(quick()), http2());
    client.oneshot(post(&server.uri())).await
}

#[tokio::test]
async fn c_4_a_refused_stream_is_repeated_for_any_method() {
    let server = Server2::start(vec![(Act2::Reset(Reason::REFUSED_STREAM), false)]).await;
    let response = sent_keyless(&server).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(outcome(&response), (2, None));
    assert_eq!(server.requests(), 2);

    let server = Server2::start(vec![(Act2::Reset(Reason::REFUSED_STREAM), false); 9]).await;
    let error = sent_keyless(&server).await.unwrap_err();
    assert_eq!(server.requests(), 4, "the bound on attempts holds");
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert_eq!(
        parts(&error),
        (Cause::StreamRefused, Retryable::Yes, Health::Neutral, true)
    );
}

#[tokio::test]
async fn c_4_a_stream_above_the_last_of_a_go_away_is_repeated_for_any_method() {
    let server = Server2::start(vec![(Act2::GoAway(Reason::NO_ERROR), false)]).await;
    let response = sent_keyless(&server).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(server.requests(), 2);

    let server = Server2::start(vec![(Act2::GoAway(Reason::NO_ERROR), false)]).await;
    let error: BoxError = http2()
        .oneshot(post(&server.uri()))
        .await
        .unwrap_err()
        .into();
    assert_eq!(
        parts(&error),
        (Cause::GoAway, Retryable::Yes, Health::Neutral, true)
    );
    let reason = find::<h2::Error>(&*error).and_then(h2::Error::reason);
    assert_eq!(reason, Some(Reason::NO_ERROR));
}

#[tokio::test]
async fn c_4_a_stream_that_a_go_away_promised_to_finish_may_have_been_processed() {
    let server = Server2::start(vec![(Act2::GoAwayAndBreak, false)]).await;
    let error = sent_keyless(&server).await.unwrap_err();
    assert_eq!(server.requests(), 1);
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotIdempotent)));
    assert!(!verdict(&error).never_sent);

    let server = Server2::start(vec![(Act2::GoAwayAndBreak, false)]).await;
    let response = sent(&server).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn c_4_an_http2_failure_that_is_not_never_sent_needs_a_key() {
    let failures = [
        (Act2::Reset(Reason::INTERNAL_ERROR), Cause::Protocol),
        (Act2::Reset(Reason::CANCEL), Cause::Protocol),
        (Act2::Reset(Reason::ENHANCE_YOUR_CALM), Cause::Protocol),
        // It says that nothing was processed, but then it says so of every stream.
        (Act2::GoAway(Reason::ENHANCE_YOUR_CALM), Cause::Protocol),
        (Act2::Close, Cause::Reset),
    ];
    for (failure, cause) in failures {
        let server = Server2::start(vec![(failure, false)]).await;
        let error = sent_keyless(&server).await.unwrap_err();
        assert_eq!(server.requests(), 1, "{cause}");
        assert_eq!(outcome_of(&error), (1, Some(StopReason::NotIdempotent)));
        assert_eq!(
            parts(&error),
            (cause, Retryable::Yes, Health::Failure, false)
        );

        let server = Server2::start(vec![(failure, false)]).await;
        let response = sent(&server).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(server.requests(), 2);
    }
}
