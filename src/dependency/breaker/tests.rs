use super::{
    ramp::{STEP, STEPS},
    *,
};

const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;

/// Opens after five failures in a row, however fast they come.
fn quick() -> BreakerPolicy {
    BreakerPolicy {
        no_success_for: Duration::ZERO,
        cooldown: Duration::from_secs(1),
        max_cooldown: Duration::from_secs(4),
        ..BreakerPolicy::default()
    }
}

fn often(failure_rate: f64, minimum_calls: u32) -> BreakerPolicy {
    BreakerPolicy {
        failure_rate,
        minimum_calls,
        consecutive_failures: 1000,
        ..quick()
    }
}

fn arrive(breaker: &Breaker, now: u64) -> Result<Ticket, Denied> {
    breaker.admit(|| Arrival {
        now,
        uniform: 0.0,
        retry: false,
    })
}

fn report(breaker: &Breaker, ticket: Ticket, health: Health, now: u64) -> Option<BreakerState> {
    let changed = breaker.report(ticket, health.into(), Some(now), || now, || 0.0);
    changed.map(|change| change.state)
}

fn call(breaker: &Breaker, health: Health, now: u64) -> Option<BreakerState> {
    report(
        breaker,
        arrive(breaker, now).expect("admitted"),
        health,
        now,
    )
}

fn state_of(breaker: &Breaker, now: u64) -> BreakerState {
    breaker.state(now).0
}

/// Opens a breaker of the quick policy. Returns the time of the first probe.
fn trip(breaker: &Breaker, now: u64) -> u64 {
    for _ in 0..5 {
        call(breaker, Health::Failure, now);
    }
    match state_of(breaker, now) {
        BreakerState::Open(cooldown) => now + nanos(cooldown),
        state => panic!("{state:?}"),
    }
}

#[test]
fn cb_1_five_failures_in_a_row_open_it() {
    let breaker = Breaker::new(quick());
    for _ in 0..4 {
        assert_eq!(call(&breaker, Health::Failure, 0), None);
    }
    call(&breaker, Health::Success, 0);
    for _ in 0..4 {
        assert_eq!(call(&breaker, Health::Failure, 0), None);
    }
    let opened = call(&breaker, Health::Failure, 0);
    assert!(matches!(opened, Some(BreakerState::Open(_))));
}

#[test]
fn cb_8_by_default_it_takes_a_second_without_a_success() {
    let breaker = Breaker::new(BreakerPolicy::default());
    for i in 0..100 {
        assert_eq!(call(&breaker, Health::Failure, i * 9 * MILLI), None, "{i}");
    }
    let opened = call(&breaker, Health::Failure, SECOND);
    assert!(matches!(opened, Some(BreakerState::Open(_))));
    let reason = breaker.state(SECOND).1.map(|(reason, _)| reason);
    assert_eq!(reason, Some(BreakerReason::Failures));
}

#[test]
fn cb_8_five_failures_in_an_hour_are_enough_without_a_record() {
    let breaker = Breaker::new(BreakerPolicy::default());
    let opened = (0..10).find(|i| call(&breaker, Health::Failure, i * 900 * SECOND).is_some());
    assert_eq!(opened, Some(4));
}

#[test]
fn cb_8_a_dependency_that_fails_often_is_not_down() {
    // Every 4th of 10 calls a second succeeds, and then none for 3 s.
    let breaker = Breaker::new(BreakerPolicy::default());
    let mut now = 0;
    for i in 0..1000 {
        let health = [Health::Success, Health::Failure][usize::from(i % 4 > 0)];
        now += SECOND / 10;
        assert_eq!(call(&breaker, health, now), None);
    }
    let opened = (1..100).find(|_| {
        now += SECOND / 10;
        call(&breaker, Health::Failure, now).is_some()
    });
    assert!(
        opened.is_some_and(|calls| (30..40).contains(&calls)),
        "{opened:?}"
    );
}

#[test]
fn cb_1_a_failure_rate_over_the_window_opens_it() {
    let breaker = Breaker::new(often(0.5, 20));
    // One a second, so that twenty of them are in many slots. The 20th is a success: a rate is
    // looked at on successes too.
    let opened = (0..40).find(|i| {
        let health = [Health::Failure, Health::Success][usize::from(i % 2 == 1)];
        call(&breaker, health, i * SECOND).is_some()
    });
    assert_eq!(opened, Some(19));
    let reason = breaker.state(0).1.map(|(reason, _)| reason);
    assert_eq!(reason, Some(BreakerReason::FailureRate));
}

