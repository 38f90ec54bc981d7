use http::{Method, Request};
use tracing::{Span, field::Empty};

use crate::{
    call::{Attempt, Cause, Verdict},
    classify::BodySignal,
    http::{GrpcCode, ResponseHead, grpc::is_grpc},
};

/// The span of an attempt that is out.
#[derive(Debug)]
pub(super) struct OpenSpan {
    span: Span,
    ended: bool,
}

impl OpenSpan {
    pub(super) fn of<B>(request: &Request<B>, dependency: &str) -> Self {
        let resends = request.extensions().get().map(Attempt::previous);
        let span = tracing::info_span!(
            target: "tower_reprise::attempt",
            "attempt",
            otel.name = Empty,
            otel.kind = "client",
            otel.status_code = Empty,
            dependency,
            server.address = request.uri().host().unwrap_or(dependency),
            server.port = request.uri().port_u16(),
            url.scheme = request.uri().scheme_str(),
            http.request.method = Empty,
            http.request.resend_count = resends.filter(|resends| *resends > 0),
            http.response.status_code = Empty,
            rpc.system = Empty,
            rpc.service = Empty,
            rpc.method = Empty,
            rpc.grpc.status_code = Empty,
            "error.type" = Empty,
        );
        if !span.is_disabled() {
            name(request, &span);
        }
        Self { span, ended: false }
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    pub(super) fn is_disabled(&self) -> bool {
        self.span.is_disabled()
    }

    /// Ends the span of an attempt that returned.
    pub(super) fn end<R: ResponseHead>(&mut self, response: Option<&R>, verdict: &Verdict) {
        self.ended = true;
        if let Some(response) = response {
            let status = response.status().as_u16();
            self.span.record("http.response.status_code", status);
            if let Some(code) = status_of(response) {
                self.span.record("rpc.grpc.status_code", code as u8);
            }
        }
        match verdict.cause {
            Cause::Success => {}
            Cause::Status(status) => self.fail(status.as_str()),
            Cause::Grpc(code) => self.fail(code.as_str()),
            Cause::Code(code) => self.fail(code),
            cause => self.fail(&cause.to_string()),
        }
    }

    fn fail(&self, kind: &str) {
        self.span.record("error.type", kind);
        self.span.record("otel.status_code", "ERROR");
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if !self.ended && !self.span.is_disabled() {
            self.fail("cancelled");
        }
    }
}

/// Records what the attempt calls.
fn name<B>(request: &Request<B>, span: &Span) {
    let method = match *request.method() {
        Method::GET
        | Method::HEAD
        | Method::POST
        | Method::PUT
        | Method::PATCH
        | Method::DELETE
        | Method::OPTIONS
        | Method::TRACE
        | Method::CONNECT => request.method().as_str(),
        // Anybody's text.
        _ => "_OTHER",
    };
    span.record("http.request.method", method);
    let called = request.uri().path().strip_prefix('/');
    match called.filter(|_| is_grpc(request.headers())) {
        Some(called) => {
            let (service, method) = called.rsplit_once('/').unwrap_or((called, ""));
            span.record("otel.name", called);
            span.record("rpc.system", "grpc");
            span.record("rpc.service", service);
            span.record("rpc.method", method);
        }
        None => {
            span.record(
                "otel.name",
                if method == "_OTHER" { "HTTP" } else { method },
            );
        }
    }
}

/// Returns the gRPC status of a reply, from its head or from trailers that were waited for.
fn status_of<R: ResponseHead>(response: &R) -> Option<GrpcCode> {
    let trailers = match BodySignal::of(response) {
        Some(BodySignal::Trailers(trailers)) => GrpcCode::from_headers(trailers),
        _ => None,
    };
    trailers.or_else(|| GrpcCode::from_headers(response.headers()))
}
