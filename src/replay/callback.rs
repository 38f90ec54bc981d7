use http::Response;
use serde::Serialize;
use serde_json::Value;

use super::{
    Replay, ReplayId,
    document::rfc3339,
    request::{Callback, Stored},
};
use crate::{
    delivery::{
        UserHeaders,
        webhooks::{NotSent, Webhook},
    },
    store::journal::{Entry, Journal, NewEntry, Status},
};

/// Larger replies are not sent along: who wants them asks for them.
const MAX_RESULT: usize = 64 * 1024;

#[derive(Serialize)]
struct Event<'a> {
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

/// How a replay ended.
pub(super) struct Ended<'a> {
    pub(super) status: Status,
    pub(super) reply: Option<&'a Response<bytes::Bytes>>,
    pub(super) error: Option<&'a str>,
}

impl<J: Journal + Clone> Replay<J> {
    /// Whether a callback would be taken.
    pub(super) fn check_callback(&self, url: &str, headers: &UserHeaders) -> Result<(), String> {
        let Some(webhooks) = &self.shared.webhooks else {
            return Err("Callbacks are not offered here.".to_owned());
        };
        let webhook = Webhook::new(url, "").headers(headers.clone());
        webhooks
            .entry(webhook)
            .map(drop)
            .map_err(|error| match error {
                // Without its own words before it.
                NotSent::Target(error) => format!("replay-callback: {error}"),
                NotSent::Invalid(error) => error.to_string(),
                NotSent::Journal(error) => error.to_string(),
            })
    }

    /// What is to be sent to the callback of a request, if it has one.
    pub(super) fn callback(
        &self,
        entry: &Entry,
        stored: &Stored,
        ended: &Ended<'_>,
    ) -> Option<NewEntry> {
        let webhooks = self.shared.webhooks.as_ref()?;
        let Callback { url, headers } = stored.meta.callback.as_ref()?;
        let event = match ended.status {
            Status::Completed => "replay.completed",
            Status::Expired => "replay.expired",
            _ => "replay.failed",
        };
        let timestamp = rfc3339(std::time::SystemTime::now().into());
        let body = ended.reply.map(Response::body);
        let body = body.filter(|body| !body.is_empty() && body.len() <= MAX_RESULT);
        let document = Event {
            event,
            timestamp: &timestamp,
            data: Data {
                replay_id: ReplayId(entry.id),
                status: ended.status.as_str(),
                original_request_id: stored.meta.request_id.as_deref(),
                function: &entry.label,
                http_status: ended.reply.map(|reply| reply.status().as_u16()),
                result: body.and_then(|body| serde_json::from_slice(body).ok()),
                error: ended.error,
                attempts: entry.attempts,
                queued_at: rfc3339(entry.queued_at),
                replayed_at: Some(&*timestamp).filter(|_| ended.status != Status::Expired),
            },
        };
        let webhook = Webhook::new(url.clone(), serde_json::to_vec(&document).ok()?)
            .owner(entry.owner.clone())
            .label(event)
            .headers(UserHeaders::new(headers.iter().map(|(n, v)| (n, v))).ok()?);
        webhooks.entry(webhook).ok()
    }
}
