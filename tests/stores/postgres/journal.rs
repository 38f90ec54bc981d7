//! The journal beside the records.

use std::time::Duration;

use tokio::task::JoinSet;
use tower_reprise::store::journal::{
    Dedup, Enqueued, EntryCommand, EntryId, Journal, LeaseRequest, NewEntry, Priority, Query,
    QueueBounds, Settlement, Status,
};
use tower_reprise::store::{
    Claimed, Fingerprint, IdempotencyStore, Ownership, PostgresStore, RecordKey, StoreErrorKind,
    conformance::{self, Backend},
};

use super::{Postgres, client};
use crate::support::{
    database::eventually,
    races,
    records::{LEASE, claim, complete, own, reply},
};

const KEEP: Duration = Duration::from_secs(60);

fn want(limit: u32) -> LeaseRequest {
    LeaseRequest::new("mails", "", limit, LEASE)
}

async fn put(store: &PostgresStore, new: NewEntry) -> EntryId {
    let id = new.id;
    let enqueued = store.enqueue(new).await.expect("enqueue");
    assert!(matches!(enqueued, Enqueued::New(_)), "{enqueued:?}");
    id
}

async fn status(store: &PostgresStore, id: EntryId) -> Option<Status> {
    store.find(id).await.unwrap().map(|entry| entry.status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_1_t_2_t_3_the_contract_of_a_journal() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    conformance::journal(&postgres).await;
    postgres.drop().await;
}

#[cfg(all(feature = "axum", feature = "delivery"))]
#[tokio::test]
async fn w_9_w_10_an_endpoint_is_disabled_and_recovered() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    crate::webhooks::an_endpoint_is_disabled_and_recovered(&postgres).await;
    postgres.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_7_cancel_against_start_has_one_winner() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    races::cancel_against_start([postgres.store().await, postgres.store().await]).await;
    postgres.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_5_two_handles_keep_the_order() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    races::leases_keep_the_order([postgres.store().await, postgres.store().await]).await;
    postgres.drop().await;
}

/// Outcomes that come in together are told together, and each is answered for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_2_outcomes_that_are_told_together_have_answers_of_their_own() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    for _ in 0..100 {
        put(&store, NewEntry::new("mails", "payload")).await;
    }
    let stale = store.lease(want(100)).await.unwrap();
    Backend::pass(&postgres, LEASE).await;
    let leased = store.lease(want(100)).await.unwrap();
    let mut tasks = JoinSet::new();
    for (n, entry) in stale.iter().chain(&leased).enumerate() {
        let (store, id, lease_token) = (store.clone(), entry.id, entry.lease_token);
        let settle = match n % 4 {
            0 => Settlement::completed(n.to_string(), KEEP),
            1 => Settlement::failed(n.to_string(), KEEP),
            2 => Settlement::retry(n.to_string(), KEEP),
            _ => Settlement::release(KEEP),
        };
        tasks.spawn(async move { (n, store.settle(id, lease_token, settle).await.unwrap()) });
    }
    for (n, ownership) in tasks.join_all().await {
        let expected = [Ownership::Lost, Ownership::Held][n / 100];
        assert_eq!(ownership, expected, "{n}");
    }
    for (n, entry) in leased.iter().enumerate() {
        let found = store.find(entry.id).await.unwrap().unwrap();
        let n = n + 100;
        let (result, note) = (Some(n.to_string()), n.to_string());
        let notes: Vec<_> = found.history.iter().map(|n| &*n.note).collect();
        let result_is = found.result.as_deref().map(String::from_utf8_lossy);
        match n % 4 {
            0 => assert_eq!(result_is.as_deref(), result.as_deref()),
            3 => assert_eq!((notes.len(), found.attempts), (0, 1)),
            _ => assert_eq!(notes, [note]),
        }
        let expected = [
            Status::Completed,
            Status::Failed,
            Status::Queued,
            Status::Queued,
        ];
        assert_eq!(found.status, expected[n % 4]);
    }
    postgres.drop().await;
}

