//! Records in PostgreSQL, on a real server: REPRISE_TEST_POSTGRES says where (`tests/run` starts
//! one).
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

#[path = "support/crash.rs"]
mod crash;
#[path = "support/database.rs"]
mod database;
#[path = "store_postgres/journal.rs"]
mod journal;
#[path = "support/outage.rs"]
mod outage;
#[path = "support/postgres.rs"]
mod postgres;
#[path = "support/process.rs"]
mod process;
#[path = "support/races.rs"]
mod races;

use std::{
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};
use tower_reprise::server::dialect::Scope;
use tower_reprise::store::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Fingerprint, IdempotencyStore, Note,
    Ownership, PostgresStore, PostgresStoreBuilder, RecordKey, StoreError, StoreErrorKind, Stored,
    conformance::{self, Backend},
};

use self::{
    database::{eventually, left_out, run},
    postgres::{Own, postgres_bin},
};

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(60 * 60);

fn address() -> Option<String> {
    std::env::var("REPRISE_TEST_POSTGRES").ok()
}

/// A schema of its own for each test.
struct Postgres {
    url: String,
    schema: String,
    admin: Client,
}

impl Postgres {
    /// `None` if there is no server to test with.
    async fn new() -> Option<Self> {
        let url = address()?;
        let admin = client(&url).await;
        let schema = format!("test_{:016x}", rand::random::<u64>());
        Some(Self { url, schema, admin })
    }

    fn builder(&self) -> PostgresStoreBuilder {
        let builder = PostgresStore::builder(&self.url);
        builder.schema(&self.schema).connections(8)
    }

    async fn store(&self) -> PostgresStore {
        self.builder().connect().await.expect("connect")
    }

    async fn execute(&self, sql: &str) -> u64 {
        let sql = sql.replace("{schema}", &self.schema);
        self.admin.execute(&sql, &[]).await.expect("execute")
    }

    async fn count(&self, sql: &str) -> i64 {
        let sql = sql.replace("{schema}", &self.schema);
        let row = self.admin.query_one(&sql, &[]).await.expect("query");
        row.get(0)
    }

    async fn drop(self) {
        self.execute("DROP SCHEMA IF EXISTS {schema} CASCADE").await;
    }
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

impl Backend for Postgres {
    type Store = PostgresStore;

    async fn open(&self) -> PostgresStore {
        self.store().await
    }

    /// The server's clock can't be moved, but the records can: backwards.
    async fn pass(&self, time: Duration) {
        let micros = time.as_micros();
        self.execute(&format!(
            "UPDATE {{schema}}.reprise_idempotency \
             SET lease_until = lease_until - {micros}, expires = expires - {micros}"
        ))
        .await;
        self.execute(&format!(
            "UPDATE {{schema}}.reprise_idempotency_journal \
             SET queued = queued - {micros}, due = due - {micros}, expires = expires - {micros}, \
               changed = changed - {micros}, until = until - {micros}, \
               leased = CASE WHEN leased > 0 THEN greatest(leased - {micros}, 1) ELSE 0 END"
        ))
        .await;
    }
}

fn claim(key: u8) -> Claim {
    Claim {
        key: RecordKey::new([key; 32]),
        fingerprint: Fingerprint::new([1; 32]),
        id: ClaimId::random(),
        lease: LEASE,
        retention: RETENTION,
        orphans: CrashPolicy::Reexecute,
        note: Note::NONE,
    }
}

fn reply(text: &'static str) -> Stored {
    Stored::Reply(Bytes::from_static(text.as_bytes()))
}

async fn own(store: &PostgresStore, claim: Claim) -> FencingToken {
    match store.claim(claim).await.expect("claim") {
        Claimed::New(lease) => lease.token,
        other => panic!("the key should be free, but is {other:?}"),
    }
}

async fn complete(store: &PostgresStore, key: u8, token: FencingToken, stored: Stored) {
    let completed = store
        .complete(claim(key).key, token, stored, RETENTION)
        .await;
    assert_eq!(completed.expect("complete"), Ownership::Held);
}

/// The address holds the name of a schema, too.
impl crash::Shared for Postgres {
    type Store = PostgresStore;

