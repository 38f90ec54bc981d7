use std::{
    borrow::Cow,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header::RETRY_AFTER};
use http_body::Body;
use serde::{Deserialize, de::IgnoredAny};
use tower::{Layer, Service};

use super::{future::RetryGuidanceFuture, http_reply::head_guidance, table::Table};
use crate::{
    forrst::{self, Extension, LIMIT, Retry, fresh_id::resized, splice},
    http::{BufferedBody, Span},
};

/// Adds retry guidance to failed replies. See the [module docs](crate::forrst::guidance).
#[derive(Debug, Clone)]
#[must_use]
pub struct RetryGuidanceLayer {
    settings: Arc<Settings>,
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) table: Table,
    any_errors: bool,
    pub(super) http_retry_after: Option<Duration>,
    pub(super) limit: usize,
    pub(super) time: Duration,
}

impl RetryGuidanceLayer {
    /// Creates a layer with the specification's table.
    pub fn new() -> Self {
        Self {
            settings: Arc::new(Settings {
                table: Table::standard(),
                any_errors: false,
                http_retry_after: Some(Duration::from_secs(1)),
                limit: LIMIT,
                time: Duration::from_millis(250),
            }),
        }
    }

    /// Sets the guidance for an error code.
    pub fn code(self, code: impl Into<Cow<'static, str>>, retry: Retry) -> Self {
        self.with(|settings| settings.table.set(code.into(), Some(retry)))
    }

    /// Gives no guidance for an error code.
    pub fn silent(self, code: impl Into<Cow<'static, str>>) -> Self {
        self.with(|settings| settings.table.set(code.into(), None))
    }

    /// Treats JSON with `errors` as a forrst envelope even if it has no `protocol`.
    pub fn any_errors(self) -> Self {
        self.with(|settings| settings.any_errors = true)
    }

    /// Sets the `Retry-After` of replies of status 429 and 503 that are not forrst: 1 s by default,
    /// `None` for no header.
    pub fn http_retry_after(self, wait: impl Into<Option<Duration>>) -> Self {
        self.with(|settings| settings.http_retry_after = wait.into())
    }

    /// Sets the most bytes of a body that are read: 64 KiB by default.
    pub fn limit(self, bytes: usize) -> Self {
        self.with(|settings| settings.limit = bytes)
    }

    /// Sets the longest wait for a body: 250 ms by default.
    pub fn time(self, time: Duration) -> Self {
        self.with(|settings| settings.time = time)
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl Default for RetryGuidanceLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for RetryGuidanceLayer {
    type Service = RetryGuidance<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RetryGuidance {
            inner,
            settings: Arc::clone(&self.settings),
        }
    }
}

/// The service of a [`RetryGuidanceLayer`].
///
/// # Clone
///
/// There is no state.
#[derive(Debug, Clone)]
pub struct RetryGuidance<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S, B, R> Service<Request<B>> for RetryGuidance<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
{
    type Response = Response<BufferedBody<R>>;
    type Error = S::Error;
    type Future = RetryGuidanceFuture<S::Future, R>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        RetryGuidanceFuture::new(self.inner.call(request), Arc::clone(&self.settings))
    }
}

impl Settings {
    /// Adds guidance to a reply. Returns the new body, if it changes.
    pub(super) fn guide(&self, head: &mut Response<()>, body: &[u8]) -> Option<Bytes> {
        let Some(failed) = self.failure(body) else {
            return self.guide_problem(head, body);
        };
        if let Some(theirs) = failed.extensions.iter().find(|e| e.urn == *Retry::URN) {
            let data = theirs.data.as_ref();
            if let Some(retry) = data.and_then(|data| Retry::deserialize(data).ok()) {
                set_retry_after(head, &retry);
            }
            return None;
        }
        let retry = match head.extensions_mut().remove::<Retry>() {
            Some(retry) => retry,
            None => self.table.guidance(&failed, head_guidance(head))?,
        };
        let data = serde_json::to_value(&retry).ok()?;
        let changed = splice::with_extension(body, &Extension::with_data(Retry::URN, data))?;
        set_retry_after(head, &retry);
        Some(resized(head.headers_mut(), changed))
    }

    /// Reads an envelope with errors.
    fn failure(&self, body: &[u8]) -> Option<forrst::Response> {
        // Most replies have none, and this reads them without allocating.
        #[derive(Deserialize)]
        struct Shallow {
            protocol: Option<IgnoredAny>,
            errors: Option<Vec<IgnoredAny>>,
        }

        let shallow: Shallow = serde_json::from_slice(body).ok()?;
        shallow.errors.filter(|errors| !errors.is_empty())?;
        shallow.protocol.or(self.any_errors.then_some(IgnoredAny))?;
        forrst::Response::parse(body).ok()
    }
}

/// Sets `Retry-After` on a failed reply, unless the handler did.
pub(super) fn set_retry_after(head: &mut Response<()>, retry: &Retry) {
    let failed = head.status().is_client_error() || head.status().is_server_error();
    let wait = retry.floor(0);
    if failed && retry.allowed && !wait.is_zero() && !head.headers().contains_key(RETRY_AFTER) {
        let seconds = Span::from(wait).value;
        head.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
}