/// Many who take a key over at the same time, again and again: one entry at a time has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_3_a_key_that_is_freed_is_taken_once() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    for round in 0..20 {
        let mut tasks = JoinSet::new();
        for _ in 0..8 {
            let store = store.clone();
            let new = NewEntry {
                dedup: Some(Dedup {
                    key: RecordKey::new([1; 32]),
                    fingerprint: Fingerprint::new([round; 32]),
                }),
                ..NewEntry::new("mails", "payload")
            };
            tasks.spawn(async move { store.enqueue(new).await.expect("enqueue") });
        }
        let enqueued = tasks.join_all().await;
        let new: Vec<_> = enqueued
            .iter()
            .filter_map(|enqueued| match enqueued {
                Enqueued::New(entry) => Some(entry.id),
                _ => None,
            })
            .collect();
        let [id] = new[..] else {
            panic!("{enqueued:?}");
        };
        for enqueued in &enqueued {
            assert!(
                matches!(enqueued, Enqueued::New(entry) | Enqueued::Existing(entry) if entry.id == id)
            );
        }
        // Called off in turns, past its time in turns.
        if round % 2 == 0 {
            store.command(id, EntryCommand::Cancel(KEEP)).await.unwrap();
        } else {
            postgres.pass(Duration::from_secs(24 * 60 * 60)).await;
        }
    }
    postgres.drop().await;
}

/// J-18: two processes that enqueue to the same bounded queues, in the opposite order, do not stop each
/// other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_18_batches_of_several_bounded_queues_never_deadlock() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let stores = [postgres.store().await, postgres.store().await];
    let mut tasks = JoinSet::new();
    for n in 0..6000 {
        let (of, right) = (n % 2, n / 2 % 2);
        let store = stores[of].clone();
        let queue = ["left", "right"][right];
        // By their keys, the entries of one process are in the opposite order of the other's.
        let mut bytes = [if of == right { 0 } else { 255 }; 32];
        bytes[24..].copy_from_slice(&(n as u64).to_ne_bytes());
        let new = NewEntry {
            dedup: Some(Dedup {
                key: RecordKey::new(bytes),
                fingerprint: Fingerprint::new([1; 32]),
            }),
            bounds: Some(QueueBounds {
                in_all: 6000,
                per_owner: 6000,
            }),
            ..NewEntry::new(queue, "payload")
        };
        tasks.spawn(async move { store.enqueue(new).await });
    }
    for enqueued in tasks.join_all().await {
        assert!(matches!(enqueued, Ok(Enqueued::New(_))), "{enqueued:?}");
    }
    postgres.drop().await;
}

/// J-18: nor do two processes that settle entries of the same bounded queues.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_18_settlements_of_several_bounded_queues_never_deadlock() {
    const EACH: usize = 1500;
    const SIDE_BY_SIDE: usize = 125;
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let stores = [postgres.store().await, postgres.store().await];
    // In the table, and in its batches, the entries of one process are in the opposite order of the
    // other's.
    let mut leased = Vec::new();
    for (store, queue) in [(0, "left"), (0, "right"), (1, "right"), (1, "left")] {
        let mut enqueued = JoinSet::new();
        for _ in 0..EACH {
            let store = stores[store].clone();
            let bounds = QueueBounds {
                in_all: 6000,
                per_owner: 6000,
            };
            let new = NewEntry {
                bounds: Some(bounds),
                ..NewEntry::new(queue, "payload")
            };
            enqueued.spawn(async move { store.enqueue(new).await });
        }
        for enqueued in enqueued.join_all().await {
            assert!(matches!(enqueued, Ok(Enqueued::New(_))), "{enqueued:?}");
        }
        let mut entries = Vec::new();
        while entries.len() < EACH {
            let limit = (EACH - entries.len()) as u32;
            let request = LeaseRequest::new(queue, "", limit, LEASE);
            entries.extend(stores[store].lease(request).await.unwrap());
        }
        leased.push((store, entries));
    }
    // The store repeats what was in a deadlock, and is late.
    let deadlocks = async || {
        let end = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity \
                   WHERE application_name = 'tower-reprise' AND query LIKE '%{schema}%'";
        postgres.count(end).await;
        let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        postgres.count(sql).await
    };
    let before = deadlocks().await;
    let mut tasks = JoinSet::new();
    // Many of one queue and then many of the other, so that both processes are between the two.
    for from in (0..EACH).step_by(SIDE_BY_SIDE) {
        for (store, entries) in &leased {
            for entry in &entries[from..from + SIDE_BY_SIDE] {
                let (store, id, token) = (stores[*store].clone(), entry.id, entry.lease_token);
                let settlement = Settlement::completed("", KEEP);
                tasks.spawn(async move { store.settle(id, token, settlement).await });
            }
        }
    }
    for settled in tasks.join_all().await {
        assert!(matches!(settled, Ok(Ownership::Held)), "{settled:?}");
    }
    assert_eq!(deadlocks().await, before);
    postgres.drop().await;
}

