//! The journal on servers of its own: with long queues, full, lossy, in a cluster, or killed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::task::JoinSet;
use tower_reprise::store::{
    Ownership, RedisStore, StoreErrorKind,
    conformance::Backend,
    journal::{
        Enqueued, EntryCommand, EntryId, Journal, NewEntry, Priority, Query, QueueBounds,
        Settlement, Status,
    },
};

use super::{
    Redis,
    journal::{KEEP, LEASE, ids, new, put, root, want},
    lossy::Lossy,
};
use crate::support::{
    database::{Restart, eventually},
    records::{claim, own},
    redis::Own,
};

/// So many like that one, in any order.
async fn fill(store: &RedisStore, count: usize, like: &NewEntry) {
    const TASKS: usize = 50;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (store, like) = (store.clone(), like.clone());
        tasks.spawn(async move {
            for _ in 0..count / TASKS {
                let id = EntryId::random();
                put(&store, NewEntry { id, ..like.clone() }).await;
            }
        });
    }
    tasks.join_all().await;
}

/// Commands of all kinds that the server ran for what is done in between.
async fn commands<T>(redis: &Redis, doing: impl Future<Output = T>) -> (u64, T) {
    redis.command::<()>(&["CONFIG", "RESETSTAT"]).await;
    let done = doing.await;
    let stats: String = redis.command(&["INFO", "commandstats"]).await;
    let calls = |line: &str| -> Option<u64> {
        let (name, rest) = line.split_once(":calls=")?;
        assert!(!matches!(name, "cmdstat_keys" | "cmdstat_scan"), "{name}");
        rest.split_once(',')?.0.parse().ok()
    };
    (stats.lines().filter_map(calls).sum(), done)
}

/// Ranges are limited where they are asked for, and each command is of logarithmic time.
#[tokio::test]
async fn a_verb_does_as_much_in_a_long_queue_as_in_a_short_one() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let redis = Redis::at(&server.url()).await;
    let store = redis.open().await;
    let mut seen = Vec::new();
    for more in [50, 10_000] {
        fill(&store, more, &new(Priority::Normal)).await;
        let mut costs = Vec::new();
        // The first time the scripts are not known.
        for _ in 0..2 {
            costs.clear();
            let (cost, leased) = commands(&redis, store.lease(want(3))).await;
            costs.push(cost);
            let leased = leased.expect("lease");
            let [first, second, third] = &*leased else {
                panic!("three were there")
            };
            let (cost, extended) =
                commands(&redis, store.extend(first.id, first.lease_token, LEASE)).await;
            assert_eq!(extended.expect("extend"), Ownership::Held);
            costs.push(cost);
            for (entry, settle) in [
                (first, Settlement::release(Duration::ZERO)),
                (second, Settlement::release(LEASE)),
                (third, Settlement::retry("503", Duration::ZERO)),
            ] {
                let (cost, settled) =
                    commands(&redis, store.settle(entry.id, entry.lease_token, settle)).await;
                assert_eq!(settled.expect("settle"), Ownership::Held);
                costs.push(cost);
            }
            let (cost, _) = commands(&redis, store.position(first.id, 9)).await;
            costs.push(cost);
            costs.push(commands(&redis, store.lanes("mails", None, 9)).await.0);
            costs.push(commands(&redis, store.counts("mails")).await.0);
            let (cost, _) = commands(&redis, store.enqueue(new(Priority::Normal))).await;
            costs.push(cost);
        }
        assert!(costs[0] < 100, "for three entries: {costs:?}");
        seen.push(costs);
    }
    assert_eq!(seen[0], seen[1]);
}

