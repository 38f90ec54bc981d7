//! A client span per attempt, with the names of OpenTelemetry.
//!
//! A span around a call that is retried shows one long call. [`AttemptSpanLayer`] makes a span for each
//! attempt that goes out, so that a trace shows each request, the waits between them, and which one the
//! server saw. It belongs right below the layers that may refuse a call; [`stacks::traced`] has it in its
//! place. Without it there are no spans, and nothing of it costs anything.
//!
//! ```
//! use tower::ServiceBuilder;
//! use tower_reprise::{Dependencies, Policy, stacks};
//!
//! # let http_client = tower::service_fn(|_: http::Request<String>| async {
//! #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
//! # });
//! let deps = Dependencies::new(Policy::http().service("checkout").build()?);
//! let client = ServiceBuilder::new()
//!     .layer(stacks::traced(deps, |span: &tracing::Span, headers: &mut http::HeaderMap| {
//!         // With OpenTelemetry: `global::get_text_map_propagator(|propagator| propagator
//!         //     .inject_context(&span.context(), &mut HeaderInjector(headers)))`.
//!         # let (_, _) = (span, headers);
//!     }))
//!     .service(http_client);
//! # let _ = client;
//! # Ok::<(), tower_reprise::error::ConfigError>(())
//! ```
//!
//! # Fields
//!
//! The target is `tower_reprise::attempt`, the level INFO. Fields that do not apply are absent.
//!
//! | field | is |
//! | --- | --- |
//! | `otel.name`, `otel.kind` | the method (`GET`), or the gRPC method (`ledger.v1.Ledger/Pay`); `client` |
//! | `dependency` | the dependency's name, as in logs and metrics |
//! | `server.address`, `server.port` | host and port of the URI; without a host the dependency's name |
//! | `url.scheme` | of the URI |
//! | `http.request.method` | the method; `_OTHER` for one that is not of HTTP's own |
//! | `http.request.resend_count` | absent in the first attempt, then 1, 2, … |
//! | `http.response.status_code` | the status of a reply |
//! | `rpc.system`, `rpc.service`, `rpc.method` | `grpc`, the service, the method |
//! | `rpc.grpc.status_code` | the number of the status, if it is in the head, or in trailers that a [`PeekLayer`](crate::PeekLayer) below waited for |
//! | `error.type` | of an attempt that failed: the HTTP status, the gRPC status's name, an error code of the policy's table, or the [`Cause`](crate::call::Cause); `cancelled` if it was dropped, as at a time limit |
//! | `otel.status_code` | `ERROR` if it failed |
//!
//! A URL has secrets in its path and its query, so there is none. A span ends with the head of the
//! reply, as the attempt does: a body streams on its own time.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | each attempt has a span of its own, whose parent is the span of the caller's task | a span of a call that was refused before it went out |
//! | a [`Propagate`] writes the headers of each attempt, over those that the caller set | that a span which no subscriber wants has an id |
//! | no field holds a path, a query or a header | |
//!
//! [`stacks::traced`]: crate::stacks::traced

mod future;
mod layer;
mod service;
mod span;

use http::HeaderMap;
use tracing::Span;

pub use self::{future::AttemptSpanFuture, layer::AttemptSpanLayer, service::AttemptSpan};

/// Writes the context of a span into the headers of a request: a fresh `traceparent` for each
/// attempt.
///
/// Closures `Fn(&Span, &mut HeaderMap)` implement it, and `()` writes nothing.
pub trait Propagate {
    /// Writes the context, over what the headers have.
    fn propagate(&self, span: &Span, headers: &mut HeaderMap);
}

impl Propagate for () {
    fn propagate(&self, _: &Span, _: &mut HeaderMap) {}
}

impl<F: Fn(&Span, &mut HeaderMap)> Propagate for F {
    fn propagate(&self, span: &Span, headers: &mut HeaderMap) {
        self(span, headers);
    }
}
