use std::time::Duration;

use http::{HeaderValue, Response};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn reply(status: u16, headers: &[(&'static str, &'static str)]) -> Response<()> {
    let mut reply = Response::new(());
    *reply.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        let value = HeaderValue::from_static(value);
        reply.headers_mut().insert(*name, value);
    }
    reply
}

fn found(mut reply: Response<()>, signal: BodySignal) -> Verdict {
    reply.extensions_mut().insert(signal);
    Classify::<Request<()>, _>::classify(&Standard, &Rules::standard(), Ok(&reply))
}

fn rule(retry: Retryable, health: Option<Health>) -> CodeRule {
    CodeRule {
        name: "X",
        retry,
        health,
        effect: Effect::Possible,
    }
}

fn allowed(allowed: bool) -> Advice {
    Advice {
        allowed: Some(allowed),
        ..Advice::default()
    }
}

#[test]
fn c_6_a_code_decides_and_leaves_the_rest_to_the_status() {
    let busy = rule(Retryable::MaxPerCause(2), Some(Health::Neutral));
    let verdict = found(
        reply(400, &[("retry-after", "1")]),
        BodySignal::Code(busy, Advice::default()),
    );
    assert_eq!(verdict.cause, Cause::Code("X"));
    assert_eq!(verdict.retry, Retryable::MaxPerCause(2));
    assert_eq!(verdict.health, Health::Neutral);
    assert_eq!(verdict.guidance, Some(Guidance::AtLeast(SECOND)));
    assert_eq!(verdict.effect, Effect::Possible);

    let unsaid = BodySignal::Code(rule(Retryable::Yes, None), Advice::default());
    for (status, health, effect) in [
        (200, Health::Success, Effect::Possible),
        (429, Health::Neutral, Effect::None),
        (500, Health::Failure, Effect::Failed),
    ] {
        let verdict = found(reply(status, &[]), unsaid.clone());
        let parts = (verdict.retry, verdict.health, verdict.effect);
        assert_eq!(parts, (Retryable::Yes, health, effect), "{status}");
    }
}

#[test]
fn s_1_a_code_does_not_stand_against_new_credentials() {
    let never = rule(Retryable::Never, None);
    for advice in [Advice::default(), allowed(false), allowed(true)] {
        let signal = BodySignal::Code(never, advice);
        let verdict = found(reply(401, &[]), signal.clone());
        assert_eq!(verdict.retry, Retryable::AfterRefresh, "{advice:?}");
        assert_eq!(verdict.guidance, None, "{advice:?}");
        // C-6: what the table never retries is firm.
        assert_eq!(found(reply(403, &[]), signal).retry, Retryable::Never);
    }
}

#[test]
fn c_6_what_a_body_forbids_is_final() {
    for signal in [
        BodySignal::Advice(allowed(false)),
        BodySignal::Code(rule(Retryable::Yes, None), allowed(false)),
    ] {
        let verdict = found(reply(503, &[("retry-after", "1")]), signal);
        assert_eq!(verdict.retry, Retryable::Never);
        assert_eq!(verdict.guidance, Some(Guidance::Stop));
    }
}

#[test]
fn c_6_what_a_body_allows_is_retried_unless_something_firm_stands_against_it() {
    let replayed = [("idempotent-replayed", "true")];
    let stop = [("x-should-retry", "false")];
    for (reply, retry) in [
        (reply(400, &[]), Retryable::Never),
        (reply(501, &[]), Retryable::Never),
        (reply(503, &[]), Retryable::Yes),
        (reply(425, &[]), Retryable::MaxPerCause(1)),
        (reply(200, &[]), Retryable::Yes),
        (reply(409, &[]), Retryable::Never),
        (reply(200, &replayed), Retryable::Never),
        (reply(503, &replayed), Retryable::Never),
        (reply(200, &stop), Retryable::Never),
        (reply(409, &stop), Retryable::Never),
        (reply(401, &[]), Retryable::AfterRefresh),
    ] {
        let status = reply.status();
        let verdict = found(reply, BodySignal::Advice(allowed(true)));
        assert_eq!(verdict.retry, retry, "{status}");
    }
    let unsaid = found(reply(400, &[]), BodySignal::Advice(Advice::default()));
    assert_eq!(unsaid.retry, Retryable::Never);
}

#[test]
fn c_6_an_unknown_error_in_a_success_is_no_success_and_no_failure_of_the_dependency() {
    let verdict = found(reply(200, &[]), BodySignal::Advice(Advice::default()));
    assert_eq!(verdict.cause, Cause::Code("unlisted"));
    let parts = (verdict.retry, verdict.health);
    assert_eq!(parts, (Retryable::Never, Health::Success));
    let failed = found(reply(500, &[]), BodySignal::Advice(Advice::default()));
    assert_eq!(
        failed.cause,
        Cause::Status(StatusCode::INTERNAL_SERVER_ERROR)
    );
}

