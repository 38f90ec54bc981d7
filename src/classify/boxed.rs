use std::{error::Error, sync::Arc};

use http::Extensions;

use super::{Classify, Rules};
use crate::{call::Verdict, http::ResponseHead};

/// Any classifier of these requests and responses, as a type that has a name.
///
/// # Clone
///
/// Clones share the classifier.
pub struct BoxClassify<Request, Response>(Arc<dyn Classify<Request, Response> + Send + Sync>);

impl<Request, Response> BoxClassify<Request, Response> {
    /// Boxes a classifier.
    pub fn new(classifier: impl Classify<Request, Response> + Send + Sync + 'static) -> Self {
        Self(Arc::new(classifier))
    }
}

impl<Request, Response> Classify<Request, Response> for BoxClassify<Request, Response> {
    fn repeatable(&self, rules: &Rules, request: &Request) -> bool {
        self.0.repeatable(rules, request)
    }

    fn classify(
        &self,
        rules: &Rules,
        outcome: Result<&Response, &(dyn Error + 'static)>,
    ) -> Verdict {
        self.0.classify(rules, outcome)
    }

    fn request_extensions<'a>(&self, request: &'a Request) -> Option<&'a Extensions> {
        self.0.request_extensions(request)
    }

    fn response_head<'a>(&self, response: &'a mut Response) -> Option<&'a mut dyn ResponseHead> {
        self.0.response_head(response)
    }
}

impl<Request, Response> Clone for BoxClassify<Request, Response> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

opaque_debug! { BoxClassify<Request, Response> }
