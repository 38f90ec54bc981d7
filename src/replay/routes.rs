use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body_util::Full;
use serde::Serialize;
use tower::Service;

use super::{Replay, ReplayError, ReplayFilter, ReplayId};
use crate::{
    store::journal::{Journal, Status},
    wire::problem::Problem,
};

/// What callers can ask about their replays, as a service to be mounted somewhere.
///
/// | | |
/// | --- | --- |
/// | `GET /` | lists them: `?status=queued&function=POST%20/orders&limit=50&cursor=…` |
/// | `GET /{id}` | where one stands |
/// | `GET /{id}/reply` | the reply that it got |
/// | `POST /{id}/cancel`, `DELETE /{id}` | calls it off |
/// | `POST /{id}/trigger` | replays it now |
///
/// Whose they are is told as for the requests themselves. With axum, mount it with
/// `nest_service`.
#[derive(Clone)]
pub struct ReplayRoutes<J> {
    replay: Replay<J>,
}

impl<J> ReplayRoutes<J> {
    pub(super) fn new(replay: Replay<J>) -> Self {
        Self { replay }
    }
}

impl<J> fmt::Debug for ReplayRoutes<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplayRoutes")
    }
}

type Answer = Result<Response<Full<Bytes>>, Problem>;

impl<J: Journal + Clone, B> Service<Request<B>> for ReplayRoutes<J> {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let replay = self.replay.clone();
        let (parts, _) = request.into_parts();
        let head = Request::from_parts(parts, ());
        Box::pin(async move {
            let answer = answer(&replay, &head).await;
            Ok(answer.unwrap_or_else(|problem| problem.response(false).map(Full::new)))
        })
    }
}

async fn answer<J: Journal + Clone>(replay: &Replay<J>, head: &Request<()>) -> Answer {
    let principal = (replay.shared.principal)(head).ok_or(Problem::REPLAY_ANONYMOUS)?;
    let path = head.uri().path().trim_matches('/');
    let (id, action) = path.split_once('/').unwrap_or((path, ""));
    if id.is_empty() {
        allow(head, &[Method::GET])?;
        let filter = filter(head.uri().query().unwrap_or_default())?;
        return json(&replay.list(&principal, filter).await.map_err(told)?);
    }
    let id: ReplayId = id.parse().map_err(|_| Problem::REPLAY_NOT_FOUND)?;
    match action {
        "" if head.method() == Method::DELETE => cancel(replay, &principal, id).await,
        "" => {
            allow(head, &[Method::GET, Method::DELETE])?;
            json(&replay.status(&principal, id).await.map_err(told)?)
        }
        "reply" => {
            allow(head, &[Method::GET])?;
            let reply = replay.reply(&principal, id).await.map_err(told)?;
            let reply = reply.ok_or(Problem::REPLAY_NO_REPLY)?;
            Ok(reply.map(Full::new))
        }
        "cancel" => {
            allow(head, &[Method::POST])?;
            cancel(replay, &principal, id).await
        }
        "trigger" => {
            allow(head, &[Method::POST])?;
            json(&replay.trigger(&principal, id).await.map_err(told)?)
        }
        _ => Err(Problem::REPLAY_NOT_FOUND),
    }
}

async fn cancel<J: Journal + Clone>(replay: &Replay<J>, principal: &str, id: ReplayId) -> Answer {
    json(&replay.cancel(principal, id).await.map_err(told)?)
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn told(error: ReplayError) -> Problem {
    error.problem()
}

fn allow(head: &Request<()>, methods: &[Method]) -> Result<(), Problem> {
    match methods.contains(head.method()) {
        true => Ok(()),
        false => Err(Problem::REPLAY_METHOD),
    }
}

fn json(document: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(document).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn filter(query: &str) -> Result<ReplayFilter, Problem> {
    let invalid = |field: &str, value: &str, allowed: &str| {
        let shown: String = value.chars().take(64).collect();
        Problem::REPLAY_INVALID.detail(format!("{field} is {shown}, allowed: {allowed}"))
    };
    let mut filter = ReplayFilter::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value).ok_or_else(|| invalid(name, value, "UTF-8, percent-encoded"))?;
        match name {
            "status" => {
                let known = Status::ALL
                    .into_iter()
                    .find(|status| status.as_str() == value);
                let allowed = "queued, processing, completed, failed, expired or cancelled";
                filter.status = Some(known.ok_or_else(|| invalid(name, &value, allowed))?);
            }
            "function" => filter.function = Some(value),
            "limit" => {
                let limit = value
                    .parse()
                    .ok()
                    .filter(|limit| (1..=super::MOST).contains(limit));
                filter.limit = Some(limit.ok_or_else(|| invalid(name, &value, "1 to 100"))?);
            }
            "cursor" => filter.cursor = Some(value),
            other => {
                return Err(invalid(
                    "query",
                    other,
                    "status, function, limit and cursor",
                ));
            }
        }
    }
    Ok(filter)
}

/// Text of a query, `%20` and `+` decoded.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let (digits, more) = rest.split_at_checked(2)?;
                let digits = str::from_utf8(digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = more;
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j_10_filters_are_read_or_refused_by_name() {
        let filter_ = filter("status=queued&function=POST%20/orders%3A+x&limit=7").unwrap();
        assert_eq!(filter_.status, Some(Status::Queued));
        assert_eq!(filter_.function.as_deref(), Some("POST /orders: x"));
        assert_eq!((filter_.limit, filter_.cursor), (Some(7), None));
        for query in [
            "status=done",
            "limit=0",
            "limit=101",
            "limit=x",
            "color=red",
            "function=%zz",
            "function=%",
            "function=%ff",
            "function=%00",
        ] {
            assert!(filter(query).is_err(), "{query}");
        }
    }
}
