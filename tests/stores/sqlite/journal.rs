//! The journal in the same file.

use std::{fs, time::Duration};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use rusqlite::Connection;
use tokio::task::JoinSet;
use tower_reprise::store::journal::{
    Enqueued, EntryCommand, EntryId, Journal, LeaseRequest, LeaseToken, NewEntry, Query,
    Settlement, Status,
};
use tower_reprise::store::{
    Claimed, FencingToken, IdempotencyStore, Ownership, SqliteStore, StoreErrorKind, conformance,
};

use super::{Folder, Sqlite, reply};
use crate::support::{
    races,
    records::{LEASE, RETENTION, claim, complete, own},
};

const KEEP: Duration = Duration::from_secs(60);

fn entry(bytes: usize) -> NewEntry {
    NewEntry::new("mails", vec![7; bytes])
}

async fn put(store: &SqliteStore, new: NewEntry) -> EntryId {
    let id = new.id;
    let enqueued = store.enqueue(new).await.unwrap();
    assert!(matches!(enqueued, Enqueued::New(_)), "{enqueued:?}");
    id
}

fn want(limit: u32) -> LeaseRequest {
    LeaseRequest::new("mails", "", limit, LEASE)
}

#[tokio::test]
async fn t_1_t_2_t_3_the_contract_of_a_journal() {
    conformance::journal(&Sqlite::new()).await;
}

#[cfg(all(feature = "axum", feature = "delivery"))]
#[tokio::test]
async fn w_9_w_10_an_endpoint_is_disabled_and_recovered() {
    crate::webhooks::an_endpoint_is_disabled_and_recovered(&Sqlite::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_7_cancel_against_start_has_one_winner() {
    let sqlite = Sqlite::new();
    races::cancel_against_start([sqlite.open(), sqlite.open()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_5_two_handles_keep_the_order() {
    let sqlite = Sqlite::new();
    races::leases_keep_the_order([sqlite.open(), sqlite.open()]).await;
}

#[tokio::test]
async fn t_3_what_was_kept_long_enough_is_swept() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let mut entries = JoinSet::new();
    for _ in 0..1_000 {
        let store = store.clone();
        entries.spawn(async move {
            let id = put(&store, entry(10)).await;
            store.command(id, EntryCommand::Cancel(KEEP)).await.unwrap();
            id
        });
    }
    let swept = entries.join_all().await;
    let live = put(&store, entry(10)).await;
    sqlite.time.pass(KEEP);
    drop(store);
    let store = sqlite.open();
    let rows = || -> i64 {
        let connection = Connection::open(sqlite.folder.file()).unwrap();
        let count = "SELECT count(*) FROM journal";
        connection.query_row(count, [], |row| row.get(0)).unwrap()
    };
    let until_one_is_left = async {
        while rows() != 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, until_one_is_left)
        .await
        .expect("swept");
    assert!(store.find(live).await.unwrap().is_some());
    // An id that was swept is free again.
    let again = NewEntry {
        id: swept[0],
        ..entry(10)
    };
    put(&store, again).await;
}

/// An expired entry that is not swept yet does not block its id.
#[tokio::test]
async fn t_3_what_is_gone_frees_its_id() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let new = entry(1);
    let first = put(&store, new.clone()).await;
    let kept = store
        .command(first, EntryCommand::Cancel(KEEP))
        .await
        .unwrap();
    let before = kept.unwrap().entry.sequence;
    sqlite.time.pass(KEEP);
    assert_eq!(store.find(first).await.unwrap(), None);
    assert_eq!(
        store.command(first, EntryCommand::Trigger).await.unwrap(),
        None
    );
    put(&store, new).await;
    let found = store.find(first).await.unwrap().unwrap();
    assert!(found.sequence > before, "a sequence is not used twice");
}

const SCHEMAS: [&str; 2] = [
    include_str!("../../../src/store/sqlite/schema/1.sql"),
    include_str!("../../../src/store/sqlite/schema/2.sql"),
];

/// A file as that version left it.
fn old_file(sqlite: &Sqlite, version: usize) -> Connection {
    let old = Connection::open(sqlite.folder.file()).unwrap();
    old.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))
        .unwrap();
    for schema in &SCHEMAS[..version] {
        old.execute_batch(schema).unwrap();
    }
    old.pragma_update(None, "application_id", 0x7270_7273)
        .unwrap();
    old.pragma_update(None, "user_version", version as i64)
        .unwrap();
    old
}

#[tokio::test]
async fn t_5_a_file_of_version_2_keeps_its_entries() {
    let sqlite = Sqlite::new();
    let old = old_file(&sqlite, 2);
    old.execute("INSERT INTO journal_secret VALUES (?1)", [[7_u8; 32]])
        .unwrap();
    let history = "00000000000000010003503\
                   00000000000000020008redriven00000000000000030003503\
                   00000000000000040008redriven00000000000000050003503";
    let ids: [EntryId; 3] = std::array::from_fn(|_| EntryId::random());
    for (n, id) in ids.iter().enumerate() {
        let (status, history) = [(0, ""), (3, history), (0, "")][n];
        old.execute(
            "INSERT INTO journal (id, queue, lane, owner, label, dedup, fingerprint, priority,
               status, turn, attempts, queued, due, expires, changed, until, history, payload)
             VALUES (?1, 'mails', '', 'ada', 'POST', ?2, ?2, 2, ?3, 7, 4, 1, 2, ?4, 3, ?4, ?5, ?6)",
            (
                id.as_bytes(),
                [u8::try_from(n).unwrap(); 32],
                status,
                1_i64 << 52,
                history,
                vec![7_u8; 380_000],
            ),
        )
        .unwrap();
    }
    old.execute("DELETE FROM journal WHERE sequence = 3", [])
        .unwrap();
    drop(old);

    // A copy must fit, whatever the file may grow to from then on.
    let store = sqlite.time.store().max_bytes(1 << 20);
    let store = store.open(sqlite.folder.file()).unwrap();
    let queued = store.find(ids[0]).await.unwrap().unwrap();
    let failed = store.find(ids[1]).await.unwrap().unwrap();
    assert_eq!((queued.redrives, failed.redrives), (0, 2));
    assert_eq!((&failed.cause, failed.repeats), (&None, 0));
    assert_eq!(
        (failed.lease_token, failed.attempts),
        (LeaseToken::new(7), 4)
    );
    assert_eq!((failed.history.len(), failed.payload.len()), (5, 380_000));
    assert_eq!((&*failed.owner, &*failed.label), ("ada", "POST"));
    assert_eq!(store.secret().await.unwrap(), [7; 32]);
    let redriven = store.command(ids[1], EntryCommand::Redrive(KEEP)).await;
    assert_eq!(redriven.unwrap().unwrap().entry.redrives, 3);
    let id = put(&store, entry(1)).await;
    let found = store.find(id).await.unwrap().unwrap();
    assert_eq!(found.sequence, 4, "a sequence is not used twice");
    assert_eq!(store.lease(want(9)).await.unwrap().len(), 3);
}