/// A list that finds little looks at much, but not at once.
#[tokio::test]
async fn a_list_looks_at_a_thousand_at_a_time() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let redis = Redis::at(&server.url()).await;
    let store = redis.open().await;
    let with = |owner: &str, label: &str| NewEntry {
        owner: owner.to_owned(),
        label: label.to_owned(),
        ..new(Priority::Normal)
    };
    fill(&store, 1500, &with("ada", "many")).await;
    let first = put(&store, with("bob", "few")).await;
    fill(&store, 1500, &with("ada", "many")).await;
    let last = put(&store, with("bob", "few")).await;
    let few = || Query {
        label: Some("few".to_owned()),
        ..Query::new("mails", 9)
    };
    // Known from then on.
    store.list(Query::new("mails", 1)).await.expect("list");
    let evaluations = async |query| {
        redis.command::<()>(&["CONFIG", "RESETSTAT"]).await;
        let found = store.list(query).await.expect("list");
        let stats: String = redis.command(&["INFO", "commandstats"]).await;
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1);
        let calls = calls
            .and_then(|rest| rest.split(',').next())
            .expect("calls");
        (ids(&found), calls.parse::<u32>().expect("a number"))
    };
    assert_eq!(evaluations(few()).await, (vec![first, last], 4));
    let limited = Query { limit: 1, ..few() };
    assert_eq!(evaluations(limited).await, (vec![first], 2));
    let bob = Query {
        owner: Some("bob".to_owned()),
        ..few()
    };
    let found = evaluations(bob).await;
    assert_eq!(found, (vec![first, last], 1), "an owner has an index");
}

/// A full queue must not be stuck because it is full.
#[tokio::test]
async fn j_2_a_full_server_refuses_what_is_new_and_works_off_the_rest() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let redis = Redis::at(&server.url()).await;
    let store = redis.open().await;
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(put(&store, new(Priority::Normal)).await);
    }
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    let refused = new(Priority::Normal);
    let id = refused.id;
    let error = store.enqueue(refused).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert!(!error.may_have_happened());
    assert_eq!(store.find(id).await.unwrap(), None);
    let entry = store.lease(want(1)).await.unwrap().pop().unwrap();
    let extended = store
        .extend(entry.id, entry.lease_token, LEASE)
        .await
        .unwrap();
    assert_eq!(extended, Ownership::Held);
    let settle = Settlement::completed("done", KEEP);
    let settled = store
        .settle(entry.id, entry.lease_token, settle)
        .await
        .unwrap();
    assert_eq!(settled, Ownership::Held);
    let steered = store
        .command(all[1], EntryCommand::Cancel(KEEP))
        .await
        .unwrap();
    assert!(steered.is_some_and(|steered| steered.applied));
    let counts = store.counts("mails").await.unwrap();
    assert_eq!(counts.by_status, [2, 0, 1, 0, 0, 1]);

    // What follows from an entry, and an entry that is attempted again.
    let entry = store.lease(want(1)).await.unwrap().pop().unwrap();
    let follows = new(Priority::Normal);
    let settle = Settlement::failed("404", KEEP).followed_by([follows.clone()]);
    let settled = store.settle(entry.id, entry.lease_token, settle).await;
    assert_eq!(settled.unwrap(), Ownership::Held);
    assert!(store.find(follows.id).await.unwrap().is_some());
    let redriven = store.command(entry.id, EntryCommand::Redrive(KEEP)).await;
    assert!(redriven.unwrap().is_some_and(|redriven| redriven.applied));
}

/// T-9: an owner is erased also where there is no memory left.
#[tokio::test]
async fn t_9_an_owner_is_erased_from_a_full_server() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let redis = Redis::at(&server.url()).await;
    let store = redis.open().await;
    let bounded = NewEntry {
        owner: "ada".to_owned(),
        bounds: Some(QueueBounds {
            in_all: 9,
            per_owner: 9,
        }),
        ..new(Priority::Normal)
    };
    let id = put(&store, bounded).await;
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    let erased = store.erase("mails", "ada", 9).await.unwrap();
    assert_eq!((erased.removed, erased.left), (1, 0));
    assert_eq!(store.find(id).await.unwrap(), None);
}

/// A script looks at a thousand entries; an erasure goes on behind those that run.
#[tokio::test]
async fn an_erasure_goes_on_behind_a_thousand_that_run() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let redis = Redis::at(&server.url()).await;
    let store = redis.open().await;
    let of_ada = NewEntry {
        owner: "ada".to_owned(),
        ..new(Priority::Normal)
    };
    fill(&store, 1000, &of_ada).await;
    assert_eq!(store.lease(want(1000)).await.unwrap().len(), 1000);
    put(&store, of_ada).await;
    let erased = store.erase("mails", "ada", 9).await.unwrap();
    assert_eq!((erased.removed, erased.left), (1, 9));
}