/// J-5, J-19: whatever is queued, what is next is found by its index, and so is what is whose and where an
/// entry stands: in a lane full of entries, due or not, no more rows are read than in a short one.
#[tokio::test]
async fn j_19_no_verb_costs_more_in_a_long_queue() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.builder().connections(1).connect().await.unwrap();
    let fill = async |entries: u32, due: &str| {
        let filled = format!(
            "INSERT INTO {{schema}}.reprise_idempotency_journal \
               (id, queue, lane, owner, label, priority, status, turn, attempts, queued, due, \
                expires, changed, leased, until, history, payload) \
             SELECT decode(md5(random()::text || n), 'hex'), 'mails', '', '', '', n % 4, 0, 0, 0, n, \
                {due} + n, 9007199254740991, n, 0, 0, '', 'payload' \
             FROM generate_series(1, {entries}) n"
        );
        postgres.execute(&filled).await;
    };
    // Rows that were looked at, by whatever plan.
    let rows = "SELECT (sum(seq_tup_read) + sum(idx_tup_fetch))::bigint \
                FROM pg_stat_user_tables WHERE schemaname = '{schema}' \
                AND relname = 'reprise_idempotency_journal'";
    let scans = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes \
                 WHERE schemaname = '{schema}' AND relname = 'reprise_idempotency_journal'";
    let ada = Query {
        owner: Some("ada".to_owned()),
        ..Query::new("mails", 10)
    };
    let last = NewEntry {
        priority: Priority::Low,
        ..NewEntry::new("mails", "payload")
    };
    let last = put(&store, last).await;
    let look = async || {
        let before = (postgres.count(rows).await, postgres.count(scans).await);
        assert_eq!(store.lanes("mails", None, 10).await.unwrap(), [""]);
        let mut leased = store.lease(want(10)).await.unwrap();
        assert_eq!(leased.len(), 10);
        for entry in leased.drain(..) {
            let (id, token) = (entry.id, entry.lease_token);
            let settled = store.settle(id, token, Settlement::completed("", KEEP));
            assert_eq!(settled.await.unwrap(), Ownership::Held);
        }
        let in_order = LeaseRequest {
            in_order: true,
            ..want(1)
        };
        let first = store.lease(in_order).await.unwrap().remove(0);
        let completed = Settlement::completed("", KEEP);
        let settled = store.settle(first.id, first.lease_token, completed);
        assert_eq!(settled.await.unwrap(), Ownership::Held);
        assert_eq!(store.list(ada.clone()).await.unwrap(), []);
        assert_eq!(store.position(last, 50).await.unwrap(), Some(50));
        // A session reports its statistics when it ends.
        eventually("told", async || {
            let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE application_name = 'tower-reprise' AND query LIKE '%{schema}%'";
            postgres.count(end).await;
            postgres.count(scans).await > before.1
        })
        .await;
        let read = postgres.count(rows).await - before.0;
        read + postgres.count(scans).await - before.1
    };
    fill(1000, "0").await;
    let short = look().await;
    fill(10_000, "0").await;
    fill(10_000, "9000000000000000").await;
    let long = look().await;
    assert!(short > 0 && long <= 2 * short, "{short}, then {long}");
    // T-8: nor do lanes that wait cost anything when little is due.
    postgres
        .execute("ANALYZE {schema}.reprise_idempotency_journal")
        .await;
    let ready = "SELECT lane, leased FROM {schema}.reprise_idempotency_journal \
                 WHERE queue = 'mails' AND status = 0 AND due <= 50 ORDER BY due LIMIT 257";
    let plan = postgres.plan(ready).await;
    assert!(plan.contains("reprise_idempotency_journal_ready"), "{plan}");
    assert!(!plan.contains("Sort"), "{plan}");
    postgres.drop().await;
}

