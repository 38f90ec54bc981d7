use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Method, Request, Response};

use super::{Admission, Context, Operation, OperationId, Rejection, WireFormat, key::KeyFormat};
use crate::{
    error::ConfigError,
    http::{
        digest::{Digest, fingerprint, summarized},
        grpc::is_grpc,
        headers::{IDEMPOTENCY_KEY, printable},
        original_uri::original_uri,
        problem::Problem,
    },
    store::{Fingerprint, Note, RecordKey},
};

type Route = Arc<dyn Fn(&Request<()>, &mut Digest) + Send + Sync>;
type Summarize = Arc<dyn Fn(&Request<()>, &[u8], &mut dyn FnMut(&[u8])) + Send + Sync>;
type Require = Arc<dyn Fn(&Request<()>) -> Requirement + Send + Sync>;

/// Whether a request needs an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Requirement {
    /// It is rejected without one.
    Required,
    /// It is executed without one, and without protection.
    Optional,
    /// It is passed on as it is, with or without one.
    Ignored,
}

/// Plain HTTP: the key is a header, and rejections are problem documents or gRPC statuses.
#[derive(Clone)]
#[must_use]
pub struct HttpDialect {
    format: KeyFormat,
    methods: Vec<Method>,
    requirement: Require,
    route: Route,
    summarize: Option<Summarize>,
}

impl HttpDialect {
    /// Needs an `Idempotency-Key` on each POST and PATCH.
    pub fn new() -> Self {
        Self {
            format: KeyFormat {
                header: IDEMPOTENCY_KEY,
                strict: false,
            },
            methods: vec![Method::POST, Method::PATCH],
            requirement: Arc::new(|_| Requirement::Required),
            route: Arc::new(|head, digest| digest.part(original_uri(head).path())),
            summarize: None,
        }
    }

    /// Sets what a key is unique for, next to caller, namespace and method: the path by default, and
    /// below nested axum routers the whole of it (with the `axum` feature).
    /// With the pattern of a route (axum's `MatchedPath`) a key that was used for one item can't be
    /// used for another.
    pub fn route<F, T>(mut self, route: F) -> Self
    where
        F: Fn(&Request<()>) -> T + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        self.route = Arc::new(move |head, digest| digest.part(route(head)));
        self
    }

    /// Sets what tells one request from another with the same key, next to method, path and query,
    /// instead of content type and body: for bodies that differ from attempt to attempt. A multipart
    /// upload has a new boundary each time, and may name its content by a digest in a header. `None`
    /// leaves a request to its content type and body.
    pub fn fingerprint<F, T>(mut self, fingerprint: F) -> Self
    where
        F: Fn(&Request<()>, &[u8]) -> Option<T> + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        self.summarize = Some(Arc::new(move |head, body, found| {
            if let Some(summary) = fingerprint(head, body) {
                found(summary.as_ref());
            }
        }));
        self
    }

    fn fingerprint_of(&self, head: &Request<()>, body: &[u8]) -> Fingerprint {
        let mut supplied = None;
        if let Some(summarize) = &self.summarize {
            summarize(head, body, &mut |summary| {
                supplied = Some(summarized(head, summary));
            });
        }
        supplied.unwrap_or_else(|| fingerprint(head, body)).into()
    }

    /// Sets the methods that keys are for, instead of POST and PATCH. Others are passed on.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Sets which requests of those methods need a key: all of them by default.
    pub fn requirement<F>(mut self, requirement: F) -> Self
    where
        F: Fn(&Request<()>) -> Requirement + Send + Sync + 'static,
    {
        self.requirement = Arc::new(requirement);
        self
    }

    /// Sets the header that the key is in, instead of `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.format.header = name;
        self
    }

    /// Takes keys only as the IETF draft has them, in quotes.
    pub fn strict(mut self) -> Self {
        self.format.strict = true;
        self
    }

    #[cfg(feature = "delivery")]
    pub(crate) fn format(&self) -> &KeyFormat {
        &self.format
    }

    /// Appends method, route and key of a request to the digest of its owner; `None` if it has no
    /// key.
    fn record_key(
        &self,
        head: &Request<()>,
        max_key_len: usize,
        owner: impl FnOnce() -> Result<Digest, Problem>,
    ) -> Result<Option<RecordKey>, Problem> {
        let key = match self.format.read(head.headers(), max_key_len) {
            None => return Ok(None),
            Some(Err(why)) => return Err(Problem::KEY_INVALID.detail(why)),
            Some(Ok(key)) => key,
        };
        let mut digest = owner()?;
        digest.part(head.method().as_str());
        (self.route)(head, &mut digest);
        digest.part(&*key);
        Ok(Some(digest.into()))
    }

    fn requirement_of(&self, head: &Request<()>) -> Requirement {
        match self.methods.contains(head.method()) {
            true => (self.requirement)(head),
            false => Requirement::Ignored,
        }
    }
}

impl Default for HttpDialect {
    fn default() -> Self {
        Self::new()
    }
}

opaque_debug! { HttpDialect, self, header = self.format.header, methods = self.methods }

/// The record key of a request, and whether a rejection is a gRPC status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyedHead {
    key: RecordKey,
    grpc: bool,
}

impl WireFormat for HttpDialect {
    type Asked = KeyedHead;

    fn check(&self) -> Result<(), ConfigError> {
        let (field, count) = ("idempotency.methods", self.methods.len());
        ConfigError::within(field, count, 1..=usize::MAX, "at least 1")
    }

    fn key_header(&self) -> HeaderName {
        self.format.header.clone()
    }

    fn identify(
        &self,
        head: &Request<()>,
        body: &[u8],
        max_key_len: usize,
        owner: Digest,
    ) -> Result<Option<OperationId>, Problem> {
        let key = self.record_key(head, max_key_len, || Ok(owner))?;
        Ok(key.map(|key| OperationId {
            key,
            fingerprint: self.fingerprint_of(head, body),
        }))
    }

    fn admit(&self, context: Context<'_>, head: &Request<()>) -> Admission<KeyedHead> {
        let requirement = self.requirement_of(head);
        if requirement == Requirement::Ignored {
            return Admission::Passed;
        }
        let grpc = || is_grpc(head.headers());
        let scope = || context.scope_digest(head);
        match self.record_key(head, context.max_key_len, scope) {
            Ok(Some(key)) => Admission::Admitted(KeyedHead { key, grpc: grpc() }),
            Ok(None) if requirement == Requirement::Optional => Admission::Passed,
            Ok(None) => Admission::Rejected(Problem::KEY_MISSING.response(grpc())),
            Err(problem) => Admission::Rejected(problem.response(grpc())),
        }
    }

    fn operation(
        &self,
        context: Context<'_>,
        head: &Request<()>,
        asked: &mut KeyedHead,
        body: &Bytes,
    ) -> Result<Option<Operation>, Problem> {
        Ok(Some(Operation {
            id: OperationId {
                key: asked.key,
                fingerprint: self.fingerprint_of(head, body),
            },
            note: Note::NONE,
            retention: context.retention,
        }))
    }

    fn printable_key<'a>(
        &self,
        head: &'a Request<()>,
        _: Option<&'a KeyedHead>,
    ) -> Option<&'a str> {
        let value = head.headers().get(&self.format.header)?;
        printable(value.as_bytes())
    }

    fn reject(asked: &KeyedHead, rejection: &Rejection) -> Response<Bytes> {
        rejection.problem.response(asked.grpc)
    }
}
