use http::{HeaderMap, StatusCode, header::RETRY_AFTER};

use super::Verdict;
use crate::http::{GrpcCode, grpc::PUSHBACK};

/// The effect that a failed attempt may have had, the least first. In the extensions of a response
/// that a layer made without its service's reply, it is what that layer knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Effect {
    /// Nothing: it was never sent, or turned away.
    #[default]
    None,
    /// Nothing, if a server that says when to come back means it.
    Unavailable,
    /// Nothing, if the service itself said so: a timeout layer says the same of a request that it
    /// cut short.
    Unproven,
    /// Nothing, if a server that fails undoes what it did.
    Failed,
    /// The request may have been executed.
    Possible,
}

impl Effect {
    pub(crate) fn of_status(status: StatusCode, headers: &HeaderMap) -> Self {
        match status.as_u16() {
            401 | 425 | 429 => Self::None,
            503 if headers.contains_key(RETRY_AFTER) => Self::Unavailable,
            408 | 503 => Self::Unproven,
            500..=599 => Self::Failed,
            _ => Self::Possible,
        }
    }

    pub(crate) fn of_grpc(code: GrpcCode, headers: &HeaderMap) -> Self {
        match code {
            GrpcCode::Unauthenticated | GrpcCode::ResourceExhausted => Self::None,
            GrpcCode::Unavailable if says_when(headers) => Self::Unavailable,
            GrpcCode::Unavailable => Self::Unproven,
            GrpcCode::Unknown
            | GrpcCode::DeadlineExceeded
            | GrpcCode::Unimplemented
            | GrpcCode::Internal
            | GrpcCode::DataLoss => Self::Failed,
            _ => Self::Possible,
        }
    }

    /// Returns whether there may be an effect, by the standard, which believes a server that says
    /// when to come back.
    pub(crate) const fn in_doubt(self) -> bool {
        matches!(self, Self::Unproven | Self::Failed | Self::Possible)
    }
}

/// Returns whether a gRPC reply says when to come back; a negative time says not to.
fn says_when(headers: &HeaderMap) -> bool {
    let told = headers.get(PUSHBACK);
    told.is_some_and(|value| !value.as_bytes().starts_with(b"-"))
}

impl Verdict {
    /// The same verdict, with what the attempt may have brought about.
    pub(crate) const fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(name: Option<HeaderName>) -> HeaderMap {
        let value = |name| (name, HeaderValue::from_static("7"));
        HeaderMap::from_iter(name.map(value))
    }

    #[test]
    fn c_4_what_a_status_leaves_in_doubt() {
        for number in 100..1000 {
            for back in [None, Some(RETRY_AFTER)] {
                let expected = match (number, &back) {
                    (401 | 425 | 429, _) => Effect::None,
                    (503, Some(_)) => Effect::Unavailable,
                    (408 | 503, _) => Effect::Unproven,
                    (500..=599, _) => Effect::Failed,
                    _ => Effect::Possible,
                };
                let status = StatusCode::from_u16(number).unwrap();
                let effect = Effect::of_status(status, &headers(back));
                assert_eq!(effect, expected, "{number}");
            }
        }
    }

    #[test]
    fn c_4_what_a_grpc_status_leaves_in_doubt() {
        for number in 0..=16 {
            for back in [None, Some(PUSHBACK)] {
                let expected = match (number, &back) {
                    (8 | 16, _) => Effect::None,
                    (14, Some(_)) => Effect::Unavailable,
                    (14, None) => Effect::Unproven,
                    (2 | 4 | 12 | 13 | 15, _) => Effect::Failed,
                    _ => Effect::Possible,
                };
                let code = GrpcCode::from_number(number);
                assert_eq!(Effect::of_grpc(code, &headers(back)), expected, "{code:?}");
            }
        }
    }

    #[test]
    fn c_4_a_server_that_says_when_to_come_back_is_believed() {
        let doubts = [
            (Effect::None, false),
            (Effect::Unavailable, false),
            (Effect::Unproven, true),
            (Effect::Failed, true),
            (Effect::Possible, true),
        ];
        for (effect, doubt) in doubts {
            assert_eq!(effect.in_doubt(), doubt, "{effect:?}");
            let verdict = Verdict::SUCCESS.effect(effect);
            assert_eq!(verdict.effect, effect);
        }
    }
}
