//! T-8: entries are counted when they change their state, not when somebody asks.

use std::time::Duration;

use tokio::task::JoinSet;
use tower_reprise::store::{
    Ownership, PostgresStore,
    conformance::Backend,
    journal::{Entry, EntryCommand, EntryId, Journal, LeaseRequest, NewEntry, Settlement},
};

use super::{
    Postgres,
    journal::{DROP_ENDS, DROP_FINISHED, DROP_OWN, DROP_SHARING, DROP_SUMS},
    pools::pool,
};
use crate::support::{database::eventually, records::LEASE};

const KEEP: Duration = Duration::from_secs(60);
const ROWS: &str = "SELECT count(*) FROM {schema}.reprise_idempotency_finished";

/// Queues so many entries and leases them.
async fn leased(store: &PostgresStore, entries: u32) -> Vec<Entry> {
    let new = (0..entries).map(|_| NewEntry::new("mails", "payload"));
    drop(store.enqueue_many(new.collect()).await.unwrap());
    let request = LeaseRequest::new("mails", "", entries, LEASE);
    store.lease(request).await.unwrap()
}

/// Queues entries and ends them: as many as are given, failed, then completed.
async fn ended(store: &PostgresStore, failed: u32, completed: u32) -> Vec<EntryId> {
    let all = failed + completed;
    let leased = leased(store, all).await;
    let ids: Vec<_> = leased.iter().map(|entry| entry.id).collect();
    for (entry, n) in leased.into_iter().zip(0..) {
        let settlement = match n < failed {
            true => Settlement::failed("broken", KEEP),
            false => Settlement::completed("", KEEP),
        };
        let settled = store.settle(entry.id, entry.lease_token, settlement).await;
        assert!(settled.is_ok(), "{settled:?}");
    }
    assert_eq!(ids.len(), all as usize);
    ids
}

async fn by_status(store: &PostgresStore) -> [u64; 6] {
    store.counts("mails").await.unwrap().by_status
}

#[tokio::test]
async fn t_8_counts_follow_what_ends_is_redriven_and_goes() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let ids = ended(&store, 3, 4).await;
    assert_eq!(by_status(&store).await, [0, 0, 4, 3, 0, 0]);
    for (id, command) in ids
        .iter()
        .zip([EntryCommand::Redrive(KEEP), EntryCommand::Purge])
    {
        let applied = store.command(*id, command).await.unwrap().unwrap().applied;
        assert!(applied);
    }
    assert_eq!(by_status(&store).await, [1, 0, 4, 1, 0, 0]);
    // Those that are past their time are gone before a sweep removes them, and after it.
    postgres.pass(KEEP).await;
    assert_eq!(by_status(&store).await[2..4], [0, 0]);
    assert_eq!(store.sweep(100).await.unwrap(), 5);
    assert_eq!(by_status(&store).await[2..4], [0, 0]);
    postgres.drop().await;
}

/// A sweep replaces many rows by their sums, and changes no count.
#[tokio::test]
async fn t_8_rows_that_count_are_summed_up() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    drop(ended(&store, 2, 3).await);
    let many = "INSERT INTO {schema}.reprise_idempotency_finished \
                SELECT 'mails', 2, CASE WHEN n % 2 = 0 THEN 1 ELSE -1 END \
                FROM generate_series(1, 2000) n";
    postgres.execute(many).await;
    assert_eq!(postgres.count(ROWS).await, 2005);
    // A store sweeps when it is first used.
    let other = postgres.store().await;
    drop(other.enqueue(NewEntry::new("others", "")).await.unwrap());
    let summed = async || postgres.count(ROWS).await == 2;
    eventually("the rows are summed up", summed).await;
    assert_eq!(by_status(&store).await, [0, 0, 3, 2, 0, 0]);
    postgres.drop().await;
}