#[tokio::test]
async fn t_5_a_file_of_version_1_keeps_its_records() {
    let sqlite = Sqlite::new();
    let old = old_file(&sqlite, 1);
    old.execute(
        "INSERT INTO idempotency VALUES (77, ?1, ?2, x'00', ?3, ?3, 0, NULL, NULL)",
        (claim(1).key.as_bytes(), [1_u8; 32], i64::MAX),
    )
    .unwrap();
    drop(old);

    let store = sqlite.open();
    complete(&store, 1, FencingToken::new(77), reply(10)).await;
    put(&store, entry(1)).await;
    let store = sqlite.open();
    let claimed = store.claim(claim(1)).await.unwrap();
    assert_eq!(claimed, Claimed::done(reply(10)));
    assert!(own(&store, claim(2)).await > FencingToken::new(77));
    assert_eq!(store.lease(want(9)).await.unwrap().len(), 1);
    assert_ne!(store.secret().await.unwrap(), [0; 32]);
}

#[tokio::test]
async fn t_4_j_2_a_full_file_refuses_and_still_answers() {
    let sqlite = Sqlite::new();
    let store = sqlite.time.store().max_bytes(1 << 20);
    let store = store.open(sqlite.folder.file()).unwrap();
    let mut accepted = Vec::new();
    let (refused, error) = loop {
        let new = entry(10_000);
        let id = new.id;
        match store.enqueue(new).await {
            Ok(_) => accepted.push(id),
            Err(error) => break (id, error),
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert!(!error.may_have_happened());
    assert!(accepted.len() > 50);
    assert_eq!(store.find(refused).await.unwrap(), None);
    let all = Query::new("mails", 1_000);
    let listed = store.list(all).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|entry| entry.id).collect();
    assert_eq!(listed, accepted);

    // All or nothing: an outcome whose outbox does not fit is none, though it alone would fit.
    let Ok([leased]) = <[_; 1]>::try_from(store.lease(want(1)).await.unwrap()) else {
        panic!("one was asked for");
    };
    let connection = Connection::open(sqlite.folder.file()).unwrap();
    let newest = "SELECT sequence FROM journal ORDER BY sequence DESC LIMIT 3";
    let delete = format!("DELETE FROM journal WHERE sequence IN ({newest})");
    assert_eq!(connection.execute(&delete, []).unwrap(), 3);
    let queued = accepted.len() as u64 - 4;
    let settle = Settlement::completed("", KEEP).followed_by([entry(1), entry(300_000)]);
    let error = store.settle(leased.id, leased.lease_token, settle).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Full);
    let found = store.find(leased.id).await.unwrap();
    assert_eq!(found.unwrap().status, Status::Processing);
    let counts = store.counts("mails").await.unwrap();
    assert_eq!(counts.of(Status::Queued), queued);
    let settle = Settlement::completed("", KEEP).followed_by([entry(1)]);
    let settled = store.settle(leased.id, leased.lease_token, settle).await;
    assert_eq!(settled.unwrap(), Ownership::Held);
    let counts = store.counts("mails").await.unwrap();
    assert_eq!(counts.of(Status::Queued), queued + 1);
}