/// The columns that never change, from the payload on, come after those that do; otherwise the server
/// logs them with each outcome.
#[tokio::test]
async fn the_payload_is_the_last_column() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    postgres.store().await;
    let last = "SELECT count(*) FROM information_schema.columns c WHERE table_schema = '{schema}' \
                AND table_name = 'reprise_idempotency_journal' AND column_name NOT IN ('version', 'reason', 'in_all', 'per_owner', 'own', 'shared') \
                AND ordinal_position > (SELECT ordinal_position FROM information_schema.columns p \
                  WHERE p.table_schema = c.table_schema AND p.table_name = c.table_name \
                  AND p.column_name = 'payload')";
    assert_eq!(postgres.count(last).await, 0);
    postgres.drop().await;
}

#[tokio::test]
async fn t_3_what_was_kept_long_enough_is_swept() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let new = NewEntry::new("mails", "payload");
    for _ in 0..10 {
        let id = put(&store, NewEntry::new("mails", "payload")).await;
        store.command(id, EntryCommand::Cancel(KEEP)).await.unwrap();
    }
    let id = put(&store, new.clone()).await;
    store.command(id, EntryCommand::Cancel(KEEP)).await.unwrap();
    let live = put(&store, NewEntry::new("mails", "payload")).await;
    assert_eq!(store.sweep(100).await.unwrap(), 0, "too early");
    postgres.pass(KEEP).await;
    // One that is not swept yet is in nobody's way.
    put(&store, new).await;
    assert_eq!(store.sweep(7).await.unwrap(), 7);
    assert_eq!(store.sweep(7).await.unwrap(), 3);
    assert_eq!(status(&store, live).await, Some(Status::Queued));
    postgres.drop().await;
}

// Versions 12, 11, 9, 8, 7, 6 and 5 the other way round.
pub(super) const DROP_SHARING: &str = "DROP FUNCTION {schema}.reprise_idempotency_shared, \
                                       {schema}.reprise_idempotency_released CASCADE";
pub(super) const DROP_ENDS: &str = "DROP TABLE {schema}.reprise_idempotency_shared, \
                                    {schema}.reprise_idempotency_released";
pub(super) const DROP_OWN: &str =
    "ALTER TABLE {schema}.reprise_idempotency_journal DROP COLUMN own, DROP COLUMN shared";
pub(super) const DROP_FINISHED: &str = "DROP FUNCTION {schema}.reprise_idempotency_finished, \
                                        {schema}.reprise_idempotency_removed, \
                                        {schema}.reprise_idempotency_entries CASCADE";
pub(super) const DROP_SUMS: &str = "DO $$ BEGIN \
    DROP TABLE {schema}.reprise_idempotency_finished, {schema}.reprise_idempotency_entries; \
    DROP INDEX IF EXISTS {schema}.reprise_idempotency_journal_waiting, \
      {schema}.reprise_idempotency_journal_expiring; END $$";
