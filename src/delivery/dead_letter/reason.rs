//! Why something was given up, in words of this crate's own. All others are somebody's, and may quote
//! what must not be told: they stay in the letter.

use http::StatusCode;

use crate::{call::Cause, error::Refusal, http::GrpcCode};

pub(crate) const WORKERS_DIED: &str = "its workers died of it";
pub(crate) const UNREADABLE: &str = "it can't be read";
pub(crate) const UNPREPARED: &str = "it could not be prepared";
pub(crate) const NOT_IN_TIME: &str = "not delivered in time";
pub(crate) const NOT_WITHIN_A_DAY: &str = "not delivered within a day";
pub(crate) const NO_SIGNER: &str = "its owner has no signer";
pub(crate) const BAD_TARGET: &str = "its target is not allowed";
pub(crate) const BAD_HEADERS: &str = "its headers are not allowed";
pub(crate) const BAD_TYPE: &str = "its content type is not allowed";
pub(crate) const NO_CALLBACKS: &str = "callbacks are not offered any more";

const OWN: [&str; 10] = [
    WORKERS_DIED,
    UNREADABLE,
    UNPREPARED,
    NOT_IN_TIME,
    NOT_WITHIN_A_DAY,
    NO_SIGNER,
    BAD_TARGET,
    BAD_HEADERS,
    BAD_TYPE,
    NO_CALLBACKS,
];

/// Causes that are one word each.
const CAUSES: [Cause; 17] = [
    Cause::Connect,
    Cause::Reset,
    Cause::Incomplete,
    Cause::Timeout,
    Cause::Dns,
    Cause::Certificate,
    Cause::Tls,
    Cause::StreamRefused,
    Cause::GoAway,
    Cause::Protocol,
    Cause::Serialization,
    Cause::Configuration,
    Cause::Cancelled,
    Cause::Refused(Refusal::Breaker),
    Cause::Refused(Refusal::RetryAfter),
    Cause::Refused(Refusal::Budget),
    Cause::Other("forbidden_target"),
];

/// As much of a reason as anybody may know.
pub(super) fn cause(reason: &str) -> &str {
    let word = reason.strip_prefix("delivery failed: ").unwrap_or(reason);
    let status = ["replied ", "http_"].iter().find_map(|start| {
        let digits = word.strip_prefix(start)?;
        StatusCode::from_bytes(digits.as_bytes()).ok()
    });
    let grpc = word.strip_prefix("grpc_").and_then(GrpcCode::from_name);
    let own = OWN.contains(&reason) || CAUSES.iter().any(|cause| cause.to_string() == word);
    match own || status.is_some() || grpc.is_some() {
        true => reason,
        false => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_2_only_own_words_are_told() {
        for told in [
            "replied 422",
            "http_500",
            "grpc_UNAVAILABLE",
            "timeout",
            "refused_breaker",
            "delivery failed: certificate",
            "delivery failed: http_410",
            "delivery failed: forbidden_target",
            "its workers died of it",
        ] {
            assert_eq!(cause(told), told);
        }
        for kept in [
            "",
            "replied 422 to Ada",
            "replied 7",
            "http_",
            "grpc_ADA",
            "delivery failed: Ada",
            "delivery failed: its workers died of it",
            "invalid type: string \"Ada\", expected u64",
        ] {
            assert_eq!(cause(kept), "failed", "{kept}");
        }
    }
}
