use http::StatusCode;

use super::Verdict;
use crate::http::GrpcCode;

/// The effect that a failed attempt may have had, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Effect {
    /// Nothing: it was never sent, or turned away.
    #[default]
    None,
    /// Nothing, if a server that calls itself unavailable means it.
    Unavailable,
    /// Nothing, if a server that fails undoes what it did.
    Failed,
    /// The request may have been executed.
    Possible,
}

impl Effect {
    pub(crate) const fn of_status(status: StatusCode) -> Self {
        match status.as_u16() {
            401 | 408 | 425 | 429 => Self::None,
            503 => Self::Unavailable,
            500..=599 => Self::Failed,
            _ => Self::Possible,
        }
    }

    pub(crate) const fn of_grpc(code: GrpcCode) -> Self {
        match code {
            GrpcCode::Unauthenticated | GrpcCode::ResourceExhausted => Self::None,
            GrpcCode::Unavailable => Self::Unavailable,
            GrpcCode::Unknown
            | GrpcCode::DeadlineExceeded
            | GrpcCode::Unimplemented
            | GrpcCode::Internal
            | GrpcCode::DataLoss => Self::Failed,
            _ => Self::Possible,
        }
    }

    /// Returns whether there may be an effect, by the standard, which believes a server that calls
    /// itself unavailable.
    pub(crate) const fn in_doubt(self) -> bool {
        matches!(self, Self::Failed | Self::Possible)
    }
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
    use super::*;

    #[test]
    fn c_4_what_a_status_leaves_in_doubt() {
        for number in 100..1000 {
            let expected = match number {
                401 | 408 | 425 | 429 => Effect::None,
                503 => Effect::Unavailable,
                500..=599 => Effect::Failed,
                _ => Effect::Possible,
            };
            let status = StatusCode::from_u16(number).unwrap();
            assert_eq!(Effect::of_status(status), expected, "{number}");
        }
    }

    #[test]
    fn c_4_what_a_grpc_status_leaves_in_doubt() {
        for number in 0..=16 {
            let expected = match number {
                8 | 16 => Effect::None,
                14 => Effect::Unavailable,
                2 | 4 | 12 | 13 | 15 => Effect::Failed,
                _ => Effect::Possible,
            };
            let code = GrpcCode::from_number(number);
            assert_eq!(Effect::of_grpc(code), expected, "{code:?}");
        }
    }

    #[test]
    fn c_4_a_server_that_calls_itself_unavailable_is_believed() {
        let doubts = [
            (Effect::None, false),
            (Effect::Unavailable, false),
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