const DROP_COUNT: &str = "DROP FUNCTION {schema}.reprise_idempotency_open CASCADE";
const DROP_READY: &str = "DROP INDEX {schema}.reprise_idempotency_journal_ready";
const DROP_OPEN: &str = "DROP TABLE {schema}.reprise_idempotency_open";
const DROP_BOUNDS: &str = "ALTER TABLE {schema}.reprise_idempotency_journal \
                           DROP COLUMN reason, DROP COLUMN in_all, DROP COLUMN per_owner";
const DROP_REPLIES: &str = "DROP TABLE {schema}.reprise_idempotency_reply";
const DROP_WATCHED: &str = "ALTER TABLE {schema}.reprise_idempotency DROP COLUMN watched";
const DROP_SWEEP_AFTER: &str = "ALTER TABLE {schema}.reprise_idempotency DROP COLUMN sweep_after";
const CREATE_EXPIRES: &str =
    "CREATE INDEX reprise_idempotency_expires ON {schema}.reprise_idempotency (expires)";

#[tokio::test]
async fn t_5_a_table_of_version_1_keeps_its_records() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let token = own(&store, claim(1)).await;
    drop(store);
    for sql in [
        "DROP VIEW {schema}.reprise_idempotency_calls",
        "DROP TABLE {schema}.reprise_idempotency_journal",
        "DROP TABLE {schema}.reprise_idempotency_secret",
        DROP_SHARING,
        DROP_ENDS,
        DROP_FINISHED,
        DROP_SUMS,
        DROP_COUNT,
        DROP_OPEN,
        DROP_REPLIES,
        DROP_WATCHED,
        DROP_SWEEP_AFTER,
        CREATE_EXPIRES,
        "DELETE FROM {schema}.reprise_idempotency_version WHERE version >= 2",
    ] {
        postgres.execute(sql).await;
    }
    let store = postgres.store().await;
    complete(&store, 1, token, reply("paid")).await;
    put(&store, NewEntry::new("mails", "payload")).await;
    assert_ne!(store.secret().await.unwrap(), [0; 32]);
    postgres.drop().await;
}

#[tokio::test]
async fn t_5_a_table_of_version_2_keeps_its_entries() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let ids = [
        put(&store, NewEntry::new("mails", vec![7; 10_000])).await,
        put(&store, NewEntry::new("mails", "payload")).await,
    ];
    drop(store);
    let history = "00000000000000010003503\
                   00000000000000020008redriven00000000000000030003503\
                   00000000000000040008redriven00000000000000050004é 3";
    for sql in [
        &*format!(
            "UPDATE {{schema}}.reprise_idempotency_journal \
             SET history = convert_to('{history}', 'UTF8') WHERE payload = 'payload'"
        ),
        "DROP VIEW {schema}.reprise_idempotency_calls",
        "ALTER TABLE {schema}.reprise_idempotency_journal DROP COLUMN version, \
         DROP COLUMN redrives, DROP COLUMN repeats, DROP COLUMN cause",
        DROP_READY,
        DROP_SHARING,
        DROP_ENDS,
        DROP_FINISHED,
        DROP_SUMS,
        DROP_COUNT,
        DROP_OPEN,
        DROP_BOUNDS,
        DROP_OWN,
        DROP_REPLIES,
        DROP_WATCHED,
        DROP_SWEEP_AFTER,
        CREATE_EXPIRES,
        "DELETE FROM {schema}.reprise_idempotency_version WHERE version > 2",
    ] {
        postgres.execute(sql).await;
    }
    let store = postgres.store().await;
    let large = store.find(ids[0]).await.unwrap().unwrap();
    let redriven = store.find(ids[1]).await.unwrap().unwrap();
    assert_eq!((large.redrives, redriven.redrives), (0, 2));
    assert_eq!((&redriven.cause, redriven.repeats), (&None, 0));
    assert_eq!((large.payload.len(), redriven.history.len()), (10_000, 5));
    let leased = store.lease(want(9)).await.unwrap();
    for entry in &leased {
        let settle = Settlement::retry("503", Duration::ZERO).cause("http_503");
        let settled = store.settle(entry.id, entry.lease_token, settle).await;
        assert_eq!(settled.unwrap(), Ownership::Held);
    }
    let found = store.find(ids[1]).await.unwrap().unwrap();
    assert_eq!(found.cause.as_deref(), Some("http_503"));
    put(&store, NewEntry::new("mails", "payload")).await;
    postgres.drop().await;
}

