use std::collections::HashSet;

use super::*;
use crate::store::{ClaimId, Fingerprint, Note};

fn store() -> Shards {
    Shards::new(u64::MAX, u64::MAX)
}

/// Returns keys that differ in one byte, as an attacker would choose them.
fn chosen() -> impl Iterator<Item = RecordKey> {
    (0..4).flat_map(|piece| {
        (0..=255).map(move |n| {
            let mut bytes = [7; 32];
            bytes[piece * 8 + 3] = n;
            RecordKey::new(bytes)
        })
    })
}

#[test]
fn t_1_a_shard_is_on_one_line_and_a_slot_is_small() {
    assert_eq!(size_of::<Shard>(), 64);
    assert_eq!(size_of::<Slot>(), 24);
}

#[test]
fn t_1_keys_that_are_alike_are_spread() {
    let store = store();
    let spread = |bits: fn(u64) -> u64| {
        let places: HashSet<_> = chosen().map(|key| bits(store.hash(&key))).collect();
        places.len()
    };
    // Of 1,021 keys thrown at random: about 646 of 1,024, and 251 of 256.
    assert!(spread(|hash| hash % 1024) > 450);
    assert!(spread(|hash| (hash >> 32) % 256) > 200);
    assert!(spread(|hash| hash >> 57) > 100);
}

#[test]
fn t_1_no_two_stores_put_keys_in_the_same_places() {
    let [one, other] = [store(), store()];
    let same = |key: &RecordKey| one.hash(key) as u32 == other.hash(key) as u32;
    assert!(chosen().filter(same).count() < 4);
}

#[test]
fn t_3_i_23_a_sweep_removes_at_the_time_and_gives_room_back() {
    let store = store();
    let capacity = || -> usize {
        let tables = store
            .shards
            .iter()
            .map(|shard| lock(&shard.table).records.capacity());
        tables.sum()
    };
    for n in 0..100_000_u32 {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        let claimed = store.try_claim(
            &Claim {
                key: RecordKey::new(key),
                fingerprint: Fingerprint::new([1; 32]),
                id: ClaimId::new([1; 16]),
                lease: Duration::ZERO,
                retention: Duration::from_micros(u64::from(n) + 1),
                crash_policy: CrashPolicy::Reexecute,
                note: Note::NONE,
                resumes: None,
            },
            0,
        );
        assert!(matches!(claimed, Some(Claimed::New(_))));
    }
    for (now, left) in [(0, 100_000), (1, 99_999), (50_000, 50_000)] {
        store.sweep_all(now);
        assert_eq!(store.records(), left, "at {now}");
    }
    let before = capacity();
    store.sweep_all(99_999);
    assert_eq!(store.records(), 1);
    assert!(
        before > 50_000 && capacity() < 1_000,
        "{before}, {}",
        capacity()
    );
    store.sweep_all(100_000);
    assert_eq!((store.records(), store.bytes()), (0, 0));
}