#[test]
fn cb_1_successes_that_are_ready_at_once_count_too() {
    let breaker = Breaker::new(often(0.5, 20));
    for i in 0..10_000 {
        let (ticket, now) = (arrive(&breaker, 0).unwrap(), i * 20 * SECOND / 10_000);
        breaker.report(ticket, Health::Success.into(), None, || now, || 0.0);
    }
    for _ in 0..900 {
        assert_eq!(call(&breaker, Health::Failure, 21 * SECOND), None);
    }
}

#[test]
fn cb_4_a_breaker_that_closes_counts_from_then_on() {
    let breaker = Breaker::new(BreakerPolicy {
        consecutive_failures: 5,
        ..often(0.5, 20)
    });
    let until = trip(&breaker, 0);
    let closed = call(&breaker, Health::Success, until);
    assert_eq!(closed, Some(BreakerState::Recovering));
    // Of 140 calls, twenty fail, in the slot of those that opened it.
    for n in 0..140 {
        let health = match n >= 100 && n % 2 == 0 {
            true => Health::Failure,
            false => Health::Success,
        };
        let changed = call(&breaker, health, until + n * 10 * MILLI);
        assert_eq!(changed, None, "at call {n}");
    }
}

#[test]
fn cb_1_old_failures_leave_the_window() {
    let breaker = Breaker::new(often(0.5, 2));
    for i in 0..200 {
        call(&breaker, Health::Success, i * 40 * SECOND);
        call(&breaker, Health::Success, i * 40 * SECOND);
        assert_eq!(call(&breaker, Health::Failure, i * 40 * SECOND), None);
    }
}

#[test]
fn cb_4_a_cooldown_is_up_to_a_fifth_shorter_and_never_longer() {
    for (uniform, shortest, longest) in [(0.0, 1000, 1000), (0.5, 900, 900), (0.999, 800, 801)] {
        let breaker = Breaker::new(quick());
        let failed = || {
            let ticket = arrive(&breaker, 0).expect("admitted");
            breaker.report(ticket, Health::Failure.into(), None, || 0, || uniform)
        };
        let opened = (0..5).find_map(|_| failed()).map(|change| change.state);
        let Some(BreakerState::Open(cooldown)) = opened else {
            panic!("{opened:?}");
        };
        let cooldown = cooldown.as_millis();
        assert!((shortest..=longest).contains(&cooldown), "{cooldown} ms");
    }
}

#[test]
fn cb_2_open_refuses_with_what_is_left_of_the_cooldown() {
    let breaker = Breaker::new(quick());
    let until = trip(&breaker, 0);
    let refused = arrive(&breaker, until - SECOND / 2).unwrap_err();
    assert_eq!(refused, Denied::Open(Some(Duration::from_millis(500))));
    assert!(breaker.refuses_at(until - SECOND / 2 - 1));
    assert!(
        !breaker.refuses_at(until - SECOND / 2),
        "if there are many calls"
    );
}

#[test]
fn cb_3_cb_9_one_probe_after_each_cooldown_however_long_it_takes() {
    let breaker = Breaker::new(quick());
    let mut until = trip(&breaker, 0);
    for cooldown in [2, 4, 4] {
        let hung = arrive(&breaker, until).expect("a probe");
        assert!(hung.is_probe());
        for _ in 0..10 {
            assert!(arrive(&breaker, until).is_err(), "one at a time");
        }
        until += cooldown * SECOND;
        assert!(arrive(&breaker, until - 1).is_err());
    }
}

/// A choice among endpoints goes by it: each call that it lets pass is a probe.
#[test]
fn cb_3_it_is_known_whether_the_next_call_is_refused() {
    for gap in [MILLI, 100 * MILLI, SECOND] {
        let breaker = Breaker::new(quick());
        let mut now = trip(&breaker, 0) - SECOND;
        for _ in 0..200 {
            let refuses = breaker.refuses_next(now);
            let arrived = arrive(&breaker, now);
            assert_eq!(arrived.is_err(), refuses, "{now}");
            if let Ok(probe) = arrived {
                report(&breaker, probe, Health::Failure, now);
            }
            now += gap;
        }
    }
}

#[test]
fn cb_9_of_many_calls_a_small_share_are_probes() {
    for (gap, least, most) in [(MILLI, 55, 62), (100 * MILLI, 15, 35), (10 * SECOND, 6, 6)] {
        let breaker = Breaker::new(BreakerPolicy::default());
        let mut now = 0;
        while call(&breaker, Health::Failure, now).is_none() {
            now += SECOND;
        }
        let opened = now;
        let mut probes = 0;
        while now < opened + 60 * SECOND {
            now += gap;
            if let Ok(probe) = arrive(&breaker, now) {
                assert_eq!(report(&breaker, probe, Health::Failure, now), None);
                probes += 1;
            }
        }
        assert!(
            (least..=most).contains(&(probes / if gap == MILLI { 4 } else { 1 })),
            "{gap}: {probes}"
        );
    }
}

