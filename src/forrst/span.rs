use std::{fmt, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Visitor},
};

/// A span of time as forrst writes it: `{ "value": 45, "unit": "second" }`.
///
/// ```
/// use std::time::Duration;
/// use tower_reprise::forrst::{Span, Unit};
///
/// assert_eq!(Span::new(2, Unit::Hour).duration(), Duration::from_secs(7200));
/// assert_eq!(Span::from(Duration::from_millis(1500)), Span::new(2, Unit::Second)); // never less
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Span {
    /// How many. A number that is too large is read as the largest.
    #[serde(deserialize_with = "whole")]
    pub value: u64,
    /// Of what.
    pub unit: Unit,
}

/// What a [`Span`] is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Unit {
    /// A second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
}

impl Span {
    /// The longest that a span is taken for, so that it can be added to any time.
    pub const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

    /// So many of these.
    #[must_use]
    pub const fn new(value: u64, unit: Unit) -> Self {
        Self { value, unit }
    }

    /// How long it is, up to [`LONGEST`](Self::LONGEST).
    #[must_use]
    pub fn duration(self) -> Duration {
        let unit = match self.unit {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 60 * 60,
            Unit::Day => 24 * 60 * 60,
        };
        Duration::from_secs(self.value.saturating_mul(unit)).min(Self::LONGEST)
    }
}

impl From<Duration> for Span {
    /// In whole seconds, and never less than asked for.
    fn from(duration: Duration) -> Self {
        let part = u64::from(duration.subsec_nanos() > 0);
        Self::new(duration.as_secs().saturating_add(part), Unit::Second)
    }
}

/// A count: an integer from 0, where one of too many digits is the largest.
pub(super) fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Whole;

    impl Visitor<'_> for Whole {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an integer from 0")
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
            Ok(value)
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
            let unexpected = de::Unexpected::Signed(value);
            u64::try_from(value).map_err(|_| E::invalid_value(unexpected, &self))
        }

        fn visit_f64<E: de::Error>(self, value: f64) -> Result<u64, E> {
            match value.fract() == 0.0 && value >= 0.0 {
                // The conversion saturates.
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "it is whole, and not below 0"
                )]
                true => Ok(value as u64),
                false => Err(E::invalid_value(de::Unexpected::Float(value), &self)),
            }
        }
    }

    deserializer.deserialize_any(Whole)
}

/// The same, of something that may be left out.
pub(super) fn some_whole<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Count(#[serde(deserialize_with = "whole")] u64);

    let count = Option::<Count>::deserialize(deserializer)?;
    Ok(count.map(|count| count.0))
}
