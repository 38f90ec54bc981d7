//! Replicas, and sentinels that make one the primary.

use std::{process::Stdio, time::Duration};

use tokio::{
    net::TcpListener,
    process::{Child, Command},
    task::JoinSet,
};
use tower_reprise::store::{Claimed, IdempotencyStore, Ownership, RedisStore, StoreErrorKind};

use super::connection;
use crate::support::{
    database::{Folder, Restart, eventually},
    ports::free_port,
    records::{LEASE, RETENTION, claim, complete, own, reply},
    redis::{Own, redis_server},
};

/// A primary and its replica.
async fn pair() -> Option<[Own; 2]> {
    let quick = &["--repl-diskless-sync-delay", "0"];
    let [primary, replica] = [Own::new(quick).await?, Own::new(quick).await?];
    follow(&replica, &primary).await;
    Some([primary, replica])
}

async fn follow(replica: &Own, primary: &Own) {
    let port = primary.port.to_string();
    command(replica, &["REPLICAOF", "127.0.0.1", &port]).await;
    let linked = async || info(replica, "master_link_status:up").await;
    eventually("the replica has all", linked).await;
}

async fn command(server: &Own, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let mut connection = connection(&server.url()).await;
    let done = command.query_async::<redis::Value>(&mut connection).await;
    done.expect("command");
}

async fn info(server: &Own, says: &str) -> bool {
    let mut connection = connection(&server.url()).await;
    let info = redis::cmd("INFO").arg("replication").to_owned();
    let info = info.query_async::<String>(&mut connection).await;
    info.expect("info").contains(says)
}

/// T-6: what was acknowledged is on a replica, and without one nothing is.
#[tokio::test]
async fn t_6_a_transition_waits_for_replicas() {
    let Some([primary, mut replica]) = pair().await else {
        return;
    };
    let builder = RedisStore::builder(primary.url()).replicas(1);
    let store = builder
        .timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let token = own(&store, claim(1)).await;
    let open = own(&store, claim(2)).await;
    complete(&store, 1, token, reply("paid")).await;

    replica.stop().await;
    let error = store.claim(claim(3)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.may_have_happened(), "{error}");
    let completed = store
        .complete(claim(2).key, open, reply("paid"), RETENTION)
        .await;
    let error = completed.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");

    replica.start().await;
    follow(&replica, &primary).await;
    complete(&store, 2, open, reply("paid")).await;
    command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    let store = RedisStore::connect(replica.url()).await.unwrap();
    for key in [1, 2] {
        let found = store.claim(claim(key)).await.unwrap();
        assert_eq!(found, Claimed::done(reply("paid")), "{key}");
    }
}

/// T-6: those that come while others wait for a replica, or a disk, wait once for all of them.
#[tokio::test]
async fn t_6_transitions_that_come_together_wait_together() {
    let Some([primary, _replica]) = pair().await else {
        return;
    };
    let builder = RedisStore::builder(primary.url()).replicas(1);
    let store = builder.connect().await.unwrap();
    let token = own(&store, claim(1)).await;
    // The script is known from then on.
    let renew = || {
        let store = store.clone();
        async move { store.renew(claim(1).key, token, LEASE, RETENTION).await }
    };
    assert_eq!(renew().await.unwrap(), Ownership::Held);
    command(&primary, &["CONFIG", "RESETSTAT"]).await;
    let renewals: JoinSet<_> = (0..20).map(|_| renew()).collect();
    for renewed in renewals.join_all().await {
        assert_eq!(renewed.unwrap(), Ownership::Held);
    }
    let mut connection = connection(&primary.url()).await;
    let stats = redis::cmd("INFO").arg("commandstats").to_owned();
    let stats = stats.query_async::<String>(&mut connection).await.unwrap();
    assert!(stats.contains("cmdstat_evalsha:calls=20,"), "{stats}");
    assert!(stats.contains("cmdstat_wait:calls=1,"), "{stats}");
}