#[test]
fn cb_9_a_retry_of_a_refused_call_makes_no_probe_due() {
    let breaker = Breaker::new(quick());
    let until = trip(&breaker, 0);
    assert!(arrive(&breaker, until).is_ok(), "the next is due in 2 s");
    let at = |now, retry| {
        breaker.admit(|| Arrival {
            now,
            uniform: 0.0,
            retry,
        })
    };
    let now = until + 1500 * MILLI;
    assert!((0..100).all(|_| at(now, true).is_err()));
    let probe = (1..=100).find(|_| at(now, false).is_ok());
    assert_eq!(probe, Some(CALLS_A_PROBE));
}

/// Of the calls right after a probe too, of which few were refused since.
#[test]
fn cb_9_a_refused_call_comes_again_after_the_next_probe_and_no_later_than_that() {
    let breaker = Breaker::new(BreakerPolicy::default());
    let mut now = 0;
    while call(&breaker, Health::Failure, now).is_none() {
        now += SECOND;
    }
    let gap = 30 * MILLI;
    let mut probes = Vec::new();
    let mut pauses = Vec::new();
    for _ in 0..400 {
        now += gap;
        match arrive(&breaker, now) {
            Ok(_) => probes.push(now),
            Err(_) => pauses.push((now, breaker.pause(now).expect("it is open"))),
        }
    }
    let (busy, last) = (probes[2], probes[probes.len() - 1]);
    for (refused, pause) in pauses
        .into_iter()
        .filter(|(at, _)| (busy..last).contains(at))
    {
        let next = probes
            .iter()
            .find(|probe| **probe > refused)
            .expect("a probe");
        let again = refused + nanos(pause);
        assert!(
            (*next..*next + CALLS_A_PROBE * gap * 5 / 4).contains(&again),
            "{pause:?}"
        );
    }
}

#[test]
fn cb_9_it_ramps_up() {
    let breaker = Breaker::new(quick());
    let until = trip(&breaker, 0);
    call(&breaker, Health::Success, until);
    let admitted = |now| {
        (0..10_000)
            .filter(|_| arrive(&breaker, now).is_ok())
            .count()
    };
    let steps = [0, 1, 2, 3].map(|step| admitted(until + step * STEP));
    assert_eq!(steps, [8, 16, 32, 64]);
    assert_eq!(admitted(until + STEPS * STEP), 10_000);
    assert_eq!(state_of(&breaker, 0), BreakerState::Closed);
}

#[test]
fn cb_9_few_calls_notice_no_ramp() {
    let breaker = Breaker::new(quick());
    let until = trip(&breaker, 0);
    call(&breaker, Health::Success, until);
    for i in 1..10 {
        let now = until + i * STEP / 2;
        assert!(arrive(&breaker, now).is_ok());
    }
    assert_eq!(state_of(&breaker, 0), BreakerState::Closed);
}

#[test]
fn cb_9_in_the_ramp_a_few_failures_open_it_at_once() {
    let breaker = Breaker::new(BreakerPolicy::default());
    let mut now = 0;
    for _ in 0..100 {
        call(&breaker, Health::Success, now);
    }
    while call(&breaker, Health::Failure, now).is_none() {
        now += SECOND / 5;
    }
    now += 600 * MILLI;
    assert_eq!(
        call(&breaker, Health::Success, now),
        Some(BreakerState::Recovering)
    );
    let mut admitted = 0;
    let opened = (0..100).find_map(|i| {
        let ticket = arrive(&breaker, now + i * STEP / 20).ok()?;
        admitted += 1;
        report(&breaker, ticket, Health::Failure, now + i * STEP / 20)
    });
    assert!(opened.is_some() && admitted < 15, "{admitted}");
}

#[test]
fn cb_6_it_opens_and_closes_for_ever() {
    let breaker = Breaker::new(quick());
    let mut now = 0;
    for _ in 0..100 {
        let late = arrive(&breaker, now).expect("closed");
        now = trip(&breaker, now);
        let closed = call(&breaker, Health::Success, now);
        assert_eq!(closed, Some(BreakerState::Recovering));
        // CB-5: of an older generation.
        for _ in 0..10 {
            report(&breaker, late, Health::Failure, now);
        }
        assert_eq!(state_of(&breaker, now), BreakerState::Recovering);
        now += SECOND;
    }
}

