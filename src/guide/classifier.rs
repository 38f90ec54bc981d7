use std::error::Error;

use http::{Request, StatusCode};
use tower_reprise::{
    call::{Cause, Verdict},
    classify::{Classify, Rules, Standard},
    http::ResponseHead,
};

/// Retries a 418, and leaves all else to the tables of the policy.
#[derive(Debug, Clone, Copy)]
pub struct Teapots;

impl<B, R: ResponseHead> Classify<Request<B>, R> for Teapots {
    fn classify(&self, rules: &Rules, outcome: Result<&R, &(dyn Error + 'static)>) -> Verdict {
        match outcome {
            Ok(response) if response.status() == StatusCode::IM_A_TEAPOT => {
                Verdict::transient(Cause::Status(StatusCode::IM_A_TEAPOT))
            }
            other => Classify::<Request<B>, R>::classify(&Standard, rules, other),
        }
    }
}
