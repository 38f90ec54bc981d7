//! Payments that are made exactly once by a server that uses sqlx and is killed again and again.
//!
//! The server is this program in a process of its own: an axum router whose handler commits the
//! payment and the reply in one transaction of sqlx. It is killed twelve times, by SIGKILL, while two
//! clients ask for each payment until they are told that it was made.
//!
//! Needs a PostgreSQL server, whose address is in `REPRISE_TEST_POSTGRES`.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{Response, StatusCode, header::AUTHORIZATION},
    routing::post,
};
use sqlx::{AssertSqlSafe, PgPool, Row, postgres::PgPoolOptions};
use tokio::{sync::watch, task::JoinSet, time::sleep};
use tower_reprise::{
    IdempotencyLayer,
    server::{dialect::Scope, idempotency::Execution},
    store::{CrashPolicy, PostgresStore},
};
use tower_reprise_users::{Result, drivers::sqlx::run};

const PAYMENTS: u64 = 600;
const KILLS: u64 = 12;
const CLIENTS: u64 = 16;

#[derive(Clone)]
struct Shop {
    store: PostgresStore,
    database: PgPool,
    schema: String,
}

async fn pay(
    State(shop): State<Shop>,
    execution: Execution,
    what: String,
) -> std::result::Result<Response<String>, StatusCode> {
    // Not made, or not known: a repeat finds out.
    let paid = shop.pay(&execution, &what).await;
    paid.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

impl Shop {
    async fn pay(&self, execution: &Execution, what: &str) -> Result<Response<String>> {
        let mut transaction = self.database.begin().await?;
        let insert = format!(
            "INSERT INTO {}.ledger (what) VALUES ($1) RETURNING id",
            self.schema
        );
        let insert = sqlx::query(AssertSqlSafe(insert)).bind(what);
        let id: i64 = insert.fetch_one(&mut *transaction).await?.try_get(0)?;
        let mut response = Response::new(format!("payment {id}"));
        *response.status_mut() = StatusCode::CREATED;

        let (key, token) = (execution.key(), execution.token());
        let (stored, kept_for) = (execution.stored(&response)?, execution.retention());
        let completes = self.store.complete_statement(key, token, &stored, kept_for);
        run(&mut transaction, completes).await?;
        transaction.commit().await?;
        Ok(response)
    }
}

/// The server: prints its address and serves until it is killed.
async fn serve(url: &str, schema: String) -> Result {
    let store = PostgresStore::builder(url)
        .schema(&schema)
        .connect()
        .await?;
    let database = PgPoolOptions::new().max_connections(8).connect(url).await?;
    let layer = IdempotencyLayer::builder(store.clone())
        .scope(Scope::new(|request| {
            request.headers().get(AUTHORIZATION).cloned()
        }))
        // Safe here: what was not committed did not happen.
        .crash_policy(CrashPolicy::Reexecute)
        .lease(Duration::from_secs(1))
        .build()?;
    let shop = Shop {
        store,
        database,
        schema,
    };
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(layer)
        .with_state(shop);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

/// Starts a server and returns its address.
fn start(url: &str, schema: &str) -> Result<(Child, String)> {
    let mut server = Command::new(env::current_exe()?)
        .args(["serve", url, schema])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    let out = server.stdout.take().ok_or("no output")?;
    BufReader::new(out).read_line(&mut address)?;
    Ok((server, address.trim().to_owned()))
}

/// Asks until it is told that the payment was made.
async fn insist(address: watch::Receiver<String>, payment: u64) -> Result<String> {
    let client = reqwest::Client::new();
    for _ in 0..2000 {
        let url = format!("{}/payments", &*address.borrow());
        let request = client
            .post(url)
            .header("authorization", "Bearer alice")
            .header("idempotency-key", format!("payment-{payment}"))
            .body(payment.to_string());
        if let Ok(response) = request.send().await
            && response.status() == 201
            && let Ok(text) = response.text().await
        {
            return Ok(text);
        }
        sleep(Duration::from_millis(20)).await;
    }
    Err(format!("payment {payment} was never made").into())
}

/// Makes all payments, and returns how many of them two clients were told different things of.
async fn make(address: &watch::Receiver<String>, made: &Arc<AtomicU64>) -> Result<u64> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (address, made) = (address.clone(), Arc::clone(made));
        clients.spawn(async move {
            let mut differ = 0;
            for payment in (client..PAYMENTS).step_by(CLIENTS as usize) {
                let one = insist(address.clone(), payment);
                let (one, other) = tokio::join!(one, insist(address.clone(), payment));
                differ += u64::from(one? != other?);
                made.fetch_add(1, Ordering::Relaxed);
            }
            Ok(differ)
        });
    }
    let differ: Result<Vec<u64>> = clients.join_all().await.into_iter().collect();
    Ok(differ?.into_iter().sum())
}

#[tokio::main]
async fn main() -> Result {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [serves, url, schema] = &arguments[..]
        && serves == "serve"
    {
        return serve(url, schema.clone()).await;
    }
    let Ok(url) = env::var("REPRISE_TEST_POSTGRES") else {
        println!("sqlx_exactly_once: left out, REPRISE_TEST_POSTGRES names no server");
        return Ok(());
    };
    let schema = format!("sqlx_exactly_once_{}", std::process::id());
    let admin = PgPoolOptions::new()
        .max_connections(1)
        .connect(&url)
        .await?;
    let execute = async |sql: String| sqlx::query(AssertSqlSafe(sql)).execute(&admin).await;
    execute(format!("CREATE SCHEMA {schema}")).await?;
    execute(format!(
        "CREATE TABLE {schema}.ledger (id bigint GENERATED ALWAYS AS IDENTITY, what text NOT NULL)"
    ))
    .await?;

    let (mut server, first) = start(&url, &schema)?;
    let (addresses, address) = watch::channel(first);
    let made = Arc::new(AtomicU64::new(0));
    let mut payments = std::pin::pin!(make(&address, &made));
    let mut kills = 0;
    let differ = loop {
        tokio::select! {
            differ = &mut payments => break differ,
            () = sleep(Duration::from_millis(2)) => {
                let due = (kills + 1) * PAYMENTS / (KILLS + 1);
                if kills < KILLS && made.load(Ordering::Relaxed) >= due {
                    // SIGKILL: nothing of it is cleaned up.
                    server.kill()?;
                    server.wait()?;
                    kills += 1;
                    let next;
                    (server, next) = start(&url, &schema)?;
                    addresses.send(next)?;
                }
            }
        }
    };
    server.kill()?;
    server.wait()?;
    let count = format!("SELECT count(*), count(DISTINCT what) FROM {schema}.ledger");
    let count = sqlx::query(AssertSqlSafe(count)).fetch_one(&admin).await?;
    let (entries, distinct): (i64, i64) = (count.try_get(0)?, count.try_get(1)?);
    execute(format!("DROP SCHEMA {schema} CASCADE")).await?;
    let (doubles, differ) = (entries - distinct, differ?);
    println!(
        "sqlx_exactly_once: {distinct} payments, {kills} kills, {doubles} doubles, {differ} told \
         differently"
    );
    assert_eq!((distinct, kills, doubles, differ), (600, KILLS, 0, 0));
    Ok(())
}
