use std::{fmt, sync::Arc};

use ::http::{HeaderMap, Request, Response};
use tower_http::classify::{ClassifiedResponse, ClassifyEos, ClassifyResponse, MakeClassifier};

use super::{Classify, Rules, Standard, http, network};
use crate::{
    call::{Cause, Health, Retryable, Verdict},
    http::{GrpcCode, grpc::is_grpc},
};

/// The policy's classification for tower-http's `TraceLayer`, so that traces and retries agree on
/// what a failure is. Made by [`Dependencies::trace`](crate::dependency::Dependencies::trace).
#[derive(Debug, Clone)]
pub struct TraceClassifier {
    rules: Arc<Rules>,
}

impl TraceClassifier {
    /// Classifies by these tables.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules: Arc::new(rules),
        }
    }
}

impl MakeClassifier for TraceClassifier {
    type Classifier = Self;
    type FailureClass = Cause;
    type ClassifyEos = TraceEos;

    fn make_classifier<B>(&self, _request: &Request<B>) -> Self {
        self.clone()
    }
}

impl ClassifyResponse for TraceClassifier {
    type FailureClass = Cause;
    type ClassifyEos = TraceEos;

    fn classify_response<B>(
        self,
        response: &Response<B>,
    ) -> ClassifiedResponse<Cause, Self::ClassifyEos> {
        let verdict = Classify::<Request<()>, _>::classify(&Standard, &self.rules, Ok(response));
        if verdict.is_success() && is_grpc(response.headers()) {
            return ClassifiedResponse::RequiresEos(TraceEos { rules: self.rules });
        }
        ClassifiedResponse::Ready(failure(verdict).map_or(Ok(()), Err))
    }

    fn classify_error<E: fmt::Display + 'static>(self, error: &E) -> Cause {
        network::downcast(error).map_or(Cause::Unknown, |error| {
            network::classify(&self.rules, error).cause
        })
    }
}

/// Classifies a gRPC call by the status in its trailers.
#[derive(Debug, Clone)]
pub struct TraceEos {
    rules: Arc<Rules>,
}

impl ClassifyEos for TraceEos {
    type FailureClass = Cause;

    fn classify_eos(self, trailers: Option<&HeaderMap>) -> Result<(), Cause> {
        match trailers.and_then(GrpcCode::from_headers) {
            None | Some(GrpcCode::Ok) => Ok(()),
            Some(code) => failure(http::by_grpc(&self.rules, code)).map_or(Ok(()), Err),
        }
    }

    fn classify_error<E: fmt::Display + 'static>(self, error: &E) -> Cause {
        TraceClassifier { rules: self.rules }.classify_error(error)
    }
}

fn failure(verdict: Verdict) -> Option<Cause> {
    let failed = verdict.health == Health::Failure
        || matches!(
            verdict.retry,
            Retryable::Yes | Retryable::MaxPerCause(_) | Retryable::MaxRetries(_)
        );
    failed.then_some(verdict.cause)
}
