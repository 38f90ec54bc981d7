//! Receivers as operators see them: one that failed for days is disabled, and its events come back.

mod health;
mod operations;
mod rate;
#[cfg(all(test, not(reprise_loom)))]
mod tests;

use std::fmt;

pub(super) use self::{health::Health, rate::Rates};
use crate::{http::digest::Digest, store::journal::EntryId};

/// The lanes of a target for events with an [order](super::Webhook::order): one that waits for its next
/// delivery holds up a part of them, and all of them together take few places of a worker.
const ORDERED_LANES: u8 = 4;

/// Stands between a target and the number of a lane; no target has one.
const NUMBER: char = '#';

/// An owner's URL that events are sent to.
///
/// `Debug` shows neither path nor query, which often are secrets.
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use]
pub struct Endpoint {
    url: String,
    owner: String,
}

impl Endpoint {
    /// Names the endpoint of events to this URL that have no owner.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            owner: String::new(),
        }
    }

    /// Sets the [owner](super::Webhook::owner) of the events.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// Returns the id of the entry that says so of the endpoint: the same for all processes.
    fn id(&self, state: &str, queue: &str) -> EntryId {
        let mut digest = Digest::new(state);
        digest.part(queue);
        digest.part(&self.owner);
        digest.part(&self.url);
        let mut id = [0; 16];
        id.copy_from_slice(&digest.finish()[..16]);
        EntryId::new(id)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.url.splitn(4, '/').take(3).collect::<Vec<_>>();
        f.debug_struct("Endpoint")
            .field("url", &authority.join("/"))
            .field("owner", &self.owner)
            .finish()
    }
}

/// Returns the lane of events to a target, by their order.
pub(super) fn lane(target: &impl fmt::Display, order: Option<&str>) -> String {
    let Some(order) = order else {
        return target.to_string();
    };
    let mut digest = Digest::new("order of webhooks");
    digest.part(order);
    let number = digest.finish()[0] % ORDERED_LANES;
    format!("{target}{NUMBER}{number}")
}

/// Returns the target of a lane, and whether its events have an order.
pub(super) fn target_of(lane: &str) -> (&str, bool) {
    match lane.rsplit_once(NUMBER) {
        Some((target, _)) => (target, true),
        None => (lane, false),
    }
}
