use std::{error::Error, time::SystemTime};

use http::{Extensions, HeaderMap, Request, StatusCode};

use crate::{
    call::{Cause, Effect, Guidance, Health, Retryable, Verdict},
    classify::{Advice, BodySignal, Classify, CodeRule, KeysHonoured, Rules, network},
    http::{GrpcCode, response::ResponseHead},
};

/// The classifier for HTTP and gRPC: statuses by the policy's [`Rules`], errors by their types.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standard;

impl<B, R: ResponseHead> Classify<Request<B>, R> for Standard {
    #[inline]
    fn repeatable(&self, rules: &Rules, request: &Request<B>) -> bool {
        rules.repeatable(request, KeysHonoured::ByCaller)
    }

    #[inline(always)]
    fn classify(&self, rules: &Rules, outcome: Result<&R, &(dyn Error + 'static)>) -> Verdict {
        match outcome {
            Ok(response) if is_plain_success(response) => Verdict::SUCCESS,
            Ok(response) => by_response(rules, response),
            Err(error) => network::classify(rules, error),
        }
    }

    #[inline]
    fn request_extensions<'a>(&self, request: &'a Request<B>) -> Option<&'a Extensions> {
        Some(request.extensions())
    }

    #[inline]
    fn response_head<'a>(&self, response: &'a mut R) -> Option<&'a mut dyn ResponseHead> {
        Some(response)
    }
}

/// Returns whether a response is certainly a success: the cheap check that most calls need.
#[inline(always)]
fn is_plain_success<R: ResponseHead>(response: &R) -> bool {
    let status = response.status();
    let failed = status.is_client_error() || status.is_server_error();
    !failed && BodySignal::of(response).is_none() && !GrpcCode::may_be_in(response.headers())
}

#[inline(never)]
fn by_response<R: ResponseHead>(rules: &Rules, response: &R) -> Verdict {
    let verdict = match BodySignal::of(response) {
        None => by_head(rules, response.status(), response.headers()),
        Some(signal) => by_signal(rules, response, signal),
    };
    // A conflict concerns this request only, so its wait is no guidance for others.
    match response.status() {
        StatusCode::CONFLICT => verdict.guidance(verdict.guidance.map(Guidance::for_this_call)),
        _ => verdict,
    }
}

/// Classifies a response by its head.
pub(crate) fn by_head(rules: &Rules, status: StatusCode, headers: &HeaderMap) -> Verdict {
    if status.is_client_error() || status.is_server_error() {
        return failed(rules, by_status(rules, status, headers), headers);
    }
    match GrpcCode::from_headers(headers) {
        None | Some(GrpcCode::Ok) => Verdict::SUCCESS,
        Some(code) => failed(rules, by_grpc(rules, code, headers), headers),
    }
}

/// Classifies a response whose body was read.
#[cold]
fn by_signal<R: ResponseHead>(rules: &Rules, response: &R, signal: &BodySignal) -> Verdict {
    match signal {
        BodySignal::Trailers(trailers) => {
            let verdict = by_head(rules, response.status(), trailers);
            // The store's mark is in the head.
            match is_replayed(response.headers()) && !verdict.is_success() {
                true => at_rest(verdict),
                false => verdict,
            }
        }
        BodySignal::Code(code, advice) => {
            let by_status = by_status(rules, response.status(), response.headers());
            let verdict = failed(rules, by_code(*code, by_status), response.headers());
            advised(verdict, *advice, code.retry == Retryable::Never)
        }
        BodySignal::Advice(advice) => {
            let (status, headers) = (response.status(), response.headers());
            match by_head(rules, status, headers) {
                verdict if verdict.is_success() => {
                    let unknown = Verdict::terminal(Cause::Code("unlisted"));
                    let verdict = failed(rules, unknown.health(Health::Success), headers);
                    advised(verdict, *advice, is_replayed(headers))
                }
                // A status that R-4 never retries stays final.
                verdict => advised(verdict, *advice, true),
            }
        }
    }
}

