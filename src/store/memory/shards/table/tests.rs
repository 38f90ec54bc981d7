use std::{cell::RefCell, collections::HashMap};

use proptest::prelude::*;

use super::*;

fn key(n: u8) -> RecordKey {
    RecordKey::new([n; 32])
}

/// Few of them, so that many keys share one or are beside another, and around the end.
fn hash(n: u8) -> u32 {
    const SOME: [u32; 6] = [0, 1, 1 << 31, u32::MAX - 1, u32::MAX, 0x0fff_ffff];
    SOME[usize::from(n) % SOME.len()]
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u8, u64),
    Keep(u8, u64),
    Remove(u8),
    Sweep(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let time = 0..4_u64 << TICK;
    let step = prop_oneof![
        8 => (any::<u8>(), time.clone()).prop_map(|(n, time)| Step::Insert(n, time)),
        2 => (any::<u8>(), time.clone()).prop_map(|(n, time)| Step::Keep(n, time)),
        4 => any::<u8>().prop_map(Step::Remove),
        1 => time.prop_map(Step::Sweep),
    ];
    prop::collection::vec(step, 0..600)
}

fn sweep(table: &mut Table<u8>, now: u64) -> (u64, Vec<u8>) {
    let removed = RefCell::new(Vec::new());
    let earliest = table.sweep(now, |n| removed.borrow_mut().push(*n));
    let mut removed = removed.into_inner();
    removed.sort_unstable();
    (earliest, removed)
}

proptest! {
    #[test]
    fn t_1_does_what_a_plain_map_does(steps in steps()) {
        let mut table = Table::<u8>::default();
        let mut plain = HashMap::new();
        for step in steps {
            match step {
                Step::Insert(n, expires) => {
                    let found = table.find(hash(n), &key(n)).map(|found| found.expires());
                    prop_assert_eq!(found, plain.get(&n).copied());
                    if found.is_none() {
                        table.insert(hash(n), key(n), expires, n);
                        plain.insert(n, expires);
                    }
                }
                Step::Keep(n, expires) => {
                    if let Some(mut found) = table.find(hash(n), &key(n)) {
                        found.keep_until(expires);
                        plain.insert(n, expires);
                    }
                }
                Step::Remove(n) => {
                    let removed = plain.remove(&n).map(|_| n);
                    prop_assert_eq!(table.remove(hash(n), &key(n)), removed);
                }
                Step::Sweep(now) => {
                    let (earliest, removed) = sweep(&mut table, now);
                    let mut past: Vec<_> = plain.extract_if(|_, expires| *expires <= now).collect();
                    past.sort_unstable();
                    prop_assert_eq!(removed, past.iter().map(|(n, _)| *n).collect::<Vec<_>>());
                    let sooner = plain.values().any(|expires| *expires < earliest);
                    prop_assert!(!sooner && earliest > now);
                }
            }
            prop_assert_eq!(table.slots.len(), plain.len());
        }
        for n in 0..=u8::MAX {
            let found = table.find(hash(n), &key(n)).map(|found| (*found, found.expires()));
            prop_assert_eq!(found, plain.get(&n).map(|expires| (n, *expires)));
        }
    }
}

#[test]
fn t_1_keys_of_one_hash_are_told_apart() {
    let mut table = Table::default();
    for n in 0..100 {
        table.insert(7, key(n), 1, n);
    }
    for n in 0..100 {
        assert_eq!(table.remove(7, &key(n)), Some(n));
        assert!(table.find(7, &key(n)).is_none());
        assert!((n + 1..100).all(|n| table.find(7, &key(n)).is_some_and(|found| *found == n)));
    }
}

/// T-3: ticks are coarse, and no time is rounded to them, wherever in a tick it is.
#[test]
fn t_3_kept_to_the_microsecond() {
    let last = u64::from(u32::MAX) << TICK;
    for tick in [1, 2 << TICK, last, u64::MAX - 1] {
        for expires in [tick - 1, tick, tick + 1] {
            let mut table = Table::default();
            table.insert(0, key(0), u64::MAX, 0);
            table.insert(1, key(1), u64::MAX, 1);
            table.find(1, &key(1)).unwrap().keep_until(expires);
            if let Some(before) = expires.checked_sub(1) {
                let (earliest, removed) = sweep(&mut table, before);
                assert!(removed.is_empty(), "{expires} is past at {before}");
                assert_eq!(earliest, expires, "looked at, since it is in this tick");
            }
            let past = if expires == u64::MAX {
                vec![0, 1]
            } else {
                vec![1]
            };
            assert_eq!(sweep(&mut table, expires).1, past, "not past at {expires}");
        }
    }
}

#[test]
fn t_3_a_sweep_is_never_needed_before_the_time_it_says() {
    let mut table = Table::default();
    let expires = (9 << TICK) + 5;
    table.insert(0, key(0), expires, 0);
    assert_eq!(sweep(&mut table, 0).0, 9 << TICK, "not looked at");
    assert_eq!(sweep(&mut table, 9 << TICK).0, expires);
    assert_eq!(sweep(&mut table, expires), (u64::MAX, vec![0]));

    // What is kept for good is not looked at each time.
    table.insert(0, key(0), u64::MAX, 0);
    assert_eq!(sweep(&mut table, 0).0, u64::from(u32::MAX) << TICK);
}

#[test]
fn t_1_room_is_given_back() {
    let mut table = Table::default();
    for n in 0..=u8::MAX {
        table.insert(n.into(), key(n), n.into(), n);
    }
    let places = table.index.len();
    assert_eq!(places, 512);
    sweep(&mut table, 63);
    assert_eq!(table.index.len(), places, "it may be wanted again soon");
    sweep(&mut table, 250);
    assert_eq!(table.index.len(), 16);
    assert!(table.slots.capacity() <= 16);
    assert!((251..=u8::MAX).all(|n| table.find(n.into(), &key(n)).is_some()));
}

/// T-1: a million of them are in memory.
#[test]
fn t_1_what_is_looked_into_at_random_is_small() {
    assert_eq!(size_of::<Slot<[u64; 10]>>(), 16);
    assert_eq!(size_of::<Entry<[u64; 10]>>(), 120);
}
