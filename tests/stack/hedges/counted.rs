//! Hedges that are some of the retries of their call.

use std::{error::Error, io};

use bytes::Bytes;
use http::Response;
use tower::ServiceBuilder;
use tower_reprise::{
    Dependencies, HedgeLayer, RetryLayer, RetryOutcome,
    call::{Attempt, Cause, StopReason, Verdict},
};

use super::{funded, ms, policy};
use crate::{
    setup::{HOST, get},
    support::{
        call, outcome,
        scripted::{Server, Step},
    },
};

/// Every attempt is late, and fails at last: with a status, or with an error.
fn late(fails_with: u16) -> Step {
    match fails_with {
        0 => Step::reset().after(ms(20)),
        code => Step::status(code).after(ms(20)),
    }
}

/// `max_retries` bounds retries and hedges together. No hedge goes out beside the last attempt.
#[tokio::test(start_paused = true)]
async fn h_3_r_2_hedges_that_are_counted_are_some_of_the_retries() {
    for (retries, counted, calls) in [
        (1, true, 2),
        (2, true, 3),
        (3, true, 4),
        (4, true, 5),
        (0, true, 1),
        (0, false, 2),
        (1, false, 4),
        (3, false, 8),
    ] {
        for code in [503, 0] {
            let server = Server::steps(move |_| late(code));
            let policy = policy().budget_floor(10).max_retries(retries);
            let policy = if counted {
                policy.count_hedges()
            } else {
                policy
            };
            let deps = funded(policy);
            let mut client = ServiceBuilder::new()
                .layer(RetryLayer::new(deps.clone()))
                .layer(HedgeLayer::new(deps))
                .service(server.clone());
            let result = call(&mut client, get()).await;
            assert_eq!(server.calls(), calls, "{retries}, {counted}, {code}");
            let attempts = if counted { calls as u32 } else { retries + 1 };
            let expected = Some((attempts, Some(StopReason::Exhausted)));
            assert_eq!(outcome(&result), expected, "{retries}, {counted}, {code}");
            // An error is the attempt's own, without a mark.
            if let Err(error) = result {
                let source = error.source().unwrap();
                assert!(source.is::<io::Error>(), "{source:?}");
            }
        }
    }
}

/// A failure in time is retried as if there were no hedges, and numbers go on behind a hedge.
#[tokio::test(start_paused = true)]
async fn h_3_a_failure_in_time_takes_one_of_the_retries() {
    let server = Server::steps(|n| match n {
        0 => Step::status(503),
        1 | 2 => late(503),
        _ => Step::status(200),
    });
    let deps = funded(policy().budget_floor(10).max_retries(3).count_hedges());
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(HedgeLayer::new(deps))
        .service(server.clone());
    let response = call(&mut client, get()).await.unwrap();
    assert_eq!((response.status().as_u16(), server.calls()), (200, 4));
    assert_eq!(RetryOutcome::of(&response).unwrap().attempts(), 4);
    let numbers = server
        .requests()
        .into_iter()
        .map(|request| request.extensions().get().map_or(1, Attempt::number));
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3, 4]);
}

/// a hedge of an attempt whose time ran out was sent, too.
#[tokio::test(start_paused = true)]
async fn h_3_r_2_hedges_of_attempts_that_time_out_are_counted() {
    for (retries, calls) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        let server = Server::steps(|_| Step::status(200).after(ms(60_000)));
        let policy = policy().budget_floor(10).max_retries(retries);
        let deps = funded(policy.count_hedges().attempt_timeout(ms(100)));
        let mut client = ServiceBuilder::new()
            .layer(RetryLayer::new(deps.clone()))
            .layer(HedgeLayer::new(deps))
            .service(server.clone());
        assert!(call(&mut client, get()).await.is_err());
        assert_eq!(server.calls(), calls, "{retries}");
    }
}

/// C-8: whoever classifies sees the error as the service made it, also where a hedge went out.
#[tokio::test(start_paused = true)]
async fn h_3_c_8_a_classifier_sees_the_error_of_the_service_itself() {
    fn own(outcome: Result<&Response<Bytes>, &(dyn Error + 'static)>) -> Verdict {
        match outcome {
            Ok(_) => Verdict::SUCCESS,
            Err(error) if error.is::<io::Error>() => Verdict::terminal(Cause::Other("reset")),
            Err(_) => Verdict::transient(Cause::Unknown),
        }
    }
    let policy = policy().budget_floor(10).count_hedges();
    let deps = Dependencies::builder(policy.build().unwrap());
    let deps = deps.with_classifier(own).build();
    (0..1000).for_each(|_| deps.get(HOST).deposit());
    let server = Server::steps(|_| late(0));
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(HedgeLayer::new(deps))
        .service(server.clone());
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((2, Some(StopReason::NotRetryable))));
}
