use std::{borrow::Cow, time::Duration};

use super::Priority;

/// A request of a worker for entries.
#[derive(Debug, Clone)]
#[must_use]
pub struct LeaseRequest {
    /// The queue.
    pub queue: Cow<'static, str>,
    /// The lane of the queue.
    pub lane: String,
    /// The most entries to lease.
    pub limit: u32,
    /// The least urgent priority to lease.
    pub through: Priority,
    /// The duration of the lease unless it is extended.
    pub lease: Duration,
    /// Leases the entries of the lane one after the other: the first one, and none while one is
    /// leased or while the first waits for its turn again
    /// ([`keeps_place`](super::Settlement::keeps_place)). Entries past their time do not count.
    pub in_order: bool,
}

impl LeaseRequest {
    /// Requests entries of every priority.
    pub fn new(
        queue: impl Into<Cow<'static, str>>,
        lane: impl Into<String>,
        limit: u32,
        lease: Duration,
    ) -> Self {
        Self {
            queue: queue.into(),
            lane: lane.into(),
            limit,
            through: Priority::Low,
            lease,
            in_order: false,
        }
    }
}

/// The most due entries of a queue that a store reads to find the lanes with work. Where more are due it
/// steps from lane to lane.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) const FEW_DUE: u32 = 256;

/// Returns a page of lanes, each once and in order of their names.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn page_of_lanes(
    mut lanes: Vec<String>,
    after: Option<&str>,
    limit: u32,
) -> Vec<String> {
    lanes.retain(|lane| after.is_none_or(|after| &**lane > after));
    lanes.sort_unstable();
    lanes.dedup();
    lanes.truncate(limit as usize);
    lanes
}
