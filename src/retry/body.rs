use bytes::Buf;
use http_body_util::{Empty, Full};

/// A request body that can be sent again.
///
/// Sending keeps the body's type, so that stacks compose. A body that is at hand as a whole is
/// cloned. One that streams can be recorded as it passes.
#[diagnostic::on_unimplemented(
    message = "a request with a body of type `{Self}` cannot be sent again",
    note = "`Full`, `Empty`, `String` and `()` can; for a body of your own implement `ReplayBody`"
)]
pub trait ReplayBody: Sized {
    /// What is kept of a body.
    type Recording;

    /// What is kept of the body for later, which may mean to replace it by one of the same type
    /// that records what passes: at most `limit` bytes if it has to be buffered, `None` if it
    /// can't be kept.
    fn record(&mut self, limit: usize) -> Option<Self::Recording>;

    /// Whether the recording is whole by now.
    fn is_whole(recording: &Self::Recording) -> bool;

    /// The body once more.
    fn replay(recording: &Self::Recording) -> Option<Self>;

    /// The body for the last time.
    fn replay_last(recording: Self::Recording) -> Option<Self> {
        Self::replay(&recording)
    }
}

macro_rules! replay_by_clone {
    ($($(#[$bound:ident])? $body:ty),*) => {$(
        impl $(<$bound: Buf + Clone>)? ReplayBody for $body {
            type Recording = Self;

            fn record(&mut self, _limit: usize) -> Option<Self> {
                Some(self.clone())
            }

            fn is_whole(_recording: &Self) -> bool {
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
