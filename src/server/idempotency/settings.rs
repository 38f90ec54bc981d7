use std::{fmt, sync::Arc, time::Duration};

use http::Request;

use super::{Dialect, ServerErrors, dialect::Common, engine::Engine};
use crate::http::{digest::Digest, header_filter::Unstored};
use crate::{http::headers::printable, telemetry::Labels};

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

/// Everything that can be said about a layer but its store, its scope, its orphans and what is its
/// dialect's.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) longest: usize,
    pub(super) anonymous: Option<Arc<str>>,
    pub(super) namespace: Arc<str>,
    pub(super) request_limit: usize,
    pub(super) response_limit: usize,
    pub(crate) retention: Duration,
    pub(super) lease: Duration,
    pub(super) store_timeout: Option<Duration>,
    pub(super) wait: Duration,
    pub(crate) server_errors: ServerErrors,
    pub(super) unstored: Unstored,
    pub(super) fail_open: bool,
}

/// What a layer and its services share.
pub(super) struct Shared<St, D> {
    pub(super) engine: Arc<Engine<St>>,
    pub(super) settings: Settings,
    pub(super) scope: Scope,
    pub(super) dialect: D,
}

impl<St, D: Dialect> Shared<St, D> {
    pub(super) fn common(&self) -> Common<'_> {
        Common {
            settings: &self.settings,
            scope: &self.scope,
        }
    }

    /// What ties a request to others in the logs.
    pub(super) fn labels<'a>(
        &self,
        head: &'a Request<()>,
        asked: Option<&'a D::Asked>,
    ) -> Labels<'a> {
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
            idempotency_key: self.dialect.key(head, asked),
        }
    }
}

impl<St, D: fmt::Debug> fmt::Debug for Shared<St, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            retention,
            lease,
            wait,
            server_errors,
            fail_open,
            ..
        } = &self.settings;
        f.debug_struct("Idempotency")
            .field("dialect", &self.dialect)
            .field("retention", retention)
            .field("lease", lease)
            .field("wait", wait)
            .field("server_errors", server_errors)
            .field("fail_open", fail_open)
            .finish_non_exhaustive()
    }
}
