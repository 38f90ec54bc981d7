//! The contract of all stores, several processes, and servers of every kind.

use std::time::Duration;

use tokio::task::JoinSet;
use tower_reprise::store::{
    Claim, Claimed, CrashPolicy, IdempotencyStore, Ownership, RecordKey, RedisStore, Resolution,
    Resolved, StoreErrorKind, Stored,
    conformance::{self, Backend},
};

use super::{Redis, address, lossy::Lossy};
use crate::support::{
    crash,
    database::{eventually, left_out},
    outage,
    records::{LEASE, RETENTION, claim, complete, own, reply},
    redis::{Own, redis_server},
};

#[test]
fn redis_is_there_or_said_to_be_left_out() {
    let mut missing = Vec::new();
    if address().is_none() {
        missing.push("REPRISE_TEST_REDIS is not set");
    }
    if redis_server().is_none() {
        missing.push("there is no redis-server to start and stop");
    }
    for reason in missing {
        left_out("Redis", reason);
    }
}

/// The entry point of the other processes of these tests; see `crash`.
#[test]
#[ignore = "is run by other tests"]
fn child() {
    crash::child::<Redis>();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_1_t_2_t_3_i_6_the_contract() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    conformance::run(&redis).await;
}

#[tokio::test]
async fn i_27_t_2_the_contract_of_unknown_outcomes() {
    if let Some(redis) = Redis::new().await {
        conformance::unknown_outcomes(&redis).await;
    }
}

/// Side by side, since each of them mostly waits for the disk.
#[tokio::test]
async fn t_1_t_2_the_model() {
    let mut plays = JoinSet::new();
    let local = tokio::task::LocalSet::new();
    for seed in 0..20 {
        let play = async move {
            if let Some(redis) = Redis::new().await {
                conformance::model(&redis, seed, 200).await;
            }
        };
        plays.spawn_local_on(play, &local);
    }
    local.run_until(plays.join_all()).await;
}

#[tokio::test]
async fn t_2_i_6_two_processes_share_it() {
    if let Some(url) = address() {
        crash::race::<Redis>(&url).await;
    }
}

#[tokio::test]
async fn i_14_i_15_killed_at_any_point() {
    if let Some(url) = address() {
        crash::killed::<Redis>(&url, 20).await;
    }
}

#[tokio::test]
async fn i_15_stopped_past_its_lease() {
    if let Some(url) = address() {
        crash::stopped::<Redis>(&url).await;
    }
}

#[tokio::test]
async fn t_6_i_21_with_appendfsync_always_a_kill_loses_nothing() {
    let arguments = &["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = Own::new(arguments).await else {
        return;
    };
    let builder = RedisStore::builder(server.url()).timeout(Duration::from_secs(2));
    let store = builder.connect().await.unwrap();
    outage::survives(&mut server, store).await;
}

#[tokio::test]
async fn i_15_tokens_grow_when_the_clock_went_back() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let store = redis.open().await;
    own(&store, claim(1)).await;
    let late = (1_u64 << 52).to_string();
    redis
        .command::<()>(&["SETRANGE", &redis.key(claim(1).key), "3", &late])
        .await;
    redis.pass(LEASE + Duration::from_secs(1)).await;
    let token = own(&store, claim(1)).await;
    assert_eq!(token.get(), (1 << 52) + 1);
    complete(&store, 1, token, reply("paid")).await;
}

#[tokio::test]
async fn t_3_a_lease_runs_out_on_the_servers_clock() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let store = redis.open().await;
    let short = Claim {
        lease: Duration::from_millis(100),
        ..claim(1)
    };
    let token = own(&store, short.clone()).await;
    let next = loop {
        match store
            .claim(Claim {
                lease: LEASE,
                ..claim(1)
            })
            .await
            .unwrap()
        {
            Claimed::InFlight { remaining, .. } => tokio::time::sleep(remaining).await,
            Claimed::New(lease) => break lease,
            other => panic!("{other:?}"),
        }
    };
    assert!(next.orphaned && next.token > token);

    // Past its time, it is gone without anybody's doing.
    let key = redis.key(RecordKey::new([2; 32]));
    own(
        &store,
        Claim {
            key: RecordKey::new([2; 32]),
            retention: Duration::from_millis(300),
            ..short
        },
    )
    .await;
    let gone = async || redis.command::<i64>(&["EXISTS", &key]).await == 0;
    eventually("gone", gone).await;
}

