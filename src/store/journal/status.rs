/// The priority of an entry within its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Priority {
    /// Triggered by an operator: leased even while a worker holds back all else.
    Urgent,
    /// Before normal entries.
    High,
    /// The default.
    #[default]
    Normal,
    /// After all others.
    Low,
}

impl Priority {
    /// All priorities, the most urgent first.
    pub const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Normal, Self::Low];

    /// Returns a stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// The state of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// Waits for a worker, or for the time it is due.
    Queued,
    /// Leased by a worker, which may have died since.
    Processing,
    /// Done.
    Completed,
    /// Failed for good: a dead letter.
    Failed,
    /// Not done in time.
    Expired,
    /// Cancelled before it was started.
    Cancelled,
}

impl Status {
    /// All states.
    pub const ALL: [Self; 6] = [
        Self::Queued,
        Self::Processing,
        Self::Completed,
        Self::Failed,
        Self::Expired,
        Self::Cancelled,
    ];

    /// Returns a stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns whether nothing more happens to the entry by itself.
    #[must_use]
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::Processing)
    }

    /// Returns whether an entry that comes to this state loses its payload: it is over, and can't be
    /// redriven.
    pub(crate) fn drops_payload(self) -> bool {
        matches!(self, Self::Completed | Self::Expired | Self::Cancelled)
    }

    /// Returns the number that stores keep.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
mod numbers {
    use super::{Priority, Status};
    use crate::store::{StoreError, StoreErrorKind};

    impl Priority {
        /// Returns the priority that a store keeps as this number.
        pub(crate) fn from_number(number: i64) -> Result<Self, StoreError> {
            pick(&Self::ALL, number)
        }
    }

    impl Status {
        /// Returns the status that a store keeps as this number.
        pub(crate) fn from_number(number: i64) -> Result<Self, StoreError> {
            pick(&Self::ALL, number)
        }
    }

    fn pick<T: Copy>(all: &[T], number: i64) -> Result<T, StoreError> {
        let index = usize::try_from(number).ok();
        let found = index.and_then(|index| all.get(index)).copied();
        found.ok_or_else(|| {
            let known = all.len() - 1;
            let message = format!("an entry has {number} where up to {known} is known");
            StoreError::new(StoreErrorKind::Corrupt, message)
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn numbers_are_those_of_the_types() {
            for one in Priority::ALL {
                assert_eq!(Priority::from_number(one as i64).ok(), Some(one));
            }
            for one in Status::ALL {
                assert_eq!(Status::from_number(one as i64).ok(), Some(one));
            }
            let error = Status::from_number(6).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        }
    }
}