    async fn open(address: &str) -> PostgresStore {
        let (url, schema) = address.split_once(' ').expect("a schema");
        let builder = PostgresStore::builder(url).schema(schema);
        builder.connect().await.expect("connect")
    }
}

#[test]
fn postgres_is_there_or_said_to_be_left_out() {
    let mut missing = Vec::new();
    if address().is_none() {
        missing.push("REPRISE_TEST_POSTGRES is not set");
    }
    if postgres_bin().is_none() {
        missing.push("there is no initdb to make a server with, to start and stop");
    }
    for reason in missing {
        left_out("PostgreSQL", reason);
    }
}

/// What other processes of these tests do; see `crash`.
#[test]
#[ignore = "is run by other tests"]
fn child() {
    crash::child::<Postgres>();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_1_t_2_t_3_i_6_the_contract() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    conformance::run(&postgres).await;
    postgres.drop().await;
}

/// Side by side, since each of them mostly waits for the disk.
#[tokio::test]
async fn t_1_t_2_the_model() {
    let mut plays = JoinSet::new();
    let local = tokio::task::LocalSet::new();
    for seed in 0..12 {
        let play = async move {
            if let Some(postgres) = Postgres::new().await {
                conformance::model(&postgres, seed, 150).await;
                postgres.drop().await;
            }
        };
        plays.spawn_local_on(play, &local);
    }
    local.run_until(plays.join_all()).await;
}

#[tokio::test]
async fn t_2_i_6_two_processes_share_it() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    crash::race::<Postgres>(&format!("{} {}", postgres.url, postgres.schema)).await;
    postgres.drop().await;
}

#[tokio::test]
async fn i_14_i_15_killed_at_any_point() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    crash::killed::<Postgres>(&format!("{} {}", postgres.url, postgres.schema), 20).await;
    postgres.drop().await;
}

#[tokio::test]
async fn i_15_stopped_past_its_lease() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    crash::stopped::<Postgres>(&format!("{} {}", postgres.url, postgres.schema)).await;
    postgres.drop().await;
}

#[tokio::test]
async fn i_21_a_server_that_crashes_loses_nothing() {
    let Some(mut server) = Own::new().await else {
        return;
    };
    let builder = PostgresStore::builder(server.url()).timeout(Duration::from_secs(2));
    let store = builder.connect().await.unwrap();
    outage::survives(&mut server, store).await;
}

/// Owners that take turns, as fast as they can: each has a greater token than the one before, also
/// if its claim had to wait for a row that was released meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_15_tokens_grow_while_owners_take_turns() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (store, tokens) = (store.clone(), Arc::clone(&tokens));
        tasks.spawn(async move {
            while tokens.lock().unwrap().len() < 300 {
                if let Claimed::New(lease) = store.claim(claim(1)).await.expect("claim") {
                    // Nobody else can be here until it is released.
                    tokens.lock().unwrap().push(lease.token);
                    let released = store.release(claim(1).key, lease.token).await;
                    assert_eq!(released.expect("release"), Ownership::Held);
                }
            }
        });
    }
    tasks.join_all().await;
    let tokens = std::mem::take(&mut *tokens.lock().unwrap());
    let stale = tokens.windows(2).find(|pair| pair[0] >= pair[1]);
    assert_eq!(stale, None);
    postgres.drop().await;
}

#[tokio::test]
async fn i_15_tokens_grow_when_the_clock_went_back() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    own(&store, claim(1)).await;
    own(&store, claim(2)).await;
    let late = 1_i64 << 52;
    postgres
        .execute(&format!(
            "UPDATE {{schema}}.reprise_idempotency SET token = {late}"
        ))
        .await;
    postgres.pass(LEASE + Duration::from_secs(1)).await;
    assert_eq!(own(&store, claim(1)).await.get(), (1 << 52) + 1);
    postgres.pass(LEASE + RETENTION).await;
    assert_eq!(own(&store, claim(2)).await.get(), (1 << 52) + 1);
    postgres.drop().await;
}

#[tokio::test]
async fn t_3_a_lease_runs_out_on_the_servers_clock() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let short = Claim {
        lease: Duration::from_millis(100),
        ..claim(1)
    };
    let token = own(&store, short).await;
    let next = loop {
        match store.claim(claim(1)).await.unwrap() {
            Claimed::InFlight { remaining, .. } => tokio::time::sleep(remaining).await,
            Claimed::New(lease) => break lease,
            other => panic!("{other:?}"),
        }
    };
    assert!(next.orphaned && next.token > token);
    postgres.drop().await;
}

