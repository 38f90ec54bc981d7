use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use serde_json::Value;

use super::{
    ReplayFilter, ReplayId, ReplayPage, ReplayStatus, callback::Event,
    maintenance::MaintenanceState,
};
use crate::{
    classify::BodySignal,
    delivery::webhooks::UserHeaders,
    http::problem::Problem,
    server::dialect::WireFormat,
    store::{Fingerprint, journal::Priority},
};

/// The part of a dialect that replay needs. It remembers nothing: it reads requests again from
/// their body, which is empty where it was not read.
pub(crate) trait ReplayFormat: WireFormat {
    /// Reads a request by its head, or returns the answer to one that can't be read.
    fn asks_by_head(&self, head: &Request<()>) -> Result<ReplayRequest, Rejected>;

    /// Reads a request by its body, if its head says [`InBody`](ReplayRequest::InBody).
    fn asks_by_body(&self, _body: &[u8]) -> Result<ReplayRequest, Rejected> {
        Ok(ReplayRequest::Foreign)
    }

    /// Describes a request for lists and logs.
    fn describe(&self, head: &Request<()>, body: &[u8]) -> Description;

    /// Answers a request that is neither served nor journaled.
    fn rejected(&self, body: &[u8], problem: &Problem) -> Response<Bytes>;

    /// Answers a request whose key was used for another one.
    fn conflict(&self, body: &[u8], problem: &Problem, _original: &Original) -> Response<Bytes> {
        self.rejected(body, problem)
    }

    /// Answers a request that is in the journal.
    fn accepted(&self, body: &[u8], accepted: &Accepted) -> Response<Bytes>;

    /// Answers a [`ReplayCommand`].
    fn reported(&self, body: &[u8], report: &CommandReport) -> Response<Bytes>;

    /// Returns whether a reply may be read and changed, as far as its head tells.
    fn reads(&self, _headers: &HeaderMap) -> bool {
        false
    }

    /// Reads from a reply why its request was not served.
    fn reason(&self, _reply: &[u8]) -> Option<QueueReason> {
        None
    }

    /// Marks the reply to a request that was served at once; `None` if it stays as it is.
    fn processed(&self, _reply: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// Adds a key to a request that is replayed, unless it has one, and returns its body.
    fn with_key(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Bytes;

    /// Replaces the key of a request that is replayed, and returns its body; `None` if it can't be
    /// changed.
    fn with_new_key(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Option<Bytes>;

    /// Returns whether a reply says that another execution of the request is running.
    fn is_processing(&self, reply: &Response<Bytes>) -> bool {
        Problem::is_processing(reply)
    }

    /// Reads from a reply's body what its status does not tell.
    fn signal(&self, _reply: &Response<Bytes>) -> Option<BodySignal> {
        None
    }

    /// Writes the message to a callback.
    fn event(&self, event: &Event<'_>) -> Option<Vec<u8>>;
}

/// The answer to a request that can't be read.
pub(crate) type Rejected = Box<Response<Bytes>>;

/// The request that a caller makes of a replay layer.
pub(crate) enum ReplayRequest {
    /// The request is not of this dialect.
    Foreign,
    /// The body tells.
    InBody,
    /// To be served, and replayed or not if that fails.
    Serve(Box<ReplayOptions>),
    Command(ReplayCommand),
}

/// Whether and how a request is to be replayed.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayOptions {
    /// `None` if the request does not say.
    pub(crate) enabled: Option<bool>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) priority: Priority,
    pub(crate) callback: Option<(String, UserHeaders)>,
}

/// A caller's command about its replays.
pub(crate) enum ReplayCommand {
    Status(ReplayId),
    Cancel(ReplayId),
    Trigger(ReplayId),
    /// And whether to count all of them.
    List(ReplayFilter, bool),
}

/// The result of a [`ReplayCommand`].
pub(crate) enum CommandReport {
    /// With the reply that the replay got.
    Status(Box<ReplayStatus>, Option<Response<Bytes>>),
    Cancelled(Box<ReplayStatus>),
    Triggered(Box<ReplayStatus>),
    /// With the count of all, as far as they were counted.
    Page(ReplayPage, Option<u32>),
}

/// A request in words.
#[derive(Default)]
pub(crate) struct Description {
    /// The function that it calls, if the dialect knows.
    pub(crate) function: Option<String>,
    pub(crate) version: Option<String>,
    /// The caller's id of the request.
    pub(crate) request_id: Option<String>,
}

/// A request that is in the journal.
pub(crate) struct Accepted {
    pub(crate) status: ReplayStatus,
    /// The reply that it got, if it is over.
    pub(crate) reply: Option<Response<Bytes>>,
    /// The maintenance that it waits for, if that is the reason.
    pub(crate) maintenance: Option<MaintenanceState>,
    /// The service's own words about its maintenance.
    pub(crate) details: Option<Value>,
}

/// The request that has a key which another one came with.
pub(crate) struct Original {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) request_id: Option<String>,
}

/// The reason why a request is journaled.
pub(crate) struct QueueReason {
    pub(crate) code: Cow<'static, str>,
    /// The service's own words about its maintenance, as the dialect understands them.
    pub(crate) details: Option<Value>,
}

impl From<&'static str> for QueueReason {
    fn from(code: &'static str) -> Self {
        Self {
            code: code.into(),
            details: None,
        }
    }
}