#[tokio::test]
async fn t_5_a_table_of_version_6_keeps_its_replies() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    for key in [1, 2] {
        let token = own(&store, claim(key)).await;
        complete(&store, key, token, reply("paid")).await;
    }
    drop(store);
    for sql in [
        "UPDATE {schema}.reprise_idempotency r SET reply = s.reply \
         FROM {schema}.reprise_idempotency_reply s WHERE s.key = r.key AND s.token = r.token",
        DROP_READY,
        DROP_SHARING,
        DROP_ENDS,
        DROP_FINISHED,
        DROP_SUMS,
        DROP_COUNT,
        DROP_OPEN,
        DROP_BOUNDS,
        DROP_OWN,
        DROP_REPLIES,
        "DELETE FROM {schema}.reprise_idempotency_version WHERE version > 6",
    ] {
        postgres.execute(sql).await;
    }
    let store = postgres.store().await;
    for key in [1, 2] {
        let found = store.claim(claim(key)).await.unwrap();
        assert_eq!(found, Claimed::done(reply("paid")));
    }
    let token = own(&store, claim(3)).await;
    complete(&store, 3, token, reply("paid")).await;
    let found = store.claim(claim(3)).await.unwrap();
    assert_eq!(found, Claimed::done(reply("paid")));
    postgres.drop().await;
}

/// Names are cut by the server: those of the longest table must still differ.
#[tokio::test]
async fn t_5_the_longest_name_will_do() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let builder = postgres.builder().table("t".repeat(48));
    let store = builder.connect().await.unwrap();
    put(&store, NewEntry::new("mails", "payload")).await;
    let longest = "SELECT max(length(relname)) FROM pg_class c JOIN pg_namespace n \
                   ON n.oid = relnamespace WHERE nspname = '{schema}' AND relname LIKE 't%'";
    let longest = longest.replace("max(length(relname))", "max(length(relname))::bigint");
    assert!(postgres.count(&longest).await <= 63);
    postgres.drop().await;
}

/// The outbox of somebody else's transaction.
#[tokio::test]
async fn w_8_an_entry_is_part_of_a_transaction() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let mut client = client(&postgres.url).await;
    let new = NewEntry {
        dedup: Some(Dedup {
            key: RecordKey::new([1; 32]),
            fingerprint: Fingerprint::new([1; 32]),
        }),
        ..NewEntry::new("mails", "payload")
    };
    for commit in [false, true] {
        let transaction = client.transaction().await.unwrap();
        let enqueued = store.enqueue_in(&transaction, new.clone()).await.unwrap();
        assert!(matches!(enqueued, Enqueued::New(_)), "{enqueued:?}");
        assert_eq!(store.lease(want(9)).await.unwrap(), [], "not committed");
        match commit {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        let expected = commit.then_some(Status::Queued);
        assert_eq!(status(&store, new.id).await, expected);
    }
    let transaction = client.transaction().await.unwrap();
    let again = store.enqueue_in(&transaction, new.clone()).await.unwrap();
    assert!(matches!(again, Enqueued::Existing(entry) if entry.id == new.id));
    transaction.commit().await.unwrap();
    assert_eq!(store.lease(want(9)).await.unwrap().len(), 1);
    postgres.drop().await;
}

