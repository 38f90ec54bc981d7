use std::sync::Arc;

use bytes::Buf;
use http_body_util::{Empty, Full};

use crate::dependency::Dependency;

/// A request body that can be sent again.
///
/// Sending keeps the body's type, so that stacks compose. A body that is at hand as a whole is
/// cloned: `Full`, `Empty`, `String`, `()`. One that streams is recorded as it passes, and can be
/// sent again once all of it has passed or is at hand, or when nothing of it was read: `BoxBody`
/// and `UnsyncBoxBody` of http-body-util, and with their features the bodies of axum, tonic and
/// reqwest.
#[diagnostic::on_unimplemented(
    message = "a request with a body of type `{Self}` cannot be sent again",
    note = "`Full`, `Empty`, `String` and `()` can, and so can boxed bodies: put yours into one \
            with `BodyExt::boxed`, or implement `ReplayBody`",
    note = "the bodies of axum, tonic and reqwest can with the features of these names"
)]
pub trait ReplayBody: Sized {
    /// What is kept of a body.
    type Recording;

    /// What is kept of the body for later, which may mean to replace it by one of the same type
    /// that records what passes. `None` if it can't be kept.
    fn record(&mut self, room: &ReplayLimits<'_>) -> Option<Self::Recording>;

    /// Whether the body could be sent again now. It is asked when an attempt failed, and may read
    /// what is left of the body, if that need not be waited for.
    fn is_complete(recording: &Self::Recording) -> bool;

    /// The body once more.
    fn replay(recording: &Self::Recording) -> Option<Self>;

    /// The body for the last time.
    fn replay_last(recording: Self::Recording) -> Option<Self> {
        Self::replay(&recording)
    }
}

/// How much of a body may be buffered.
#[derive(Debug)]
pub struct ReplayLimits<'a> {
    limit: usize,
    dependency: &'a Arc<Dependency>,
}

impl<'a> ReplayLimits<'a> {
    #[inline]
    pub(super) fn of(dependency: &'a Arc<Dependency>) -> Self {
        Self {
            limit: dependency.policy().replay_limit(),
            dependency,
        }
    }

    /// The most that may be kept of one body, in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Where the room is taken from that the recordings of all calls share.
    pub(super) fn dependency(&self) -> &'a Arc<Dependency> {
        self.dependency
    }
}

macro_rules! replay_by_clone {
    ($($(#[$bound:ident])? $body:ty),*) => {$(
        impl $(<$bound: Buf + Clone>)? ReplayBody for $body {
            type Recording = Self;

            #[inline]
            fn record(&mut self, _room: &ReplayLimits<'_>) -> Option<Self> {
                Some(self.clone())
            }

            fn is_complete(_recording: &Self) -> bool {
                true
            }

            fn replay(recording: &Self) -> Option<Self> {
                Some(recording.clone())
            }

            fn replay_last(recording: Self) -> Option<Self> {
                Some(recording)
            }
        }
    )*};
}

replay_by_clone!((), String, #[D] Full<D>, #[D] Empty<D>);
