use std::any::Any;

use http::{HeaderMap, Response, StatusCode};

use crate::{
    call::{Effect, RetryOutcome},
    classify::{Rules, network},
    http::{GrpcCode, grpc::is_grpc},
};

/// The end of an operation, on the extensions of its response: for a handler that knows better
/// than its status tells.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_reprise::server::idempotency::HandlerOutcome;
///
/// let mut response = Response::new("out of stock, nothing was booked");
/// *response.status_mut() = StatusCode::CONFLICT;
/// // A retry, when there is stock again, is to be executed.
/// response.extensions_mut().insert(HandlerOutcome::NoEffect);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandlerOutcome {
    /// It took effect, or failed for good: this reply is the reply to every repeat.
    Committed,
    /// Nothing happened: a repeat is executed.
    NoEffect,
    /// It may have taken effect: repeats are handled as those of an owner that vanished, see
    /// [`CrashPolicy`](crate::store::CrashPolicy).
    Unknown,
}

/// The handling of replies of status 5xx (or a gRPC status like it) without a [`HandlerOutcome`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ServerErrors {
    /// Stored as any other reply, since the handler was executed; except 503, which says that it
    /// was not.
    #[default]
    Keep,
    /// Stored, 503 too.
    KeepAll,
    /// All released, so that a repeat is executed: for handlers that undo what they did when they
    /// fail.
    ReleaseAll,
}

impl ServerErrors {
    /// Returns the strongest effect that counts as none.
    pub(super) const fn no_effect(self) -> Effect {
        match self {
            Self::KeepAll => Effect::None,
            Self::Keep => Effect::Unavailable,
            Self::ReleaseAll => Effect::Failed,
        }
    }

    pub(super) fn is_undone(self, effect: Effect) -> bool {
        effect <= self.no_effect()
    }

    fn outcome(self, effect: Effect) -> HandlerOutcome {
        match self.is_undone(effect) {
            true => HandlerOutcome::NoEffect,
            false => HandlerOutcome::Committed,
        }
    }
}

/// Returns the outcome by the head of a response; `None` if trailers will tell.
pub(super) fn of_head<B>(response: &Response<B>, errors: ServerErrors) -> Option<HandlerOutcome> {
    let (status, headers) = (response.status(), response.headers());
    let mark = response.extensions().get::<HandlerOutcome>().copied();
    let by_status = || {
        if status == StatusCode::OK && is_grpc(headers) {
            let code = GrpcCode::from_headers(headers);
            return code.map(|code| errors.outcome(Effect::of_grpc(code)));
        }
        Some(errors.outcome(Effect::of_status(status)))
    };
    mark.or_else(by_status)
}

/// Returns the outcome by the trailers of a gRPC response; none are as good as UNKNOWN.
pub(super) fn of_trailers(trailers: Option<&HeaderMap>, errors: ServerErrors) -> HandlerOutcome {
    let code = trailers.and_then(GrpcCode::from_headers);
    errors.outcome(Effect::of_grpc(code.unwrap_or(GrpcCode::Unknown)))
}

/// Returns the effect that attempts before this response may have had, unless its handler knows
/// better.
pub(super) fn prior_effect<B>(response: &Response<B>) -> Effect {
    let marked = response.extensions().get::<HandlerOutcome>().is_some();
    match RetryOutcome::of(response) {
        Some(retried) if !marked => retried.before(),
        _ => Effect::None,
    }
}

/// Returns whether an error says that nothing was executed: a breaker refused the call, or there
/// was no connection, however often it was attempted.
pub(super) fn is_unsent<E: 'static>(error: &E, errors: ServerErrors) -> bool {
    let known = network::downcast(error as &dyn Any);
    known.is_some_and(|error| {
        let verdict = network::classify(&Rules::standard(), error);
        verdict.never_sent && errors.is_undone(verdict.effect)
    })
}
