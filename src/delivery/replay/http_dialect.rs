//! Replay in plain HTTP: options are headers, replies are documents of their own.

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
    dialect::{Accepted, CommandReport, Description, Rejected, ReplayFormat, ReplayRequest},
    document::rfc3339,
    options,
};
use crate::{
    http::{headers::printable, problem::Problem},
    server::dialect::HttpDialect,
    store::journal::Status,
};

impl ReplayFormat for HttpDialect {
    fn asks_by_head(&self, head: &Request<()>) -> Result<ReplayRequest, Rejected> {
        match options::read(head.headers()) {
            Ok(options) => Ok(ReplayRequest::Serve(Box::new(options))),
            Err(problem) => Err(Box::new(problem.response(false))),
        }
    }

    fn describe(&self, head: &Request<()>, _: &[u8]) -> Description {
        let id = head.headers().get("x-request-id");
        let id = id.and_then(|value| printable(value.as_bytes()));
        Description {
            request_id: id.map(str::to_owned),
            ..Description::default()
        }
    }

    fn rejected(&self, _: &[u8], problem: &Problem) -> Response<Bytes> {
        problem.response(false)
    }

    fn accepted(&self, _: &[u8], accepted: &Accepted) -> Response<Bytes> {
        if let Some(problem) = accepted.status.problem() {
            return problem.response(false);
        }
        let maintenance = accepted.maintenance.as_ref().map(|state| Awaited {
            reason: state.reason.as_deref(),
            until: state.until.map(|until| rfc3339(until.into())),
        });
        let mut response = json(&AcceptedDocument {
            status: &accepted.status,
            maintenance: maintenance.filter(Awaited::is_told),
        });
        if !accepted.status.is_over() {
            *response.status_mut() = StatusCode::ACCEPTED;
        }
        response
    }

    fn reported(&self, _: &[u8], report: &CommandReport) -> Response<Bytes> {
        document_of(report)
    }

    fn with_key(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Bytes {
        let format = self.format();
        if let Some(key) = format.write(key, None) {
            headers.entry(&format.header).or_insert(key);
        }
        body
    }

    fn with_new_key(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Option<Bytes> {
        let format = self.format();
        let key = format.write(key, headers.get(&format.header))?;
        headers.insert(&format.header, key);
        Some(body)
    }

    fn event(&self, event: &Event<'_>) -> Option<Vec<u8>> {
        let ended = event.ended;
        serde_json::to_vec(&EventDocument {
            event: event.name,
            timestamp: event.timestamp,
            data: EventData {
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

/// Writes the result of a command.
pub(super) fn document_of(report: &CommandReport) -> Response<Bytes> {
    match report {
        CommandReport::Status(status, _)
        | CommandReport::Cancelled(status)
        | CommandReport::Triggered(status) => json(status),
        CommandReport::Page(page, _) => json::<ReplayPage>(page),
    }
}

#[derive(Serialize)]
struct AcceptedDocument<'a> {
    #[serde(flatten)]
    status: &'a ReplayStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    maintenance: Option<Awaited<'a>>,
}

/// The maintenance that a request waits for.
#[derive(Serialize)]
struct Awaited<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

impl Awaited<'_> {
    fn is_told(&self) -> bool {
        self.reason.is_some() || self.until.is_some()
    }
}

#[derive(Serialize)]
struct EventDocument<'a> {
    event: &'static str,
    timestamp: &'a str,
    data: EventData<'a>,
}

#[derive(Serialize)]
struct EventData<'a> {
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

/// Writes a document that caches must not store.
fn json<T: Serialize>(document: &T) -> Response<Bytes> {
    let body = serde_json::to_vec(document).unwrap_or_default();
    let mut response = Response::new(Bytes::from(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
