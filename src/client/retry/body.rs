use std::sync::Arc;

use bytes::Buf;
use http_body_util::{Empty, Full};

use crate::dependency::Dependency;

/// A request body that can be sent again.
///
/// Sending keeps the body's type, so that stacks compose. A body that is at hand is cloned: `Full`,
/// `Empty`, `()`, and `String`, whose text is copied, since a `String` can't share it: prefer
/// `Full<Bytes>` for long texts. One that streams is recorded as it passes: `BoxBody` and
/// `UnsyncBoxBody` of http-body-util, and with their features the bodies of axum, tonic and reqwest.
///
/// # Bodies that stream
///
/// A retry sends the frames that were recorded, and then the rest of the body from where the
/// attempt before it stopped; it goes on recording for the next one. A body of which more than
/// [`replay_limit`](crate::policy::PolicyBuilder::replay_limit) has passed, or for which
/// [`replay_pool`](crate::policy::PolicyBuilder::replay_pool) has no room, is sent to its end
/// and not again: the call ends with
/// [`StopReason::NotReplayable`](crate::call::StopReason::NotReplayable). So does one whose body failed.
///
/// One attempt reads the body at a time. A server may answer before it has read the request, and the
/// transport then still holds the body of an attempt that is over. If the rest of it is at hand, the
/// transport sends it to its end; if not, the retry takes the rest over, and the old body fails, so
/// that its stream or connection is closed and nobody takes the part for the whole. A boxed body
/// fails so if its error type is [`BoxError`](crate::error::BoxError) or `std::io::Error`; one of
/// another type can't, and stays pending until the transport drops it, which may be when the server
/// closes the stream or the connection. Prefer a `BoxError` for bodies that stream.
///
/// A [hedge](crate::HedgeLayer) goes out beside an attempt that reads its body, so it needs all of it,
/// recorded or at hand.
#[diagnostic::on_unimplemented(
    message = "a request with a body of type `{Self}` cannot be sent again",
    note = "`Full`, `Empty`, `String` and `()` can, and so can boxed bodies: put yours into one \
            with `BodyExt::boxed`, or implement `ReplayBody`",
    note = "the bodies of axum, tonic and reqwest can with the features of these names"
)]
pub trait ReplayBody: Sized {
    /// The recording of a body.
    type Recording;

    /// Records the body, for which it may be replaced by one of the same type that records its
    /// frames as they pass. Returns `None` if it can't be sent again.
    fn record(&mut self, limits: &ReplayLimits<'_>) -> Option<Self::Recording>;

    /// Returns whether the body could be sent now beside the one that is out, as a hedge sends it. It
    /// may read the rest of the body as far as it is at hand.
    fn is_complete(recording: &Self::Recording) -> bool;

    /// Returns whether the body could be sent again now that an attempt has failed. As provided, it
    /// can if it is complete.
    fn is_replayable(recording: &Self::Recording) -> bool {
        Self::is_complete(recording)
    }

    /// Returns the body once more.
    fn replay(recording: &Self::Recording) -> Option<Self>;

    /// Returns the body for the last time.
    fn replay_last(recording: Self::Recording) -> Option<Self> {
        Self::replay(&recording)
    }
}

/// The limits of what is recorded of a body.
#[derive(Debug)]
pub struct ReplayLimits<'a> {
    limit: usize,
    dependency: &'a Arc<Dependency>,
}

impl<'a> ReplayLimits<'a> {
    #[inline]
    pub(crate) fn of(dependency: &'a Arc<Dependency>) -> Self {
        Self {
            limit: dependency.policy().replay_limit(),
            dependency,
        }
    }

    /// Returns the most that may be recorded of one body, in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the dependency, whose recordings share a limit.
    pub(super) fn dependency(&self) -> &'a Arc<Dependency> {
        self.dependency
    }
}

macro_rules! replay_by_clone {
    ($($(#[$bound:ident])? $body:ty),*) => {$(
        impl $(<$bound: Buf + Clone>)? ReplayBody for $body {
            type Recording = Self;

            #[inline]
            fn record(&mut self, _limits: &ReplayLimits<'_>) -> Option<Self> {
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
