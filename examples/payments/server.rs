//! The bank: a process of its own, so that it can be killed.

use std::{
    net::SocketAddr,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::{Extension, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::Response,
    routing::post,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    error::BoxError,
    server::idempotency::Execution,
    store::{CrashPolicy, SqliteStore},
};

use crate::ledger::Ledger;

/// The caller's name, from the authentication.
#[derive(Clone)]
struct Principal(String);

/// Runs the server, in a process of its own.
pub(crate) async fn serve(folder: &Path) -> Result<(), BoxError> {
    let layer = IdempotencyLayer::builder(SqliteStore::open(folder.join("idempotency.db"))?)
        .scope(Scope::new(|request| {
            request.extensions().get::<Principal>().map(|p| p.0.clone())
        }))
        .crash_policy(CrashPolicy::Reexecute)
        .lease(Duration::from_secs(1))
        .build()?;
    let ledger = Arc::new(Mutex::new(Ledger::open(folder)?));
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(layer)
        .layer(middleware::from_fn(authenticate))
        .with_state(ledger);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

/// An order and its amount in, the payment's number out.
async fn pay(
    State(ledger): State<Arc<Mutex<Ledger>>>,
    Extension(execution): Extension<Execution>,
    body: String,
) -> Result<String, StatusCode> {
    let numbers = body.split_once(' ').and_then(|(order, amount)| {
        let order: u64 = order.parse().ok()?;
        Some((order, amount.parse::<u64>().ok()?))
    });
    let (order, amount) = numbers.ok_or(StatusCode::BAD_REQUEST)?;
    let booked = tokio::task::spawn_blocking(move || {
        let operation = execution.key().to_string();
        let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.book(&operation, order, amount, execution.is_orphan())
    });
    match booked.await {
        Ok(Ok(id)) => Ok(format!("payment {id}")),
        _ => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let token = request
        .headers()
        .get("authorization")
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
        .ok_or(StatusCode::UNAUTHORIZED)?;
    let principal = Principal(token.to_owned());
    request.extensions_mut().insert(principal);
    Ok(next.run(request).await)
}

/// A handle on that process.
pub(crate) struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    pub(crate) async fn start(folder: &Path) -> Result<Self, BoxError> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("--serve")
            .arg(folder)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().ok_or("the server has no output")?;
        let line = BufReader::new(output).lines().next_line().await?;
        let address = line.ok_or("the server ended before it listened")?.parse()?;
        Ok(Self { process, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// SIGKILL: it gets no chance to clean up.
    pub(crate) async fn kill(mut self) -> Result<(), BoxError> {
        self.process.kill().await?;
        Ok(())
    }
}
