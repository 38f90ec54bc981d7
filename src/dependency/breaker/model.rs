#![allow(missing_docs, reason = "their names say what they show")]

use loom::{sync::Arc, thread};

use super::*;

fn opened() -> Arc<Breaker> {
    let breaker = Arc::new(Breaker::new(
        BreakerPolicy {
            consecutive_failures: 1,
            ..BreakerPolicy::default()
        },
        Duration::from_secs(30),
    ));
    let ticket = breaker.admit(|| 0).unwrap();
    breaker.report(ticket, Health::Failure, None, || 0, || 0.0);
    breaker
}

const LATER: u64 = 3_600_000_000_000;

pub fn cb_3_racing_calls_make_one_probe() {
    loom::model(|| {
        let breaker = opened();
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || other.admit(|| LATER).is_ok());
        let mine = breaker.admit(|| LATER).is_ok();
        assert!(mine ^ thread.join().unwrap());
    });
}

pub fn cb_5_a_freed_probe_is_taken_once() {
    loom::model(|| {
        let breaker = opened();
        let probe = breaker.admit(|| LATER).unwrap();
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || {
            other.report(probe, Health::Neutral, None, || LATER, || 0.0);
        });
        let early = breaker.admit(|| LATER).is_ok();
        thread.join().unwrap();
        assert_eq!(breaker.admit(|| LATER).is_ok(), !early);
    });
}

pub fn cb_6_a_success_racing_a_failure_leaves_it_reachable() {
    loom::model(|| {
        let breaker = Arc::new(Breaker::new(
            BreakerPolicy {
                consecutive_failures: 1,
                ..BreakerPolicy::default()
            },
            Duration::from_secs(30),
        ));
        let (good, bad) = (breaker.admit(|| 0).unwrap(), breaker.admit(|| 0).unwrap());
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || {
            other.report(good, Health::Success, None, || 0, || 0.0);
        });
        breaker.report(bad, Health::Failure, None, || 0, || 0.0);
        thread.join().unwrap();
        let probe = breaker.admit(|| LATER).unwrap();
        breaker.report(probe, Health::Success, None, || LATER, || 0.0);
        assert_eq!(breaker.state(LATER), BreakerState::Closed);
    });
}

/// A success that came in by the old policy begins a slot while slots get another length.
pub fn cb_1_slots_of_two_lengths_are_never_mixed() {
    let of = |seconds| BreakerPolicy {
        window: Duration::from_secs(seconds),
        ..BreakerPolicy::default()
    };
    loom::model(move || {
        let breaker = Arc::new(Breaker::new(of(10), Duration::from_secs(30)));
        let ticket = breaker.admit(|| LATER).unwrap();
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || {
            other.report(ticket, Health::Success, Some(LATER), || LATER, || 0.0);
        });
        let renewed = breaker.with_policy(of(1000), Duration::from_secs(30));
        thread.join().unwrap();
        let newest = renewed.slot(LATER);
        let inner = lock(&renewed.shared.inner);
        assert!(inner.slots.iter().all(|slot| slot.number <= newest));
        assert!(renewed.shared.latest.load(Ordering::Relaxed) <= newest);
    });
}
