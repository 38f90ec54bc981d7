//! The journal in Redis.

use std::time::Duration;

use tokio::task::JoinSet;
use tower_reprise::store::{
    Fingerprint, Ownership, RecordKey, RedisStore, StoreErrorKind,
    conformance::{self, Backend},
    journal::{
        Dedup, Enqueued, Entry, EntryCommand, EntryId, Journal, LeaseRequest, LeaseToken, NewEntry,
        Priority, Query, Settlement, SharedPayload, Status,
    },
};

use super::Redis;

pub(super) const LEASE: Duration = Duration::from_secs(30);
pub(super) const KEEP: Duration = Duration::from_secs(60 * 60);

/// Moves all times of a journal backwards.
pub(super) async fn shift(redis: &Redis, time: Duration) {
    let shift = redis::Script::new(
        "local kinds = {
            ready0 = 1, ready1 = 1, ready2 = 1, ready3 = 1, past = 1, leased = 1, fresh = 1,
            waiting = 1, over2 = 1, over3 = 1, over4 = 1, over5 = 1, over = 1, idle = 1,
        }
        for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':*')) do
            local kind = string.match(key, '^:(%w+)', #ARGV[1] + 1)
            if kinds[kind] then
                for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
                    redis.call('ZINCRBY', key, '-' .. ARGV[2], member)
                end
            elseif kind == 'entry' then
                for _, field in ipairs({'queued', 'due', 'expires', 'changed', 'ends'}) do
                    redis.call('HINCRBY', key, field, '-' .. ARGV[2])
                end
            end
        end",
    );
    let mut admin = redis.admin.clone();
    let shifted = shift
        .arg(root(redis))
        .arg(time.as_micros().to_string())
        .invoke_async::<()>(&mut admin)
        .await;
    shifted.expect("shift");
}

pub(super) fn root(redis: &Redis) -> String {
    format!("{{{}:journal}}", redis.prefix)
}

pub(super) fn new(priority: Priority) -> NewEntry {
    NewEntry {
        priority,
        ..NewEntry::new("mails", "payload")
    }
}

pub(super) fn want(limit: u32) -> LeaseRequest {
    LeaseRequest::new("mails", "", limit, LEASE)
}

pub(super) fn ids(entries: &[Entry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id).collect()
}