#[tokio::test]
async fn a_record_never_outstays_its_time() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let store = redis.open().await;
    let key = redis.key(claim(1).key);
    let left = async || {
        let left: u64 = redis.command(&["PTTL", &key]).await;
        Duration::from_millis(left)
    };
    let token = own(&store, claim(1)).await;
    assert!(left().await > RETENTION && left().await <= LEASE + RETENTION);
    complete(&store, 1, token, reply("paid")).await;
    assert!(left().await > RETENTION - LEASE && left().await <= RETENTION);
}

/// A server that was restarted, or whose scripts were flushed, does not know them any more.
#[tokio::test]
async fn scripts_are_sent_again_when_they_are_not_known() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let redis = Redis::at(&server.url()).await;
    let store = redis.open().await;
    for key in 0..3 {
        redis.command::<()>(&["SCRIPT", "FLUSH"]).await;
        let token = own(&store, claim(key)).await;
        redis.command::<()>(&["SCRIPT", "FLUSH"]).await;
        complete(&store, key, token, reply("paid")).await;
    }
    // Known by now: one command for each transition.
    own(&store, claim(3)).await;
    redis.command::<()>(&["CONFIG", "RESETSTAT"]).await;
    for key in 4..14 {
        let token = own(&store, claim(key)).await;
        complete(&store, key, token, reply("paid")).await;
    }
    let stats: String = redis.command(&["INFO", "commandstats"]).await;
    assert!(stats.contains("cmdstat_evalsha:calls=20,"), "{stats}");
    assert!(!stats.contains("cmdstat_eval:"), "{stats}");
}

/// I-27: the response to a resolution is lost, and the verb is repeated.
#[tokio::test]
async fn i_27_a_key_that_was_set_free_is_found_so_by_a_repeat() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let lossy = Lossy::before(server.port).await;
    let store = RedisStore::connect(lossy.url()).await.unwrap();
    let orphan = Claim {
        lease: Duration::ZERO,
        ..claim(1)
    };
    let token = own(&store, orphan).await;
    let free = async || {
        let resolved = store.resolve(claim(1).key, token, Resolution::NoEffect);
        resolved.await.unwrap()
    };
    lossy.lose_an_answer();
    assert_eq!(free().await, Resolved::Made);
    assert_eq!(lossy.lost(), 1);
    assert_eq!(free().await, Resolved::Conflict, "it was free before");
    lossy.lose_an_answer();
    own(&store, claim(1)).await;
    assert_eq!(free().await, Resolved::Conflict, "taken since");
}

/// I-21: a server that is slow to answer gets its connection, although no verb waits for that long:
/// an attempt to connect outlives the verb that began it.
#[tokio::test]
async fn i_21_a_verb_that_leaves_does_not_end_the_attempt_to_connect() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let lossy = Lossy::before(server.port).await;
    let store = RedisStore::connect(lossy.url()).await.unwrap();
    let before = lossy.accepted();
    lossy.hold(true);
    lossy.lose_an_answer();
    let impatient = store.clone();
    let impatient = tokio::spawn(async move { impatient.claim(claim(1)).await });
    eventually("it connects again", async || lossy.accepted() > before).await;
    impatient.abort();
    assert!(impatient.await.unwrap_err().is_cancelled());
    let patient = own(&store, claim(2));
    let let_through = async { lossy.hold(false) };
    tokio::join!(patient, let_through);
    assert_eq!(lossy.accepted(), before + 1);
}

