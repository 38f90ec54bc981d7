//! The decisions about the answers of two attempts. They depend on their arguments alone.

use std::time::Duration;

use crate::call::{Cause, Effect, Guidance, Retryable, Verdict};

/// Returns whether a result of one attempt is the call's while the other attempt is out: a success, a
/// final answer, or a certificate that is not to be trusted. A failure that may pass waits for the
/// other attempt, and so does one of this side, such as a full queue, which is no answer.
pub(super) fn is_final(verdict: &Verdict, is_response: bool) -> bool {
    match verdict.retry {
        _ if verdict.is_success() => true,
        _ if verdict.cause == Cause::Certificate => true,
        Retryable::Never => is_response && verdict.guidance != Some(Guidance::Stop),
        Retryable::AfterRefresh => true,
        _ => false,
    }
}

/// Returns whether, of two failures, the later one is the call's. That of the dependency comes before
/// one of this side, and then the one that asks for more: not to be called again, or later. Of equal
/// ones it is the one that may have had more of an effect.
pub(super) fn outweighs(later: &Verdict, earlier: &Verdict) -> bool {
    weight(later) >= weight(earlier)
}

fn weight(verdict: &Verdict) -> (bool, bool, Duration, Effect) {
    let ours = matches!(verdict.cause, Cause::Refused(_) | Cause::Cancelled);
    let wait = match verdict.guidance {
        Some(Guidance::AtLeast(wait) | Guidance::Exactly(wait)) => wait,
        Some(Guidance::InBody {
            floor, everybody, ..
        }) => floor.max(everybody.unwrap_or_default()),
        Some(Guidance::Stop) | None => Duration::ZERO,
    };
    let stops = verdict.guidance == Some(Guidance::Stop);
    (!ours, stops, wait, verdict.effect)
}

#[cfg(all(test, not(reprise_loom)))]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::error::Refusal;

    fn status(code: u16) -> Cause {
        Cause::Status(StatusCode::from_u16(code).unwrap_or_default())
    }

    #[test]
    fn h_5_a_good_or_final_answer_is_the_calls_and_a_failure_that_may_pass_is_not() {
        let stop = Some(Guidance::Stop);
        let busy = Verdict::transient(status(503));
        for (expected, verdict, is_response) in [
            (true, Verdict::SUCCESS, true),
            (true, Verdict::terminal(status(404)), true),
            (true, Verdict::terminal(Cause::Certificate), false),
            (true, busy.retry(Retryable::AfterRefresh), true),
            (false, busy, true),
            (false, busy.retry(Retryable::Never).guidance(stop), true),
            (false, busy.retry(Retryable::MaxPerCause(1)), true),
            (false, busy.retry(Retryable::FreshId), true),
            (false, Verdict::transient(Cause::Reset), false),
            (false, Verdict::terminal(Cause::Cancelled), false),
            (false, Verdict::refused(Refusal::Budget), false),
        ] {
            assert_eq!(is_final(&verdict, is_response), expected, "{verdict:?}");
        }
    }

    #[test]
    fn h_5_the_failure_that_asks_for_most_is_the_calls() {
        let wait = |seconds| Some(Guidance::AtLeast(Duration::from_secs(seconds)));
        let busy = Verdict::transient(status(503));
        // Each outweighs those before it.
        let ascending = [
            Verdict::refused(Refusal::Breaker),
            Verdict::transient(Cause::Connect).never_sent(),
            busy,
            busy.guidance(wait(1)),
            busy.guidance(wait(2)),
            busy.retry(Retryable::Never).guidance(Some(Guidance::Stop)),
        ];
        for (i, less) in ascending.iter().enumerate() {
            assert!(outweighs(less, less), "of equals it is the later one");
            for more in &ascending[i + 1..] {
                assert!(outweighs(more, less) && !outweighs(less, more), "{more:?}");
            }
        }
    }
}