/// Classifies a failure by its status and body. A `firm` one is not retried, whatever the body
/// allows.
fn advised(verdict: Verdict, advice: Advice, firm: bool) -> Verdict {
    let mut verdict = verdict;
    match (advice.allowed, verdict.retry) {
        (Some(false), Retryable::AfterRefresh) => return verdict,
        (Some(false), _) => {
            let stop = Some(Guidance::Stop);
            return verdict.retry(Retryable::Never).guidance(stop);
        }
        (Some(true), Retryable::Never) if !firm && verdict.guidance != Some(Guidance::Stop) => {
            verdict.retry = Retryable::Yes;
        }
        _ => {}
    }
    if let (Some(most), Retryable::Yes | Retryable::MaxPerCause(_)) = (advice.most, verdict.retry) {
        verdict.retry = Retryable::MaxRetries(most);
    }
    let everybody = match verdict.guidance {
        None => None,
        Some(Guidance::AtLeast(wait)) => Some(wait),
        Some(_) => return verdict,
    };
    if !advice.floor.is_zero() {
        verdict.guidance = Some(Guidance::InBody {
            floor: advice.floor,
            doubles: advice.doubles,
            everybody,
        });
    }
    verdict
}

fn by_code(rule: CodeRule, by_status: Verdict) -> Verdict {
    // A code that repeats the 401 does not rule out a retry with new credentials.
    let retry = match (rule.retry, by_status.retry) {
        (Retryable::Never, Retryable::AfterRefresh) => Retryable::AfterRefresh,
        (retry, _) => retry,
    };
    Verdict::terminal(Cause::Code(rule.name))
        .retry(retry)
        .health(rule.health.unwrap_or(by_status.health))
        .effect(by_status.effect.min(rule.effect))
}

/// Returns whether a reply is a failure that may be retried, so that reading its body to reuse the
/// connection is worth it.
pub(crate) fn worth_keeping(rules: &Rules, status: StatusCode) -> bool {
    retry_of(rules, status) != Retryable::Never
}

/// Classifies a failure by its status and headers.
#[cold]
fn failed(rules: &Rules, verdict: Verdict, headers: &HeaderMap) -> Verdict {
    if is_replayed(headers) {
        return at_rest(verdict);
    }
    let (table, now) = (&rules.guidance, SystemTime::now());
    let guidance = match verdict.cause {
        Cause::Status(StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        | Cause::Grpc(GrpcCode::ResourceExhausted | GrpcCode::Unavailable) => {
            table.guidance(headers, now)
        }
        _ => table.explicit_guidance(headers, now),
    };
    match guidance {
        Some(Guidance::Stop) => verdict
            .retry(Retryable::Never)
            .guidance(Some(Guidance::Stop)),
        guidance => verdict.guidance(guidance),
    }
}

fn retry_of(rules: &Rules, status: StatusCode) -> Retryable {
    if rules.statuses.contains(&status) {
        Retryable::Yes
    } else if rules.once.contains(&status) {
        Retryable::MaxPerCause(1)
    } else if status == StatusCode::UNAUTHORIZED {
        Retryable::AfterRefresh
    } else {
        Retryable::Never
    }
}

fn by_status(rules: &Rules, status: StatusCode, headers: &HeaderMap) -> Verdict {
    let health = match status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            Health::Neutral
        }
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => Health::Success,
        status if status.is_server_error() => Health::Failure,
        _ => Health::Success,
    };
    Verdict::terminal(Cause::Status(status))
        .retry(retry_of(rules, status))
        .health(health)
        .effect(Effect::of_status(status, headers))
}

/// Classifies a gRPC status.
pub(crate) fn by_grpc(rules: &Rules, code: GrpcCode, headers: &HeaderMap) -> Verdict {
    let retry = if rules.grpc.contains(&code) {
        Retryable::Yes
    } else if code == GrpcCode::Unauthenticated {
        Retryable::AfterRefresh
    } else {
        Retryable::Never
    };
    let health = match code {
        GrpcCode::Unavailable
        | GrpcCode::DeadlineExceeded
        | GrpcCode::Internal
        | GrpcCode::Unknown
        | GrpcCode::DataLoss => Health::Failure,
        GrpcCode::ResourceExhausted | GrpcCode::Aborted | GrpcCode::Cancelled => Health::Neutral,
        _ => Health::Success,
    };
    Verdict::terminal(Cause::Grpc(code))
        .retry(retry)
        .health(health)
        .effect(Effect::of_grpc(code, headers))
}

/// Returns the verdict on a stored failure that was replayed.
fn at_rest(verdict: Verdict) -> Verdict {
    verdict.retry(Retryable::Never).health(Health::Success)
}

/// Returns whether the reply was replayed by an idempotency store, so that a retry gets it again.
pub(crate) fn is_replayed(headers: &HeaderMap) -> bool {
    headers
        .get("idempotent-replayed")
        .is_some_and(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"true"))
}

#[cfg(test)]
mod tests;
