use std::time::Duration;

/// The wish of a response about the time of the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guidance {
    /// Not before this much time has passed: `Retry-After`, or the reset of an exhausted limit.
    AtLeast(Duration),
    /// After this much time, whatever the backoff would have been: a gRPC pushback.
    Exactly(Duration),
    /// For this call alone: not before `floor` has passed, which doubles with each retry if it
    /// `doubles`, nor before the time that headers ask of `everybody`.
    InBody {
        /// The wait before the first retry, at least.
        floor: Duration,
        /// The floor doubles with each retry.
        doubles: bool,
        /// The time that headers ask for.
        everybody: Option<Duration>,
    },
    /// Do not call again: a negative, malformed or repeated pushback, or `x-should-retry: false`.
    Stop,
}

impl Guidance {
    /// Returns the same guidance for the call that it answers, and for no other.
    pub(crate) fn for_this_call(self) -> Self {
        let (floor, doubles) = match self {
            Self::AtLeast(wait) => (wait, false),
            Self::InBody {
                floor,
                doubles,
                everybody: Some(wait),
            } => (floor.max(wait), doubles),
            other => return other,
        };
        Self::InBody {
            floor,
            doubles,
            everybody: None,
        }
    }
}

/// On a failed response's extensions: an idempotency layer keeps it, so that a retry gets it again.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(all(feature = "server", feature = "forrst")), allow(dead_code))]
pub(crate) struct KeptReply;
