use super::*;
use crate::call::{Effect, RetryError, StopReason};

fn noted(causes: impl IntoIterator<Item = Cause>) -> Facts {
    let mut facts = Facts::default();
    causes.into_iter().for_each(|cause| facts.note(cause));
    facts
}

#[test]
fn c_3_of_two_causes_the_more_telling_counts_in_either_order() {
    for (place, more) in RANK.into_iter().enumerate() {
        for less in RANK.into_iter().skip(place) {
            assert_eq!(noted([more, less]).cause, Some(more), "{more} {less}");
            assert_eq!(noted([less, more]).cause, Some(more), "{less} {more}");
        }
    }
}

#[test]
fn c_3_c_4_every_cause_has_its_meaning() {
    let rules = Rules::standard();
    for cause in RANK {
        let (retry, health, never_sent) = match cause {
            Cause::Tls | Cause::Serialization => (Retryable::Never, Health::Failure, false),
            Cause::Dns => (Retryable::MaxPerCause(1), Health::Failure, true),
            Cause::StreamRefused | Cause::GoAway => (Retryable::Yes, Health::Neutral, true),
            Cause::Connect => (Retryable::Yes, Health::Failure, true),
            Cause::Timeout | Cause::Incomplete | Cause::Protocol | Cause::Reset => {
                (Retryable::Yes, Health::Failure, false)
            }
            _ => (Retryable::Never, Health::Neutral, false),
        };
        let verdict = noted([cause]).verdict(&rules);
        let parts = (verdict.retry, verdict.health, verdict.never_sent);
        assert_eq!(parts, (retry, health, never_sent), "{cause}");
        let unsent = Facts {
            unsent: true,
            ..noted([cause])
        };
        assert!(unsent.verdict(&rules).never_sent, "{cause}");
    }
}

#[test]
fn c_3_what_is_known_decides_before_what_is_guessed() {
    let rules = Rules::standard();
    let of = |cause, unsent, status| {
        let facts = Facts {
            cause,
            unsent,
            status,
            ours: false,
        };
        facts.verdict(&rules).cause
    };
    let unavailable = Some(GrpcCode::Unavailable);
    assert_eq!(of(Some(Cause::Dns), true, unavailable), Cause::Dns);
    assert_eq!(of(None, true, unavailable), Cause::Connect);
    assert_eq!(
        of(None, false, unavailable),
        Cause::Grpc(GrpcCode::Unavailable)
    );
    assert_eq!(of(None, false, None), Cause::Unknown);
}

#[test]
fn c_3_c_10_an_attempt_that_took_too_long_is_retried_and_a_whole_call_is_not() {
    for (whole_call, retry, health) in [
        (false, Retryable::Yes, Health::Failure),
        (true, Retryable::Never, Health::Neutral),
    ] {
        let elapsed = Elapsed {
            whole_call,
            limit: std::time::Duration::from_secs(1),
        };
        let parts = |error: &(dyn Error + 'static)| {
            let verdict = classify(&Rules::standard(), error);
            (verdict.cause, verdict.retry, verdict.health)
        };
        assert_eq!(parts(&elapsed), (Cause::Timeout, retry, health));
        let nested = (Cause::Timeout, retry, Health::Neutral);
        assert_eq!(parts(&io::Error::other(elapsed)), nested);
    }
}

#[test]
fn c_4_a_call_that_was_retried_was_never_sent_if_no_attempt_was() {
    let after = |before, last: io::ErrorKind| {
        let outcome = RetryOutcome::new(2, Some(StopReason::Exhausted), before);
        let error = RetryError::new(outcome, io::Error::from(last).into());
        let verdict = classify(&Rules::standard(), &error);
        (verdict.never_sent, verdict.effect)
    };
    for (before, never_sent) in [
        (Effect::None, true),
        (Effect::Unavailable, true),
        (Effect::Failed, false),
        (Effect::Possible, false),
    ] {
        let found = after(before, io::ErrorKind::ConnectionRefused);
        assert_eq!(found, (never_sent, before), "{before:?}");
    }
    // A reset means that the last attempt may have been sent, whatever came before.
    let found = after(Effect::None, io::ErrorKind::ConnectionReset);
    assert_eq!(found, (false, Effect::Possible));
}

#[test]
fn c_9_an_error_that_can_only_be_displayed_is_known_by_its_type() {
    let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
    let boxed: BoxError = reset().into();
    for known in [&reset() as &dyn Any, &boxed] {
        let error = downcast(known).map(ToString::to_string);
        assert_eq!(error, Some(reset().to_string()));
    }
    assert!(downcast(&"text").is_none());
}
