use http::StatusCode;

use super::{GrpcCode, Verdict};

/// What a failed attempt may have brought about, from nothing on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Effect {
    /// Nothing: it was never sent, or turned away.
    #[default]
    None,
    /// Nothing, if a server that calls itself unavailable means it.
    Unavailable,
    /// Nothing, if a server that fails undoes what it did.
    Failed,
    /// What was asked for.
    Possible,
}

impl Effect {
    pub(crate) const fn of_status(status: StatusCode) -> Self {
        match status.as_u16() {
            401 | 408 | 425 | 429 => Self::None,
            503 => Self::Unavailable,
            500..=599 => Self::Failed,
            _ => Self::Possible,
        }
    }

    pub(crate) const fn of_grpc(code: GrpcCode) -> Self {
        match code {
            GrpcCode::Unauthenticated | GrpcCode::ResourceExhausted => Self::None,
            GrpcCode::Unavailable => Self::Unavailable,
            GrpcCode::Unknown
            | GrpcCode::DeadlineExceeded
            | GrpcCode::Unimplemented
            | GrpcCode::Internal
            | GrpcCode::DataLoss => Self::Failed,
            _ => Self::Possible,
        }
    }

    /// Of an error code in a body: forrst's, and our own.
    pub(crate) fn of_code(code: &str) -> Self {
        match code {
            "UNAUTHORIZED"
            | "RATE_LIMITED"
            | "IDEMPOTENCY_PROCESSING"
            | "urn:tower-reprise:problem:idempotency-processing" => Self::None,
            "UNAVAILABLE" | "SERVER_MAINTENANCE" | "FUNCTION_MAINTENANCE" | "FUNCTION_DISABLED" => {
                Self::Unavailable
            }
            "INTERNAL_ERROR" | "DEPENDENCY_ERROR" | "DEADLINE_EXCEEDED" => Self::Failed,
            _ => Self::Possible,
        }
    }

    /// Whether it may be more than nothing, as the standard takes a server's word.
    pub(crate) const fn in_doubt(self) -> bool {
        matches!(self, Self::Failed | Self::Possible)
    }
}

impl Verdict {
    /// The same verdict, with what the attempt may have brought about.
    pub(crate) const fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }
}
