use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use serde_json::Value;

use super::{
    ReplayFilter, ReplayId, ReplayPage, ReplayStatus, callback::Event, maintenance::State,
    plain::Plain,
};
use crate::{
    classify::BodySignal,
    delivery::webhooks::UserHeaders,
    http::problem::Problem,
    store::{Fingerprint, journal::Priority},
};

/// How requests ask for replay, and how they are answered. What is done about it is the same in
/// each.
///
/// Plain HTTP, unless told otherwise: the [module docs](super) have its headers. With the `forrst`
/// feature, `forrst::Forrst` is the other one.
#[derive(Clone)]
pub struct Dialect(Arc<dyn Speak>);

impl Dialect {
    /// Headers and problem documents.
    #[must_use]
    pub fn http() -> Self {
        Self::new(Plain)
    }

    pub(crate) fn new(speak: impl Speak) -> Self {
        Self(Arc::new(speak))
    }

    pub(super) fn speak(&self) -> &dyn Speak {
        &*self.0
    }
}

impl Default for Dialect {
    fn default() -> Self {
        Self::http()
    }
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dialect").field(&self.0.name()).finish()
    }
}

/// What a dialect has to know how to say. It remembers nothing: what it needs of a request it
/// reads again from the body, which is empty where it was not read.
pub(crate) trait Speak: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// What a request asks for, as far as its head tells; or what it is told if it can't be read.
    fn of_head(&self, head: &Request<()>) -> Result<Wish, Refusal>;

    /// What it asks for in its body, if its head says that it is there.
    fn of_body(&self, body: &[u8]) -> Result<Wish, Refusal>;

    /// What a request is, whoever's it is.
    fn operation(&self, head: &Request<()>, body: &[u8]) -> Operation;

    /// It is not done.
    fn refused(&self, body: &[u8], problem: &Problem) -> Response<Bytes>;

    /// It is in the journal, now or since before.
    fn accepted(&self, body: &[u8], accepted: &Accepted) -> Response<Bytes>;

    /// Why a request is not served, in the words of a reply that says so; `None` if it has none.
    fn unserved(&self, reply: &[u8]) -> Option<Why>;

    /// What came of a [`Command`].
    fn answered(&self, body: &[u8], answer: &Answer) -> Response<Bytes>;

    /// Whether a reply is of this dialect, and may be read and changed, as far as its head tells.
    fn reads(&self, headers: &HeaderMap) -> bool;

    /// The body of the reply to a request that was served at once, which says so; `None` if it
    /// stays as it is.
    fn processed(&self, reply: &[u8]) -> Option<Vec<u8>>;

    /// The body of a request that is replayed, with this key if it has none.
    fn keyed(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Bytes;

    /// The same with this key instead of the one that it has; `None` if it can't be changed.
    fn rekeyed(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Option<Bytes>;

    /// Whether a reply says that somebody else executes the request.
    fn is_busy(&self, reply: &Response<Bytes>) -> bool;

    /// What a reply's body says beside its status.
    fn signal(&self, reply: &Response<Bytes>) -> Option<BodySignal>;

    /// What a callback is told.
    fn event(&self, event: &Event<'_>) -> Option<Vec<u8>>;
}

/// What is answered instead of doing what was asked for.
pub(crate) type Refusal = Box<Response<Bytes>>;

/// What a request asks for.
pub(crate) enum Wish {
    /// It is not of this dialect.
    Foreign,
    /// That is in its body.
    InBody,
    /// To be replayed if need be, or not.
    Replay(Box<Options>),
    /// Something about replays.
    Command(Command),
}

/// Whether and how a request is to be replayed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// `None` if the request does not say.
    pub(crate) enabled: Option<bool>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) priority: Priority,
    pub(crate) callback: Option<(String, UserHeaders)>,
}

/// What people do with replays.
pub(crate) enum Command {
    Status(ReplayId),
    Cancel(ReplayId),
    Trigger(ReplayId),
    /// And whether to count how many there are in all.
    List(ReplayFilter, bool),
}

/// What came of it.
pub(crate) enum Answer {
    /// With the reply that it got, if it did.
    Status(Box<ReplayStatus>, Option<Response<Bytes>>),
    Cancelled(Box<ReplayStatus>),
    Triggered(Box<ReplayStatus>),
    /// With how many there are in all, as far as they were counted.
    Page(ReplayPage, Option<u32>),
}

/// What a request is.
#[derive(Default)]
pub(crate) struct Operation {
    /// What it calls, if the dialect knows.
    pub(crate) function: Option<String>,
    pub(crate) version: Option<String>,
    /// What its caller calls it.
    pub(crate) request_id: Option<String>,
    pub(crate) key: Option<OperationKey>,
}

/// What makes a request the same as another one of the same caller.
pub(crate) struct OperationKey {
    pub(crate) parts: Vec<Vec<u8>>,
    pub(crate) fingerprint: Fingerprint,
}

/// A request that is in the journal.
pub(crate) struct Accepted {
    pub(crate) status: ReplayStatus,
    /// The reply that it got, if it is over.
    pub(crate) reply: Option<Response<Bytes>>,
    /// The maintenance that it has to wait for, if that is why.
    pub(crate) maintenance: Option<State>,
    /// What the service said about that.
    pub(crate) told: Option<Value>,
}

/// Why a request is journaled.
pub(crate) struct Why {
    pub(crate) code: Cow<'static, str>,
    /// What the service said about its maintenance, as the dialect understands it.
    pub(crate) told: Option<Value>,
}

impl From<&'static str> for Why {
    fn from(code: &'static str) -> Self {
        Self {
            code: code.into(),
            told: None,
        }
    }
}
