//! T-9: a server whose tables have no room takes no new operations, and the outcomes of those that
//! run.

use std::time::Duration;

use tower_reprise::store::{
    Claimed, IdempotencyStore, Ownership, PostgresStore, StoreErrorKind, Stored,
    journal::{Journal, LeaseRequest, NewEntry, Settlement},
};

use super::client;
use crate::support::{
    database::{Folder, left_out, run},
    disk,
    postgres::{Own, is_root},
    process::{self, Process, say},
    records::{LEASE, RETENTION, claim, complete, own, reply},
};

const RUNNING: u64 = 30;

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn child() {
    process::child(async |_, words| fills(words[0]).await);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn t_9_a_full_disk_takes_the_outcomes_of_what_runs() {
    if crate::support::postgres::postgres_bin().is_none() {
        left_out("a full PostgreSQL", "there is no server to start");
        return;
    }
    let folder = Folder::new();
    let path = folder.path().to_str().unwrap();
    let child = disk::with_disk(
        "a full PostgreSQL",
        &disk::in_memory(8),
        &folder,
        |command| Process::run(command, "postgres::full::child", "full", &[path]),
    );
    if let Some(mut child) = child {
        assert_eq!(child.expect("and").await, "all came to its end");
    }
}

/// The process on that disk, on which only the tables are: its log has room.
async fn fills(disk: &str) {
    let server = Own::new().await.expect("a server");
    if is_root() {
        run(std::process::Command::new("chown").args(["postgres", disk]));
    }
    let admin = client(&server.url()).await;
    let space = format!("CREATE TABLESPACE small LOCATION '{disk}'");
    admin.execute(&space, &[]).await.unwrap();
    let default = "ALTER ROLE reprise SET default_tablespace = 'small'";
    admin.execute(default, &[]).await.unwrap();
    let store = PostgresStore::connect(server.url()).await.unwrap();
    // Every table and index has a page.
    store
        .enqueue(NewEntry::new("mails", "first"))
        .await
        .unwrap();
    let request = || LeaseRequest::new("mails", "", 1, LEASE);
    let done = || Settlement::completed("sent", Duration::from_secs(3600));
    let first = store.lease(request()).await.unwrap().remove(0);
    let settled = store.settle(first.id, first.lease_token, done()).await;
    assert_eq!(settled.unwrap(), Ownership::Held);
    let mut tokens = Vec::new();
    for key in 0..RUNNING {
        tokens.push(own(&store, claim(key)).await);
    }
    store
        .enqueue(NewEntry::new("mails", "hello"))
        .await
        .unwrap();
    let leased = store.lease(request()).await.unwrap().remove(0);

    let admin = client(&server.url()).await;
    // Rows that fill a page each, uncompressed, and commits that wait for no disk.
    let ballast = "CREATE TABLE ballast (bytes text); \
                   ALTER TABLE ballast ALTER bytes SET STORAGE PLAIN; \
                   SET synchronous_commit = off";
    admin.batch_execute(ballast).await.unwrap();
    let one = "INSERT INTO ballast VALUES (repeat('x', 7000))";
    while admin.execute(one, &[]).await.is_ok() {}

    let mut new = 1000;
    let error = loop {
        match store.claim(claim(new)).await {
            Ok(_) => new += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    for (key, token) in (0..).zip(&tokens) {
        let renewed = store.renew(claim(key).key, *token, LEASE, RETENTION).await;
        assert_eq!(renewed.unwrap(), Ownership::Held, "{key}");
    }
    let large: String = (0..100_000)
        .map(|_| rand::random_range('a'..='z'))
        .collect();
    for (key, token) in (0..).zip(&tokens) {
        complete(&store, key, *token, reply(&large)).await;
        let replayed = store.claim(claim(key)).await.unwrap();
        assert_eq!(replayed, Claimed::done(Stored::NotRetained), "{key}");
    }
    let settled = store.settle(leased.id, leased.lease_token, done()).await;
    assert_eq!(settled.unwrap(), Ownership::Held);

    admin.execute("DROP TABLE ballast", &[]).await.unwrap();
    own(&store, claim(new)).await;
    // The process that hears it ends this one.
    drop(server);
    say("and all came to its end");
}
