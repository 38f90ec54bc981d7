//! Families of queues: each has a slot of its own in a cluster.

use std::collections::BTreeSet;

use tower_reprise::store::{
    Claimed, IdempotencyStore, Ownership, RedisStore,
    journal::{Journal, NewEntry, Priority, Query, Settlement},
};

use super::{
    Redis,
    journal::{KEEP, ids, new, put, want},
};
use crate::support::{
    database::eventually,
    records::{claim, complete, own, reply},
    redis::Own,
};

/// Two servers, with half of the slots each.
async fn halves() -> Option<[(Own, Redis); 2]> {
    let arguments = &["--cluster-enabled", "yes"];
    let (one, other) = (Own::new(arguments).await?, Own::new(arguments).await?);
    let (first, second) = (Redis::at(&one.url()).await, Redis::at(&other.url()).await);
    let port = other.port.to_string();
    for (redis, words) in [
        (&first, &["CLUSTER", "ADDSLOTSRANGE", "0", "8191"][..]),
        (&second, &["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]),
        (&first, &["CLUSTER", "SET-CONFIG-EPOCH", "1"]),
        (&second, &["CLUSTER", "SET-CONFIG-EPOCH", "2"]),
        (&first, &["CLUSTER", "MEET", "127.0.0.1", &port]),
    ] {
        redis.command::<()>(words).await;
    }
    for redis in [&first, &second] {
        let ready = async || {
            let info: String = redis.command(&["CLUSTER", "INFO"]).await;
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        };
        eventually("the cluster is ready", ready).await;
    }
    Some([(one, first), (other, second)])
}

async fn all(store: &RedisStore) -> Vec<tower_reprise::store::journal::EntryId> {
    ids(&store.list(Query::new("mails", 99)).await.expect("list"))
}

/// Entries of one family are not seen in another, nor in the store itself.
async fn are_apart(stores: &[RedisStore]) {
    let mut there = Vec::new();
    for (n, store) in stores.iter().enumerate() {
        let mut of_it = Vec::new();
        for _ in 0..=n {
            of_it.push(put(store, new(Priority::Normal)).await);
        }
        there.push(of_it);
    }
    for (n, store) in stores.iter().enumerate() {
        assert_eq!(all(store).await, there[n]);
        let counts = store.counts("mails").await.expect("counts");
        assert_eq!(counts.by_status[0], n as u64 + 1);
        for other in there.iter().flatten().filter(|id| !there[n].contains(id)) {
            assert_eq!(store.find(*other).await.expect("find"), None);
        }
    }
    // A settlement and what follows from it, in one commit of the family.
    let store = &stores[1];
    let entry = store.lease(want(1)).await.expect("lease").remove(0);
    let callback = NewEntry::new("callbacks", "payload");
    let id = callback.id;
    let settlement = Settlement::completed("done", KEEP).followed_by([callback]);
    let settled = store.settle(entry.id, entry.lease_token, settlement).await;
    assert_eq!(settled.expect("settle"), Ownership::Held);
    for (n, store) in stores.iter().enumerate() {
        let found = store.find(id).await.expect("find");
        assert_eq!(found.is_some(), n == 1);
    }
}

/// T-8: queues that have nothing to do with each other are on as many servers as there are.
#[tokio::test]
async fn t_8_t_2_families_of_queues_are_spread_over_a_cluster() {
    let Some([(one, first), (_other, second)]) = halves().await else {
        return;
    };
    let store = RedisStore::cluster([one.url()]).prefix(&first.prefix);
    let store = store.connect().await.unwrap();
    let names = ["mails", "invoices", "callbacks", "alerts", "orders"];
    let mut stores = vec![store.clone()];
    stores.extend(names.map(|name| store.queue_family(name).unwrap()));
    are_apart(&stores).await;

    let mut slots = BTreeSet::new();
    let mut used = [0, 0];
    for name in names {
        let key = format!("{{{}:{name}:journal}}", first.prefix);
        let slot = first.command::<u64>(&["CLUSTER", "KEYSLOT", &key]).await;
        slots.insert(slot);
        let (server, n) = match slot < 8192 {
            true => (&first, 0),
            false => (&second, 1),
        };
        used[n] += 1;
        let there: Vec<String> = server.command(&["KEYS", &format!("{key}*")]).await;
        assert!(there.len() > 1, "{name}: {there:?}");
    }
    assert_eq!(slots.len(), names.len());
    println!("families on the two servers: {used:?}");

    // The records are those of all.
    let token = own(&stores[1], claim(1)).await;
    complete(&stores[2], 1, token, reply("paid")).await;
    let found = store.claim(claim(1)).await.unwrap();
    assert_eq!(found, Claimed::done(reply("paid")));
}

#[tokio::test]
async fn t_2_families_are_apart_on_one_server_too() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let builder = RedisStore::builder(&redis.url).prefix(&redis.prefix);
    let store = builder.connect().await.unwrap();
    let [mails, invoices] = ["mails", "invoices"].map(|name| store.queue_family(name).unwrap());
    are_apart(&[store.clone(), mails.clone(), invoices]).await;

    // Another way to the same journal.
    let builder = RedisStore::builder(&redis.url).prefix(format!("{}:mails", redis.prefix));
    let same = builder.connect().await.unwrap();
    assert_eq!(all(&same).await, all(&mails).await);

    for name in ["", "a b", "{", "}", "ä"] {
        let error = store.queue_family(name).unwrap_err();
        assert_eq!(error.field(), "redis.queue_family", "{name}");
    }
}
