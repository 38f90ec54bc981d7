use std::{fmt, time::Duration};

use http::StatusCode;

use crate::{
    call::{Effect, Guidance},
    error::Refusal,
    http::GrpcCode,
};

/// The meaning of one attempt's outcome. Its parts are independent: a 429 may be retried and
/// holds a wait, yet says nothing bad about the dependency's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// The cause of the failure.
    pub cause: Cause,
    /// Whether another call may help, and how often.
    pub retry: Retryable,
    /// The dependency's health, as far as the outcome tells.
    pub health: Health,
    /// The dependency's wish about the next call.
    pub guidance: Option<Guidance>,
    /// The request surely never reached the application, so that repeating it is safe whatever
    /// its method.
    pub never_sent: bool,
    /// The effect that a failed attempt may have had.
    pub(crate) effect: Effect,
}

impl Verdict {
    /// A success.
    pub const SUCCESS: Self = Self {
        cause: Cause::Success,
        retry: Retryable::Never,
        health: Health::Success,
        guidance: None,
        never_sent: false,
        effect: Effect::Possible,
    };

    /// A failure that is not worth repeating and that the dependency is not to blame for.
    #[must_use]
    pub const fn terminal(cause: Cause) -> Self {
        Self {
            cause,
            retry: Retryable::Never,
            health: Health::Neutral,
            guidance: None,
            never_sent: false,
            effect: Effect::Possible,
        }
    }

    /// A call that a layer of ours never sent. A dependency may be back, or less busy, a moment
    /// later, so that such a call has a second chance; other guards mean what they say.
    pub(crate) const fn refused(by: Refusal) -> Self {
        let refused = Self::terminal(Cause::Refused(by)).never_sent();
        match by {
            Refusal::Breaker => refused.retry(Retryable::MaxPerCause(1)),
            Refusal::Throttle => refused.retry(Retryable::MaxPerCause(2)),
            _ => refused,
        }
    }

    /// A failure of the dependency that is worth repeating.
    #[must_use]
    pub const fn transient(cause: Cause) -> Self {
        Self {
            cause,
            retry: Retryable::Yes,
            health: Health::Failure,
            guidance: None,
            never_sent: false,
            effect: Effect::Possible,
        }
    }

    /// The same verdict with another answer to whether to retry.
    #[must_use]
    pub const fn retry(mut self, retry: Retryable) -> Self {
        self.retry = retry;
        self
    }

    /// The same verdict with another word on the dependency's health.
    #[must_use]
    pub const fn health(mut self, health: Health) -> Self {
        self.health = health;
        self
    }

    /// The same verdict, with the time the dependency asked for.
    #[must_use]
    pub const fn guidance(mut self, guidance: Option<Guidance>) -> Self {
        self.guidance = guidance;
        self
    }

    /// The same verdict for a request that was never sent.
    #[must_use]
    pub const fn never_sent(mut self) -> Self {
        self.never_sent = true;
        self.effect = Effect::None;
        self
    }

    /// Returns whether it is a success.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(self.cause, Cause::Success)
    }

    /// Returns the layer of ours that kept the call from being sent, if one did.
    pub(crate) const fn refusal(&self) -> Option<Refusal> {
        match self.cause {
            Cause::Refused(by) if self.never_sent => Some(by),
            _ => None,
        }
    }

    /// Returns the time for which the dependency wants no calls, of whichever caller. Only an answer
    /// that it is too busy, or not there, speaks of other calls than the one that it answers.
    pub(crate) fn not_before(&self) -> Option<Duration> {
        match self.cause {
            Cause::Status(StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
            | Cause::Grpc(GrpcCode::ResourceExhausted | GrpcCode::Unavailable)
            | Cause::Code(_)
            | Cause::Other(_) => {}
            _ => return None,
        }
        match self.guidance {
            Some(Guidance::AtLeast(wait)) => Some(wait),
            Some(Guidance::InBody { everybody, .. }) => everybody,
            _ => None,
        }
    }

    /// Returns the time after which the call itself may be repeated, as the response asks.
    #[cfg(feature = "delivery")]
    pub(crate) fn repeat_after(&self) -> Option<Duration> {
        match self.guidance? {
            Guidance::AtLeast(wait) | Guidance::Exactly(wait) => Some(wait),
            Guidance::InBody {
                floor, everybody, ..
            } => Some(floor.max(everybody.unwrap_or_default())),
            Guidance::Stop => None,
        }
    }

    /// Returns whether the call ran out of time, here or on its way.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(
            self.cause,
            Cause::Timeout
                | Cause::Status(StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT)
                | Cause::Grpc(GrpcCode::DeadlineExceeded)
        )
    }

    /// Returns whether the dependency rejected the call because there are too many: 429,
    /// RESOURCE_EXHAUSTED, a 503 that says when to come back, or an error code for it.
    pub(crate) fn is_throttling(&self) -> bool {
        match self.cause {
            Cause::Status(StatusCode::TOO_MANY_REQUESTS)
            | Cause::Grpc(GrpcCode::ResourceExhausted) => true,
            Cause::Status(StatusCode::SERVICE_UNAVAILABLE) => self.not_before().is_some(),
            Cause::Code(_) => self.health == Health::Neutral && self.retry != Retryable::Never,
            _ => false,
        }
    }

    /// Returns whether the outcome is a sign that the dependency has too much to do.
    pub(crate) fn is_overload(&self) -> bool {
        match self.cause {
            Cause::Timeout => self.health == Health::Failure,
            Cause::Code(_) => false,
            _ => self.is_throttling(),
        }
    }
}

