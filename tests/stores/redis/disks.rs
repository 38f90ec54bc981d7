//! Transitions that are acknowledged once they are on disk.

use std::time::Duration;

use tower_reprise::store::{Claimed, IdempotencyStore, Ownership, RedisStore, StoreErrorKind};

use super::connection;
use crate::support::{
    database::{Restart, eventually, left_out},
    records::{LEASE, RETENTION, claim, complete, own, reply},
    redis::{Own, newer_server},
};

async fn newer(arguments: &'static [&'static str]) -> Option<Own> {
    let Some(program) = newer_server() else {
        left_out("waits for a disk", "there is no Redis 7.2, nor Valkey");
        return None;
    };
    Some(Own::of(program, arguments).await)
}

async fn ask(server: &Own, words: &[&str]) -> String {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let mut connection = connection(&server.url()).await;
    let value = command.query_async::<redis::Value>(&mut connection).await;
    match value.expect("command") {
        redis::Value::BulkString(text) => String::from_utf8(text).expect("a text"),
        other => format!("{other:?}"),
    }
}

/// T-6: a server that is too old for the promise says so before there is anything to lose.
#[tokio::test]
async fn t_6_a_server_that_cannot_wait_for_its_disk_is_refused() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    if ask(&server, &["COMMAND", "INFO", "WAITAOF"])
        .await
        .contains("waitaof")
    {
        left_out("an older Redis", "the one that is there has WAITAOF");
        return;
    }
    let error = RedisStore::builder(server.url()).fsync().connect().await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("Redis 7.2"), "{error}");
    assert!(!error.is_transient() && !error.may_have_happened());

    let cluster = RedisStore::cluster([server.url()]).fsync().connect().await;
    let error = cluster.unwrap_err().to_string();
    assert!(error.contains("redis.fsync is true"), "{error}");
}

/// T-6: what is acknowledged is on disk, whenever the server itself would have written it there.
#[tokio::test]
async fn t_6_a_transition_waits_for_the_disk() {
    let Some(mut server) = newer(&["--appendfsync", "everysec"]).await else {
        return;
    };
    let builder = RedisStore::builder(server.url()).fsync();
    let store = builder
        .timeout(Duration::from_secs(10))
        .connect()
        .await
        .unwrap();
    let token = own(&store, claim(1)).await;
    complete(&store, 1, token, reply("paid")).await;
    let stats = ask(&server, &["INFO", "commandstats"]).await;
    assert!(stats.contains("cmdstat_waitaof"), "{stats}");
    let pending = ask(&server, &["INFO", "persistence"]).await;
    assert!(pending.contains("aof_pending_bio_fsync:0"), "{pending}");
    server.stop().await;
    server.start().await;
    let found = store.claim(claim(1)).await.unwrap();
    assert_eq!(found, Claimed::done(reply("paid")));
}

/// T-6: and on the disks of replicas.
#[tokio::test]
async fn t_6_a_transition_waits_for_the_disks_of_replicas() {
    let quick = &["--appendfsync", "always", "--repl-diskless-sync-delay", "0"];
    let (Some(primary), Some(mut replica)) = (newer(quick).await, newer(quick).await) else {
        return;
    };
    let port = primary.port.to_string();
    let follow = async |replica: &Own| {
        ask(replica, &["REPLICAOF", "127.0.0.1", &port]).await;
        let linked = async || {
            let info = ask(replica, &["INFO", "replication"]).await;
            info.contains("master_link_status:up")
        };
        eventually("the replica has all", linked).await;
    };
    follow(&replica).await;
    let builder = RedisStore::builder(primary.url()).replicas(1).fsync();
    let builder = builder.timeout(Duration::from_secs(4));
    let store = builder.connect().await.unwrap();
    let token = own(&store, claim(1)).await;

    // It has the write and does not get it to its disk.
    ask(&replica, &["CONFIG", "SET", "appendonly", "no"]).await;
    let completed = store.complete(claim(1).key, token, reply("paid"), RETENTION);
    let error = completed.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.may_have_happened(), "{error}");

    ask(&replica, &["CONFIG", "SET", "appendonly", "yes"]).await;
    complete(&store, 1, token, reply("paid")).await;
    let renewed = store.renew(claim(1).key, token, LEASE, RETENTION).await;
    assert_eq!(renewed.unwrap(), Ownership::Lost);
    replica.stop().await;
    replica.start().await;
    let behind = RedisStore::connect(replica.url()).await.unwrap();
    let found = behind.claim(claim(1)).await.unwrap();
    assert_eq!(found, Claimed::done(reply("paid")));
}

/// T-6: a server that writes nothing to disk can't say that it did.
#[tokio::test]
async fn t_6_a_server_without_appendonly_is_refused() {
    let Some(server) = newer(&["--appendonly", "no"]).await else {
        return;
    };
    let error = RedisStore::builder(server.url()).fsync().connect().await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("appendonly"), "{error}");
}
