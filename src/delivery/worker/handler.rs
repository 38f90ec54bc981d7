use std::{borrow::Cow, future::Future, sync::Arc};

use super::AttemptLabels;
use crate::store::journal::{Entry, Settlement};

/// Executes the entries of a queue.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't handle entries of a queue",
    note = "implement `Handler` for a type of yours: `async fn handle(&self, entry: Entry) -> Settlement`"
)]
pub trait Handler: Send + Sync + 'static {
    /// Executes an entry and returns its settlement.
    ///
    /// The handler must not execute an entry that is [past its time](Entry::is_past), only settle
    /// it. The entry may have been attempted before by a worker that died, and runs twice at the
    /// same time if its lease is lost. After a panic the entry is leased again; check
    /// [`attempts`](Entry::attempts) to give up in time.
    fn handle(&self, entry: Entry) -> impl Future<Output = Settlement> + Send;

    /// Returns the name of what the attempts of an entry are made on, whose retry budget is charged for
    /// all but the first; `None` if there is no budget.
    fn target<'a>(&self, entry: &'a Entry) -> Option<Cow<'a, str>> {
        let _ = entry;
        None
    }

    /// Returns what is logged of a retry.
    fn labels(&self, entry: &Entry) -> AttemptLabels {
        let _ = entry;
        AttemptLabels::default()
    }

    /// Returns how the entries of a lane may be leased now.
    fn lane(&self, lane: &str) -> LaneAdmission {
        let _ = lane;
        LaneAdmission::default()
    }

    /// Returns how many entries the worker may lease now.
    fn admission(&self) -> Admission {
        Admission::All
    }
}

/// The entries of a lane that a [`Handler`] accepts at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneAdmission {
    /// They are handled one after the other, as [`in_order`](super::WorkerBuilder::in_order) says of all
    /// lanes. All workers of a queue have to agree on it.
    pub in_order: bool,
    /// At most so many are leased now, beside those that are being handled.
    pub at_most: usize,
    /// The target that the lane shares with others, if targets have bounds of their own.
    pub target: Option<TargetAdmission>,
}

impl Default for LaneAdmission {
    fn default() -> Self {
        Self {
            in_order: false,
            at_most: usize::MAX,
            target: None,
        }
    }
}

/// The entries that a [`Handler`] accepts at a moment of all lanes to one target, within its
/// [admission](Handler::admission) of all targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetAdmission {
    /// The name of the target.
    pub name: Arc<str>,
    /// As many as this.
    pub admission: Admission,
}

/// The entries that a [`Handler`] accepts at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// As many as the worker's settings allow.
    All,
    /// At most so many at a time.
    UpTo(usize),
    /// Only urgent entries, and those past their time.
    Urgent,
}
