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
    /// Stored as any other reply, since the handler was executed. A 503 with `Retry-After` says that
    /// it was not, and is released. A 503 without one does not say: its outcome is unknown.
    #[default]
    Keep,
    /// Stored, 503 too, and 408.
    KeepAll,
    /// All released, and 408 too, so that a repeat is executed: for handlers that undo what they did
    /// when they fail, also when a timeout below this layer drops them.
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
}

/// The meaning of replies without a [`HandlerOutcome`].
#[derive(Debug, Clone, Default)]
pub(super) struct Judge {
    pub(super) server_errors: ServerErrors,
    /// The statuses by which the handler means that nothing was done.
    pub(super) no_effect_statuses: Vec<StatusCode>,
}

impl Judge {
    /// Returns the outcome by the head of a response; `None` if trailers will tell.
    pub(super) fn by_head<B>(&self, response: &Response<B>) -> Option<HandlerOutcome> {
        let (status, headers) = (response.status(), response.headers());
        let extensions = response.extensions();
        if let Some(mark) = extensions.get::<HandlerOutcome>() {
            return Some(*mark);
        }
        // A layer of this crate answered in place of its service.
        if let Some(effect) = extensions.get::<Effect>() {
            return Some(self.by_effect(*effect));
        }
        if status == StatusCode::OK && is_grpc(headers) {
            return GrpcCode::from_headers(headers).map(|code| self.by_grpc(code, headers));
        }
        Some(match self.no_effect_statuses.contains(&status) {
            true => HandlerOutcome::NoEffect,
            false => self.by_effect(Effect::of_status(status, headers)),
        })
    }

    /// Returns the outcome by the trailers of a gRPC response; none are as good as UNKNOWN.
    pub(super) fn by_trailers(&self, trailers: Option<&HeaderMap>) -> HandlerOutcome {
        let code = trailers.and_then(GrpcCode::from_headers);
        match (code, trailers) {
            (Some(code), Some(trailers)) => self.by_grpc(code, trailers),
            _ => self.by_effect(Effect::Failed),
        }
    }

    fn by_grpc(&self, code: GrpcCode, headers: &HeaderMap) -> HandlerOutcome {
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        let meant = self.no_effect_statuses.contains(&unavailable);
        match code {
            GrpcCode::Unavailable if meant => HandlerOutcome::NoEffect,
            _ => self.by_effect(Effect::of_grpc(code, headers)),
        }
    }

    fn by_effect(&self, effect: Effect) -> HandlerOutcome {
        match (effect, self.server_errors) {
            _ if self.is_undone(effect) => HandlerOutcome::NoEffect,
            (Effect::Unproven, ServerErrors::Keep) => HandlerOutcome::Unknown,
            _ => HandlerOutcome::Committed,
        }
    }

    /// Returns whether an effect counts as none. That of an earlier attempt is believed without
    /// proof only if both statuses that could be meant are.
    pub(super) fn is_undone(&self, effect: Effect) -> bool {
        let meant = |status| self.no_effect_statuses.contains(&status);
        let believed = meant(StatusCode::REQUEST_TIMEOUT) && meant(StatusCode::SERVICE_UNAVAILABLE);
        effect <= self.server_errors.no_effect() || (effect == Effect::Unproven && believed)
    }

    /// Returns whether an error says that nothing was executed: a breaker refused the call, or there
    /// was no connection, however often it was attempted.
    pub(super) fn is_unsent<E: 'static>(&self, error: &E) -> bool {
        let known = network::downcast(error as &dyn Any);
        known.is_some_and(|error| {
            let verdict = network::classify(&Rules::standard(), error);
            verdict.never_sent && self.is_undone(verdict.effect)
        })
    }
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