#[tokio::test]
async fn t_4_a_file_that_is_gone_refuses() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    let id = put(&store, entry(1)).await;
    fs::remove_dir_all(&sqlite.folder.0).unwrap();
    let lease_token = LeaseToken::new(1);
    for error in [
        store.enqueue(entry(1)).await.map(drop).unwrap_err(),
        store.lease(want(1)).await.map(drop).unwrap_err(),
        store
            .extend(id, lease_token, LEASE)
            .await
            .map(drop)
            .unwrap_err(),
        store
            .settle(id, lease_token, Settlement::release(LEASE))
            .await
            .map(drop)
            .unwrap_err(),
        store
            .command(id, EntryCommand::Trigger)
            .await
            .map(drop)
            .unwrap_err(),
        store.find(id).await.map(drop).unwrap_err(),
        store.lanes("mails", None, 1).await.map(drop).unwrap_err(),
        store.counts("mails").await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(!error.may_have_happened());
    }
}

#[tokio::test]
async fn t_4_a_row_that_makes_no_sense_is_corrupt() {
    for nonsense in [
        "status = 9, until = 1 << 60",
        "priority = 4",
        "id = x'01'",
        "attempts = -1",
    ] {
        let sqlite = Sqlite::new();
        let store = sqlite.open();
        put(&store, entry(1)).await;
        let sql = format!("UPDATE journal SET {nonsense}");
        let connection = Connection::open(sqlite.folder.file()).unwrap();
        connection.execute_batch(&sql).unwrap();
        let error = store.list(Query::new("mails", 9)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{nonsense}: {error}");
    }
}

// --- kills --------------------------------------------------------------------------------------

const CHILD: &str = "REPRISE_JOURNAL_CHILD";

/// Whatever a process was told before it was killed is there afterwards, again and again on the same
/// file.
#[tokio::test]
async fn t_4_j_14_nothing_acknowledged_is_lost_to_a_kill() {
    let folder = Folder::on_disk();
    drop(SqliteStore::open(folder.file()).unwrap());
    let mut told = Vec::new();
    for round in 1..=10 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "sqlite::journal::child_that_is_killed",
                "--exact",
                "--ignored",
            ])
            .arg("--nocapture")
            .env(CHILD, folder.file())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        told.extend(lines.by_ref().take(round * 15).map(Result::unwrap));
        child.kill().unwrap();
        // The lines that the child had written by then.
        told.extend(lines.map(Result::unwrap));
        child.wait().unwrap();

        let store = SqliteStore::open(folder.file()).unwrap();
        for line in &told {
            let words: Vec<_> = line.split(' ').collect();
            let id: EntryId = words[1].parse().unwrap();
            let found = store.find(id).await.unwrap().expect(line);
            match words[0] {
                "queued" => {}
                "leased" => assert!(
                    found.lease_token.get() >= words[2].parse().unwrap(),
                    "{line}"
                ),
                "settled" => {
                    assert_eq!(found.status, Status::Completed, "{line}");
                    assert_eq!(found.result.as_deref(), Some(&b"done"[..]), "{line}");
                    let follow = words[2].parse().unwrap();
                    assert!(store.find(follow).await.unwrap().is_some(), "{line}");
                }
                _ => panic!("{line}"),
            }
        }
    }
    let settled = told.iter().filter(|line| line.starts_with("settled"));
    assert!(settled.count() > 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "another test runs it, in a process of its own"]
async fn child_that_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    // One write, so that a kill can't tear it.
    let say = |line: String| std::io::stderr().write_all(line.as_bytes()).unwrap();
    let store = SqliteStore::open(path).unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let store = store.clone();
        tasks.spawn(async move {
            loop {
                let id = put(&store, entry(100)).await;
                say(format!("queued {id}\n"));
                for leased in store.lease(want(1)).await.unwrap() {
                    let (id, lease_token) = (leased.id, leased.lease_token);
                    say(format!("leased {id} {}\n", lease_token.get()));
                    let next = NewEntry::new("callbacks", "done");
                    let follow = next.id;
                    let settle = Settlement::completed("done", RETENTION).followed_by([next]);
                    let settled = store.settle(id, lease_token, settle).await;
                    assert_eq!(settled.unwrap(), Ownership::Held);
                    say(format!("settled {id} {follow}\n"));
                }
            }
        });
    }
    tasks.join_all().await;
}
