//! Guidance in replies that are not forrst: in their headers, and in a member of a problem document.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use serde::Deserialize;
use serde_json::Value;

use super::layer::{Settings, set_retry_after};
use crate::{
    call::{Guidance, KeptReply},
    classify::{
        http::is_replayed,
        retry_after::{explicit_guidance, guidance},
    },
    forrst::{Retry, fresh_id::resized, splice},
};

const SHOULD_RETRY: &str = "x-should-retry";

/// The members of a problem document that matter here.
#[derive(Deserialize)]
struct Problem {
    code: Option<String>,
    retry: Option<Value>,
}

impl Settings {
    /// Adds guidance to a reply that may be a problem document. Returns the new body, if it changes.
    pub(super) fn guide_problem(&self, head: &mut Response<()>, body: &[u8]) -> Option<Bytes> {
        let is_problem = is_problem(head);
        let problem = || serde_json::from_slice::<Problem>(body).ok();
        let Some(problem) = is_problem.then(problem).flatten() else {
            self.guide_http(head);
            return None;
        };
        if let Some(theirs) = problem.retry {
            match Retry::deserialize(theirs) {
                Ok(retry) => set_headers(head, &retry),
                Err(_) => self.guide_http(head),
            }
            return None;
        }
        let retry = self.guidance(head, problem.code.as_deref())?;
        set_headers(head, &retry);
        let changed = splice::with_member(body, Retry::MEMBER, &retry)?;
        Some(resized(head.headers_mut(), changed))
    }

    /// Adds guidance to the head of a reply.
    pub(super) fn guide_http(&self, head: &mut Response<()>) {
        if let Some(retry) = self.guidance(head, None) {
            set_headers(head, &retry);
        }
    }

    /// Returns the guidance of the handler, or of the table by code, or by status.
    fn guidance(&self, head: &mut Response<()>, code: Option<&str>) -> Option<Retry> {
        if let Some(retry) = head.extensions_mut().remove::<Retry>() {
            return Some(retry);
        }
        let by_status = || {
            Some(Retry::fixed(
                self.http_retry_after.filter(|_| is_busy(head))?,
            ))
        };
        let by_code = code.and_then(|code| self.table.get(code));
        let known = by_code.map_or_else(by_status, Clone::clone)?;
        let replayed = is_replayed(head.headers());
        let stop = replayed.then_some(Guidance::Stop);
        Some(known.overridden(stop.or_else(|| head_guidance(head))))
    }
}

/// Reads guidance from the headers. Rate-limit headers count only with 429 and 503. A reply that is
/// kept allows no retry, which would get it again.
pub(super) fn head_guidance(head: &Response<()>) -> Option<Guidance> {
    if head.extensions().get::<KeptReply>().is_some() {
        return Some(Guidance::Stop);
    }
    let now = SystemTime::now();
    match is_busy(head) {
        true => guidance(head.headers(), now),
        false => explicit_guidance(head.headers(), now),
    }
}

fn is_busy(head: &Response<()>) -> bool {
    let busy = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    busy.contains(&head.status())
}

fn is_problem(head: &Response<()>) -> bool {
    const PROBLEM: &[u8] = b"application/problem+json";

    let content_type = head.headers().get(CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.as_bytes().split(|b| *b == b';').next());
    content_type.is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(PROBLEM))
}

/// Sets the headers that express the guidance.
fn set_headers(head: &mut Response<()>, retry: &Retry) {
    set_retry_after(head, retry);
    let failed = head.status().is_client_error() || head.status().is_server_error();
    if failed && !retry.allowed {
        let headers = head.headers_mut();
        let no = HeaderValue::from_static("false");
        headers.entry(SHOULD_RETRY).or_insert(no);
    }
}