#[test]
fn g_8_an_abandoned_breaker_is_forgotten() {
    let breaker = Breaker::new(quick());
    call(&breaker, Health::Failure, 0);
    assert!(!breaker.is_idle(SECOND));
    assert!(breaker.is_idle(31 * SECOND), "a streak of the past");
    let breaker = Breaker::new(quick());
    let until = trip(&breaker, 40 * SECOND);
    assert!(!breaker.is_idle(until - 1));
    assert!(
        breaker.is_idle(until + 60 * SECOND),
        "open, but the next call would pass"
    );
}

#[test]
fn cb_5_a_neutral_probe_frees_its_slot() {
    let breaker = Breaker::new(quick());
    let until = trip(&breaker, 0);
    assert_eq!(call(&breaker, Health::Neutral, until), None);
    let closed = call(&breaker, Health::Success, until);
    assert_eq!(closed, Some(BreakerState::Recovering));
}

#[test]
fn cb_5_late_results_of_an_older_generation_change_nothing() {
    let breaker = Breaker::new(quick());
    let late: Vec<_> = (0..3).map(|_| arrive(&breaker, 0).unwrap()).collect();
    let until = trip(&breaker, 0);
    assert_eq!(report(&breaker, late[0], Health::Success, 0), None);
    assert!(matches!(state_of(&breaker, 0), BreakerState::Open(_)));
    let probe = arrive(&breaker, until).unwrap();
    assert_eq!(report(&breaker, late[1], Health::Success, until), None);
    assert!(matches!(state_of(&breaker, until), BreakerState::Open(_)));
    report(&breaker, probe, Health::Success, until);
    for _ in 0..9 {
        report(&breaker, late[2], Health::Failure, until);
    }
    assert_eq!(state_of(&breaker, until), BreakerState::Recovering);
}

