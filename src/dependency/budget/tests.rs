use super::*;

const SECOND: u64 = NANOS_PER_SLOT;

fn grants(budget: &Budget, now: u64) -> u64 {
    let mut grants = 0;
    while grants < 100_000
        && let Some(source) = charge(budget, now)
    {
        budget.commit(now, source);
        grants += 1;
    }
    grants
}

fn charge(budget: &Budget, now: u64) -> Option<Source> {
    budget.charge(now, now)
}

fn of(ratio: f64, floor: u32) -> Budget {
    Budget::new(Some(policy(ratio, floor)))
}

fn policy(ratio: f64, floor: u32) -> BudgetPolicy {
    BudgetPolicy {
        ratio,
        floor,
        initial: floor,
        quota: None,
    }
}

#[test]
fn g_7_every_ratio_means_what_it_says() {
    for (ratio, per_thousand) in [(0.1, 100), (0.2, 200), (0.3, 300), (0.6, 600), (0.75, 750)] {
        let budget = of(ratio, 10);
        (0..1000).for_each(|_| budget.deposit(5 * SECOND));
        assert_eq!(grants(&budget, 5 * SECOND), per_thousand, "{ratio}");
    }
}

/// Hedges stop at half of what the budget allows, retries use the rest, and then the floor.
#[test]
fn h_3_hedges_take_half_of_the_share_and_nothing_of_the_floor() {
    let budget = of(0.2, 3);
    assert_eq!(budget.charge_hedge(0), None, "a quiet client has none");
    (0..100).for_each(|_| budget.deposit(5 * SECOND));
    let hedges = || {
        (0..100)
            .map_while(|_| budget.charge_hedge(5 * SECOND))
            .count()
    };
    assert_eq!(hedges(), 10);
    assert_eq!(grants(&budget, 5 * SECOND), 10);
    assert_eq!(hedges(), 0);
    assert_eq!(budget.usage(5 * SECOND).map(|(used, _)| used), Some(20));
    let unlimited = Budget::new(None);
    (0..100).for_each(|_| unlimited.deposit(0));
    assert_eq!(unlimited.charge_hedge(0), None, "nothing bounds it");
}

