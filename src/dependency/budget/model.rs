#![allow(missing_docs, reason = "their names say what they show")]

use loom::{sync::Arc, thread};

use super::*;

fn of(ratio: f64, floor: u32) -> Budget {
    let initial = floor;
    Budget::new(Some(BudgetPolicy {
        ratio,
        floor,
        initial,
        quota: None,
    }))
}

pub fn g_1_two_threads_never_share_a_grant() {
    loom::model(|| {
        let budget = Arc::new(of(0.5, 1));
        budget.deposit(0);
        let other = Arc::clone(&budget);
        let thread = thread::spawn(move || {
            other.deposit(0);
            u64::from(other.charge(0, 0).is_some())
        });
        let mine = u64::from(budget.charge(0, 0).is_some());
        let theirs = thread.join().unwrap();
        assert_eq!(mine + theirs, 1);
        assert_eq!(budget.originals_in_window(0), 2);
    });
}

/// Threads that share a shard, at the turn of a slot.
pub fn g_1_no_original_is_lost_when_a_slot_ends() {
    for later in [1, 5, SLOTS] {
        loom::model(move || {
            let budget = Arc::new(of(1.0, 0));
            let later = later * NANOS_PER_SLOT;
            budget.deposit(0);
            let other = Arc::clone(&budget);
            let thread = thread::spawn(move || other.deposit(later));
            budget.deposit(later);
            thread.join().unwrap();
            let old = u64::from(later < SLOTS * NANOS_PER_SLOT);
            assert_eq!(budget.originals_in_window(later), 2 + old);
        });
    }
}

pub fn g_1_no_original_is_seen_twice_when_a_slot_ends() {
    loom::model(|| {
        let budget = Arc::new(of(1.0, 0));
        budget.deposit(0);
        let other = Arc::clone(&budget);
        let thread = thread::spawn(move || other.deposit(NANOS_PER_SLOT));
        assert!(budget.originals_in_window(NANOS_PER_SLOT) <= 2);
        thread.join().unwrap();
        assert_eq!(budget.originals_in_window(NANOS_PER_SLOT), 2);
    });
}

pub fn d_6_a_refund_races_a_charge() {
    loom::model(|| {
        let budget = Arc::new(of(0.0, 1));
        let source = budget.charge(0, 0).unwrap();
        let other = Arc::clone(&budget);
        let thread = thread::spawn(move || other.refund(source));
        let granted = budget.charge(0, 0).is_some();
        thread.join().unwrap();
        assert_eq!(budget.usage(0), Some((u64::from(granted), 1)));
    });
}