/// What only reads must not cost a commit.
#[tokio::test]
async fn i_8_a_duplicate_writes_nothing() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    own(&store, claim(1)).await;
    let token = own(&store, claim(2)).await;
    complete(&store, 2, token, reply("paid")).await;
    let versions = "SELECT sum(xmin::text::bigint + xmax::text::bigint)::bigint \
                    FROM {schema}.reprise_idempotency";
    let before = postgres.count(versions).await;
    let other = Claim {
        fingerprint: Fingerprint::new([9; 32]),
        ..claim(2)
    };
    for claim in [claim(1), claim(2), other] {
        assert!(!matches!(
            store.claim(claim).await.unwrap(),
            Claimed::New(_)
        ));
    }
    assert_eq!(postgres.count(versions).await, before);
    postgres.drop().await;
}

/// Also where sessions are set up for something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_2_i_6_whatever_the_defaults_of_a_session() {
    let Some(mut postgres) = Postgres::new().await else {
        return;
    };
    postgres.url += "?options=-c%20default_transaction_isolation%3Dserializable\
                     %20-c%20synchronous_commit%3Doff";
    let store = postgres.store().await;
    for key in 0..5 {
        let mut claims = JoinSet::new();
        for _ in 0..100 {
            let store = store.clone();
            claims.spawn(async move { store.claim(claim(key)).await.expect("claim") });
        }
        let claimed = claims.join_all().await.into_iter();
        let won = claimed.filter(|claimed| matches!(claimed, Claimed::New(_)));
        assert_eq!(won.count(), 1);
    }
    postgres.drop().await;
}

mod exactly_once {
    use std::convert::Infallible;

    use http::{Request, Response};
    use http_body_util::Full;
    use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
    use tower_reprise::{IdempotencyLayer, server::idempotency::Execution};

    use super::*;

    /// A ledger, and an owner of key 1.
    async fn setup(postgres: &Postgres) -> (PostgresStore, FencingToken) {
        let store = postgres.store().await;
        postgres
            .execute("CREATE TABLE {schema}.ledger (entry text)")
            .await;
        let token = own(&store, claim(1)).await;
        (store, token)
    }

    async fn pay(
        postgres: &Postgres,
        store: &PostgresStore,
        token: FencingToken,
        commit: bool,
    ) -> Result<(), StoreError> {
        let mut client = client(&postgres.url).await;
        let transaction = client.transaction().await.unwrap();
        let insert = format!("INSERT INTO {}.ledger VALUES ('paid')", postgres.schema);
        transaction.execute(&insert, &[]).await.unwrap();
        let key = claim(1).key;
        let completed = store
            .complete_in(&transaction, key, token, reply("paid"), RETENTION)
            .await;
        // Whatever it said: that must be safe.
        if commit {
            transaction.commit().await.unwrap();
        }
        completed
    }

    async fn entries(postgres: &Postgres) -> i64 {
        postgres.count("SELECT count(*) FROM {schema}.ledger").await
    }

