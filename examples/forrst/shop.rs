//! A shop that speaks forrst: its functions, and the layers that make them safe to repeat. The
//! server runs it, and so does the client if it is given no server.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::StatusCode,
    response::IntoResponse,
    routing::post,
};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinHandle, time::sleep};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    delivery::{
        guard::Guard,
        replay::{Maintenance, Replay},
        webhooks::{Signer, Webhooks},
        worker::WorkerHandle,
    },
    error::BoxError,
    forrst::{Fault, Forrst, Request, Response, RetryGuidanceLayer},
    store::{CrashPolicy, IdempotencyStore, journal::Journal},
};

/// The secret that signs callbacks.
pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

pub(crate) struct Shop {
    pub(crate) address: SocketAddr,
    serving: JoinHandle<std::io::Result<()>>,
    workers: [WorkerHandle; 2],
}

impl Shop {
    /// Opens it at this address, with all that has to be remembered in this store.
    pub(crate) async fn open<St>(listen: SocketAddr, store: St) -> Result<Self, BoxError>
    where
        St: IdempotencyStore + Journal + Clone,
    {
        // Every caller has the same name, "shop". A real server takes it from its authentication:
        // keys and replays belong to a caller.
        let idempotency = IdempotencyLayer::builder(store.clone())
            .with_dialect(Forrst::new())
            .scope(Scope::new(|_| Some("shop")))
            .crash_policy(CrashPolicy::Reexecute)
            .build()?;
        // Callbacks go to this machine, which they would not without being told so.
        let guard = Guard::new().allow_http().allow("127.0.0.1")?;
        let webhooks = Webhooks::builder(store.clone(), Signer::new(SECRET)?)
            .guard(guard)
            .build()?;
        let replay = Replay::builder(store, Scope::new(|_| Some("shop")))
            .dialect(Forrst::new())
            .callbacks(webhooks.clone())
            .build()?;

        let functions = Router::new()
            .route("/forrst", post(call))
            .with_state(Arc::<Done>::default())
            .layer(idempotency);
        let workers = [
            replay.worker::<Body, _>(functions.clone()).start()?,
            webhooks.worker().start()?,
        ];
        let admin = Router::new()
            .route("/maintenance/{switch}", post(maintain))
            .with_state(replay.maintenance().clone());
        let app = functions
            .layer(replay.layer())
            .layer(RetryGuidanceLayer::new())
            .merge(admin);

        let listener = TcpListener::bind(listen).await?;
        Ok(Self {
            address: listener.local_addr()?,
            serving: tokio::spawn(async move { axum::serve(listener, app).await }),
            workers,
        })
    }

    /// Closes it, when what is being replayed and delivered is done.
    pub(crate) async fn close(self) {
        self.serving.abort();
        for worker in self.workers {
            worker.shutdown(Duration::from_secs(5)).await;
        }
    }
}

/// For who runs the shop.
async fn maintain(State(maintenance): State<Maintenance>, switch: Path<String>) -> StatusCode {
    let until = SystemTime::now() + Duration::from_secs(2 * 60 * 60);
    match &**switch {
        "on" => maintenance.announce("Database migration", Some(until)),
        "off" => maintenance.off(),
        _ => return StatusCode::NOT_FOUND,
    }
    StatusCode::NO_CONTENT
}

/// The number of executions of each function, so that a second one would show.
#[derive(Default)]
struct Done {
    counts: AtomicU64,
    charges: AtomicU64,
    orders: AtomicU64,
}

/// All functions. What they say of retries, keys and replays is nothing: the layers do.
async fn call(State(done): State<Arc<Done>>, body: Bytes) -> impl IntoResponse {
    let request = match Request::parse(&body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let next = |times: &AtomicU64| times.fetch_add(1, Ordering::Relaxed) + 1;
    let result = match &*request.call.function {
        // Every other time it is not there.
        "stock.count" if next(&done.counts) % 2 == 1 => Err((
            StatusCode::SERVICE_UNAVAILABLE,
            Fault::new("UNAVAILABLE", "Service temporarily unavailable"),
        )),
        "stock.count" => Ok(json!({ "sku": "WIDGET-01", "count": 7 })),
        "payments.charge" => {
            sleep(Duration::from_secs(1)).await; // the bank takes its time
            let charge = format!("ch_{}", next(&done.charges));
            Ok(json!({ "charge_id": charge, "status": "succeeded" }))
        }
        "orders.create" => {
            let order = format!("ord_{}", next(&done.orders));
            Ok(json!({ "order_id": order, "status": "created" }))
        }
        "users.create" => Err((
            StatusCode::BAD_REQUEST,
            Fault::new("INVALID_ARGUMENTS", "Invalid email format"),
        )),
        other => Err((
            StatusCode::NOT_FOUND,
            Fault::new("NOT_FOUND", format!("There is no function {other}")),
        )),
    };
    let mut reply = Response::to(&request);
    let status = match result {
        Ok(result) => {
            reply.result = Some(result);
            StatusCode::OK
        }
        Err((status, fault)) => {
            reply.errors.push(fault);
            status
        }
    };
    (status, Json(reply)).into_response()
}