pub(super) async fn put(store: &RedisStore, new: NewEntry) -> EntryId {
    let id = new.id;
    let enqueued = store.enqueue(new).await.expect("enqueue");
    assert!(matches!(enqueued, Enqueued::New(_)), "{enqueued:?}");
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_1_t_2_t_3_the_contract_of_a_journal() {
    if let Some(redis) = Redis::new().await {
        conformance::journal(&redis).await;
    }
}

#[cfg(all(feature = "axum", feature = "delivery"))]
#[tokio::test]
async fn w_9_w_10_an_endpoint_is_disabled_and_recovered() {
    if let Some(redis) = Redis::new().await {
        crate::webhooks::an_endpoint_is_disabled_and_recovered(&redis).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_7_a_thousand_cancels_against_starts_have_one_winner_each() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let (cancels, starts) = (redis.open().await, redis.open().await);
    let mut rounds = JoinSet::new();
    for lane in 0..20 {
        let (cancels, starts) = (cancels.clone(), starts.clone());
        rounds.spawn(async move {
            let mut won = [0, 0];
            for round in 0..50 {
                let lane = lane.to_string();
                let new = NewEntry {
                    lane: lane.clone(),
                    ..new(Priority::Normal)
                };
                let id = put(&cancels, new).await;
                let want = LeaseRequest { lane, ..want(1) };
                let cancel = cancels.command(id, EntryCommand::Cancel(KEEP));
                let start = starts.lease(want);
                // The future that is polled first is sent first, if not always received first.
                let (cancelled, started) = if round % 2 == 0 {
                    tokio::join!(biased; cancel, start)
                } else {
                    let (started, cancelled) = tokio::join!(biased; start, cancel);
                    (cancelled, started)
                };
                let cancelled = cancelled.expect("steer").expect("an entry").applied;
                let started = started.expect("lease");
                assert_ne!(cancelled, started.len() == 1, "one of both");
                if let [entry] = &*started {
                    let settle = Settlement::completed("", KEEP);
                    let settled = starts.settle(id, entry.lease_token, settle).await;
                    assert_eq!(settled.expect("settle"), Ownership::Held);
                }
                won[usize::from(cancelled)] += 1;
            }
            won
        });
    }
    let won = rounds.join_all().await;
    let won = [0, 1].map(|of| won.iter().map(|won| won[of]).sum::<u64>());
    assert_eq!(won[0] + won[1], 1000);
    assert!(won[0] > 0 && won[1] > 0, "a race: {won:?}");
    let counts = cancels.counts("mails").await.expect("counts");
    assert_eq!(counts.by_status, [0, 0, won[0], 0, 0, won[1]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_5_two_handles_at_once_keep_the_order() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let store = redis.open().await;
    let mut expected = Vec::new();
    for n in 0..300 {
        let priority = Priority::ALL[n % 4];
        expected.push((priority, n, put(&store, new(priority)).await));
    }
    expected.sort();
    let mut workers = JoinSet::new();
    for limit in [1, 2, 3, 1] {
        let store = redis.open().await;
        workers.spawn(async move {
            let mut batches = Vec::new();
            loop {
                let batch = store.lease(want(limit)).await.expect("lease");
                if batch.is_empty() {
                    return batches;
                }
                batches.push(batch);
            }
        });
    }
    let mut batches = workers.join_all().await.concat();
    // On the server's clock, on which a lease takes longer than a microsecond.
    batches.sort_by_key(|batch| batch[0].changed_at);
    let leased: Vec<_> = batches.iter().flat_map(|batch| ids(batch)).collect();
    let expected: Vec<_> = expected.into_iter().map(|(_, _, id)| id).collect();
    assert_eq!(leased, expected);
}

/// It is of the new version once something was written, so that an older release refuses it.
#[tokio::test]
async fn t_5_a_journal_of_version_1_is_read_and_brought_up_to_date() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let store = redis.open().await;
    let id = put(&store, new(Priority::Normal)).await;
    let (root, key) = (root(&redis), format!("{}:entry:{id}", root(&redis)));
    let history = "00000000000000020008redriven00000000000000030003503\
                   00000000000000040008redriven00000000000000050003503";
    redis
        .command::<()>(&["HDEL", &key, "redrives", "repeats", "cause"])
        .await;
    redis
        .command::<()>(&["HSET", &key, "history", history])
        .await;
    redis.command::<()>(&["HSET", &root, "version", "1"]).await;
    let version = async || redis.command::<String>(&["HGET", &root, "version"]).await;
    let found = store.find(id).await.unwrap().unwrap();
    assert_eq!((found.redrives, found.repeats, found.cause), (2, 0, None));
    assert_eq!(version().await, "1");
    let leased = store.lease(want(1)).await.unwrap().remove(0);
    assert_eq!((leased.redrives, leased.history.len()), (2, 4));
    assert_eq!(version().await, "4");
    let settle = Settlement::failed("broken", LEASE).cause("dns");
    let settled = store.settle(id, leased.lease_token, settle).await;
    assert_eq!(settled.unwrap(), Ownership::Held);
    let redriven = store.command(id, EntryCommand::Redrive(LEASE)).await;
    assert_eq!(redriven.unwrap().unwrap().entry.redrives, 3);
    let found = store.find(id).await.unwrap().unwrap();
    assert_eq!((found.redrives, found.history.len()), (3, 6));
}

#[tokio::test]
async fn t_5_a_newer_journal_is_refused() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let store = redis.open().await;
    let id = put(&store, new(Priority::Normal)).await;
    let lease_token = LeaseToken::new(1);
    redis
        .command::<()>(&["HSET", &root(&redis), "version", "5"])
        .await;
    let settle = Settlement::release(LEASE);
    let results = [
        store.enqueue(new(Priority::Normal)).await.map(drop),
        store.lanes("mails", None, 1).await.map(drop),
        store.lease(want(1)).await.map(drop),
        store.extend(id, lease_token, LEASE).await.map(drop),
        store.settle(id, lease_token, settle).await.map(drop),
        store.command(id, EntryCommand::Trigger).await.map(drop),
        store.find(id).await.map(drop),
        store.list(Query::new("mails", 1)).await.map(drop),
        store.counts("mails").await.map(drop),
        store.position(id, 1).await.map(drop),
        store.secret().await.map(drop),
    ];
    for result in results {
        assert_eq!(result.unwrap_err().kind(), StoreErrorKind::NewerSchema);
    }
}

/// Whatever happens to entries, what is counted is what is listed, a lane that is named has
/// something to lease, and nothing is left in the end.
#[tokio::test]
async fn all_sets_agree_and_nothing_is_left_behind() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let store = redis.open().await;
    let minute = Duration::from_secs(60);
    let mut held: Vec<Entry> = Vec::new();
    let mut all: Vec<EntryId> = Vec::new();
    let shared = ["end", "other end"].map(SharedPayload::new);
    let pick = |from: usize| rand::random_range(0..from.max(1));
    for step in 0..600 {
        match pick(10) {
            0..3 => {
                let number = |of: usize| u8::try_from(pick(of)).unwrap();
                let dedup = Dedup {
                    key: RecordKey::new([number(20); 32]),
                    fingerprint: Fingerprint::new([number(2); 32]),
                };
                let new = NewEntry {
                    lane: ["", "a", "b"][pick(3)].to_owned(),
                    owner: ["ada", "bob"][pick(2)].to_owned(),
                    delay: minute * u32::from(number(3)),
                    ttl: minute * u32::from(number(12)),
                    dedup: (pick(2) == 0).then_some(dedup),
                    ..new(Priority::ALL[pick(4)])
                };
                let new = match shared.get(pick(3)) {
                    Some(end) => new.ending_in(end),
                    None => new,
                };
                all.push(new.id);
                store.enqueue(new).await.unwrap();
            }
            3..5 => {
                let lanes = store.lanes("mails", None, 9).await.unwrap();
                for lane in ["", "a", "b"] {
                    let want = LeaseRequest {
                        lane: lane.to_owned(),
                        ..want(2)
                    };
                    let leased = store.lease(want).await.unwrap();
                    let named = lanes.iter().any(|name| name == lane);
                    assert_eq!(named, !leased.is_empty(), "in {lane:?} after {step}");
                    for entry in &leased {
                        let whole = ["payload", "payloadend", "payloadother end"];
                        assert!(whole.iter().any(|whole| entry.payload == whole));
                    }
                    held.extend(leased);
                }
            }
            5 if !held.is_empty() => {
                let entry = &held[pick(held.len())];
                let _ = store
                    .extend(entry.id, entry.lease_token, LEASE)
                    .await
                    .unwrap();
            }
            6 if !held.is_empty() => {
                let entry = held.swap_remove(pick(held.len()));
                let settle = [
                    Settlement::completed("done", minute),
                    Settlement::failed("broken", minute * 2),
                    Settlement::expired(minute),
                    Settlement::retry("503", minute),
                    Settlement::release(Duration::ZERO).followed_by([new(Priority::Low)]),
                ];
                let settle = settle[pick(5)].clone();
                let _ = store
                    .settle(entry.id, entry.lease_token, settle)
                    .await
                    .unwrap();
            }
            7..9 if !all.is_empty() => {
                let steers = [
                    EntryCommand::Cancel(minute),
                    EntryCommand::Trigger,
                    EntryCommand::Redrive(minute * 2),
                ];
                let id = all[pick(all.len())];
                store.command(id, steers[pick(3)]).await.unwrap();
            }
            _ => redis.pass(Duration::from_secs(20)).await,
        }
        let listed = store.list(Query::new("mails", 1000)).await.unwrap();
        let counts = store.counts("mails").await.unwrap();
        let of = |status| listed.iter().filter(|e| e.status == status).count() as u64;
        assert_eq!(counts.by_status, Status::ALL.map(of), "after {step}");
        let queued = listed.iter().filter(|e| e.status == Status::Queued);
        let first = queued.map(|e| e.queued_at).min();
        assert_eq!(counts.oldest.is_some(), first.is_some());
    }
    let mut rounds = 0;
    while !store.list(Query::new("mails", 1)).await.unwrap().is_empty() {
        redis.pass(minute).await;
        for lane in store.lanes("mails", None, 9).await.unwrap() {
            for entry in store
                .lease(LeaseRequest { lane, ..want(999) })
                .await
                .unwrap()
            {
                let settle = Settlement::completed("", Duration::ZERO);
                let settled = store
                    .settle(entry.id, entry.lease_token, settle)
                    .await
                    .unwrap();
                assert_eq!(settled, Ownership::Held);
            }
        }
        rounds += 1;
        assert!(rounds < 60, "it does not end");
    }
    let left = async || -> Vec<String> {
        let pattern = format!("{}*", root(&redis));
        let mut left: Vec<String> = redis.command(&["KEYS", &pattern]).await;
        // They go by themselves.
        left.retain(|key| !key.contains(":ticket:"));
        left
    };
    for _ in 0..100 {
        store.lanes("mails", None, 0).await.unwrap();
    }
    assert_eq!(left().await, [root(&redis)]);
}
