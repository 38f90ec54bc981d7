//! Work that is enqueued, and operations that are completed, in transactions of sqlx, diesel and
//! SeaORM.
//!
//! Needs a PostgreSQL server, whose address is in `REPRISE_TEST_POSTGRES`.

use std::time::Duration;

use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use sea_orm::{ConnectionTrait, Database, TransactionTrait};
use sqlx::{Connection, PgConnection, Row};
use tower_reprise::store::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Fingerprint, IdempotencyStore, Note,
    PostgresStore, RecordKey, SealKeys, Sealed, SqlStatement, Stored,
    journal::{Journal, LeaseRequest, NewEntry},
};
use tower_reprise_users::{Result, drivers};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Runs statements in one transaction, and returns what the last one, an enqueueing, says.
async fn commit(driver: &str, url: &str, statements: [SqlStatement; 2]) -> Result<String> {
    let [completes, enqueues] = statements;
    match driver {
        "sqlx" => {
            let mut connection = PgConnection::connect(url).await?;
            let mut transaction = connection.begin().await?;
            drivers::sqlx::run(&mut transaction, completes).await?;
            let row = drivers::sqlx::run(&mut transaction, enqueues).await?;
            transaction.commit().await?;
            Ok(row.try_get("enqueued")?)
        }
        "diesel" => {
            let mut connection = AsyncPgConnection::establish(url).await?;
            let row: std::result::Result<drivers::diesel::Row, diesel::result::Error> = connection
                .transaction(async |connection| {
                    let query = drivers::diesel::query(completes);
                    query.execute(connection).await?;
                    let query = drivers::diesel::query(enqueues);
                    query.get_result(connection).await
                })
                .await;
            Ok(row?.enqueued)
        }
        _ => {
            let database = Database::connect(url).await?;
            let transaction = database.begin().await?;
            transaction
                .query_one_raw(drivers::sea_orm::bound(completes))
                .await?;
            let row = transaction
                .query_one_raw(drivers::sea_orm::bound(enqueues))
                .await?;
            transaction.commit().await?;
            Ok(row.ok_or("no row")?.try_get("", "enqueued")?)
        }
    }
}

#[tokio::main]
async fn main() -> Result {
    let Ok(url) = std::env::var("REPRISE_TEST_POSTGRES") else {
        println!("transactions: left out, REPRISE_TEST_POSTGRES names no server");
        return Ok(());
    };
    let schema = format!("transactions_{}", std::process::id());
    let store = PostgresStore::builder(&url)
        .schema(&schema)
        .connect()
        .await?;
    let sealed = Sealed::new(store.clone(), SealKeys::try_new("2026", &[7; 32])?);
    for (driver, number) in [("sqlx", 1), ("diesel", 2), ("sea_orm", 3)] {
        let claim = Claim {
            key: RecordKey::new([number; 32]),
            fingerprint: Fingerprint::new([number; 32]),
            id: ClaimId::random(),
            lease: Duration::from_secs(30),
            retention: DAY,
            crash_policy: CrashPolicy::Unknown,
            note: Note::default(),
            resumes: None,
        };
        let Claimed::New(lease) = store.claim(claim.clone()).await? else {
            return Err("the key is new".into());
        };
        let paid = Stored::Reply("paid".into());
        let mail = NewEntry::new("mails", format!("by {driver}"));
        let statements = || -> Result<_> {
            let completes = store.complete_statement(claim.key, lease.token, &paid, DAY);
            Ok([completes, sealed.enqueue_statement(mail.clone())?])
        };
        assert_eq!(commit(driver, &url, statements()?).await?, "new");
        assert_eq!(commit(driver, &url, statements()?).await?, "existing");
        let claimed = store.claim(claim.clone()).await?;
        assert!(matches!(claimed, Claimed::Done { stored, .. } if stored == paid));
        let request = LeaseRequest::new("mails", "", 9, Duration::from_secs(30));
        let leased = sealed.lease(request).await?;
        assert_eq!(leased.len(), 1);
        assert_eq!(leased[0].payload, format!("by {driver}"));

        // A completion whose lease was lost takes the whole transaction with it.
        let stale = FencingToken::new(1);
        let completes = store.complete_statement(claim.key, stale, &paid, DAY);
        let other = NewEntry::new("mails", "never");
        let refused = commit(driver, &url, [completes, store.enqueue_statement(other)]).await;
        let error = refused.expect_err("the lease was lost").to_string();
        assert!(error.contains("division by zero"), "{error}");
        let request = LeaseRequest::new("mails", "", 9, Duration::from_secs(30));
        assert!(sealed.lease(request).await?.is_empty());
        println!("{driver}: completed and enqueued in one transaction");
    }
    let mut admin = PgConnection::connect(&url).await?;
    let drop = sqlx::AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"));
    sqlx::query(drop).execute(&mut admin).await?;
    Ok(())
}
