use std::error::Error;

use http::{Request, Response, StatusCode};
use tower_reprise::{
    call::{Cause, Verdict},
    classify::{Classify, Rules, Standard},
};

/// Retries a 418, and leaves all else to the tables of the policy.
#[derive(Debug, Clone, Copy)]
pub struct Teapots;

impl<B, R> Classify<Request<B>, Response<R>> for Teapots {
    fn classify(
        &self,
        rules: &Rules,
        outcome: Result<&Response<R>, &(dyn Error + 'static)>,
    ) -> Verdict {
        match outcome {
            Ok(response) if response.status() == StatusCode::IM_A_TEAPOT => {
                Verdict::transient(Cause::Status(StatusCode::IM_A_TEAPOT))
            }
            other => Classify::<Request<B>, _>::classify(&Standard, rules, other),
        }
    }
}