    #[tokio::test]
    async fn i_15_effect_and_record_are_committed_together() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        let (store, token) = setup(&postgres).await;
        pay(&postgres, &store, token, true).await.unwrap();
        assert_eq!(entries(&postgres).await, 1);
        let done = Claimed::done(reply("paid"));
        assert_eq!(store.claim(claim(1)).await.unwrap(), done);
        // The layer completes as well, later: a repeat.
        complete(&store, 1, token, reply("other")).await;
        assert_eq!(store.claim(claim(1)).await.unwrap(), done);
        postgres.drop().await;
    }

    /// The handler commits both and is gone before the layer hears of it: the next request gets
    /// the reply, without a second execution and without waiting for the lease.
    #[tokio::test]
    async fn i_14_a_handler_that_dies_after_its_commit_has_replied() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        let (store, _) = setup(&postgres).await;
        let layer = IdempotencyLayer::builder(store.clone())
            .scope(Scope::new(|_| Some("alice")))
            .orphans(CrashPolicy::Unknown)
            .build()
            .unwrap();
        let url = postgres.url.clone();
        let insert = format!("INSERT INTO {}.ledger VALUES ('paid')", postgres.schema);
        let dies = true;
        let mut server = ServiceBuilder::new().layer(layer).service(service_fn(
            move |request: Request<Full<Bytes>>| {
                let (store, url, insert) = (store.clone(), url.clone(), insert.clone());
                async move {
                    let execution = request.extensions().get::<Execution>().unwrap().clone();
                    let mut client = client(&url).await;
                    let transaction = client.transaction().await.unwrap();
                    transaction.execute(&insert, &[]).await.unwrap();
                    let response = Response::builder().status(201).body("paid").unwrap();
                    let stored = execution.stored(&response).unwrap();
                    let (key, token) = (execution.key(), execution.token());
                    let completed =
                        store.complete_in(&transaction, key, token, stored, 24 * RETENTION);
                    completed.await.unwrap();
                    transaction.commit().await.unwrap();
                    assert!(!dies, "right after the commit");
                    Ok::<_, Infallible>(response.map(Full::<Bytes>::from))
                }
            },
        ));
        let mut statuses = Vec::new();
        for _ in 0..2 {
            let request = Request::post("/payments")
                .header("idempotency-key", "one")
                .body(Full::default())
                .unwrap();
            let response = server.ready().await.unwrap().call(request).await.unwrap();
            statuses.push(response.status().as_u16());
        }
        assert_eq!(statuses, [500, 201]);
        assert_eq!(entries(&postgres).await, 1);
        postgres.drop().await;
    }

    #[tokio::test]
    async fn i_14_a_crash_before_the_commit_leaves_neither() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        let (store, token) = setup(&postgres).await;
        pay(&postgres, &store, token, false).await.unwrap();
        postgres.pass(LEASE + Duration::from_secs(1)).await;
        let Claimed::New(lease) = store.claim(claim(1)).await.unwrap() else {
            panic!("nobody completed it");
        };
        assert!(lease.orphaned);
        assert_eq!(entries(&postgres).await, 0);
        pay(&postgres, &store, lease.token, true).await.unwrap();
        assert_eq!(entries(&postgres).await, 1);
        postgres.drop().await;
    }

    #[tokio::test]
    async fn i_15_a_stale_owner_can_not_commit() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        let (store, stale) = setup(&postgres).await;
        postgres.pass(LEASE + Duration::from_secs(1)).await;
        let token = own(&store, claim(1)).await;
        let error = pay(&postgres, &store, stale, true).await.unwrap_err();
        assert!(error.to_string().contains("the lease was lost"), "{error}");
        assert!(!error.is_transient());
        assert_eq!(entries(&postgres).await, 0, "it was rolled back");
        pay(&postgres, &store, token, true).await.unwrap();
        assert_eq!(entries(&postgres).await, 1);
        postgres.drop().await;
    }

    /// Owners whose leases run out at once, each of which thinks it is the one: whatever the order,
    /// one effect.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn i_15_of_many_owners_one_commits() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        let (store, first) = setup(&postgres).await;
        let postgres = Arc::new(postgres);
        let none = Claim {
            lease: Duration::ZERO,
            ..claim(1)
        };
        let mut owners = JoinSet::new();
        for n in 0..10 {
            let (postgres, store) = (Arc::clone(&postgres), store.clone());
            let claim = Claim {
                id: ClaimId::random(),
                ..none.clone()
            };
            owners.spawn(async move {
                postgres.pass(LEASE).await;
                let claimed = store.claim(claim).await;
                let token = match claimed.expect("claim") {
                    Claimed::New(lease) => lease.token,
                    _ if n == 0 => first,
                    _ => return false,
                };
                pay(&postgres, &store, token, true).await.is_ok()
            });
        }
        let paid = owners.join_all().await.into_iter().filter(|paid| *paid);
        assert_eq!(paid.count(), 1);
        assert_eq!(entries(&postgres).await, 1);
        Arc::into_inner(postgres).unwrap().drop().await;
    }
}

mod schema {
    use super::*;

