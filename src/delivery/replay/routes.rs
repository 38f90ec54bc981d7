use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tower::Service;

use super::{
    Replay, ReplayFilter, ReplayId,
    dialect::ReplayCommand,
    document::{STATES, state},
    http_dialect::document_of,
};
use crate::{http::problem::Problem, store::journal::Journal};

/// A service by which callers follow their replays.
///
/// | | |
/// | --- | --- |
/// | `GET /` | lists them: `?status=queued&function=POST%20/orders&limit=50&cursor=…` |
/// | `GET /{id}` | where one stands |
/// | `GET /{id}/reply` | the reply that it got |
/// | `POST /{id}/cancel`, `DELETE /{id}` | calls it off |
/// | `POST /{id}/trigger` | replays it now |
///
/// The reply to a cancellation is the last one that tells the caller's id of the request and the
/// version of its function: what was cancelled is not kept.
///
/// Callers are told apart by the same [`Scope`](crate::server::dialect::Scope) as their requests.
/// With axum, mount it with `nest_service`.
#[derive(Clone)]
pub struct ReplayRoutes<J> {
    replay: Replay<J>,
}

impl<J> ReplayRoutes<J> {
    pub(super) fn new(replay: Replay<J>) -> Self {
        Self { replay }
    }
}

opaque_debug! { ReplayRoutes<J> }

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
            let response = respond(&replay, &head).await;
            let response = response.unwrap_or_else(|problem| problem.response(false));
            Ok(response.map(Full::new))
        })
    }
}

async fn respond<J: Journal + Clone>(
    replay: &Replay<J>,
    head: &Request<()>,
) -> Result<Response<Bytes>, Problem> {
    let owner = replay.state.scope.owner(head);
    let owner = owner.ok_or(Problem::REPLAY_ANONYMOUS)?;
    let path = head.uri().path().trim_matches('/');
    let (id, action) = path.split_once('/').unwrap_or((path, ""));
    let id = match id {
        "" => None,
        id => {
            let id: Result<ReplayId, _> = id.parse();
            Some(id.map_err(|_| Problem::REPLAY_NOT_FOUND)?)
        }
    };
    let command = match (id, action) {
        (None, _) => {
            allow(head, &[Method::GET])?;
            ReplayCommand::List(filter(head.uri().query().unwrap_or_default())?, false)
        }
        (Some(id), "") if head.method() == Method::DELETE => ReplayCommand::Cancel(id),
        (Some(id), "") => {
            allow(head, &[Method::GET, Method::DELETE])?;
            ReplayCommand::Status(id)
        }
        (Some(id), "reply") => {
            allow(head, &[Method::GET])?;
            let reply = replay.reply(&owner, id).await;
            let reply = reply.map_err(|error| error.problem())?;
            return reply.ok_or(Problem::REPLAY_NO_REPLY);
        }
        (Some(id), "cancel") => {
            allow(head, &[Method::POST])?;
            ReplayCommand::Cancel(id)
        }
        (Some(id), "trigger") => {
            allow(head, &[Method::POST])?;
            ReplayCommand::Trigger(id)
        }
        _ => return Err(Problem::REPLAY_NOT_FOUND),
    };
    let report = replay.command(&owner, command).await?;
    Ok(document_of(&report))
}

fn allow(head: &Request<()>, methods: &[Method]) -> Result<(), Problem> {
    match methods.contains(head.method()) {
        true => Ok(()),
        false => Err(Problem::REPLAY_METHOD),
    }
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
                let known = state(&value);
                filter.status = Some(known.ok_or_else(|| invalid(name, &value, STATES))?);
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

/// Decodes `%20` and `+` in the text of a query.
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
    use crate::store::journal::Status;

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