/// T-7: what is enqueued in a user's transaction is sealed as all else.
#[cfg(feature = "seal")]
#[tokio::test]
async fn t_7_what_is_enqueued_in_a_transaction_is_sealed() {
    use tower_reprise::store::{SealKeys, Sealed};

    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let sealed = Sealed::new(store.clone(), SealKeys::try_new("a", &[7; 32]).unwrap());
    let mut client = client(&postgres.url).await;
    let transaction = client.transaction().await.unwrap();
    let new = NewEntry::new("mails", "s3cret");
    sealed.enqueue_in(&transaction, new.clone()).await.unwrap();
    transaction.commit().await.unwrap();
    let stored = store.find(new.id).await.unwrap().unwrap();
    assert!(!stored.payload.windows(6).any(|bytes| bytes == b"s3cret"));
    let leased = sealed.lease(want(9)).await.unwrap();
    assert_eq!(&*leased[0].payload, b"s3cret");
    postgres.drop().await;
}

/// A lease whose answer got lost is not asked for again, and all else is.
#[tokio::test]
async fn j_11_a_lease_in_doubt_is_not_repeated() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let ids = [
        put(&store, NewEntry::new("mails", "payload")).await,
        put(&store, NewEntry::new("mails", "payload")).await,
    ];
    // Every update of a row waits for an advisory lock.
    postgres
        .execute(
            "CREATE FUNCTION {schema}.wait() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_advisory_xact_lock(hashtext(TG_TABLE_SCHEMA)); RETURN NEW; END'",
        )
        .await;
    postgres
        .execute(
            "CREATE TRIGGER wait BEFORE UPDATE ON {schema}.reprise_idempotency_journal \
             FOR EACH ROW EXECUTE FUNCTION {schema}.wait()",
        )
        .await;
    let mut other = client(&postgres.url).await;
    let transaction = other.transaction().await.unwrap();
    let lock = format!(
        "SELECT pg_advisory_xact_lock(hashtext('{}'))",
        postgres.schema
    );
    transaction.execute(&lock, &[]).await.unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE application_name = 'tower-reprise' AND query LIKE '%{schema}%' \
               AND wait_event_type = 'Lock'";
    let leasing = tokio::spawn({
        let store = store.clone();
        async move { store.lease(want(1)).await }
    });
    eventually("one is ended", async || postgres.count(end).await > 0).await;
    let error = leasing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.may_have_happened());

    let steering = tokio::spawn({
        let store = store.clone();
        async move { store.command(ids[1], EntryCommand::Cancel(KEEP)).await }
    });
    eventually("one is ended", async || postgres.count(end).await > 0).await;
    transaction.rollback().await.unwrap();
    assert!(steering.await.unwrap().unwrap().unwrap().applied);
    assert_eq!(status(&store, ids[0]).await, Some(Status::Queued));
    postgres.drop().await;
}

/// All or nothing: an outcome whose outbox the server refuses is none.
#[tokio::test]
async fn w_8_an_outbox_that_is_refused_leaves_the_turn_on() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    let id = put(&store, NewEntry::new("mails", "payload")).await;
    let leased = store.lease(want(1)).await.unwrap();
    let follow = NewEntry::new("callbacks", "done");
    let refused = NewEntry {
        lane: "no server takes a \0".to_owned(),
        ..NewEntry::new("callbacks", "done")
    };
    let settle = |outbox: &[NewEntry]| {
        let settle = Settlement::completed("done", KEEP).followed_by(outbox.iter().cloned());
        store.settle(id, leased[0].lease_token, settle)
    };
    let error = settle(&[follow.clone(), refused]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other, "{error}");
    assert_eq!(status(&store, id).await, Some(Status::Processing));
    assert_eq!(status(&store, follow.id).await, None);
    let settled = settle(std::slice::from_ref(&follow)).await;
    assert_eq!(settled.unwrap(), Ownership::Held);
    assert_eq!(status(&store, id).await, Some(Status::Completed));
    assert_eq!(status(&store, follow.id).await, Some(Status::Queued));
    postgres.drop().await;
}