/// I-27: the set of what people may have to look at is bounded also if nobody looks at it.
#[tokio::test]
async fn i_27_what_leads_nowhere_is_not_watched_for_ever() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let careful = |key| Claim {
        crash_policy: CrashPolicy::Unknown,
        ..claim(key)
    };
    let store = redis.open().await;
    for key in 0..300 {
        own(&store, careful(key)).await;
    }
    redis.pass(LEASE + Duration::from_secs(90)).await;
    // All expired but some, whose outcome is unknown.
    for key in 0..300 {
        if key % 100 > 0 {
            redis
                .command::<()>(&["DEL", &redis.key(claim(key).key)])
                .await;
        }
    }
    let watched = format!("{{{}:watched}}", redis.prefix);
    let other = redis.open().await;
    own(&other, careful(1000)).await;
    let left = async || redis.command::<i64>(&["ZCARD", &watched]).await;
    eventually("only these are watched", async || left().await == 4).await;
    let unknown = other.unknown_outcomes(None, 100).await.unwrap();
    assert_eq!(unknown.outcomes.len(), 3);
}

#[tokio::test]
async fn t_5_a_newer_record_is_refused() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let store = redis.open().await;
    let token = own(&store, claim(1)).await;
    let key = redis.key(claim(1).key);
    redis.command::<()>(&["SETRANGE", &key, "0", "2"]).await;
    let claimed = store.claim(claim(1)).await.map(|_| ());
    let key = claim(1).key;
    let renewed = store.renew(key, token, LEASE, RETENTION).await.map(|_| ());
    let completed = store.complete(key, token, reply("paid"), RETENTION).await;
    let released = store.release(key, token).await.map(|_| ());
    for result in [claimed, renewed, completed.map(|_| ()), released] {
        assert_eq!(result.unwrap_err().kind(), StoreErrorKind::NewerSchema);
    }
}

#[tokio::test]
async fn i_23_a_server_that_evicts_is_refused() {
    let Some(server) = Own::new(&["--maxmemory-policy", "volatile-ttl"]).await else {
        return;
    };
    let error = RedisStore::connect(server.url()).await.unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("maxmemory-policy is volatile-ttl"),
        "{message}"
    );
    assert!(!error.is_transient());
    let builder = RedisStore::builder(server.url()).assume_noeviction();
    assert!(builder.connect().await.is_ok());

    // One that does not tell.
    let redis = Redis::at(&server.url()).await;
    redis
        .command::<()>(&[
            "ACL", "SETUSER", "app", "on", ">word", "~*", "+@all", "-info",
        ])
        .await;
    let url = server.url().replace("//", "//app:word@");
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("assume_noeviction"), "{error}");
    let builder = RedisStore::builder(&url).assume_noeviction();
    own(&builder.connect().await.unwrap(), claim(1)).await;

    // One that lets nobody in with that password.
    let url = server.url().replace("//", "//app:wrong@");
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("could not connect"), "{error}");
}

#[tokio::test]
async fn i_23_a_full_server_refuses_and_keeps_what_it_has() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let redis = Redis::at(&server.url()).await;
    let store = redis.open().await;
    let done = own(&store, claim(1)).await;
    complete(&store, 1, done, reply("paid")).await;
    let open = own(&store, claim(2)).await;
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .await;

    let error = store.claim(claim(3)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert!(!error.may_have_happened());
    let replayed = store.claim(claim(1)).await.unwrap();
    assert_eq!(replayed, Claimed::done(reply("paid")));
    let released = store.release(claim(2).key, open).await.unwrap();
    assert_eq!(released, Ownership::Held);
    let exists: i64 = redis.command(&["EXISTS", &redis.key(claim(3).key)]).await;
    assert_eq!(exists, 0, "nothing half done");
}

