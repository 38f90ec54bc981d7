use std::{fmt, sync::Arc, time::Duration};

use http::{Method, Request};

use super::{ServerErrors, digest::Digest, engine::Engine, hygiene::Unstored, key::KeyFormat};
use crate::{
    classify::is_grpc,
    store::RecordKey,
    telemetry::{Labels, printable},
    wire::problem::Problem,
};

/// Whether a request needs an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Requirement {
    /// It is refused without one.
    Required,
    /// It is executed without one, and without protection.
    Optional,
    /// It is passed on as it is, with or without one.
    Ignored,
}

/// Who asks: writes the scope into the digest, or says that nobody is known.
pub(super) type Scope = Arc<dyn Fn(&Request<()>, &mut Digest) -> bool + Send + Sync>;
pub(super) type Route = Arc<dyn Fn(&Request<()>, &mut Digest) + Send + Sync>;
pub(super) type Require = Arc<dyn Fn(&Request<()>) -> Requirement + Send + Sync>;

/// Everything that can be said about a layer but its store, its scope and its orphans.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) format: KeyFormat,
    pub(super) methods: Vec<Method>,
    pub(super) requirement: Require,
    pub(super) anonymous: Option<Arc<str>>,
    pub(super) namespace: Arc<str>,
    pub(super) route: Route,
    pub(super) request_limit: usize,
    pub(super) response_limit: usize,
    pub(super) retention: Duration,
    pub(super) lease: Duration,
    pub(super) store_timeout: Option<Duration>,
    pub(super) wait: Duration,
    pub(super) server_errors: ServerErrors,
    pub(super) unstored: Unstored,
    pub(super) fail_open: bool,
}

/// What a layer and its services share.
pub(super) struct Shared<St> {
    pub(super) engine: Arc<Engine<St>>,
    pub(super) settings: Settings,
    pub(super) scope: Scope,
}

impl<St> Shared<St> {
    /// The record of a request; `None` if it is none of this layer's business.
    pub(super) fn admit(&self, head: &Request<()>) -> Result<Option<RecordKey>, Problem> {
        let Settings {
            format,
            methods,
            requirement,
            anonymous,
            namespace,
            route,
            ..
        } = &self.settings;
        if !methods.contains(head.method()) {
            return Ok(None);
        }
        let requirement = requirement(head);
        if requirement == Requirement::Ignored {
            return Ok(None);
        }
        let key = match format.read(head.headers()) {
            None if requirement == Requirement::Required => return Err(Problem::KEY_MISSING),
            None => return Ok(None),
            Some(Err(why)) => return Err(Problem::KEY_INVALID.detail(why)),
            Some(Ok(key)) => key,
        };
        // Callers that are known and the one scope of those who are not never share a key.
        let mut digest = Digest::new("known");
        if !(self.scope)(head, &mut digest) {
            let Some(anonymous) = anonymous else {
                return Err(Problem::ANONYMOUS);
            };
            digest = Digest::new("anonymous");
            digest.part(anonymous.as_bytes());
        }
        digest.part(namespace.as_bytes());
        digest.part(head.method().as_str());
        route(head, &mut digest);
        digest.part(&*key);
        Ok(Some(digest.key()))
    }

    /// What ties a request to others in the logs.
    pub(super) fn labels<'a>(&self, head: &'a Request<()>) -> Labels<'a> {
        let header = |name: &str| {
            let value = head.headers().get(name)?;
            printable(value.as_bytes())
        };
        let extension = || {
            let id = head
                .extensions()
                .get::<tower_http::request_id::RequestId>()?;
            printable(id.header_value().as_bytes())
        };
        Labels {
            correlation_id: header("x-request-id")
                .or_else(|| header("traceparent"))
                .or_else(extension),
            idempotency_key: header(self.settings.format.header.as_str()),
        }
    }
}

impl<St> fmt::Debug for Shared<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            format,
            methods,
            retention,
            lease,
            wait,
            server_errors,
            fail_open,
            ..
        } = &self.settings;
        f.debug_struct("Idempotency")
            .field("header", &format.header)
            .field("methods", methods)
            .field("retention", retention)
            .field("lease", lease)
            .field("wait", wait)
            .field("server_errors", server_errors)
            .field("fail_open", fail_open)
            .finish_non_exhaustive()
    }
}

/// In which way a request is to be answered when it is refused.
pub(super) fn speaks_grpc(head: &Request<()>) -> bool {
    is_grpc(head.headers())
}
