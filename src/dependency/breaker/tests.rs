use super::*;

const SECOND: u64 = 1_000_000_000;

fn breaker() -> Breaker {
    Breaker::new(BreakerPolicy::default(), Duration::from_secs(30))
}

fn call(breaker: &Breaker, health: Health, now: u64) -> Option<BreakerState> {
    let ticket = breaker.admit(|| now).expect("admitted");
    breaker.report(ticket, health, None, || now, || 0.0)
}

fn trip(breaker: &Breaker, now: u64) -> u64 {
    for _ in 0..5 {
        call(breaker, Health::Failure, now);
    }
    match breaker.state(now) {
        BreakerState::Open(cooldown) => now + nanos(cooldown),
        state => panic!("{state:?}"),
    }
}

#[test]
fn cb_1_five_failures_in_a_row_open_it() {
    let breaker = breaker();
    for _ in 0..4 {
        assert_eq!(call(&breaker, Health::Failure, 0), None);
    }
    call(&breaker, Health::Success, 0);
    for _ in 0..4 {
        assert_eq!(call(&breaker, Health::Failure, 0), None);
    }
    assert!(matches!(
        call(&breaker, Health::Failure, 0),
        Some(BreakerState::Open(_))
    ));
}

#[test]
fn cb_1_a_failure_rate_over_the_window_opens_it() {
    let breaker = breaker();
    let mut opened = None;
    for i in 0..20 {
        opened = call(
            &breaker,
            if i % 2 == 0 {
                Health::Failure
            } else {
                Health::Success
            },
            i * SECOND / 10,
        );
        assert!(
            opened.is_none() || i >= 18,
            "opened at call {i}, before the minimum count"
        );
        if opened.is_some() {
            break;
        }
    }
    // Half of 20 calls failed, but the 20th is a success; the next failure tips it.
    let opened = opened.or_else(|| call(&breaker, Health::Failure, 2 * SECOND));
    assert!(matches!(opened, Some(BreakerState::Open(_))));
}

#[test]
fn cb_4_a_breaker_that_closes_counts_from_then_on() {
    let breaker = breaker();
    let until = trip(&breaker, 0);
    call(&breaker, Health::Success, until);
    assert_eq!(breaker.state(until), BreakerState::Closed);
    // In the slot of the failures that opened it. Of 140 calls, twenty fail.
    for n in 0..140 {
        let ticket = breaker.admit(|| until).expect("admitted");
        let health = match n >= 100 && n % 2 == 0 {
            true => Health::Failure,
            false => Health::Success,
        };
        let changed = breaker.report(ticket, health, Some(until), || until, || 0.0);
        assert_eq!(changed, None, "at call {n}");
    }
}

#[test]
fn cb_1_calls_of_the_whole_window_count() {
    let breaker = breaker();
    // One a second, so that twenty of them are in twenty slots.
    let opened = (0..40).find(|i| {
        let health = match i % 2 {
            0 => Health::Failure,
            _ => Health::Success,
        };
        call(&breaker, health, i * SECOND).is_some()
    });
    assert_eq!(opened, Some(20));
}

#[test]
fn cb_4_a_cooldown_is_up_to_a_fifth_shorter_and_never_longer() {
    for (uniform, shortest, longest) in [(0.0, 1000, 1000), (0.5, 900, 900), (0.999, 800, 801)] {
        let breaker = breaker();
        let failed = || {
            let ticket = breaker.admit(|| 0).expect("admitted");
            breaker.report(ticket, Health::Failure, None, || 0, || uniform)
        };
        let Some(BreakerState::Open(cooldown)) = (0..5).find_map(|_| failed()) else {
            panic!("it did not open");
        };
        let cooldown = cooldown.as_millis();
        assert!((shortest..=longest).contains(&cooldown), "{cooldown} ms");
    }
}

#[test]
fn cb_6_it_opens_and_closes_for_ever() {
    let breaker = breaker();
    let mut now = 0;
    for _ in 0..100 {
        let late = breaker.admit(|| now).expect("closed");
        now = trip(&breaker, now);
        assert_eq!(
            call(&breaker, Health::Success, now),
            Some(BreakerState::Closed)
        );
        // CB-5: of an older generation.
        for _ in 0..10 {
            breaker.report(late, Health::Failure, None, || now, || 0.0);
        }
        assert_eq!(breaker.state(now), BreakerState::Closed);
    }
}

#[test]
fn cb_4_one_failed_probe_opens_it_again_however_little_else_failed() {
    let policy = BreakerPolicy {
        consecutive_failures: u32::MAX,
        window: Duration::from_millis(100),
        ..BreakerPolicy::default()
    };
    let breaker = Breaker::new(policy, Duration::from_secs(30));
    let opened = (0..20).find_map(|_| call(&breaker, Health::Failure, 0));
    assert!(matches!(opened, Some(BreakerState::Open(_))));
    // What opened it is long out of the window.
    let probed = call(&breaker, Health::Failure, 10 * SECOND);
    assert!(matches!(probed, Some(BreakerState::Open(_))), "{probed:?}");
}