/// T-9: what runs can be renewed and completed, or else its lease lapses and it is executed again.
#[tokio::test]
async fn t_9_a_full_server_takes_renewals_and_completions_of_what_runs() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let redis = Redis::at(&server.url()).await;
    let store = redis.open().await;
    let mut tokens = Vec::new();
    for key in 1..=3 {
        tokens.push(own(&store, claim(key)).await);
    }
    let vanished = Claim {
        lease: Duration::ZERO,
        crash_policy: CrashPolicy::Unknown,
        ..claim(4)
    };
    own(&store, vanished.clone()).await;
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    let full = store.claim(claim(5)).await.unwrap_err();
    assert_eq!(full.kind(), StoreErrorKind::Full);

    for (key, token) in (1..=3).zip(&tokens) {
        let renewed = store.renew(claim(key).key, *token, LEASE, RETENTION).await;
        assert_eq!(renewed.unwrap(), Ownership::Held, "{key}");
    }
    let large = reply(&"x".repeat(100_000));
    for (key, stored) in [(1, large), (2, Stored::NotRetained), (3, Stored::Unknown)] {
        let token = tokens[usize::try_from(key).unwrap() - 1];
        complete(&store, key, token, stored.clone()).await;
        let replayed = store.claim(claim(key)).await.unwrap();
        assert_eq!(replayed, Claimed::done(stored), "{key}");
    }
    // And the outcome of what vanished is written down as unknown.
    let again = Claim {
        id: claim(4).id,
        ..vanished
    };
    let unknown = store.claim(again).await.unwrap();
    assert_eq!(unknown, Claimed::done(Stored::Unknown));
}

/// A server that hangs is given up within the timeout; the connection is not used again.
#[tokio::test]
async fn a_server_that_hangs_is_a_timeout_in_doubt() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let builder = RedisStore::builder(server.url()).timeout(Duration::from_secs(2));
    let store = builder.connect().await.unwrap();
    own(&store, claim(1)).await;
    let redis = Redis::at(&server.url()).await;
    let connections = async || -> u64 {
        let stats: String = redis.command(&["INFO", "stats"]).await;
        let mut lines = stats.lines();
        let line = lines.find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse().unwrap()
    };
    let before = connections().await;
    server.signal("-STOP");
    let first = claim(2);
    let error = store.claim(first.clone()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(error.may_have_happened() && error.is_transient(), "{error}");
    server.signal("-CONT");
    // Whether it happened or not, the claim can be repeated.
    let token = loop {
        match store.claim(first.clone()).await {
            Ok(Claimed::New(lease)) => break lease.token,
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    };
    complete(&store, 2, token, reply("paid")).await;
    assert!(connections().await > before, "the same connection again");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    // Bound, and nobody listens.
    let deaf = tokio::net::TcpSocket::new_v4().unwrap();
    deaf.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("redis://{}/", deaf.local_addr().unwrap());
    let error = RedisStore::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(!error.may_have_happened());
    let error = RedisStore::connect("no address").await.unwrap_err();
    assert!(error.to_string().contains("redis.url"), "{error}");
    let builder = RedisStore::builder("redis://127.0.0.1").prefix("{");
    let error = builder.connect().await.unwrap_err();
    assert!(
        error.to_string().contains("redis.prefix is \"{\""),
        "{error}"
    );
}

/// A server in cluster mode refuses a script that touches a key which it was not told about.
#[tokio::test]
async fn t_2_a_cluster_runs_the_contract_too() {
    let Some(server) = Own::new(&["--cluster-enabled", "yes"]).await else {
        return;
    };
    let admin = Redis::at(&server.url()).await;
    admin
        .command::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .await;
    let ready = async || {
        let info: String = admin.command(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    };
    eventually("the cluster is ready", ready).await;
    let cluster = Cluster(admin);
    conformance::run(&cluster).await;
    conformance::unknown_outcomes(&cluster).await;
    conformance::journal(&cluster).await;
}

struct Cluster(Redis);

impl Backend for Cluster {
    type Store = RedisStore;

    async fn open(&self) -> RedisStore {
        let builder = RedisStore::cluster([&self.0.url]).prefix(&self.0.prefix);
        builder.connect().await.expect("connect")
    }

    async fn pass(&self, time: Duration) {
        self.0.pass(time).await;
    }
}
