//! T-10: SQL and parameters for transactions of other drivers.

use std::time::Duration;

use bytes::Bytes;
use tokio_postgres::{Error, Transaction, error::SqlState, types::ToSql};
use tower_reprise::store::{
    Claimed, Fingerprint, IdempotencyStore, PostgresStore, RecordKey, SqlParameter, SqlStatement,
    conformance::Backend,
    journal::{Dedup, Journal, LeaseRequest, NewEntry, Status},
};

use super::{Postgres, client};
use crate::support::records::{LEASE, RETENTION, claim, own, reply};

/// Runs a statement as a driver would that knows nothing but SQL and typed parameters.
async fn run(transaction: &Transaction<'_>, statement: &SqlStatement) -> Result<String, Error> {
    let bytes = |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| bytes.to_vec());
    let values: Vec<Box<dyn ToSql + Sync>> = statement
        .parameters()
        .iter()
        .map(|parameter| -> Box<dyn ToSql + Sync> {
            match parameter {
                SqlParameter::SmallInt(number) => Box::new(*number),
                SqlParameter::BigInt(number) => Box::new(*number),
                SqlParameter::Text(text) => Box::new(text.clone()),
                SqlParameter::Bytea(value) => Box::new(bytes(value)),
            }
        })
        .collect();
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| &**value).collect();
    let row = transaction.query_one(statement.sql(), &values).await?;
    Ok(row.try_get("enqueued").unwrap_or_default())
}

/// Enqueues in a transaction of its own.
async fn enqueue(postgres: &Postgres, statement: SqlStatement) -> String {
    let mut client = client(&postgres.url).await;
    let transaction = client.transaction().await.unwrap();
    let enqueued = run(&transaction, &statement).await.unwrap();
    transaction.commit().await.unwrap();
    enqueued
}

fn mail(key: u8, fingerprint: u8) -> NewEntry {
    let dedup = Dedup {
        key: RecordKey::new([key; 32]),
        fingerprint: Fingerprint::new([fingerprint; 32]),
    };
    NewEntry {
        dedup: Some(dedup),
        version: Some("2".into()),
        delay: Duration::from_secs(60),
        ..NewEntry::new("mails", "payload")
    }
}

async fn complete(
    postgres: &Postgres,
    store: &PostgresStore,
    token: tower_reprise::store::FencingToken,
) -> Result<(), Error> {
    let mut client = client(&postgres.url).await;
    let transaction = client.transaction().await.unwrap();
    let statement = store.complete_statement(claim(1).key, token, &reply("paid"), RETENTION);
    run(&transaction, &statement).await?;
    transaction.commit().await
}

#[tokio::test]
async fn t_10_a_statement_completes_an_operation() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let stale = own(&store, claim(1)).await;
    postgres.pass(LEASE + Duration::from_secs(1)).await;
    let token = own(&store, claim(1)).await;
    let error = complete(&postgres, &store, stale).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::DIVISION_BY_ZERO), "{error}");
    complete(&postgres, &store, token).await.unwrap();
    let claimed = store.claim(claim(1)).await.unwrap();
    assert_eq!(claimed, Claimed::done(reply("paid")));
    postgres.drop().await;
}

#[tokio::test]
async fn t_10_a_statement_enqueues_an_entry() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let new = mail(1, 1);
    let enqueue = |entry| enqueue(&postgres, store.enqueue_statement(entry));
    assert_eq!(enqueue(new.clone()).await, "new");
    assert_eq!(enqueue(new.clone()).await, "existing", "the id");
    assert_eq!(enqueue(mail(1, 1)).await, "existing", "the operation");
    assert_eq!(enqueue(mail(1, 2)).await, "mismatch");
    assert_eq!(enqueue(mail(2, 1)).await, "new");

    // It stands as the verb would have made it.
    let verb = NewEntry {
        dedup: None,
        ..mail(3, 3)
    };
    store.enqueue(verb.clone()).await.unwrap();
    let [one, other] = [new.id, verb.id].map(|id| store.find(id));
    let (one, other) = (one.await.unwrap().unwrap(), other.await.unwrap().unwrap());
    assert_eq!(
        one.due_at.as_micros() - one.queued_at.as_micros(),
        60_000_000
    );
    assert_eq!(
        (one.lane, one.label, one.priority),
        (other.lane, other.label, other.priority)
    );
    assert_eq!((one.status, one.payload), (Status::Queued, other.payload));

    // The key of an entry that expired is free, and so is its id after its retention.
    postgres.pass(25 * 60 * Duration::from_secs(60)).await;
    assert_eq!(enqueue(mail(1, 2)).await, "new");
    postgres.drop().await;
}

/// The other transaction commits while the statement waits for it: no such entry was there when the
/// statement began, and one is in its way now.
#[tokio::test]
async fn t_10_an_entry_that_came_between_fails_the_statement() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let [mut one, mut other] = [client(&postgres.url).await, client(&postgres.url).await];
    let (first, second) = (mail(1, 1), mail(1, 1));
    let transaction = one.transaction().await.unwrap();
    run(&transaction, &store.enqueue_statement(first))
        .await
        .unwrap();
    let waiting = other.transaction().await.unwrap();
    let statement = store.enqueue_statement(second.clone());
    let waits = async {
        let waits =
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
        while postgres.count(waits).await == 0 {
            tokio::task::yield_now().await;
        }
        transaction.commit().await.unwrap();
    };
    let (enqueued, ()) = tokio::join!(run(&waiting, &statement), waits);
    let error = enqueued.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::DIVISION_BY_ZERO), "{error}");
    drop(waiting);
    assert_eq!(enqueue(&postgres, statement).await, "existing");
    postgres.drop().await;
}

/// T-7: what is enqueued by SQL and parameters is sealed as all else, and shown nowhere.
#[cfg(feature = "seal")]
#[tokio::test]
async fn t_7_a_statement_enqueues_what_is_sealed() {
    use tower_reprise::store::{SealKeys, Sealed};

    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let sealed = Sealed::new(store.clone(), SealKeys::try_new("a", &[7; 32]).unwrap());
    let new = NewEntry::new("mails", "s3cret");
    let statement = sealed.enqueue_statement(new.clone()).unwrap();
    let plain = format!("{:?}", store.enqueue_statement(new.clone()));
    assert!(
        plain.contains("Bytea(..)") && !plain.contains("s3cret"),
        "{plain}"
    );
    assert_eq!(enqueue(&postgres, statement).await, "new");
    let stored = store.find(new.id).await.unwrap().unwrap();
    assert!(!stored.payload.windows(6).any(|bytes| bytes == b"s3cret"));
    let request = LeaseRequest::new("mails", "", 9, LEASE);
    let leased = sealed.lease(request).await.unwrap();
    assert_eq!(&*leased[0].payload, b"s3cret");
    postgres.drop().await;
}