#[test]
fn cb_1_old_failures_leave_the_window() {
    let breaker = breaker();
    for i in 0..200 {
        call(&breaker, Health::Failure, i * 40 * SECOND);
        call(&breaker, Health::Success, i * 40 * SECOND);
        assert_eq!(breaker.state(i * 40 * SECOND), BreakerState::Closed);
    }
}

#[test]
fn cb_1_a_low_rate_never_opens_it() {
    let breaker = breaker();
    for i in 0..10_000 {
        let health = if i % 4 == 0 {
            Health::Failure
        } else {
            Health::Success
        };
        assert_eq!(call(&breaker, health, i * SECOND / 100), None);
    }
}

#[test]
fn cb_2_open_refuses_with_what_is_left_of_the_cooldown() {
    let breaker = breaker();
    let until = trip(&breaker, 0);
    let refused = breaker.admit(|| until - SECOND).unwrap_err();
    assert_eq!(refused, Some(Duration::from_secs(1)));
    assert!(breaker.refuses_at(until - 1));
    assert!(!breaker.refuses_at(until));
}

#[test]
fn cb_3_one_probe_at_a_time() {
    let breaker = breaker();
    let until = trip(&breaker, 0);
    let probe = breaker.admit(|| until).unwrap();
    assert!(probe.is_probe());
    for _ in 0..10 {
        assert_eq!(breaker.admit(|| until + 10 * SECOND), Err(None));
    }
}

#[test]
fn cb_6_a_probe_that_never_ends_is_followed_by_another() {
    let breaker = breaker();
    let until = trip(&breaker, 0);
    let lost = breaker.admit(|| until).unwrap();
    assert_eq!(breaker.admit(|| until + 29 * SECOND), Err(None));
    let next = breaker.admit(|| until + 30 * SECOND).unwrap();
    assert!(next.is_probe());
    breaker.report(lost, Health::Failure, None, || until, || 0.0);
    assert_eq!(
        breaker.state(until),
        BreakerState::Probing,
        "the lost one counts no more"
    );
    breaker.report(next, Health::Success, None, || until, || 0.0);
    assert_eq!(breaker.state(until), BreakerState::Closed);
}

#[test]
fn cb_1_successes_before_the_first_failure_count_too() {
    let breaker = breaker();
    for i in 0..10_000 {
        let ticket = breaker.admit(|| 0).unwrap();
        let at = Some(i * 25 * SECOND / 10_000);
        breaker.report(ticket, Health::Success, at, || unreachable!(), || 0.0);
    }
    for _ in 0..100 {
        assert_eq!(call(&breaker, Health::Failure, 26 * SECOND), None);
        assert_eq!(call(&breaker, Health::Success, 26 * SECOND), None);
    }
}

#[test]
fn g_8_an_abandoned_breaker_is_forgotten() {
    let breaker = breaker();
    call(&breaker, Health::Failure, 0);
    assert!(!breaker.is_idle(SECOND));
    assert!(breaker.is_idle(31 * SECOND), "a streak of the past");
    let breaker = self::breaker();
    let until = trip(&breaker, 40 * SECOND);
    assert!(!breaker.is_idle(until));
    assert!(
        breaker.is_idle(until + 60 * SECOND),
        "open, but the next call would pass"
    );
}

#[test]
fn cb_4_a_good_probe_closes_and_resets() {
    let breaker = breaker();
    let until = trip(&breaker, 0);
    assert_eq!(
        call(&breaker, Health::Success, until),
        Some(BreakerState::Closed)
    );
    assert!(breaker.is_idle(until));
    for _ in 0..4 {
        assert_eq!(call(&breaker, Health::Failure, until), None);
    }
}

#[test]
fn cb_4_a_bad_probe_opens_it_for_longer_up_to_the_cap() {
    let breaker = breaker();
    let mut until = trip(&breaker, 0);
    let mut last = Duration::from_nanos(until);
    for round in 0..20 {
        let Some(BreakerState::Open(cooldown)) = call(&breaker, Health::Failure, until) else {
            panic!()
        };
        assert!(
            cooldown > last || cooldown == breaker.policy.max_cooldown,
            "round {round}"
        );
        last = cooldown;
        until += nanos(cooldown);
    }
    assert_eq!(last, breaker.policy.max_cooldown);
}

#[test]
fn cb_4_cooldowns_are_jittered() {
    let cooldown = |uniform: f64| {
        let breaker = breaker();
        let mut inner = lock(&breaker.shared.inner);
        breaker.open(&mut inner, 0, 0, uniform)
    };
    assert_ne!(cooldown(0.1), cooldown(0.9));
}

