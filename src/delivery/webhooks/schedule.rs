use std::time::Duration;

use crate::{
    backoff::{below, spread},
    error::ConfigError,
    policy::{Policy, Profile},
};

/// The waits before deliveries 1 to 8, in seconds.
const DELAYS: [u64; 8] = [0, 1, 5, 30, 120, 900, 3600, 14_400];

/// The waits between deliveries of a message.
///
/// The waits before deliveries 1 to 8 are 0, 1 s, 5 s, 30 s, 2 min, 15 min, 1 h and 4 h, each up to
/// a tenth longer, so that messages that failed together are not retried together. A longer
/// `Retry-After` of the receiver counts instead. There is no delivery later than a day after the
/// first.
///
/// [`next`](Self::next) is a pure function of the past and one uniform draw:
///
/// ```
/// use std::time::Duration;
/// use tower_reprise::delivery::webhooks::Schedule;
///
/// let schedule = Schedule::default(); // five deliveries
/// let day = Duration::from_secs(24 * 60 * 60);
/// let minute = Duration::from_secs(60);
///
/// assert_eq!(schedule.next(0, Duration::ZERO, None, 0.5), Some(Duration::ZERO));
/// assert_eq!(schedule.next(3, minute, None, 0.0), Some(minute / 2));
/// assert_eq!(schedule.next(1, Duration::ZERO, Some(minute), 0.0), Some(minute));
/// assert_eq!(schedule.next(5, minute, None, 0.0), None);
/// assert_eq!(schedule.next(1, Duration::ZERO, Some(2 * day), 0.0), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    deliveries: u32,
    /// The longest from the first delivery to the last.
    total: Duration,
}

impl Schedule {
    /// Allows 3 to 8 deliveries.
    ///
    /// # Errors
    ///
    /// Fewer than 3, or more than 8.
    pub fn new(deliveries: u32) -> Result<Self, ConfigError> {
        let retries = Profile::Webhook.retries();
        let (least, most) = (retries.start() + 1, retries.end() + 1);
        let allowed = format!("{least} to {most} deliveries (R-3)");
        ConfigError::within("webhook.deliveries", deliveries, least..=most, allowed)?;
        Ok(Self {
            deliveries,
            ..Self::default()
        })
    }

    /// Returns the schedule of a policy; the default one of a policy that is not for webhooks.
    pub(super) fn by_policy(policy: &Policy) -> Self {
        let default = Self::default();
        match policy.profile() {
            Profile::Webhook => Self {
                deliveries: policy.max_retries() + 1,
                total: policy.total_timeout().min(default.total),
            },
            _ => default,
        }
    }

    /// Returns the most deliveries of a message.
    #[must_use]
    pub fn deliveries(&self) -> u32 {
        self.deliveries
    }