/// The one verb that would do more if it were just repeated.
async fn a_lost_answer(store: &RedisStore, lossy: &Lossy, behind: &RedisStore) {
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(put(store, new(Priority::Normal)).await);
    }
    // The scripts are known from then on.
    assert_eq!(store.lease(want(1)).await.expect("lease").len(), 1);
    let nothing = store
        .command(EntryId::random(), EntryCommand::Trigger)
        .await;
    assert_eq!(nothing.expect("steer"), None);
    lossy.lose_an_answer();
    let leased = store.lease(want(2)).await.expect("lease");
    assert_eq!(lossy.lost(), 1);
    let counts = behind.counts("mails").await.expect("counts");
    assert_eq!(counts.by_status[..2], [2, 3], "leased once");
    assert_eq!(ids(&leased), all[1..3], "and these are they");
    assert!(leased.iter().all(|entry| entry.attempts == 1));
    // Others find the same without a ticket.
    let id = put(store, new(Priority::Low)).await;
    lossy.lose_an_answer();
    let cancelled = store
        .command(id, EntryCommand::Cancel(KEEP))
        .await
        .expect("steer");
    assert!(cancelled.is_some_and(|s| !s.applied && s.entry.status == Status::Cancelled));
    assert_eq!(lossy.lost(), 2);
}

#[tokio::test]
async fn j_11_a_lease_counts_once_when_its_answer_got_lost() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let lossy = Lossy::before(server.port).await;
    let store = RedisStore::connect(lossy.url()).await.unwrap();
    let behind = RedisStore::connect(server.url()).await.unwrap();
    a_lost_answer(&store, &lossy, &behind).await;
}

/// A cluster's client repeats by itself, whatever the command is.
#[tokio::test]
async fn j_11_also_in_a_cluster() {
    let Some(server) = Own::new(&["--cluster-enabled", "yes"]).await else {
        return;
    };
    let lossy = Lossy::before(server.port).await;
    let admin = Redis::at(&server.url()).await;
    let port = lossy.port().to_string();
    for words in [
        &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"][..],
        &["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"],
        &["CONFIG", "SET", "cluster-announce-port", &port],
    ] {
        admin.command::<()>(words).await;
    }
    let ready = async || {
        let info: String = admin.command(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    };
    eventually("the cluster is ready", ready).await;
    let store = RedisStore::cluster([lossy.url()]).connect().await.unwrap();
    // Straight to the server, which has all of the cluster.
    let behind = RedisStore::connect(server.url()).await.unwrap();
    a_lost_answer(&store, &lossy, &behind).await;
}

/// All slots are the first one's.
async fn two_servers() -> Option<[(Own, Redis); 2]> {
    let arguments = &["--cluster-enabled", "yes"];
    let (one, other) = (Own::new(arguments).await?, Own::new(arguments).await?);
    let (admin, second) = (Redis::at(&one.url()).await, Redis::at(&other.url()).await);
    let port = other.port.to_string();
    for words in [
        &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"][..],
        &["CLUSTER", "MEET", "127.0.0.1", &port],
    ] {
        admin.command::<()>(words).await;
    }
    for redis in [&admin, &second] {
        let ready = async || {
            let info: String = redis.command(&["CLUSTER", "INFO"]).await;
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
        };
        eventually("the cluster is ready", ready).await;
    }
    Some([(one, admin), (other, second)])
}

#[tokio::test]
async fn t_2_a_journal_that_is_moved_is_not_changed_by_halves() {
    let Some([(one, from), (other, to)]) = two_servers().await else {
        return;
    };
    let store = RedisStore::cluster([one.url()]).prefix(&from.prefix);
    let store = store.connect().await.unwrap();
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(put(&store, new(Priority::Normal)).await);
    }
    let leased = store.lease(want(1)).await.unwrap().pop().unwrap();

    let key = root(&from);
    let slot = from.command::<u64>(&["CLUSTER", "KEYSLOT", &key]).await;
    let set = async |redis: &Redis, words: &[&str]| {
        let slot = slot.to_string();
        let words = [&["CLUSTER", "SETSLOT", &slot][..], words].concat();
        redis.command::<()>(&words).await;
    };
    let ids_of = [&from, &to].map(|redis| redis.command::<String>(&["CLUSTER", "MYID"]));
    let [from_id, to_id] = ids_of;
    let (from_id, to_id) = (from_id.await, to_id.await);
    set(&to, &["IMPORTING", &from_id]).await;
    set(&from, &["MIGRATING", &to_id]).await;
    let refused = async || {
        let new = new(Priority::Normal);
        let results = [
            store.find(new.id).await.map(drop),
            store.enqueue(new).await.map(drop),
            store.lease(want(9)).await.map(drop),
            store
                .settle(
                    leased.id,
                    leased.lease_token,
                    Settlement::retry("503", LEASE),
                )
                .await
                .map(drop),
            store
                .command(all[1], EntryCommand::Cancel(KEEP))
                .await
                .map(drop),
        ];
        for result in results {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        }
    };
    refused().await;

    let port = other.port.to_string();
    let migrate = async |keys: &[String]| {
        let words = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let keys = keys.iter().map(String::as_str);
        let words: Vec<_> = words.into_iter().chain(keys).collect();
        from.command::<()>(&words).await;
    };
    // The one key that decides who is asked.
    migrate(std::slice::from_ref(&key)).await;
    refused().await;
    let rest: Vec<String> = from.command(&["KEYS", &format!("{key}:*")]).await;
    migrate(&rest).await;
    for redis in [&to, &from] {
        set(redis, &["NODE", &to_id]).await;
    }

    let settle = Settlement::completed("done", KEEP);
    let settled = store
        .settle(leased.id, leased.lease_token, settle)
        .await
        .unwrap();
    assert_eq!(settled, Ownership::Held);
    assert_eq!(ids(&store.lease(want(9)).await.unwrap()), all[1..]);
    let counts = store.counts("mails").await.unwrap();
    assert_eq!(counts.by_status, [0, 2, 1, 0, 0, 0]);
}

