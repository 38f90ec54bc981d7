use std::{borrow::Cow, time::Duration};

use super::Status;

/// A selection of entries to list or to count.
#[derive(Debug, Clone)]
#[must_use]
pub struct Query {
    /// The queue.
    pub queue: Cow<'static, str>,
    /// Only entries of this owner.
    pub owner: Option<String>,
    /// Only entries in this state.
    pub status: Option<Status>,
    /// Only entries with this label.
    pub label: Option<String>,
    /// Only entries with a greater sequence.
    pub after: u64,
    /// The most entries to return.
    pub limit: u32,
}

impl Query {
    /// Selects the first entries of a queue.
    pub fn new(queue: impl Into<Cow<'static, str>>, limit: u32) -> Self {
        Self {
            queue: queue.into(),
            owner: None,
            status: None,
            label: None,
            after: 0,
            limit,
        }
    }
}

/// The numbers of entries of a queue by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// One number for each of [`Status::ALL`].
    pub by_status: [u64; 6],
    /// The age of the oldest queued entry.
    pub oldest: Option<Duration>,
}

impl Counts {
    /// Returns the number of entries in that state.
    #[must_use]
    pub fn of(&self, status: Status) -> u64 {
        self.by_status[usize::from(status.number())]
    }
}
