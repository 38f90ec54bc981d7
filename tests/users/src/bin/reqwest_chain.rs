//! A reqwest-middleware chain, and what its errors say.

use reqwest_middleware::ClientBuilder;
use tower_reprise::{
    Dependencies, Policy, RetryOutcome,
    stacks::{
        self,
        reqwest::{TowerMiddleware, error_of},
    },
};
use tower_reprise_users::{Result, flaky};

#[tokio::main]
async fn main() -> Result {
    let (server, requests) = flaky(2).await?;
    let policy = Policy::http().service("checkout").build()?;
    let layers = stacks::client(Dependencies::new(policy));
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(TowerMiddleware::new(layers))
        .build();

    let response = client.get(format!("{server}/stock")).send().await?;
    let outcome = RetryOutcome::of(&response).expect("it was retried");
    println!(
        "{} after {} attempts",
        response.status(),
        outcome.attempts()
    );
    assert_eq!((response.status().as_u16(), outcome.attempts()), (200, 3));
    assert_eq!(requests.load(std::sync::atomic::Ordering::SeqCst), 3);

    let error = client
        .get("http://127.0.0.1:1/stock")
        .send()
        .await
        .unwrap_err();
    println!("{error}");
    assert!(
        error
            .to_string()
            .contains("127.0.0.1:1: connection refused"),
        "{error}"
    );
    assert!(error_of(&error).is_some_and(reqwest::Error::is_connect));
    Ok(())
}