    #[tokio::test]
    async fn t_5_many_who_come_first_make_one_table() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        let mut stores = JoinSet::new();
        for _ in 0..8 {
            let builder = postgres.builder().connections(1);
            stores.spawn(async move { builder.connect().await.expect("connect") });
        }
        let stores = stores.join_all().await;
        let token = own(&stores[0], claim(1)).await;
        complete(&stores[7], 1, token, reply("paid")).await;
        let versions = "SELECT count(*) FROM {schema}.reprise_idempotency_version";
        assert_eq!(postgres.count(versions).await, 2);
        postgres.drop().await;
    }

    #[tokio::test]
    async fn t_5_a_newer_table_is_refused() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        drop(postgres.store().await);
        postgres
            .execute("INSERT INTO {schema}.reprise_idempotency_version VALUES (3)")
            .await;
        let error = postgres.builder().connect().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::NewerSchema);
        let message = error.to_string();
        assert!(
            message.contains("is of version 3, and this version"),
            "{message}"
        );
        // Another table is another matter.
        let other = postgres.builder().table("other");
        own(&other.connect().await.unwrap(), claim(1)).await;
        postgres.drop().await;
    }

    /// Tables were changed before they were released.
    #[tokio::test]
    async fn t_5_a_table_of_before_the_release_is_refused_when_it_is_opened() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        for (table, column) in [("records", "note"), ("journals", "leased")] {
            let builder = || postgres.builder().table(table);
            drop(builder().connect().await.unwrap());
            let suffix = if table == "records" { "" } else { "_journal" };
            let drop = format!("ALTER TABLE {{schema}}.{table}{suffix} DROP COLUMN {column}");
            postgres.execute(&drop).await;
            let error = builder().connect().await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Other);
            let message = error.to_string();
            assert!(
                message.contains("before its version was released"),
                "{message}"
            );
            assert!(format!("{error:?}").contains(column), "{error:?}");
        }
        postgres.drop().await;
    }

    #[tokio::test]
    async fn t_5_a_table_that_is_there_needs_no_right_to_create() {
        let Some(mut postgres) = Postgres::new().await else {
            return;
        };
        drop(postgres.store().await);
        let app = format!("app_{}", postgres.schema);
        for sql in [
            format!("CREATE ROLE {app} LOGIN"),
            format!("GRANT USAGE ON SCHEMA {{schema}} TO {app}"),
            format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {{schema}} TO {app}"
            ),
        ] {
            postgres.execute(&sql).await;
        }
        let owner = postgres.url.clone();
        postgres.url = owner.replace("reprise@", &format!("{app}@"));
        let store = postgres.store().await;
        let token = own(&store, claim(1)).await;
        complete(&store, 1, token, reply("paid")).await;

        let elsewhere = postgres.builder().table("elsewhere");
        let error = elsewhere.connect().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other, "{error}");
        postgres.execute(&format!("DROP OWNED BY {app}")).await;
        postgres.execute(&format!("DROP ROLE {app}")).await;
        postgres.drop().await;
    }
}

mod sweep {
    use super::*;

    const ROWS: &str = "SELECT count(*) FROM {schema}.reprise_idempotency";

    #[tokio::test]
    async fn i_11_what_is_past_its_time_is_removed_in_steps() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        let store = postgres.store().await;
        for key in 0..10 {
            own(&store, claim(key)).await;
        }
        postgres
            .pass(LEASE + RETENTION + Duration::from_secs(1))
            .await;
        let token = own(&store, claim(20)).await;
        assert_eq!(store.sweep(100).await.unwrap(), 0, "too early");
        let minute = Duration::from_secs(60);
        postgres.pass(minute).await;
        assert_eq!(store.sweep(7).await.unwrap(), 7);
        assert_eq!(store.sweep(7).await.unwrap(), 3);
        assert_eq!(store.sweep(7).await.unwrap(), 0);
        assert_eq!(postgres.count(ROWS).await, 1);
        complete(&store, 20, token, reply("a live one")).await;
        postgres.drop().await;
    }

    /// More than one step's worth, while somebody has one of the rows.
    #[tokio::test]
    async fn i_11_a_store_in_use_sweeps_itself() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        drop(postgres.store().await);
        let filled = postgres
            .execute(
                "INSERT INTO {schema}.reprise_idempotency \
                   (key, fingerprint, claim_id, token, state, orphaned, lease_until, expires) \
                 SELECT n::text::bytea, '', '', n, 0, false, n, n FROM generate_series(1, 2500) n",
            )
            .await;
        assert_eq!(filled, 2500);
        let mut other = client(&postgres.url).await;
        let transaction = other.transaction().await.unwrap();
        let lock = format!(
            "SELECT FROM {}.reprise_idempotency WHERE token = 5 FOR UPDATE",
            postgres.schema
        );
        transaction.execute(&lock, &[]).await.unwrap();
        let store = postgres.store().await;
        own(&store, claim(1)).await;
        // What is locked stays, and the live one.
        eventually("swept", async || postgres.count(ROWS).await == 2).await;
        transaction.rollback().await.unwrap();
        postgres.drop().await;
    }
}

mod trouble {
    use super::*;