#[tokio::test]
async fn t_6_j_14_with_appendfsync_always_a_kill_loses_no_entry() {
    let arguments = &["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = Own::new(arguments).await else {
        return;
    };
    let builder = RedisStore::builder(server.url()).timeout(Duration::from_secs(2));
    let store = builder.connect().await.unwrap();
    let mut workers = JoinSet::new();
    let known = Arc::new(Mutex::new(BTreeMap::new()));
    for _ in 0..8 {
        let (store, known) = (store.clone(), Arc::clone(&known));
        workers.spawn(async move {
            // Until the server is gone: every answer is one that must hold.
            loop {
                let fresh = new(Priority::Normal);
                let id = fresh.id;
                let Ok(Enqueued::New(_)) = store.enqueue(fresh).await else {
                    break;
                };
                known.lock().unwrap().insert(id, (Status::Queued, 0));
                let Ok(leased) = store.lease(want(1)).await else {
                    break;
                };
                for entry in leased {
                    known
                        .lock()
                        .unwrap()
                        .insert(entry.id, (Status::Processing, 1));
                    let settle = Settlement::completed("done", KEEP);
                    if store
                        .settle(entry.id, entry.lease_token, settle)
                        .await
                        .is_ok()
                    {
                        known
                            .lock()
                            .unwrap()
                            .insert(entry.id, (Status::Completed, 1));
                    }
                }
            }
        });
    }
    eventually("work is done", async || known.lock().unwrap().len() > 200).await;
    server.stop().await;
    workers.join_all().await;
    server.start().await;
    let known = std::mem::take(&mut *known.lock().unwrap());
    for (id, (status, attempts)) in known {
        let found = store.find(id).await.unwrap().expect("it was acknowledged");
        assert!(found.attempts >= attempts);
        // The last command may have taken effect although its answer was lost.
        assert!(found.status >= status, "{found:?} was {status:?}");
    }
}

/// T-9: an entry that was accepted would be gone with the server.
#[tokio::test]
async fn t_9_a_server_without_appendonly_is_no_journal_unless_told() {
    let Some(server) = Own::new(&["--appendonly", "no"]).await else {
        return;
    };
    let store = RedisStore::connect(server.url()).await.unwrap();
    let error = store.enqueue(new(Priority::Normal)).await.unwrap_err();
    assert!(error.to_string().contains("appendonly off"), "{error}");
    assert!(!error.is_transient() && !error.may_have_happened());
    assert!(store.lease(want(1)).await.is_err());
    // Records are kept for as long as the server lives.
    own(&store, claim(1)).await;

    let builder = RedisStore::builder(server.url()).assume_durable();
    put(&builder.connect().await.unwrap(), new(Priority::Normal)).await;
}
