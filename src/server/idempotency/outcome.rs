use std::any::Any;

use http::{HeaderMap, Response, StatusCode};

use crate::{
    call::{Effect, RetryOutcome},
    classify::{Rules, network},
    http::{GrpcCode, grpc::is_grpc},
};

/// How an operation ended, where its handler knows better than its status tells. On a response's
/// extensions.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_reprise::server::idempotency::Outcome;
///
/// let mut response = Response::new("out of stock, nothing was booked");
/// *response.status_mut() = StatusCode::CONFLICT;
/// // A retry, when there is stock again, is to be executed.
/// response.extensions_mut().insert(Outcome::NoEffect);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It took effect, or failed for good: this reply is the reply to every repeat.
    Committed,
    /// Nothing happened: a repeat is executed.
    NoEffect,
    /// It may have taken effect: repeats are handled as those of an owner that vanished, see
    /// [`CrashPolicy`](crate::store::CrashPolicy).
    Unknown,
}

/// What happens with replies that say 5xx (or a gRPC status like it) and that the handler did not
/// mark with an [`Outcome`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ServerErrors {
    /// Kept as any other reply, since the handler was executed; except 503, which says that it
    /// was not.
    #[default]
    Keep,
    /// Kept, 503 too.
    KeepAll,
    /// All released, so that a repeat is executed: for handlers that undo what they did when they
    /// fail.
    ReleaseAll,
}

impl ServerErrors {
    /// The most that is taken for nothing.
    const fn nothing(self) -> Effect {
        match self {
            Self::KeepAll => Effect::None,
            Self::Keep => Effect::Unavailable,
            Self::ReleaseAll => Effect::Failed,
        }
    }

    /// Whether what failed like this took no effect.
    pub(crate) fn is_undone(self, effect: Effect) -> bool {
        effect <= self.nothing()
    }

    fn outcome(self, effect: Effect) -> Outcome {
        match self.is_undone(effect) {
            true => Outcome::NoEffect,
            false => Outcome::Committed,
        }
    }
}

/// What a response says about the operation; `None` if that is in trailers that are still to come.
pub(super) fn of_head<B>(response: &Response<B>, errors: ServerErrors) -> Option<Outcome> {
    let (status, headers) = (response.status(), response.headers());
    let mark = response.extensions().get::<Outcome>().copied();
    let by_status = || {
        if status == StatusCode::OK && is_grpc(headers) {
            let code = GrpcCode::from_headers(headers);
            return code.map(|code| errors.outcome(Effect::of_grpc(code)));
        }
        Some(errors.outcome(Effect::of_status(status)))
    };
    mark.or_else(by_status)
}

/// What the trailers of a gRPC response say; none is as good as UNKNOWN.
pub(super) fn of_trailers(trailers: Option<&HeaderMap>, errors: ServerErrors) -> Outcome {
    let code = trailers.and_then(GrpcCode::from_headers);
    errors.outcome(Effect::of_grpc(code.unwrap_or(GrpcCode::Unknown)))
}

/// What the calls may have brought about that a response is the last of, unless its handler knows
/// better.
pub(super) fn before<B>(response: &Response<B>) -> Effect {
    let marked = response.extensions().get::<Outcome>().is_some();
    match RetryOutcome::of(response) {
        Some(retried) if !marked => retried.before(),
        _ => Effect::None,
    }
}

/// Whether an error says that there was nobody to execute the operation: a breaker refused the call,
/// or there was no connection, however often it was tried.
pub(super) fn is_unsent<E: 'static>(error: &E, errors: ServerErrors) -> bool {
    let known = network::downcast(error as &dyn Any);
    known.is_some_and(|error| {
        let verdict = network::classify(&Rules::standard(), error);
        verdict.never_sent && errors.is_undone(verdict.effect)
    })
}