    /// Returns the wait before the next delivery, or `None` if there is none: after `made`
    /// deliveries, `since_first` after the first, with the receiver's `retry_after` and a draw from
    /// [0, 1).
    #[must_use]
    pub fn next(
        &self,
        made: u32,
        since_first: Duration,
        retry_after: Option<Duration>,
        uniform: f64,
    ) -> Option<Duration> {
        if made >= self.deliveries {
            return None;
        }
        let row = usize::try_from(made).unwrap_or(usize::MAX);
        let delay = Duration::from_secs(*DELAYS.get(row)?);
        let asked = retry_after.unwrap_or_default();
        let left = self.total.checked_sub(since_first)?;
        if delay.max(asked) > left {
            return None;
        }
        let delay = delay.saturating_add(below(delay / 10, uniform));
        let asked = asked.saturating_add(spread(asked, Duration::from_secs(1), uniform));
        Some(delay.max(asked).min(left))
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            deliveries: Profile::Webhook.default_retries() + 1,
            total: Profile::Webhook.longest(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn w_1_the_table_is_the_standards() {
        let schedule = Schedule::new(8).unwrap();
        let waits: Vec<_> = (0..9)
            .map(|made| schedule.next(made, Duration::ZERO, None, 0.0))
            .collect();
        let seconds = [0, 1, 5, 30, 2 * 60, 15 * 60, 60 * 60, 4 * 60 * 60];
        let mut expected = seconds.map(|s| Some(Duration::from_secs(s))).to_vec();
        expected.push(None);
        assert_eq!(waits, expected);
    }

    #[test]
    fn w_1_three_to_eight_deliveries() {
        assert_eq!(Schedule::default().deliveries(), 5);
        for deliveries in 3..=8 {
            assert_eq!(Schedule::new(deliveries).unwrap().deliveries(), deliveries);
        }
        for deliveries in [0, 1, 2, 9, u32::MAX] {
            let error = Schedule::new(deliveries).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("webhook.deliveries is {deliveries}, allowed: 3 to 8 deliveries (R-3)")
            );
        }
    }

    #[test]
    fn w_1_two_draws_differ() {
        let at = |uniform| Schedule::default().next(4, Duration::ZERO, None, uniform);
        assert!(at(0.9) > at(0.1));
        assert!(at(0.1) > at(0.0));
    }

    #[test]
    fn w_2_what_the_receiver_asks_for_holds_when_it_is_greater() {
        let next = |since, asked, uniform| {
            let (since, asked) = (Duration::from_secs(since), Duration::from_secs(asked));
            Schedule::default().next(3, since, Some(asked), uniform)
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(next(0, 29, 0.0), seconds(30));
        assert_eq!(next(0, 31, 0.0), seconds(31));
        // And is spread by no more than a second.
        assert!(next(0, 600, 0.9) > seconds(600) && next(0, 600, 0.9) < seconds(601));
        // Up to a day after the first, and not beyond it by a spread either.
        assert_eq!(next(60, 86_340, 0.9), seconds(86_340));
        assert_eq!(next(60, 86_341, 0.0), None);
        assert_eq!(next(86_370, 0, 0.9), seconds(30));
        assert_eq!(next(86_371, 0, 0.0), None);
    }

    fn any_wait() -> impl Strategy<Value = Duration> {
        prop_oneof![
            4 => (0..500_u64).prop_map(Duration::from_secs),
            4 => (0..90_000_u64).prop_map(Duration::from_secs),
            1 => any::<u64>().prop_map(Duration::from_nanos),
            1 => any::<u64>().prop_map(Duration::from_secs),
            1 => Just(Duration::MAX),
        ]
    }

    proptest! {
        #[test]
        fn w_1_never_early_never_past_a_day_never_much_later(
            deliveries in 3..=8_u32,
            made in prop_oneof![0..9_u32, any::<u32>()],
            since_first in any_wait(),
            retry_after in proptest::option::of(any_wait()),
            uniform in prop_oneof![0.0..1.0, any::<f64>()],
        ) {
            let schedule = Schedule::new(deliveries).unwrap();
            let asked = retry_after.unwrap_or_default();
            match schedule.next(made, since_first, retry_after, uniform) {
                Some(wait) => {
                    prop_assert!(made < deliveries);
                    let delay = Duration::from_secs(DELAYS[made as usize]);
                    prop_assert!(wait >= delay.max(asked));
                    let latest = (delay + delay / 10).max(asked + (asked / 10).min(Duration::from_secs(1)));
                    prop_assert!(wait <= latest);
                    prop_assert!(since_first + wait <= DAY);
                }
                // Only for want of deliveries or of time.
                None => prop_assert!(
                    made >= deliveries
                        || since_first
                            .saturating_add(asked.max(Duration::from_secs(DELAYS[made as usize])))
                            > DAY
                ),
            }
        }

        #[test]
        fn w_1_all_deliveries_fit_in_a_day(deliveries in 3..=8_u32, draws in prop::array::uniform8(0.0..1.0)) {
            let schedule = Schedule::new(deliveries).unwrap();
            let mut since = Duration::ZERO;
            let mut made = 0;
            while let Some(wait) = schedule.next(made, since, None, draws[made as usize % 8]) {
                since += wait;
                made += 1;
            }
            prop_assert_eq!(made, deliveries);
            prop_assert!(since < DAY);
        }
    }
}
