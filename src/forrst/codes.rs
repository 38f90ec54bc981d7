//! forrst's error codes, as the table that clients classify by.

use serde_json::Value;

use super::{advice::advice, extension::short};
use crate::{
    call::{Effect, Health, Retryable},
    classify::{Codes, EnvelopeReader},
};

/// Codes that are never retried.
pub(crate) const NEVER: [&str; 11] = [
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

impl Codes {
    /// The codes of the forrst protocol.
    ///
    /// A reply's own retry extension comes before the table, if bodies are read for codes:
    ///
    /// - `allowed: false` is final, except for a 401, which new credentials may cure;
    /// - `allowed: true` allows retries of codes that are not in the table. A code that the table
    ///   never retries stays final, and so does an unknown code with a status that is never retried
    ///   (400, 409, 422 and all that R-4 does not list);
    /// - `after` is the floor of this call's waits, by its `strategy`. Headers that ask for more are
    ///   obeyed too, and only they hold back other calls;
    /// - `max_attempts` bounds retries instead of the table, within the policy's bound.
    ///
    /// Without the extension, an error's `details.retry_after` is the floor, or the `reset` of a
    /// rate-limit extension if that is longer. A problem document has
    /// the same data in its `retry` member. An envelope whose errors are `cached` is final, whatever
    /// their code.
    pub fn forrst() -> Self {
        let mut codes = Self::standard();
        let retried = [
            ("RATE_LIMITED", 3, Health::Neutral),
            ("UNAVAILABLE", 5, Health::Failure),
            ("DEADLINE_EXCEEDED", 1, Health::Failure),
            ("INTERNAL_ERROR", 3, Health::Failure),
            ("DEPENDENCY_ERROR", 3, Health::Failure),
            ("IDEMPOTENCY_PROCESSING", 3, Health::Success),
            ("SERVER_MAINTENANCE", 1, Health::Failure),
            ("FUNCTION_MAINTENANCE", 1, Health::Success),
            ("FUNCTION_DISABLED", 2, Health::Success),
        ];
        codes = codes.never_retried(&NEVER);
        for (code, times, health) in retried {
            codes.set(
                code,
                Retryable::MaxPerCause(times),
                Some(health),
                effect_of(code),
            );
        }
        codes.set(
            "UNAUTHORIZED",
            Retryable::Never,
            Some(Health::Success),
            Effect::None,
        );
        codes
            .content_type("application/json")
            .for_any_status()
            .with_envelope(EnvelopeReader {
                protocol: "forrst",
                advice,
                is_replayed,
            })
    }
}

/// Returns the effect that an operation that failed with this code may have had.
pub(crate) fn effect_of(code: &str) -> Effect {
    match code {
        "UNAUTHORIZED" | "RATE_LIMITED" | "IDEMPOTENCY_PROCESSING" => Effect::None,
        "UNAVAILABLE" | "SERVER_MAINTENANCE" | "FUNCTION_MAINTENANCE" | "FUNCTION_DISABLED" => {
            Effect::Unavailable
        }
        "INTERNAL_ERROR" | "DEPENDENCY_ERROR" | "DEADLINE_EXCEEDED" => Effect::Failed,
        _ => Effect::Possible,
    }
}

/// Whether an envelope is a stored failure of an idempotency layer, which a retry gets again.
fn is_replayed(envelope: &Value) -> bool {
    let array = |name| envelope.get(name).and_then(Value::as_array);
    let cached = |extension: &Value| {
        let urn = extension.get("urn").and_then(Value::as_str);
        let status = extension.pointer("/data/status").and_then(Value::as_str);
        urn.is_some_and(|urn| short(urn) == "urn:forrst:ext:idempotency")
            && status == Some("cached")
    };
    array("errors").is_some_and(|errors| !errors.is_empty())
        && array("extensions").is_some_and(|extensions| extensions.iter().any(cached))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_3_a_code_that_forrst_never_retries_takes_an_approval() {
        for code in NEVER {
            let codes = Codes::forrst().at_most(code, 1);
            assert_eq!(codes.forbidden().collect::<Vec<_>>(), [code]);
        }
        assert_eq!(Codes::forrst().retry("RATE_LIMITED").forbidden().count(), 0);
    }

    #[test]
    fn i_12_the_effect_that_a_code_leaves_open() {
        for (code, expected) in [
            ("UNAUTHORIZED", Effect::None),
            ("RATE_LIMITED", Effect::None),
            ("IDEMPOTENCY_PROCESSING", Effect::None),
            ("UNAVAILABLE", Effect::Unavailable),
            ("SERVER_MAINTENANCE", Effect::Unavailable),
            ("FUNCTION_MAINTENANCE", Effect::Unavailable),
            ("FUNCTION_DISABLED", Effect::Unavailable),
            ("INTERNAL_ERROR", Effect::Failed),
            ("DEPENDENCY_ERROR", Effect::Failed),
            ("DEADLINE_EXCEEDED", Effect::Failed),
            ("NOT_FOUND", Effect::Possible),
        ] {
            assert_eq!(effect_of(code), expected, "{code}");
        }
    }
}
