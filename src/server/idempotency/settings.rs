use std::{fmt, sync::Arc, time::Duration};

use http::Request;

use super::{engine::Engine, limits::TimeLimits, outcome::Judge};
use crate::{
    http::{header_filter::HeaderFilter, headers::printable},
    server::dialect::{Context, Dialect, Scope},
    telemetry::Labels,
};

/// The settings of a layer next to its store, its scope, its crash policy and its dialect.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) max_key_len: usize,
    pub(super) namespace: Arc<str>,
    pub(super) request_limit: usize,
    pub(super) response_limit: usize,
    pub(super) limits: TimeLimits,
    pub(super) unsettled_limit: usize,
    pub(super) wait: Duration,
    pub(super) judge: Judge,
    pub(super) stored_headers: HeaderFilter,
    pub(super) fail_open: bool,
}

/// The state that a layer and its services share.
pub(super) struct LayerState<St, D> {
    pub(super) engine: Arc<Engine<St>>,
    pub(super) settings: Settings,
    pub(super) scope: Scope,
    pub(super) dialect: D,
}

impl<St, D: Dialect> LayerState<St, D> {
    pub(super) fn context(&self) -> Context<'_> {
        let Settings {
            max_key_len,
            limits,
            judge,
            namespace,
            ..
        } = &self.settings;
        Context {
            max_key_len: *max_key_len,
            retention: limits.retention,
            no_effect: judge.server_errors.no_effect(),
            scope: &self.scope,
            namespace,
        }
    }

    /// Returns the labels that tie a request to others in the logs.
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
            idempotency_key: self.dialect.printable_key(head, asked),
        }
    }
}

impl<St, D: fmt::Debug> fmt::Debug for LayerState<St, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.settings;
        f.debug_struct("Idempotency")
            .field("dialect", &self.dialect)
            .field("retention", &settings.limits.retention)
            .field("lease", &settings.limits.lease)
            .field("wait", &settings.wait)
            .field("server_errors", &settings.judge.server_errors)
            .field("fail_open", &settings.fail_open)
            .finish_non_exhaustive()
    }
}
