//! A server that fails twice, and then replies, for each application.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Router, http::StatusCode, routing::any};

pub mod drivers;

pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Starts a server whose first replies are 503, and returns its address and the number of requests.
pub async fn flaky(failures: usize) -> Result<(String, Arc<AtomicUsize>)> {
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&requests);
    let app = Router::new().fallback(any(async move || {
        match seen.fetch_add(1, Ordering::SeqCst) {
            number if number < failures => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::OK,
        }
    }));
    Ok((serve(app).await?, requests))
}

/// Serves a router for as long as the program runs.
pub async fn serve(app: Router) -> Result<String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}
