//! Error codes of forrst.

/// The codes of errors that another call does not mend.
pub(crate) const FINAL: [&str; 11] = [
    "INVALID_ARGUMENTS",
    "NOT_FOUND",
    "UNAUTHORIZED",
    "FORBIDDEN",
    "CANCELLED",
    "VALIDATION_ERROR",
    "IDEMPOTENCY_CONFLICT",
    "REPLAY_NOT_FOUND",
    "REPLAY_EXPIRED",
    "REPLAY_ALREADY_COMPLETE",
    "REPLAY_CANCELLED",
];