/// A batch of settlements adds one row, and so does a sweep; a process of the version before settles with
/// `leased = 0`, and a trigger counts for it.
#[tokio::test]
async fn t_8_one_row_counts_all_entries_of_a_statement() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let leased = leased(&store, 100).await;
    let mut settling = JoinSet::new();
    for entry in leased {
        let store = store.clone();
        settling.spawn(async move {
            let done = Settlement::completed("", KEEP);
            store.settle(entry.id, entry.lease_token, done).await
        });
    }
    for settled in settling.join_all().await {
        assert_eq!(settled.unwrap(), Ownership::Held);
    }
    assert_eq!(by_status(&store).await, [0, 0, 100, 0, 0, 0]);
    let rows = postgres.count(ROWS).await;
    assert!(rows < 10, "{rows} rows for a few batches");

    drop(self::leased(&store, 1).await);
    let before = "UPDATE {schema}.reprise_idempotency_journal SET status = 2, leased = 0, \
                  until = (SELECT max(until) FROM {schema}.reprise_idempotency_journal) \
                  WHERE status = 0";
    postgres.execute(before).await;
    assert_eq!(by_status(&store).await[2..], [101, 0, 0, 0]);
    // It did not say that the lease ended. A sweep finds out.
    let other = postgres.store().await;
    drop(other.enqueue(NewEntry::new("others", "")).await.unwrap());
    let counted = async || by_status(&store).await == [0, 0, 101, 0, 0, 0];
    eventually("leases are counted anew", counted).await;
    assert_eq!(postgres.count(ROWS).await, rows + 1);

    postgres.pass(KEEP).await;
    assert_eq!(store.sweep(200).await.unwrap(), 101);
    assert_eq!(postgres.count(ROWS).await, rows + 2);
    assert_eq!(by_status(&store).await, [0; 6]);
    postgres.drop().await;
}

#[tokio::test]
async fn t_8_what_is_kept_for_no_time_leaves_no_row() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    for entry in leased(&store, 3).await {
        let done = Settlement::completed("done", Duration::ZERO);
        let settled = store.settle(entry.id, entry.lease_token, done).await;
        assert_eq!(settled.unwrap(), Ownership::Held);
    }
    let entries = "SELECT count(*) FROM {schema}.reprise_idempotency_journal";
    assert_eq!(postgres.count(entries).await, 0);
    assert_eq!(postgres.count(ROWS).await, 0);
    postgres.drop().await;
}

#[tokio::test]
async fn t_8_counts_read_no_entry_that_is_over_or_waits() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    // One session, so that what it read is known once it says so.
    let pool = pool(&postgres, 1, true, "");
    let builder = PostgresStore::on_pool(pool.clone()).schema(&postgres.schema);
    let store = builder.connect().await.unwrap();
    drop(ended(&store, 100, 900).await);
    let later = (0..500).map(|n| NewEntry {
        lane: format!("lane {n}"),
        delay: KEEP,
        ..NewEntry::new("mails", "payload")
    });
    drop(store.enqueue_many(later.collect()).await.unwrap());
    let table = format!("{}.reprise_idempotency_journal", postgres.schema);
    let read = async || {
        let session = pool.get().await.unwrap();
        let flush = "SELECT pg_stat_force_next_flush()";
        session.execute(flush, &[]).await.unwrap();
        let read = "SELECT (sum(idx_tup_read) + (SELECT seq_tup_read FROM pg_stat_user_tables t \
                      WHERE t.relid = i.relid))::bigint FROM pg_stat_user_indexes i \
                    WHERE relid = $1::text::regclass GROUP BY relid";
        let row = session.query_one(read, &[&table]).await.unwrap();
        row.get::<_, i64>(0)
    };
    let vacuum = format!("VACUUM {table}");
    pool.get()
        .await
        .unwrap()
        .batch_execute(&vacuum)
        .await
        .unwrap();
    let before = read().await;
    assert_eq!(by_status(&store).await, [500, 0, 900, 100, 0, 0]);
    let more = read().await - before;
    assert!((1..100).contains(&more), "{more} entries were read");
    postgres.drop().await;
}

#[tokio::test]
async fn t_5_t_8_entries_of_version_8_that_are_over_are_counted() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    drop(ended(&store, 1, 2).await);
    drop(store);
    for sql in [
        DROP_SHARING,
        DROP_ENDS,
        DROP_OWN,
        DROP_FINISHED,
        DROP_SUMS,
        "DELETE FROM {schema}.reprise_idempotency_version WHERE version > 8",
    ] {
        postgres.execute(sql).await;
    }
    let store = postgres.store().await;
    assert_eq!(by_status(&store).await, [0, 0, 2, 1, 0, 0]);
    drop(ended(&store, 1, 0).await);
    assert_eq!(by_status(&store).await, [0, 0, 2, 2, 0, 0]);
    postgres.drop().await;
}
