//! Waits are pure functions of a draw; these look at their whole range.

use std::time::Duration;

use proptest::prelude::*;
use tower_reprise::backoff::{Backoff, Decorrelated, FullJitter};

const SECOND: Duration = Duration::from_secs(1);

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn duration() -> impl Strategy<Value = Duration> {
    (1_u64..3_600_000_000_000).prop_map(Duration::from_nanos)
}

#[test]
fn b_1_full_jitter_defaults_to_one_second_and_thirty() {
    let backoff = FullJitter::default();
    assert_eq!((backoff.base, backoff.cap), (SECOND, 30 * SECOND));
    for (retry, bound) in [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16), (5, 30), (6, 30)] {
        assert_eq!(backoff.delay(retry, Duration::ZERO, 0.0), Duration::ZERO);
        assert_eq!(
            backoff.delay(retry, Duration::ZERO, 0.5),
            bound * SECOND / 2
        );
    }
}

#[test]
fn b_3_the_thousandth_retry_saturates() {
    let full = FullJitter::default();
    let decorrelated = Decorrelated::default();
    for retry in [31, 32, 63, 64, 1000, u32::MAX] {
        assert_eq!(full.delay(retry, Duration::ZERO, 0.5), 15 * SECOND);
        assert_eq!(decorrelated.delay(retry, Duration::MAX, 0.5), 30 * SECOND);
    }
}

#[test]
fn b_3_waits_are_finer_than_a_millisecond() {
    let backoff = FullJitter {
        base: Duration::from_millis(1),
        cap: SECOND,
    };
    assert_eq!(
        backoff.delay(0, Duration::ZERO, 0.25),
        Duration::from_micros(250)
    );
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn b_1_full_jitter_is_below_its_bound(base in duration(), cap in duration(), retry in 0_u32..2000, uniform in 0.0_f64..1.0) {
        let backoff = FullJitter { base, cap };
        let wait = backoff.delay(retry, Duration::ZERO, uniform);
        let bound = cap.min(base.saturating_mul(1_u32.checked_shl(retry).unwrap_or(u32::MAX)));
        prop_assert!(wait < bound);
        // It is the draw's share of the bound, to the nanosecond.
        let share = bound.as_secs_f64() * uniform;
        prop_assert!((wait.as_secs_f64() - share).abs() <= 2e-9 + share * 1e-12);
    }

    #[test]
    fn b_2_decorrelated_lies_between_base_and_three_times_the_last_wait(
        base in duration(), cap in duration(), previous in duration(), uniform in 0.0_f64..1.0,
    ) {
        let cap = cap.max(base);
        let backoff = Decorrelated { base, cap };
        let first = backoff.delay(0, Duration::ZERO, uniform);
        prop_assert!(first >= base && first <= cap.min(base * 3));
        let next = backoff.delay(1, previous, uniform);
        prop_assert!(next >= base && next <= cap.min(previous.max(base) * 3));
    }

    #[test]
    fn s_3_no_draw_and_no_duration_panics(nanos in any::<u64>(), retry in any::<u32>(), uniform in any::<f64>()) {
        let wild = Duration::from_secs(nanos);
        FullJitter { base: wild, cap: Duration::MAX }.delay(retry, wild, uniform);
        Decorrelated { base: wild, cap: Duration::MAX }.delay(retry, wild, uniform);
    }
}