/// T-6: a server that refuses `WAIT` has made the transition all the same.
#[tokio::test]
async fn t_6_a_wait_that_fails_says_nothing_against_the_transition() {
    let Some([primary, _replica]) = pair().await else {
        return;
    };
    command(
        &primary,
        &["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"],
    )
    .await;
    let url = primary.url().replace("redis://", "redis://app:pw@");
    let store = RedisStore::builder(url)
        .replicas(1)
        .connect()
        .await
        .unwrap();
    command(&primary, &["ACL", "SETUSER", "app", "-wait"]).await;
    let error = store.claim(claim(1)).await.unwrap_err();
    assert!(error.may_have_happened(), "{error}");
    let plain = RedisStore::connect(primary.url()).await.unwrap();
    let found = plain.claim(claim(1)).await.unwrap();
    assert!(matches!(found, Claimed::InFlight { .. }), "{found:?}");
}

/// Watches one primary, and decides alone.
struct Sentinel {
    port: u16,
    _process: Child,
    _folder: Folder,
}

impl Sentinel {
    async fn of(primary: &Own) -> Self {
        let (port, folder) = (free_port(), Folder::new());
        let file = folder.path().join("sentinel.conf");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor orders 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds orders 500\n\
             sentinel failover-timeout orders 3000\n",
            folder.path().display(),
            primary.port
        );
        std::fs::write(&file, settings).expect("a file");
        let process = Command::new(redis_server().expect("a program"))
            .arg(file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let sentinel = Self {
            port,
            _process: process.expect("a sentinel"),
            _folder: folder,
        };
        eventually("it knows the replica", async || {
            sentinel.knows_a_replica().await
        })
        .await;
        sentinel
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    async fn knows_a_replica(&self) -> bool {
        let client = redis::Client::open(self.url()).expect("an address");
        let Ok(mut connection) = client.get_multiplexed_async_connection().await else {
            return false;
        };
        let mut replicas = redis::cmd("SENTINEL");
        replicas.arg("replicas").arg("orders");
        let replicas = replicas.query_async::<Vec<redis::Value>>(&mut connection);
        replicas.await.is_ok_and(|replicas| !replicas.is_empty())
    }
}

/// T-10: the store follows the primary to where the sentinels move it.
#[tokio::test]
async fn t_10_sentinels_tell_the_primary() {
    let Some([mut primary, replica]) = pair().await else {
        return;
    };
    let sentinel = Sentinel::of(&primary).await;
    // One that is gone is passed over, and so is one that says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("redis://{}/", silent.local_addr().unwrap());
    let sentinels = ["redis://127.0.0.1:1/".to_owned(), silent, sentinel.url()];
    let builder = RedisStore::builder("redis://orders/").sentinels(sentinels.clone());
    let store = builder.replicas(1).connect().await.unwrap();
    let token = own(&store, claim(1)).await;
    complete(&store, 1, token, reply("paid")).await;
    let open = own(&store, claim(2)).await;
    drop(store);
    let store = RedisStore::builder("redis://orders/").sentinels(sentinels.clone());
    let store = store.connect().await.unwrap();
    let renewed = store.renew(claim(2).key, open, LEASE, RETENTION).await;
    assert_eq!(renewed.unwrap(), Ownership::Held);

    primary.stop().await;
    eventually("the replica takes over", async || {
        store.renew(claim(2).key, open, LEASE, RETENTION).await.ok() == Some(Ownership::Held)
    })
    .await;
    assert!(info(&replica, "role:master").await);
    complete(&store, 2, open, reply("paid")).await;
    for key in [1, 2] {
        let found = store.claim(claim(key)).await.unwrap();
        assert_eq!(found, Claimed::done(reply("paid")), "{key}");
    }

    let error = RedisStore::builder("redis://invoices/").sentinels(sentinels);
    let error = error.connect().await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no primary of the name \"invoices\""),
        "{error}"
    );
}