#[test]
fn cb_5_a_neutral_probe_frees_its_slot() {
    let breaker = breaker();
    let until = trip(&breaker, 0);
    assert_eq!(call(&breaker, Health::Neutral, until), None);
    assert_eq!(
        call(&breaker, Health::Success, until),
        Some(BreakerState::Closed)
    );
}

#[test]
fn cb_5_late_results_of_an_older_generation_change_nothing() {
    let breaker = breaker();
    let late: Vec<_> = (0..3).map(|_| breaker.admit(|| 0).unwrap()).collect();
    let until = trip(&breaker, 0);
    assert_eq!(
        breaker.report(late[0], Health::Success, None, || 0, || 0.0),
        None
    );
    assert!(matches!(breaker.state(0), BreakerState::Open(_)));
    let probe = breaker.admit(|| until).unwrap();
    assert_eq!(
        breaker.report(late[1], Health::Success, None, || until, || 0.0),
        None
    );
    assert_eq!(breaker.state(until), BreakerState::Probing);
    breaker.report(probe, Health::Success, None, || until, || 0.0);
    for _ in 0..9 {
        breaker.report(late[2], Health::Failure, None, || until, || 0.0);
    }
    assert_eq!(breaker.state(until), BreakerState::Closed);
}

#[test]
fn g_5_exhaustion_opens_only_a_failing_dependency() {
    let run = |on_budget_exhausted, failures: u64| {
        let breaker = Breaker::new(
            BreakerPolicy {
                on_budget_exhausted,
                ..BreakerPolicy::default()
            },
            Duration::from_secs(30),
        );
        for i in 0..16 {
            let health = if i % 8 < failures {
                Health::Failure
            } else {
                Health::Success
            };
            call(&breaker, health, 0);
        }
        breaker.budget_exhausted(0, 0.0).is_some()
    };
    assert!(!run(Exhaustion::OpenIfFailing, 0));
    assert!(
        !run(Exhaustion::OpenIfFailing, 2),
        "a quarter fails: no reason for a full outage"
    );
    assert!(run(Exhaustion::OpenIfFailing, 4));
    assert!(run(Exhaustion::Open, 0));
    assert!(!run(Exhaustion::Never, 4));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Whatever happened before, a dependency that is well is reached again.
    #[test]
    fn cb_6_never_wedges(steps in proptest::collection::vec((0_u64..20_000, 0_u8..5), 0..200)) {
        let breaker = breaker();
        let (mut now, mut out) = (0, Vec::new());
        for (millis, step) in steps {
            now += millis * 1_000_000;
            match step {
                0 => out.extend(breaker.admit(|| now).ok()),
                1 => { breaker.budget_exhausted(now, 0.5); }
                _ => if let Some(ticket) = out.pop() {
                    let health = [Health::Success, Health::Failure, Health::Neutral][usize::from(step) - 2];
                    breaker.report(ticket, health, None, || now, || 0.5);
                }
            }
        }
        for ticket in out {
            breaker.report(ticket, Health::Neutral, None, || now, || 0.5);
        }
        now += nanos(breaker.policy.max_cooldown);
        call(&breaker, Health::Success, now);
        proptest::prop_assert_eq!(breaker.state(now), BreakerState::Closed);
    }
}

#[test]
fn cb_5_a_probe_of_another_policy_is_reported_like_any() {
    let breaker = breaker();
    let open_until = trip(&breaker, 0);
    let renewed = breaker.with_policy(BreakerPolicy::default(), Duration::from_secs(5));
    assert!(renewed.admit(|| 0).is_err(), "it stands where it stood");
    let probe = breaker.admit(|| open_until).expect("the probe");
    assert!(renewed.admit(|| open_until).is_err(), "one is out");
    let closed = breaker.report(probe, Health::Success, None, || open_until, || 0.0);
    assert_eq!(closed, Some(BreakerState::Closed));
    assert!(renewed.admit(|| open_until).is_ok());
}

/// A result that comes in by the old policy after slots got another length is counted in the new
/// ones.
#[test]
fn cb_1_slots_of_two_lengths_are_never_mixed() {
    let of = |seconds| BreakerPolicy {
        window: Duration::from_secs(seconds),
        consecutive_failures: 100,
        minimum_calls: 4,
        ..BreakerPolicy::default()
    };
    for (before, after) in [(10, 1000), (1000, 10)] {
        let start = 5000 * SECOND;
        let old = Breaker::new(of(before), Duration::from_secs(30));
        let new = old.with_policy(of(after), Duration::from_secs(30));
        for _ in 0..3 {
            assert_eq!(call(&old, Health::Failure, start), None);
        }
        let past = start + 2 * nanos(Duration::from_secs(after));
        let seen = new.admit(|| past).expect("closed");
        new.report(seen, Health::Success, Some(past), || past, || 0.0);
        for _ in 0..2 {
            assert_eq!(call(&old, Health::Failure, past), None, "{before} {after}");
        }
        assert!(call(&new, Health::Failure, past).is_some());
    }
}