#[test]
fn c_6_a_body_bounds_retries_that_nothing_else_bounds_more() {
    let most = Advice {
        most: Some(4),
        ..Advice::default()
    };
    for (retry, expected) in [
        (Retryable::Yes, Retryable::MaxRetries(4)),
        (Retryable::MaxPerCause(2), Retryable::MaxRetries(4)),
        (Retryable::FreshId, Retryable::FreshId),
        (Retryable::Never, Retryable::Never),
    ] {
        let verdict = found(reply(500, &[]), BodySignal::Code(rule(retry, None), most));
        assert_eq!(verdict.retry, expected, "{retry:?}");
    }
}

#[test]
fn ra_6_a_body_asks_for_a_wait_of_its_own_beside_the_headers() {
    let advice = Advice {
        floor: 3 * SECOND,
        doubles: true,
        ..Advice::default()
    };
    let in_body = |everybody| {
        Some(Guidance::InBody {
            floor: 3 * SECOND,
            doubles: true,
            everybody,
        })
    };
    let exactly = Some(Guidance::Exactly(Duration::from_millis(5)));
    for (headers, expected) in [
        (&[][..], in_body(None)),
        (&[("retry-after", "1")], in_body(Some(SECOND))),
        // RA-6: a pushback decides alone.
        (&[("grpc-retry-pushback-ms", "5")], exactly),
        (&[("grpc-retry-pushback-ms", "-1")], Some(Guidance::Stop)),
    ] {
        let verdict = found(reply(503, headers), BodySignal::Advice(advice));
        assert_eq!(verdict.guidance, expected, "{headers:?}");
    }
    let silent = Advice {
        floor: Duration::ZERO,
        ..advice
    };
    let verdict = found(reply(503, &[]), BodySignal::Advice(silent));
    assert_eq!(verdict.guidance, None);
}

#[test]
fn c_7_the_stores_mark_in_the_head_holds_for_a_status_in_trailers() {
    let trailers = |status: &'static str| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static(status));
        BodySignal::Trailers(trailers)
    };
    let replayed = || reply(200, &[("idempotent-replayed", "true")]);
    let of = |verdict: Verdict| (verdict.cause, verdict.retry, verdict.health);
    let unavailable = Cause::Grpc(GrpcCode::Unavailable);
    let plain = found(reply(200, &[]), trailers("14"));
    assert_eq!(of(plain), (unavailable, Retryable::Yes, Health::Failure));
    let final_one = found(replayed(), trailers("14"));
    let expected = (unavailable, Retryable::Never, Health::Success);
    assert_eq!(of(final_one), expected);
    assert_eq!(found(replayed(), trailers("0")), Verdict::SUCCESS);
    assert_eq!(found(reply(200, &[]), trailers("0")), Verdict::SUCCESS);
}

#[test]
fn c_1_a_body_is_worth_reading_for_its_connection_if_there_may_be_a_retry() {
    for (status, worth) in [(503, true), (425, true), (401, true), (404, false)] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(worth_keeping(&Rules::standard(), status), worth, "{status}");
    }
}

#[test]
fn c_1_what_only_looks_like_a_success_is_looked_into() {
    for (status, headers, plain) in [
        (200, &[][..], true),
        (302, &[("location", "/")], true),
        (200, &[("grpc-status", "0")], false),
        (404, &[], false),
        (503, &[], false),
        (503, &[("grpc-status", "0")], false),
    ] {
        let mut reply = reply(status, headers);
        assert_eq!(is_plain_success(&reply), plain, "{status} {headers:?}");
        reply
            .extensions_mut()
            .insert(BodySignal::Advice(Advice::default()));
        assert!(!is_plain_success(&reply), "{status} {headers:?}");
    }
}

/// A conflict is for its own call to wait for.
#[test]
fn ra_9_a_conflict_holds_nobody_else() {
    let judge = |reply: &Response<()>| {
        Classify::<Request<()>, _>::classify(&Standard, &Rules::standard(), Ok(reply))
    };
    let after = [("retry-after", "1")];
    assert_eq!(judge(&reply(503, &after)).not_before(), Some(SECOND));
    let conflict = judge(&reply(409, &after));
    assert_eq!(conflict.not_before(), None);
    let own = |floor, doubles| Guidance::InBody {
        floor,
        doubles,
        everybody: None,
    };
    assert_eq!(conflict.guidance, Some(own(SECOND, false)));
    // The body's advice is for this call alone; the longer of its wait and `Retry-After` counts.
    let advice = Advice {
        floor: SECOND * 3,
        doubles: true,
        ..Advice::default()
    };
    let conflict = found(reply(409, &after), BodySignal::Advice(advice));
    assert_eq!(conflict.guidance, Some(own(SECOND * 3, true)));
    let later = found(
        reply(409, &[("retry-after", "5")]),
        BodySignal::Advice(advice),
    );
    assert_eq!(later.guidance, Some(own(SECOND * 5, true)));
}
