#![allow(missing_docs, reason = "their names say what they show")]

use loom::{sync::Arc, thread};

use super::*;

fn breaker() -> Arc<Breaker> {
    Arc::new(Breaker::new(BreakerPolicy {
        consecutive_failures: 1,
        no_success_for: Duration::ZERO,
        ..BreakerPolicy::default()
    }))
}

fn arrive(breaker: &Breaker, now: u64) -> Result<Ticket, Denied> {
    breaker.admit(|| Arrival {
        now,
        uniform: 0.0,
        retry: false,
    })
}

fn report(breaker: &Breaker, ticket: Ticket, health: Health, now: u64) {
    breaker.report(ticket, health.into(), None, || now, || 0.0);
}

fn opened() -> Arc<Breaker> {
    let breaker = breaker();
    let ticket = arrive(&breaker, 0).unwrap();
    report(&breaker, ticket, Health::Failure, 0);
    breaker
}

const LATER: u64 = 3_600_000_000_000;

pub fn cb_3_racing_calls_make_one_probe() {
    loom::model(|| {
        let breaker = opened();
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || arrive(&other, LATER).is_ok());
        let mine = arrive(&breaker, LATER).is_ok();
        assert!(mine ^ thread.join().unwrap());
    });
}

pub fn cb_5_a_freed_probe_is_taken_once() {
    loom::model(|| {
        let breaker = opened();
        let probe = arrive(&breaker, LATER).unwrap();
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || {
            report(&other, probe, Health::Neutral, LATER);
        });
        let early = arrive(&breaker, LATER).is_ok();
        thread.join().unwrap();
        assert_eq!(arrive(&breaker, LATER).is_ok(), !early);
    });
}

pub fn cb_6_a_success_racing_a_failure_leaves_it_reachable() {
    loom::model(|| {
        let breaker = breaker();
        let (good, bad) = (arrive(&breaker, 0).unwrap(), arrive(&breaker, 0).unwrap());
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || {
            report(&other, good, Health::Success, 0);
        });
        report(&breaker, bad, Health::Failure, 0);
        thread.join().unwrap();
        let probe = arrive(&breaker, LATER).unwrap();
        report(&breaker, probe, Health::Success, LATER);
        assert_ne!(breaker.state(LATER).0, BreakerState::Open(Duration::ZERO));
    });
}

/// A success that came in by the old policy begins a slot while slots get another length.
pub fn cb_1_slots_of_two_lengths_are_never_mixed() {
    let of = |seconds| BreakerPolicy {
        window: Duration::from_secs(seconds),
        ..BreakerPolicy::default()
    };
    loom::model(move || {
        let breaker = Arc::new(Breaker::new(of(10)));
        let ticket = arrive(&breaker, LATER).unwrap();
        let other = Arc::clone(&breaker);
        let thread = thread::spawn(move || {
            let health = Health::Success.into();
            other.report(ticket, health, Some(LATER), || LATER, || 0.0);
        });
        let renewed = breaker.with_policy(of(1000));
        thread.join().unwrap();
        let newest = renewed.slot(LATER);
        let inner = lock(&renewed.shared.inner);
        assert!(inner.window.is_up_to(newest));
        assert!(renewed.shared.latest.load(Ordering::Relaxed) <= newest);
    });
}