/// The worth of another call after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retryable {
    /// No.
    Never,
    /// Yes, but for this cause at most so many times in one call, whatever comes between.
    MaxPerCause(u32),
    /// Yes, as long as the call was retried less often than this, for whatever reason.
    MaxRetries(u32),
    /// Once, if the per-attempt hook can bring new credentials.
    AfterRefresh,
    /// Once, with a fresh request id.
    FreshId,
    /// Yes, within the policy's bounds.
    Yes,
}

/// The health of a dependency by one outcome, which its breaker counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// It answered as it should, even if it rejected this request.
    Success,
    /// It failed.
    Failure,
    /// Nothing: it is busy, or the caller's own side failed or went away.
    Neutral,
}

/// The cause of an outcome, in a form that is safe to log and to use as a metric label: no text of
/// the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Nothing: the call succeeded.
    Success,
    /// An HTTP status.
    Status(StatusCode),
    /// A gRPC status.
    Grpc(GrpcCode),
    /// An error code in the body, from the policy's table.
    Code(&'static str),
    /// The connection was refused, or could not be made for another reason.
    Connect,
    /// The connection was reset, aborted or closed.
    Reset,
    /// The reply ended before it was complete.
    Incomplete,
    /// The socket, the TLS handshake, the attempt or the call took too long.
    Timeout,
    /// The host name could not be resolved.
    Dns,
    /// The peer's certificate is not to be trusted.
    Certificate,
    /// TLS failed, but not for the certificate.
    Tls,
    /// The stream was refused before it was processed.
    StreamRefused,
    /// The connection was going away before the request was processed.
    GoAway,
    /// The HTTP/2 peer broke the stream or the connection.
    Protocol,
    /// The reply could not be read as what it should be.
    Serialization,
    /// The request or the client is set up wrongly.
    Configuration,
    /// The caller, or something on its side, called it off: its body failed, it reset the stream, a
    /// layer in front of the dependency had no room.
    Cancelled,
    /// A layer of ours refused the call.
    Refused(Refusal),
    /// A failure of a kind that a classifier of your own names.
    Other(&'static str),
    /// Something this crate does not know.
    Unknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Status(status) => return write!(f, "http_{}", status.as_u16()),
            Self::Grpc(code) => return write!(f, "grpc_{}", code.as_str()),
            Self::Refused(refusal) => return write!(f, "refused_{}", refusal.as_str()),
            Self::Success => "success",
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::Incomplete => "incomplete",
            Self::Timeout => "timeout",
            Self::Dns => "dns",
            Self::Certificate => "certificate",
            Self::Tls => "tls",
            Self::StreamRefused => "stream_refused",
            Self::GoAway => "go_away",
            Self::Protocol => "protocol",
            Self::Serialization => "serialization",
            Self::Configuration => "configuration",
            Self::Cancelled => "cancelled",
            Self::Code(name) | Self::Other(name) => name,
            Self::Unknown => "unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ra_9_only_what_headers_ask_holds_for_everybody() {
        let second = Duration::from_secs(1);
        let in_body = |everybody| Guidance::InBody {
            floor: 2 * second,
            doubles: false,
            everybody,
        };
        for (guidance, expected) in [
            (None, None),
            (Some(Guidance::AtLeast(second)), Some(second)),
            (Some(Guidance::Exactly(second)), None),
            (Some(in_body(None)), None),
            (Some(in_body(Some(second))), Some(second)),
            (Some(Guidance::Stop), None),
        ] {
            let busy = Verdict::transient(Cause::Status(StatusCode::SERVICE_UNAVAILABLE));
            assert_eq!(
                busy.guidance(guidance).not_before(),
                expected,
                "{guidance:?}"
            );
            let broken = Verdict::transient(Cause::Status(StatusCode::BAD_GATEWAY));
            assert_eq!(broken.guidance(guidance).not_before(), None, "{guidance:?}");
        }
    }

    #[test]
    fn c_4_what_was_never_sent_had_no_effect() {
        assert_eq!(Verdict::SUCCESS.effect, Effect::Possible);
        assert_eq!(Verdict::SUCCESS.never_sent().effect, Effect::None);
        let refused = Verdict::refused(Refusal::Budget);
        assert_eq!(refused.cause, Cause::Refused(Refusal::Budget));
        assert!(refused.never_sent && refused.effect == Effect::None);
    }
}
