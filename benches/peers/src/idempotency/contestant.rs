//! The routers, and the requests that all of them get.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use bytes::Bytes;
use http::{Request, header::COOKIE};
use ruts::{CookieOptions, SessionLayer, store::moka::MokaStore};
use tower_cookies::CookieManagerLayer;
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    store::{CrashPolicy, MemoryStore},
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contestant {
    Bare,
    Ours,
    /// Repeats wait for the first one's reply.
    OursWaiting,
    /// By the key alone: the body is not looked at.
    TheirsByKey,
    /// By a hash of the request, its key and its body among it.
    TheirsByHash,
}

impl Contestant {
    pub(super) const ALL: [Self; 5] = [
        Self::Bare,
        Self::Ours,
        Self::OursWaiting,
        Self::TheirsByKey,
        Self::TheirsByHash,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Ours => "ours",
            Self::OursWaiting => "ours_waiting",
            Self::TheirsByKey => "axum_idempotent_by_key",
            Self::TheirsByHash => "axum_idempotent_by_hash",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Bare => "bare router",
            Self::Ours => "our IdempotencyLayer",
            Self::OursWaiting => "the same, repeats wait",
            Self::TheirsByKey => "axum-idempotent, by key",
            Self::TheirsByHash => "axum-idempotent, by hash",
        }
    }

    pub(super) fn is_theirs(self) -> bool {
        matches!(self, Self::TheirsByKey | Self::TheirsByHash)
    }

    pub(super) fn server(self, pause: Option<Duration>) -> Server {
        let executions = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&executions);
        let pay = move |body: Bytes| async move {
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
            counter.fetch_add(1, Ordering::Relaxed);
            format!("paid {}", body.len())
        };
        let app = Router::new().route("/payments", post(pay));
        let app = match self {
            Self::Bare => app,
            Self::Ours => app.layer(ours(Duration::ZERO)),
            Self::OursWaiting => app.layer(ours(Duration::from_secs(10))),
            Self::TheirsByKey => theirs(app, |o| o.use_idempotency_key_header(None, true)),
            Self::TheirsByHash => theirs(app, |options| options),
        };
        Server { app, executions }
    }
}

/// A router, and how often its handler ran to its end.
pub(super) struct Server {
    pub(super) app: Router,
    executions: Arc<AtomicU64>,
}

impl Server {
    pub(super) fn executions(&self) -> u64 {
        self.executions.load(Ordering::Relaxed)
    }
}

fn ours(wait: Duration) -> IdempotencyLayer<MemoryStore> {
    let layer = IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::new(|request| request.headers().get(COOKIE).cloned()))
        .crash_policy(CrashPolicy::Reexecute)
        .retention(DAY)
        .wait(wait)
        .build();
    layer.expect("a layer")
}

fn theirs(app: Router, options: fn(IdempotentOptions) -> IdempotentOptions) -> Router {
    // By default there is room for 10,000 callers, and those beyond are forgotten.
    let store = Arc::new(MokaStore::builder().max_capacity(1_000_000).build());
    let options = options(IdempotentOptions::new(DAY.as_secs().cast_signed()));
    let cookie = CookieOptions::build()
        .name("session")
        .max_age(DAY.as_secs());
    app.layer(IdempotentLayer::<MokaStore>::new(options))
        .layer(SessionLayer::new(store).with_cookie_options(cookie))
        .layer(CookieManagerLayer::new())
}

/// A request of that caller with that key.
pub(super) fn request(caller: u64, key: u64, body: &Bytes) -> Request<Body> {
    Request::post("/payments")
        .header("host", "pay.example")
        .header("content-type", "application/json")
        .header("cookie", format!("session={caller:021}A"))
        .header(
            "idempotency-key",
            format!("7c4a8d09-ca95-4c6d-8f3b-{key:012}"),
        )
        .body(Body::from(body.clone()))
        .expect("a request")
}
