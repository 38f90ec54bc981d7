//! Plain HTTP: options are headers, replies are documents of their own.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde::Serialize;
use serde_json::Value;

use super::{
    ReplayId, ReplayPage, ReplayStatus,
    callback::Event,
    dialect::{Accepted, Answer, Operation, OperationKey, Refusal, Speak, Why, Wish},
    document::rfc3339,
    options,
};
use crate::{
    classify::BodySignal,
    http::{
        digest::fingerprint,
        headers::{IDEMPOTENCY_KEY, printable},
        problem::Problem,
    },
    store::journal::Status,
};

pub(super) struct Plain;

impl Speak for Plain {
    fn name(&self) -> &'static str {
        "http"
    }

    fn of_head(&self, head: &Request<()>) -> Result<Wish, Refusal> {
        match options::read(head.headers()) {
            Ok(options) => Ok(Wish::Replay(Box::new(options))),
            Err(problem) => Err(Box::new(problem.response(false))),
        }
    }

    fn of_body(&self, _: &[u8]) -> Result<Wish, Refusal> {
        Ok(Wish::Foreign)
    }

    fn operation(&self, head: &Request<()>, body: &[u8]) -> Operation {
        let text = |name: &str| printable(head.headers().get(name)?.as_bytes());
        let key = head.headers().get(IDEMPOTENCY_KEY);
        Operation {
            request_id: text("x-request-id").map(str::to_owned),
            key: key.map(|key| OperationKey {
                parts: vec![
                    head.method().as_str().into(),
                    head.uri().path().into(),
                    key.as_bytes().into(),
                ],
                fingerprint: fingerprint(head, body).into(),
            }),
            ..Operation::default()
        }
    }

    fn refused(&self, _: &[u8], problem: &Problem) -> Response<Bytes> {
        problem.response(false)
    }

    fn accepted(&self, _: &[u8], accepted: &Accepted) -> Response<Bytes> {
        if let Some(problem) = accepted.status.problem() {
            return problem.response(false);
        }
        let maintenance = accepted.maintenance.as_ref().map(|state| Waits {
            reason: state.reason.as_deref(),
            until: state.until.map(|until| rfc3339(until.into())),
        });
        let mut response = json(&Kept {
            status: &accepted.status,
            maintenance: maintenance.filter(Waits::is_told),
        });
        if !accepted.status.is_over() {
            *response.status_mut() = StatusCode::ACCEPTED;
        }
        response
    }

    fn unserved(&self, _: &[u8]) -> Option<Why> {
        None
    }

    fn answered(&self, _: &[u8], answer: &Answer) -> Response<Bytes> {
        match answer {
            Answer::Status(status, _) | Answer::Cancelled(status) | Answer::Triggered(status) => {
                json(status)
            }
            Answer::Page(page, _) => json::<ReplayPage>(page),
        }
    }

    fn reads(&self, _: &HeaderMap) -> bool {
        false
    }

    fn processed(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn keyed(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Bytes {
        if let Ok(key) = HeaderValue::try_from(key) {
            headers.entry(IDEMPOTENCY_KEY).or_insert(key);
        }
        body
    }

    fn rekeyed(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Option<Bytes> {
        let before = headers.get(IDEMPOTENCY_KEY).map(HeaderValue::as_bytes);
        // As it was written: some servers want it quoted.
        let key = match before {
            Some([b'"', ..]) => HeaderValue::try_from(format!("\"{key}\"")),
            _ => HeaderValue::try_from(key),
        };
        headers.insert(IDEMPOTENCY_KEY, key.ok()?);
        Some(body)
    }

    fn is_busy(&self, reply: &Response<Bytes>) -> bool {
        Problem::is_processing(reply)
    }

    fn signal(&self, _: &Response<Bytes>) -> Option<BodySignal> {
        None
    }

    fn event(&self, event: &Event<'_>) -> Option<Vec<u8>> {
        let ended = event.ended;
        serde_json::to_vec(&Notice {
            event: event.name,
            timestamp: event.timestamp,
            data: Data {
                replay_id: event.id,
                status: ended.status.as_str(),
                original_request_id: event.request_id,
                function: event.function,
                http_status: ended.reply.map(|reply| reply.status().as_u16()),
                result: event
                    .body()
                    .and_then(|body| serde_json::from_slice(body).ok()),
                error: ended.error,
                attempts: event.attempts,
                queued_at: rfc3339(event.queued_at),
                replayed_at: Some(event.timestamp).filter(|_| ended.status != Status::Expired),
            },
        })
        .ok()
    }
}

#[derive(Serialize)]
struct Kept<'a> {
    #[serde(flatten)]
    status: &'a ReplayStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    maintenance: Option<Waits<'a>>,
}

/// The maintenance that a request has to wait for.
#[derive(Serialize)]
struct Waits<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

impl Waits<'_> {
    fn is_told(&self) -> bool {
        self.reason.is_some() || self.until.is_some()
    }
}

#[derive(Serialize)]
struct Notice<'a> {
    event: &'static str,
    timestamp: &'a str,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    replay_id: ReplayId,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_request_id: Option<&'a str>,
    function: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_status: Option<u16>,
    /// The reply's body, if it is JSON and not too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    attempts: u32,
    queued_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed_at: Option<&'a str>,
}

/// A document of which there is no copy to be kept.
pub(super) fn json<T: Serialize>(document: &T) -> Response<Bytes> {
    let body = serde_json::to_vec(document).unwrap_or_default();
    let mut response = Response::new(Bytes::from(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