#[test]
fn g_5_exhaustion_opens_only_a_failing_dependency() {
    let run = |on_budget_exhausted, failures: u64| {
        let breaker = Breaker::new(BreakerPolicy {
            on_budget_exhausted,
            failure_rate: 0.5,
            ..quick()
        });
        for i in 0..16 {
            let health = [Health::Success, Health::Failure][usize::from(i % 8 < failures)];
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

#[test]
fn g_5_cb_8_with_the_defaults_exhaustion_is_no_evidence() {
    let breaker = Breaker::new(BreakerPolicy::default());
    for _ in 0..20 {
        call(&breaker, Health::Failure, 0);
        assert_eq!(breaker.budget_exhausted(SECOND / 2, 0.0), None);
    }
    assert!(breaker.budget_exhausted(SECOND, 0.0).is_some());
}

fn overload(breaker: &Breaker, health: Health, now: u64) {
    let ticket = arrive(breaker, now);
    let report = Report {
        health,
        overload: true,
    };
    if let Ok(ticket) = ticket {
        breaker.report(ticket, report, Some(now), || now, || 0.0);
    }
}

#[test]
fn cb_10_what_is_turned_away_is_shed_beyond_twice_what_is_accepted() {
    for (accepted, turned_away, shed) in [
        (100, 0, 0.0),
        (100, 90, 0.0),
        (100, 300, 0.5),
        (0, 99, 0.99),
    ] {
        let breaker = Breaker::new(BreakerPolicy::default());
        for _ in 0..accepted {
            call(&breaker, Health::Success, SECOND);
        }
        let free = |now| {
            breaker.admit(|| Arrival {
                now,
                uniform: 0.999,
                retry: false,
            })
        };
        for _ in 0..turned_away {
            let report = Report {
                health: Health::Neutral,
                overload: true,
            };
            breaker.report(free(SECOND).unwrap(), report, None, || SECOND, || 0.0);
        }
        let share = breaker.shed_share(SECOND);
        assert!(
            (share - shed).abs() < 0.01,
            "{accepted} {turned_away}: {share}"
        );
        let admitted = arrive(&breaker, SECOND);
        assert_eq!(admitted == Err(Denied::Overload), shed > 0.0);
        assert!(free(SECOND).is_ok());
        assert!(arrive(&breaker, 10 * SECOND).is_ok(), "signs of the past");
        assert_eq!(breaker.shed_share(10 * SECOND), 0.0);
    }
}

#[test]
fn cb_10_calls_that_are_shed_come_again_later_and_few_of_them() {
    let breaker = Breaker::new(BreakerPolicy::default());
    let millis = |uniform| breaker.pause_of_shed(uniform).as_millis();
    assert_eq!([0.0, 0.5, 1.0].map(millis), [1_500, 6_000, 10_499]);
    assert_eq!(breaker.most_waiting(SECOND), 1);
    for number in 0..1500 {
        let health = [Health::Failure, Health::Success][usize::from(number % 3 > 0)];
        call(&breaker, health, SECOND);
    }
    assert_eq!(breaker.most_waiting(SECOND), 100, "as served in 3 s of 30");
    assert_eq!(breaker.most_waiting(60 * SECOND), 1);
}

#[test]
fn cb_10_other_failures_are_no_sign_of_overload() {
    let breaker = Breaker::new(often(1.0, 1000));
    for _ in 0..100 {
        call(&breaker, Health::Failure, 0);
    }
    assert_eq!(breaker.shed_share(0), 0.0);
    for _ in 0..100 {
        overload(&breaker, Health::Failure, 0);
    }
    assert!(arrive(&breaker, 0).is_err(), "time-outs are");
    let without = breaker.with_policy(BreakerPolicy {
        throttle: None,
        ..often(1.0, 1000)
    });
    assert!(arrive(&without, 0).is_ok(), "switched off");
}

#[test]
fn cb_11_by_hand() {
    let breaker = Breaker::new(quick());
    breaker.force_open(0);
    assert!((0..100).all(|hour| arrive(&breaker, hour * 3600 * SECOND).is_err()));
    assert!(breaker.refuses_at(u64::MAX));
    let by_hand = Some((BreakerReason::ByHand, 7));
    breaker.force_closed(7);
    for _ in 0..100 {
        assert_eq!(call(&breaker, Health::Failure, 7), None);
    }
    assert_eq!(breaker.budget_exhausted(7, 0.0), None);
    assert_eq!(breaker.state(7), (BreakerState::Closed, by_hand));
    breaker.reset(9);
    trip(&breaker, 9);
    breaker.reset(9);
    assert_eq!(state_of(&breaker, 9), BreakerState::Closed);
    trip(&breaker, 10);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Whatever happened before, a dependency that is well is reached again.
    #[test]
    fn cb_6_never_wedges(steps in proptest::collection::vec((0_u64..20_000, 0_u8..6), 0..200)) {
        let breaker = Breaker::new(quick());
        let (mut now, mut out) = (0, Vec::new());
        for (millis, step) in steps {
            now += millis * MILLI;
            match step {
                0 => out.extend(arrive(&breaker, now).ok()),
                1 => { breaker.budget_exhausted(now, 0.5); }
                _ => if let Some(ticket) = out.pop() {
                    let health = [Health::Success, Health::Failure, Health::Neutral, Health::Failure];
                    let report = Report { health: health[usize::from(step) - 2], overload: step > 3 };
                    breaker.report(ticket, report, None, || now, || 0.5);
                }
            }
        }
        for ticket in out {
            report(&breaker, ticket, Health::Neutral, now);
        }
        for _ in 0..3 {
            now += nanos(Duration::from_secs(30));
            call(&breaker, Health::Success, now);
        }
        proptest::prop_assert_eq!(state_of(&breaker, now), BreakerState::Closed);
    }
}

#[test]
fn cb_5_a_probe_of_another_policy_is_reported_like_any() {
    let breaker = Breaker::new(quick());
    let open_until = trip(&breaker, 0);
    let renewed = breaker.with_policy(BreakerPolicy::default());
    assert!(arrive(&renewed, 0).is_err(), "it stands where it stood");
    let probe = arrive(&breaker, open_until).expect("the probe");
    assert!(arrive(&renewed, open_until).is_err(), "one is out");
    let closed = report(&breaker, probe, Health::Success, open_until);
    assert_eq!(closed, Some(BreakerState::Recovering));
    assert!(arrive(&renewed, open_until).is_ok());
}

/// A result that comes in by the old policy after slots got another length is counted in the new
/// ones.
#[test]
fn cb_1_slots_of_two_lengths_are_never_mixed() {
    let of = |seconds| BreakerPolicy {
        window: Duration::from_secs(seconds),
        ..often(0.5, 4)
    };
    for (before, after) in [(10, 1000), (1000, 10)] {
        let start = 5000 * SECOND;
        let old = Breaker::new(of(before));
        let new = old.with_policy(of(after));
        for _ in 0..3 {
            assert_eq!(call(&old, Health::Failure, start), None);
        }
        let past = start + 2 * nanos(Duration::from_secs(after));
        assert_eq!(call(&new, Health::Success, past), None);
        for _ in 0..2 {
            assert_eq!(call(&old, Health::Failure, past), None, "{before} {after}");
        }
        assert!(call(&new, Health::Failure, past).is_some());
    }
}
