//! Errors keep what caused them.

use std::io;

use reqwest_middleware::{ClientBuilder, Error};
use tower_reprise::{
    CircuitBreakerLayer, RetryLayer, RetryOutcome,
    call::{Cause, StopReason},
    stacks::{self, reqwest::TowerMiddleware},
};

use super::{answering, failed, get, said};
use crate::{
    cause, client, original, outcome,
    support::{deps, find, outcome_of, ports::deaf_uri, quick},
};

#[tokio::test]
async fn d_4_the_chain_of_an_error_holds_all() {
    let (_socket, uri) = deaf_uri();
    let client = ClientBuilder::new(client())
        .with(TowerMiddleware::new(stacks::client(deps(quick()))))
        .build();
    let error = client.get(&uri).send().await.unwrap_err();
    assert!(error.is_middleware());
    assert_eq!(RetryOutcome::of_error(&error).unwrap().attempts(), 4);
    let found = find::<reqwest::Error>(&error).unwrap();
    assert!(found.is_connect() && found.url().unwrap().as_str() == uri);
    // anyhow's chain finds it, too.
    let Error::Middleware(error) = error else {
        unreachable!()
    };
    let found = error.chain().find_map(|link| link.downcast_ref());
    assert!(found.is_some_and(reqwest::Error::is_connect));
}

#[derive(Debug)]
struct Own(u8);

impl std::fmt::Display for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "own {}", self.0)
    }
}

impl std::error::Error for Own {}

#[tokio::test(start_paused = true)]
async fn d_4_an_error_that_no_layer_touched_is_as_it_was() {
    let breaker = || CircuitBreakerLayer::new(deps(quick()));
    let client = answering(breaker(), |_, _| async { Err(Error::middleware(Own(7))) });
    let Err(Error::Middleware(error)) = get(&client).send().await else {
        unreachable!()
    };
    assert_eq!(error.downcast_ref::<Own>().unwrap().0, 7);

    let (_socket, uri) = deaf_uri();
    let client = ClientBuilder::new(self::client())
        .with(TowerMiddleware::new(breaker()))
        .build();
    let error = client.get(&uri).send().await.unwrap_err();
    assert!(error.is_connect() && !error.is_middleware());
}

#[tokio::test(start_paused = true)]
async fn c_3_an_error_of_a_middleware_is_known_by_its_type() {
    let client = answering(RetryLayer::new(deps(quick())), |_, n| async move {
        match n {
            0 => Err(Error::middleware(io::Error::from(io::ErrorKind::TimedOut))),
            _ => Ok(said(200)),
        }
    });
    assert_eq!(outcome(&get(&client).send().await.unwrap()), (2, None));
    let client = answering(RetryLayer::new(deps(quick())), |_, _| async {
        Err(Error::middleware(Own(7)))
    });
    let error = failed(get(&client)).await;
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    assert_eq!(find::<Own>(&*error).unwrap().0, 7);
}

#[tokio::test(start_paused = true)]
async fn c_3_a_reply_that_can_not_be_decoded_is_never_retried() {
    let client = answering(RetryLayer::new(deps(quick())), |_, _| async {
        let error = said(200).json::<u8>().await.unwrap_err();
        Err(error.into())
    });
    let error = failed(get(&client)).await;
    assert!(original(&error).is_decode());
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
    assert_eq!(cause(&error), Cause::Serialization);
}
