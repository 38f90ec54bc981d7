//! An axum server whose payments are made once.

use std::{io, net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::{Extension, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::post,
    serve::Listener,
};
use http::{HeaderMap, Request, StatusCode};
use tokio::time::{advance, sleep};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{IdempotencyLayer, server::idempotency::Execution, store::CrashPolicy};
use turmoil::net::{TcpListener, TcpStream};

use crate::{ledger::Witness, remote::Remote, schedule::LEASE};

pub(crate) const PORT: u16 = 80;

/// The longest time of an execution before and after its effect, in milliseconds. Some executions
/// take up to `LONG_WORK` before it, which is longer than a lease.
const WORK: u64 = 800;
const LONG_WORK: u64 = 5000;

/// The mood in which nothing fails, as in most.
const CALM: u64 = 9;

struct Listening(TcpListener);

impl Listener for Listening {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.0.accept().await {
                Ok(accepted) => return accepted,
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

#[derive(Clone)]
struct Shop {
    witness: Witness,
    crash_policy: CrashPolicy,
}

/// Runs a server until it is crashed.
pub(crate) async fn serve(
    name: &'static str,
    crash_policy: CrashPolicy,
    store: Remote,
    witness: Witness,
) -> turmoil::Result {
    let layer = IdempotencyLayer::builder(store)
        .scope(Scope::new(|req| {
            req.headers().get("authorization").cloned()
        }))
        .crash_policy(crash_policy)
        .lease(LEASE)
        .build()?;
    let shop = Shop {
        witness: witness.clone(),
        crash_policy,
    };
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(layer)
        .layer(from_fn_with_state(shop.clone(), watch))
        .with_state(shop);
    tokio::spawn(leap(name, witness));
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    Ok(axum::serve(Listening(listener), app).await?)
}

/// Its clock is not to be relied on.
async fn leap(name: &'static str, witness: Witness) {
    loop {
        sleep(Duration::from_millis(50)).await;
        let due = {
            let leaps = &mut witness.look().leaps;
            let found = leaps.iter().position(|(who, _)| *who == name);
            found.map(|place| leaps.remove(place).1)
        };
        if let Some(by) = due {
            advance(by).await;
        }
    }
}

fn operation(headers: &HeaderMap) -> usize {
    let operation = headers.get("x-operation").unwrap();
    operation.to_str().unwrap().parse().unwrap()
}

/// Sees what arrives, before any of it is judged.
async fn watch(
    State(shop): State<Shop>,
    request: Request<axum::body::Body>,
    next: Next,
) -> Response {
    if let Some(key) = request.headers().get("idempotency-key") {
        let key = key.to_str().unwrap().to_owned();
        let operation = operation(request.headers());
        let mut account = shop.witness.look();
        account.keys.entry(operation).or_default().push(key);
    }
    next.run(request).await
}

async fn pay(
    State(shop): State<Shop>,
    Extension(execution): Extension<Execution>,
    headers: HeaderMap,
) -> Response {
    let operation = operation(&headers);
    let (before, after, mood) = {
        let mut account = shop.witness.look();
        account.begun += 1;
        account.records.insert(operation, execution.key());
        match account.script.pop_front() {
            Some((before, after)) => (before, after, CALM),
            None => {
                let long = account.random(4) == 0;
                let before = account.random(if long { LONG_WORK } else { WORK });
                (before, account.random(WORK), account.random(CALM + 1))
            }
        }
    };
    sleep(Duration::from_millis(before)).await;
    if mood == 0 {
        return (StatusCode::SERVICE_UNAVAILABLE, "not now").into_response();
    }
    let token = execution.token().get();
    let fenced = shop.crash_policy == CrashPolicy::Reexecute;
    let written = shop.witness.look().write(operation, token, fenced);
    if !written {
        return (StatusCode::CONFLICT, "somebody else took over").into_response();
    }
    sleep(Duration::from_millis(after)).await;
    match mood {
        1 => (StatusCode::INTERNAL_SERVER_ERROR, token.to_string()).into_response(),
        _ => (StatusCode::CREATED, token.to_string()).into_response(),
    }
}
