//! Spans of time in wire formats.

use std::{fmt, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Visitor},
};

/// A span of time as a number and its unit: `{ "value": 45, "unit": "second" }`.
///
/// Conversion from a [`Duration`] rounds up: to whole seconds for programs, or to a suitable unit
/// ([`about`](Span::about)) for people.
///
/// ```
/// use std::time::Duration;
/// use tower_reprise::http::{Span, Unit};
///
/// assert_eq!(Span::new(2, Unit::Hour).duration(), Duration::from_secs(7200));
/// assert_eq!(Span::from(Duration::from_millis(1500)), Span::new(2, Unit::Second));
/// assert_eq!(Span::about(Duration::from_secs(1790)), Span::new(30, Unit::Minute));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Span {
    /// The number of units. A number that is too large is read as the largest.
    #[serde(deserialize_with = "whole")]
    pub value: u64,
    /// The unit.
    pub unit: Unit,
}

/// The unit of a [`Span`].
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

impl Unit {
    fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => 24 * 60 * 60,
        }
    }
}

impl Span {
    /// The longest duration of a span, which can be added to any time.
    pub const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

    /// Creates a span.
    #[must_use]
    pub const fn new(value: u64, unit: Unit) -> Self {
        Self { value, unit }
    }

    /// Converts to a suitable unit, rounded up, and at least a second.
    #[must_use]
    pub fn about(duration: Duration) -> Self {
        let seconds = Self::from(duration).value;
        let unit = match seconds {
            0..=119 => Unit::Second,
            120..=7199 => Unit::Minute,
            _ => Unit::Hour,
        };
        Self::new(seconds.div_ceil(unit.seconds()).max(1), unit)
    }

    /// Returns the duration, up to [`LONGEST`](Self::LONGEST).
    #[must_use]
    pub fn duration(self) -> Duration {
        let seconds = self.value.saturating_mul(self.unit.seconds());
        Duration::from_secs(seconds).min(Self::LONGEST)
    }
}

impl From<Duration> for Span {
    /// Rounds up to whole seconds.
    fn from(duration: Duration) -> Self {
        let part = u64::from(duration.subsec_nanos() > 0);
        Self::new(duration.as_secs().saturating_add(part), Unit::Second)
    }
}

/// Reads a count: an integer from 0, where one of too many digits is the largest.
pub(crate) fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
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

/// Reads a count that may be left out.
#[cfg(feature = "forrst")]
pub(crate) fn some_whole<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Count(#[serde(deserialize_with = "whole")] u64);

    let count = Option::<Count>::deserialize(deserializer)?;
    Ok(count.map(|count| count.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_for_people_are_rounded_up() {
        for (seconds, value, unit) in [
            (0.0, 1, Unit::Second),
            (1.2, 2, Unit::Second),
            (119.0, 119, Unit::Second),
            (121.0, 3, Unit::Minute),
            (7201.0, 3, Unit::Hour),
        ] {
            let about = Span::about(Duration::from_secs_f64(seconds));
            assert_eq!(about, Span::new(value, unit), "{seconds}");
        }
        assert_eq!(Span::about(Duration::MAX).duration(), Span::LONGEST);
    }
}