    #[tokio::test]
    async fn a_server_that_is_not_there_is_unavailable() {
        // Bound, and nobody listens.
        let deaf = tokio::net::TcpSocket::new_v4().unwrap();
        deaf.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("postgres://nobody@{}/none", deaf.local_addr().unwrap());
        let error = PostgresStore::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(!error.may_have_happened());
        let error = PostgresStore::connect("no address").await.unwrap_err();
        assert!(error.to_string().contains("postgres.url"), "{error}");
        let builder = PostgresStore::builder("postgres://localhost").table("a\"; --");
        let error = builder.connect().await.unwrap_err();
        assert!(error.to_string().contains("postgres.table is"), "{error}");
    }

    /// Somebody has locked the row, and there is one connection: who wants the row runs out of
    /// time, who wants the connection is told that there is none.
    #[tokio::test]
    async fn waiting_is_bounded_and_says_for_what() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        // The tables are there, so that the time is for the claims alone.
        drop(postgres.store().await);
        let builder = postgres.builder().connections(1);
        let builder = builder.timeout(Duration::from_secs(4));
        let store = builder.connect().await.unwrap();
        let orphan = Claim {
            lease: Duration::ZERO,
            ..claim(1)
        };
        own(&store, orphan).await;
        let mut other = client(&postgres.url).await;
        let transaction = other.transaction().await.unwrap();
        let lock = format!(
            "SELECT FROM {}.reprise_idempotency FOR UPDATE",
            postgres.schema
        );
        transaction.execute(&lock, &[]).await.unwrap();

        let first = claim(1);
        let blocked = tokio::spawn({
            let store = store.clone();
            let first = first.clone();
            async move { store.claim(first).await.unwrap_err() }
        });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                       AND query LIKE '%{schema}%' AND pid <> pg_backend_pid()";
        eventually("one waits", async || postgres.count(waiting).await > 0).await;
        let error = store.claim(claim(2)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::PoolExhausted, "{error}");
        assert!(!error.may_have_happened() && !blocked.is_finished());
        let error = blocked.await.unwrap();
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");

        transaction.rollback().await.unwrap();
        // Whether it happened after all or not, the claim can be repeated.
        own(&store, first).await;
        postgres.drop().await;
    }

    /// A session that hangs is given up within the timeout; its connection is not used again.
    #[tokio::test]
    async fn a_session_that_hangs_is_a_timeout_in_doubt() {
        let Some(server) = Own::new().await else {
            return;
        };
        let builder = PostgresStore::builder(server.url()).connections(1);
        let builder = builder.timeout(Duration::from_secs(5));
        let store = builder.connect().await.unwrap();
        own(&store, claim(1)).await;
        // The sweep that the first claim began is over when one that came after it is: they take
        // turns at the only connection.
        store.sweep(1).await.unwrap();
        let admin = client(&server.url()).await;
        let session = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tower-reprise'";
        let pid: i32 = admin.query_one(session, &[]).await.unwrap().get(0);
        run(Command::new("kill").args(["-STOP", &pid.to_string()]));
        let first = claim(2);
        let error = store.claim(first.clone()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");
        assert!(error.may_have_happened(), "{error}");
        let token = own(&store, first).await;
        complete(&store, 2, token, reply("paid")).await;
        run(Command::new("kill").args(["-CONT", &pid.to_string()]));
    }

    /// Sessions that an administrator ends, idle ones and one in the middle of a claim.
    #[tokio::test]
    async fn a_lost_connection_is_replaced_and_the_verb_repeated() {
        let Some(postgres) = Postgres::new().await else {
            return;
        };
        let store = postgres.store().await;
        let orphan = Claim {
            lease: Duration::ZERO,
            ..claim(1)
        };
        own(&store, orphan).await;
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE application_name = 'tower-reprise' AND query LIKE '%{schema}%'";
        assert!(postgres.count(end).await > 0, "an idle one");
        own(&store, claim(2)).await;

        let mut other = client(&postgres.url).await;
        let transaction = other.transaction().await.unwrap();
        let lock = format!(
            "SELECT FROM {}.reprise_idempotency FOR UPDATE",
            postgres.schema
        );
        transaction.execute(&lock, &[]).await.unwrap();
        let blocked = tokio::spawn({
            let store = store.clone();
            async move { own(&store, claim(1)).await }
        });
        let busy = format!("{end} AND wait_event_type = 'Lock'");
        eventually("one is ended", async || postgres.count(&busy).await > 0).await;
        transaction.rollback().await.unwrap();
        let token = blocked.await.unwrap();
        complete(&store, 1, token, reply("paid")).await;
        postgres.drop().await;
    }
}
