//! Classifies errors by the types in their chain, and by text only where a transport's types are
//! private.

use std::{any::Any, error::Error, io};

#[cfg(feature = "h2")]
mod h2;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "reqwest")]
mod reqwest;
#[cfg(feature = "rustls")]
mod rustls;
#[cfg(feature = "tonic")]
mod tonic;

use http::HeaderMap;

use crate::{
    call::{Cause, Health, RetryOutcome, Retryable, Verdict},
    classify::{Rules, http::by_grpc},
    error::{BoxError, Elapsed, Refused, chain},
    http::GrpcCode,
};

/// The findings of all links of a chain. An outer link knows that the connection could not be made,
/// an inner one why.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The most specific cause so far; earlier ones in [`RANK`] win.
    cause: Option<Cause>,
    /// There was no connection, or it never took the request.
    unsent: bool,
    /// A gRPC status that a service returned as an error.
    status: Option<GrpcCode>,
    /// Our own side ended the call: the caller's body failed, we reset the stream, a layer of ours
    /// had no room. Its sources tell about something else than this call, and are not looked at.
    ours: bool,
}

/// Causes from the most to the least specific.
const RANK: [Cause; 13] = [
    Cause::Certificate,
    Cause::Dns,
    Cause::StreamRefused,
    Cause::GoAway,
    Cause::Tls,
    Cause::Configuration,
    Cause::Timeout,
    Cause::Incomplete,
    Cause::Serialization,
    Cause::Protocol,
    Cause::Reset,
    Cause::Connect,
    Cause::Cancelled,
];

impl Facts {
    fn note(&mut self, cause: Cause) {
        let rank = |cause| RANK.iter().position(|c| *c == cause).unwrap_or(RANK.len());
        if self.cause.is_none_or(|known| rank(cause) < rank(known)) {
            self.cause = Some(cause);
        }
    }

    fn verdict(self, rules: &Rules) -> Verdict {
        if self.ours {
            return Verdict::terminal(Cause::Cancelled);
        }
        let cause = match (self.cause, self.status) {
            (Some(cause), _) => cause,
            (None, _) if self.unsent => Cause::Connect,
            (None, Some(code)) => return by_grpc(rules, code, &HeaderMap::new()),
            (None, None) => return Verdict::terminal(Cause::Unknown).health(Health::Failure),
        };
        let transient = Verdict::transient(cause);
        let verdict = match cause {
            Cause::Tls | Cause::Serialization => transient.retry(Retryable::Never),
            Cause::Dns => transient.retry(Retryable::MaxPerCause(1)).never_sent(),
            Cause::StreamRefused | Cause::GoAway => transient.health(Health::Neutral).never_sent(),
            Cause::Timeout | Cause::Incomplete | Cause::Protocol | Cause::Reset => transient,
            Cause::Connect => transient.never_sent(),
            _ => Verdict::terminal(cause),
        };
        if self.unsent {
            verdict.never_sent()
        } else {
            verdict
        }
    }
}

/// Reads one link of a chain.
type Inspect = fn(&(dyn Error + 'static), &mut Facts);

const INSPECTORS: &[Inspect] = &[
    standard,
    #[cfg(feature = "hyper")]
    hyper::inspect,
    #[cfg(feature = "h2")]
    h2::inspect,
    #[cfg(feature = "rustls")]
    rustls::inspect,
    #[cfg(feature = "tonic")]
    tonic::inspect,
    #[cfg(feature = "reqwest")]
    reqwest::inspect,
];

type Downcast = fn(&dyn Any) -> Option<&(dyn Error + 'static)>;

/// Downcasts a value that is only known to be displayable to an error of a known type.
pub(crate) fn downcast(error: &dyn Any) -> Option<&(dyn Error + 'static)> {
    let known: &[Downcast] = &[
        |error| error.downcast_ref::<BoxError>().map(|error| &**error as _),
        |error| error.downcast_ref::<io::Error>().map(|error| error as _),
        #[cfg(feature = "hyper")]
        hyper::downcast,
        #[cfg(feature = "tonic")]
        tonic::downcast,
        #[cfg(feature = "reqwest")]
        reqwest::downcast,
    ];
    known.iter().find_map(|downcast| downcast(error))
}

/// Classifies an error. A call that was retried was not sent if none of its attempts was.
pub(crate) fn classify(rules: &Rules, error: &(dyn Error + 'static)) -> Verdict {
    let mut verdict = by_chain(rules, error);
    if verdict.never_sent
        && let Some(outcome) = RetryOutcome::of_error(error)
    {
        verdict.never_sent = !outcome.in_doubt();
        verdict.effect = outcome.before();
    }
    verdict
}

fn by_chain(rules: &Rules, error: &(dyn Error + 'static)) -> Verdict {
    let mut facts = Facts::default();
    for (place, link) in chain(error).enumerate() {
        if let Some(refused) = link.downcast_ref::<Refused>() {
            return Verdict::refused(refused.kind());
        }
        if let Some(elapsed) = link.downcast_ref::<Elapsed>() {
            let verdict = Verdict::transient(Cause::Timeout);
            return match (place, elapsed.is_whole_call()) {
                // A retry loop asks about its own attempt with nothing around the error.
                (0, false) => verdict,
                // Any other is of a call that was made in the course of this one.
                (_, false) => verdict.health(Health::Neutral),
                (_, true) => verdict.health(Health::Neutral).retry(Retryable::Never),
            };
        }
        for inspect in INSPECTORS {
            inspect(link, &mut facts);
        }
        if facts.ours {
            break;
        }
    }
    facts.verdict(rules)
}

/// Reads errors of the standard library, tokio and tower.
fn standard(error: &(dyn Error + 'static), facts: &mut Facts) {
    if error.is::<tower::timeout::error::Elapsed>() || error.is::<tokio::time::error::Elapsed>() {
        return facts.note(Cause::Timeout);
    }
    if error.is::<tower::load_shed::error::Overloaded>() {
        facts.ours = true;
        return;
    }
    // If its worker failed, that failure comes as an error of its own.
    #[cfg(feature = "buffer")]
    if error.is::<tower::buffer::error::Closed>() {
        facts.ours = true;
        return;
    }
    let Some(io) = error.downcast_ref::<io::Error>() else {
        return;
    };
    match io.kind() {
        io::ErrorKind::TimedOut => facts.note(Cause::Timeout),
        io::ErrorKind::ConnectionRefused => facts.note(Cause::Connect),
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::NotConnected
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::AddrNotAvailable => facts.note(Cause::Reset),
        io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied => {
            facts.note(Cause::Configuration);
        }
        // TLS wraps its errors in this kind; the wrapped type is more specific.
        io::ErrorKind::InvalidData if io.get_ref().is_none() => facts.note(Cause::Serialization),
        _ => {}
    }
}

/// Returns the cause that an inspection notes.
#[cfg(all(test, any(feature = "hyper", feature = "h2", feature = "rustls")))]
fn cause(look: impl FnOnce(&mut Facts)) -> Option<Cause> {
    let mut facts = Facts::default();
    look(&mut facts);
    facts.cause
}

#[cfg(test)]
mod tests;
