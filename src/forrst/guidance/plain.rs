//! Replies that are not forrst: what there is to say stands in their head, and in a member of
//! their problem document.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use serde::Deserialize;
use serde_json::Value;

use super::layer::{Settings, tell};
use crate::{
    call::Guidance,
    classify::{
        http::is_replayed,
        retry_after::{explicit_guidance, guidance},
    },
    forrst::{Retry, fresh_id::resized, splice},
};

const SHOULD_RETRY: &str = "x-should-retry";

/// What a problem document says beside its head.
#[derive(Deserialize)]
struct Problem {
    code: Option<String>,
    retry: Option<Value>,
}

impl Settings {
    /// What the body is to be instead, after the head was told.
    pub(super) fn guide_problem(&self, head: &mut Response<()>, body: &[u8]) -> Option<Bytes> {
        let is_problem = is_problem(head);
        let problem = || serde_json::from_slice::<Problem>(body).ok();
        let Some(problem) = is_problem.then(problem).flatten() else {
            self.guide_plain(head);
            return None;
        };
        if let Some(theirs) = problem.retry {
            match Retry::deserialize(theirs) {
                Ok(retry) => tell_plain(head, &retry),
                Err(_) => self.guide_plain(head),
            }
            return None;
        }
        let retry = self.advise(head, problem.code.as_deref())?;
        tell_plain(head, &retry);
        let changed = splice::with_member(body, Retry::MEMBER, &retry)?;
        Some(resized(head.headers_mut(), changed))
    }

    /// The same, where there is no document.
    pub(super) fn guide_plain(&self, head: &mut Response<()>) {
        if let Some(retry) = self.advise(head, None) {
            tell_plain(head, &retry);
        }
    }

    /// What is known by who made the reply, by its code, or by its status.
    fn advise(&self, head: &mut Response<()>, code: Option<&str>) -> Option<Retry> {
        if let Some(retry) = head.extensions_mut().remove::<Retry>() {
            return Some(retry);
        }
        let by_status = || Some(Retry::fixed(self.plain.filter(|_| is_busy(head))?));
        let by_code = code.and_then(|code| self.table.get(code));
        let known = by_code.map_or_else(by_status, Clone::clone)?;
        let replayed = is_replayed(head.headers());
        let said = replayed.then_some(Guidance::Stop).or_else(|| said(head));
        Some(known.told(said))
    }
}

/// What the head says about calling again. A limit that was reached counts where it may be why.
pub(super) fn said(head: &Response<()>) -> Option<Guidance> {
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

/// Says it in headers.
fn tell_plain(head: &mut Response<()>, retry: &Retry) {
    tell(head, retry);
    let failed = head.status().is_client_error() || head.status().is_server_error();
    if failed && !retry.allowed {
        let headers = head.headers_mut();
        let no = HeaderValue::from_static("false");
        headers.entry(SHOULD_RETRY).or_insert(no);
    }
}