#[test]
fn h_3_threads_that_hedge_and_retry_never_exceed_the_budget() {
    for threads in [2, 8, 64] {
        let budget = of(0.2, 0);
        (0..1000).for_each(|_| budget.deposit(5 * SECOND));
        let hedges = AtomicU64::new(0);
        let retries: u64 = std::thread::scope(|scope| {
            let run = || {
                let mut retries = 0;
                for _ in 0..200 {
                    if budget.charge_hedge(5 * SECOND).is_some() {
                        hedges.fetch_add(1, Ordering::Relaxed);
                    }
                    if let Some(source) = charge(&budget, 5 * SECOND) {
                        retries += u64::from(budget.commit(5 * SECOND, source).is_some());
                    }
                }
                retries
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        let hedges = hedges.load(Ordering::Relaxed);
        assert!(hedges <= 100, "{threads} threads: {hedges}");
        assert_eq!(hedges + retries, 200, "{threads} threads");
    }
}

#[test]
fn g_1_a_quiet_client_has_the_floor_and_no_more() {
    let budget = of(0.2, 10);
    budget.deposit(0);
    assert_eq!(grants(&budget, 0), 10);
    (0..100).for_each(|_| budget.earn());
    assert_eq!(
        grants(&budget, 30 * SECOND),
        0,
        "all ten are 30 s old, none older"
    );
    assert_eq!(grants(&budget, 31 * SECOND), 10);
}

#[test]
fn g_1_the_floor_is_regained_by_successes_and_not_by_time() {
    let new = || Budget::new(Some(BudgetPolicy::default()));
    assert_eq!(grants(&new(), STARTUP), 3, "at its beginning");
    let budget = new();
    assert_eq!(grants(&budget, STARTUP), 3);
    assert_eq!(grants(&budget, 3600 * SECOND), 0);
    let budget = new();
    let mut now = 0;
    let mut an_hour_later = || {
        now += 3600 * SECOND;
        now
    };
    assert_eq!(grants(&budget, an_hour_later()), 1, "without a success");
    assert_eq!(grants(&budget, an_hour_later()), 0);
    for (successes, retries) in [(1, 2), (1, 1), (1, 0), (1, 1), (4, 2), (100, 3)] {
        (0..successes).for_each(|_| budget.earn());
        let granted = grants(&budget, an_hour_later());
        assert_eq!(granted, retries, "{successes} successes");
    }
}

#[test]
fn g_1_an_original_that_was_refused_is_not_counted() {
    let budget = of(0.2, 0);
    (0..100).for_each(|_| budget.deposit(5 * SECOND));
    (0..50).for_each(|_| budget.uncount(slot(5 * SECOND)));
    assert_eq!(budget.originals_in_window(5 * SECOND), 50);
    assert_eq!(grants(&budget, 5 * SECOND), 10);
    assert_eq!(budget.originals_in_window(34 * SECOND), 50);
    assert_eq!(budget.originals_in_window(35 * SECOND), 0);
    (0..10).for_each(|_| budget.deposit(35 * SECOND));
    assert_eq!(budget.originals_in_window(35 * SECOND), 10, "of those none");
}

#[test]
fn g_1_originals_leave_the_window_before_retries_do() {
    let budget = of(0.5, 0);
    (0..100).for_each(|_| budget.deposit(0));
    assert_eq!(budget.originals_in_window(29 * SECOND), 100);
    assert_eq!(budget.originals_in_window(30 * SECOND), 0);
    assert_eq!(grants(&budget, 29 * SECOND), 50);
    assert_eq!(budget.usage(59 * SECOND), Some((50, 0)));
    assert_eq!(budget.usage(60 * SECOND), Some((0, 0)));
}

#[test]
fn g_1_what_threads_counted_in_one_slot_is_added_up_when_it_ends() {
    for counts in [[1, 2, 3, 4], [5, 5, 5, 5]] {
        let budget = of(0.2, 10);
        let (budget, slot_ends) = (&budget, &std::sync::Barrier::new(4));
        // Each counts in a shard of its own, and moves that on when it counts in the next slot.
        std::thread::scope(|scope| {
            for counted in counts {
                scope.spawn(move || {
                    (0..counted).for_each(|_| budget.deposit(0));
                    slot_ends.wait();
                    budget.deposit(SECOND);
                });
            }
        });
        let first = counts.into_iter().sum::<u64>();
        assert_eq!(budget.originals_in_window(SECOND), first + 4);
        assert_eq!(budget.originals_in_window(29 * SECOND), first + 4);
        assert_eq!(budget.originals_in_window(30 * SECOND), 4);
    }
}

#[test]
fn g_1_each_second_of_the_window_is_counted_and_none_before_it() {
    let budget = of(0.2, 10);
    for second in 0..100 {
        (0..=second).for_each(|_| budget.deposit(second * SECOND));
        let window = second.saturating_sub(SLOTS - 1)..=second;
        let expected = window.map(|second| second + 1).sum::<u64>();
        let counted = budget.originals_in_window(second * SECOND);
        assert_eq!(counted, expected, "in second {second}");
    }
}

#[test]
fn g_8_what_has_only_originals_or_only_retries_is_not_idle() {
    let budget = of(0.2, 10);
    assert!(budget.is_idle(0));
    budget.deposit(0);
    assert!(!budget.is_idle(0));

    let budget = of(0.2, 10);
    let source = charge(&budget, 0).unwrap();
    assert!(!budget.is_idle(0));
    budget.refund(source);
    assert!(budget.is_idle(0));
}

#[test]
fn g_7_days_idle_leave_nothing_behind() {
    let budget = of(0.2, 10);
    (0..1000).for_each(|_| budget.deposit(0));
    let later = 7 * 24 * 3600 * SECOND;
    assert!(budget.is_idle(later));
    budget.deposit(later);
    assert_eq!(budget.originals_in_window(later), 1);
}

#[test]
fn d_6_a_charge_given_back_can_be_granted_again() {
    let budget = of(0.2, 1);
    let source = charge(&budget, 0).unwrap();
    assert_eq!(
        charge(&budget, 0),
        None,
        "a granted retry counts before it is sent"
    );
    budget.refund(source);
    assert!(charge(&budget, 0).is_some());
}

#[test]
fn g_3_a_retry_that_was_refused_on_its_way_is_not_charged() {
    for now in [0, 7, 30, 31, 1000].map(|seconds| seconds * SECOND) {
        let budget = of(0.2, 1);
        let source = charge(&budget, now).unwrap();
        let (slot, source) = budget.commit(now, source).unwrap();
        assert_eq!(charge(&budget, now), None);
        budget.take_back(slot, source);
        assert_eq!(budget.usage(now), Some((0, 1)));
    }
}

#[test]
fn g_1_a_retry_counts_from_when_it_is_sent() {
    let budget = of(0.2, 1);
    let source = charge(&budget, 0).unwrap();
    (0..2).for_each(|_| budget.earn());
    assert_eq!(charge(&budget, 100 * SECOND), None, "still pending");
    budget.commit(100 * SECOND, source);
    assert_eq!(charge(&budget, 130 * SECOND), None);
    assert!(charge(&budget, 131 * SECOND).is_some());
}

#[test]
fn g_1_the_bound_holds_when_a_retry_is_sent_not_only_when_it_is_granted() {
    let budget = of(0.2, 1);
    (0..800).for_each(|_| budget.deposit(0));
    (0..200).for_each(|_| budget.deposit(25 * SECOND));
    let granted: Vec<_> = (0..200)
        .filter_map(|_| charge(&budget, 25 * SECOND))
        .collect();
    assert_eq!(granted.len(), 200);
    // The first 800 are gone by then: 40 retries are a fifth of what is left.
    let sent = granted.into_iter();
    let sent = sent.filter_map(|source| budget.commit(35 * SECOND, source));
    assert_eq!(sent.count(), 40);
    assert_eq!(budget.usage(35 * SECOND), Some((40, 40)));
}

#[test]
fn g_1_the_bound_is_exact_under_threads() {
    for threads in [2, 8, 64] {
        let budget = of(0.2, 10);
        let granted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..500 {
                        budget.deposit(0);
                        if let Some(source) = charge(&budget, 0) {
                            granted.fetch_add(1, Ordering::Relaxed);
                            budget.commit(0, source);
                        }
                    }
                });
            }
        });
        let bound = threads * 500 / 5;
        let granted = granted.into_inner();
        assert!(
            granted <= bound,
            "{granted} retries where {bound} are allowed"
        );
        assert_eq!(granted + grants(&budget, 0), bound);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Against a log of exact times: at each grant, the retries of the last 30 s, this one
    /// included, are within the bound.
    #[test]
    fn g_1_the_bound_holds_at_every_instant(
        steps in proptest::collection::vec((0_u64..4_000, proptest::bool::ANY), 1..400),
        percent in 0_u64..100,
        floor in 0_u32..5,
    ) {
        let budget = of(percent as f64 / 100.0, floor);
        let (mut now, mut originals, mut retries) = (0, Vec::new(), Vec::new());
        for (millis, original) in steps {
            now += millis * 1_000_000;
            if original {
                budget.deposit(now);
                originals.push(now);
            } else if let Some(source) = charge(&budget, now) {
                budget.commit(now, source);
                budget.earn();
                retries.push(now);
                let recent = |times: &[u64]| times.iter().filter(|t| now - **t <= 30 * SECOND).count() as u64;
                let bound = (recent(&originals) * percent / 100).max(u64::from(floor));
                proptest::prop_assert!(recent(&retries) <= bound);
            }
        }
    }
}

#[test]
fn g_1_a_slot_that_is_remembered_is_the_one_that_is_counted() {
    let origin = Instant::now();
    let mut last = LastSlot::default();
    for millis in [
        0, 1, 999, 1000, 1001, 1999, 5000, 5001, 86_400_000, 86_400_999,
    ] {
        let since = Duration::from_millis(millis);
        let counted = slot(u64::try_from(since.as_nanos()).unwrap());
        assert_eq!(last.at(origin + since, origin), counted, "{millis} ms");
    }
}
