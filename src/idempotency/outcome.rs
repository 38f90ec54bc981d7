use http::{HeaderMap, Response, StatusCode};

use crate::classify::{GrpcCode, is_grpc};

/// How an operation ended, where its handler knows better than its status tells. On a response's
/// extensions.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_reprise::idempotency::Outcome;
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
    /// [`Orphans`](crate::store::Orphans).
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

/// What a response says about the operation; `None` if that is in trailers that are still to come.
pub(super) fn of_head<B>(response: &Response<B>, errors: ServerErrors) -> Option<Outcome> {
    let (status, headers) = (response.status(), response.headers());
    let mark = response.extensions().get::<Outcome>().copied();
    let by_status = || {
        if status == StatusCode::OK && is_grpc(headers) {
            let code = GrpcCode::from_headers(headers);
            return code.map(|code| of_code(code, errors));
        }
        Some(of_status(status, errors))
    };
    mark.or_else(by_status)
}

/// What the trailers of a gRPC response say; none is as good as UNKNOWN.
pub(super) fn of_trailers(trailers: Option<&HeaderMap>, errors: ServerErrors) -> Outcome {
    let code = trailers.and_then(GrpcCode::from_headers);
    of_code(code.unwrap_or(GrpcCode::Unknown), errors)
}

fn of_status(status: StatusCode, errors: ServerErrors) -> Outcome {
    match status.as_u16() {
        401 | 408 | 425 | 429 => Outcome::NoEffect,
        503 if errors != ServerErrors::KeepAll => Outcome::NoEffect,
        500..=599 if errors == ServerErrors::ReleaseAll => Outcome::NoEffect,
        _ => Outcome::Committed,
    }
}

fn of_code(code: GrpcCode, errors: ServerErrors) -> Outcome {
    match code {
        GrpcCode::Unauthenticated | GrpcCode::ResourceExhausted => Outcome::NoEffect,
        GrpcCode::Unavailable if errors != ServerErrors::KeepAll => Outcome::NoEffect,
        GrpcCode::Unknown
        | GrpcCode::DeadlineExceeded
        | GrpcCode::Unimplemented
        | GrpcCode::Internal
        | GrpcCode::DataLoss
            if errors == ServerErrors::ReleaseAll =>
        {
            Outcome::NoEffect
        }
        _ => Outcome::Committed,
    }
}
