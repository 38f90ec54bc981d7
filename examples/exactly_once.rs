//! Payments that are made exactly once, since the payment and the record of it are committed in one
//! transaction.
//!
//! ```text
//! cargo run --release --features axum,postgres --example exactly_once -- --postgres \
//!     postgres://shop@localhost/shop
//! ```
//!
//! An axum router takes payments under an `IdempotencyLayer` over a `PostgresStore`. Its handler
//! writes to a ledger in the same database, and is made to crash: at times right before its commit,
//! so that neither the payment nor its record is there, and at times right after, so that both are
//! and nobody was told. Each payment is asked for by two clients at once, again and again until they
//! are told that it was made. In the end each is in the ledger once, and all were told the same.
//!
//! The example writes into a schema of its own, which it removes. `REPRISE_TEST_POSTGRES` can
//! replace `--postgres`; without either the example says so and does nothing. Its last line is
//! `exactly_once {…}` with figures as JSON. It takes about 4 s.

use std::{
    env,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::State,
    http::{Request, Response, StatusCode},
    routing::post,
};
use deadpool_postgres::{Manager, Pool};
use serde_json::json;
use tokio::{task::JoinSet, time::sleep};
use tokio_postgres::NoTls;
use tower::ServiceExt;
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    error::BoxError,
    server::idempotency::Execution,
    store::{CrashPolicy, PostgresStore},
};

const PAYMENTS: u64 = 60;

/// The state of the handler.
#[derive(Clone)]
struct Shop {
    store: PostgresStore,
    /// Connections of its own: those of the store are busy with renewing leases.
    database: Pool,
    schema: Arc<str>,
    executions: Arc<AtomicU64>,
    crashes: Arc<[AtomicU64; 2]>,
}

/// Makes a payment. `Execution` says under which key, and as which of its owners.
async fn pay(
    State(shop): State<Shop>,
    Extension(execution): Extension<Execution>,
    body: String,
) -> Result<Response<String>, StatusCode> {
    let number = shop.executions.fetch_add(1, Ordering::Relaxed);
    let paid = shop.commit(&execution, &body, number).await;
    // Gives the key back, unless the commit happened after all: then there is a reply to repeat.
    paid.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
}

impl Shop {
    async fn commit(
        &self,
        execution: &Execution,
        what: &str,
        number: u64,
    ) -> Result<Response<String>, BoxError> {
        let mut connection = self.database.get().await?;
        let transaction = connection.transaction().await?;
        let insert = format!(
            "INSERT INTO {}.ledger (what) VALUES ($1) RETURNING id",
            self.schema
        );
        let id: i64 = transaction.query_one(&insert, &[&what]).await?.get(0);
        let mut response = Response::new(format!("payment {id}"));
        *response.status_mut() = StatusCode::CREATED;

        let (key, token) = (execution.key(), execution.token());
        let (stored, kept_for) = (execution.stored(&response)?, execution.retention());
        self.store
            .complete_in(&transaction, key, token, stored, kept_for)
            .await?;
        if number % 4 == 1 {
            self.crash(0);
        }
        transaction.commit().await?;
        if number % 4 == 3 {
            self.crash(1);
        }
        Ok(response)
    }

    /// A panic, but for the noise.
    fn crash(&self, after_commit: usize) {
        self.crashes[after_commit].fetch_add(1, Ordering::Relaxed);
        std::panic::resume_unwind(Box::new("a crash, on purpose"));
    }
}

/// Asks until it is told that the payment was made: what it was told, and how often it asked.
async fn insist(app: Router, payment: u64) -> Result<(String, u64), BoxError> {
    for asked in 1..=400 {
        let request = Request::post("/payments")
            .header("idempotency-key", format!("payment-{payment}"))
            .body(Body::from(format!("{payment}")))?;
        let response = app.clone().oneshot(request).await?;
        let status = response.status();
        let body = to_bytes(response.into_body(), 4096).await?;
        if status == StatusCode::CREATED {
            return Ok((String::from_utf8(body.into())?, asked));
        }
        sleep(Duration::from_millis(50)).await;
    }
    Err(format!("payment {payment} was never made").into())
}

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let url = match &arguments[..] {
        [] => env::var("REPRISE_TEST_POSTGRES").ok(),
        [flag, url] if flag == "--postgres" => Some(url.clone()),
        _ => return Err("usage: exactly_once [--postgres URL]".into()),
    };
    let Some(url) = url else {
        println!("it needs a PostgreSQL server: --postgres URL, or REPRISE_TEST_POSTGRES=URL");
        return Ok(ExitCode::SUCCESS);
    };
    let schema: Arc<str> = format!("exactly_once_{}", std::process::id()).into();
    let store = PostgresStore::builder(&url).schema(&*schema);
    let store = store.connect().await?;
    let manager = Manager::new(url.parse()?, NoTls);
    let database = Pool::builder(manager).max_size(8).build()?;
    let admin = database.get().await?;
    let table = format!(
        "CREATE TABLE {schema}.ledger (id bigint GENERATED ALWAYS AS IDENTITY, what text NOT NULL)"
    );
    admin.batch_execute(&table).await?;

    let shop = Shop {
        store: store.clone(),
        database,
        schema: Arc::clone(&schema),
        executions: Arc::default(),
        crashes: Arc::default(),
    };
    let made = make(&shop, store).await;
    let counts = format!("SELECT count(*), count(DISTINCT what) FROM {schema}.ledger");
    let counts = admin.query_one(&counts, &[]).await?;
    let (entries, payments): (i64, i64) = (counts.get(0), counts.get(1));
    let drop = format!("DROP SCHEMA {schema} CASCADE");
    admin.batch_execute(&drop).await?;

    let (told_otherwise, asked) = made?;
    let crashes = [0, 1].map(|when: usize| shop.crashes[when].load(Ordering::Relaxed));
    let figures = json!({
        "payments": PAYMENTS,
        "asked": asked,
        "executions": shop.executions.load(Ordering::Relaxed),
        "crashes_before_commit": crashes[0],
        "crashes_after_commit": crashes[1],
        "ledger": entries,
        "told_otherwise": told_otherwise,
    });
    println!("exactly_once {figures}");
    let expected = i64::try_from(PAYMENTS)?;
    let once = (entries, payments) == (expected, expected) && told_otherwise == 0;
    Ok(match once {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Makes all payments: how many of them two clients were told different things of, and how often
/// all of them asked.
async fn make(shop: &Shop, store: PostgresStore) -> Result<(u64, u64), BoxError> {
    // Executing an orphan again is safe here: what was not committed did not happen.
    let layer = IdempotencyLayer::builder(store)
        .scope(Scope::new(|_| Some("everybody")))
        .crash_policy(CrashPolicy::Reexecute)
        .lease(Duration::from_secs(1))
        .build()?;
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(layer)
        .with_state(shop.clone());
    let mut clients = JoinSet::new();
    for payment in 0..PAYMENTS {
        let app = app.clone();
        clients.spawn(async move {
            let (one, other) = tokio::join!(insist(app.clone(), payment), insist(app, payment));
            let ((one, asked), (other, again)) = (one?, other?);
            Ok::<_, BoxError>((u64::from(one != other), asked + again))
        });
    }
    let (mut told_otherwise, mut asked) = (0, 0);
    while let Some(told) = clients.join_next().await {
        let (differ, times) = told??;
        told_otherwise += differ;
        asked += times;
    }
    Ok((told_otherwise, asked))
}
