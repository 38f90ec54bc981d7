use std::time::Duration;

use http::{HeaderName, HeaderValue, Request};
use tokio::time::Instant;

use crate::call::attempt_headers::ATTEMPT_COUNT;
use crate::http::grpc::is_grpc;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// On a request's extensions: it was sent before, and this is another attempt.
///
/// [`RetryLayer`](crate::client::retry::RetryLayer) sets it on every retry. A retry loop of another make can set
/// it too, so that a [`RetryBudgetLayer`](crate::client::retry_budget::RetryBudgetLayer) below recognises the repeat:
///
/// ```
/// use tower_reprise::call::Attempt;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Attempt::retry(1));
/// assert_eq!(request.extensions().get::<Attempt>().map(|a| a.number()), Some(2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    previous: u32,
    pub(crate) charged: bool,
    pub(crate) deadline: Option<Instant>,
    needs: NextAttempt,
    hedge: bool,
}

/// The needs of an attempt that the one before did not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NextAttempt {
    pub(crate) credentials: bool,
    /// All attempts after it need one too, since the original id is known to be refused.
    pub(crate) fresh_id: bool,
}

impl Attempt {
    /// A retry after so many attempts.
    #[must_use]
    pub fn retry(previous: u32) -> Self {
        Self {
            previous,
            charged: false,
            deadline: None,
            needs: NextAttempt::default(),
            hedge: false,
        }
    }

    /// A retry by another loop, which the budget was charged for.
    pub(crate) fn charged_elsewhere(previous: u32) -> Self {
        Self {
            charged: true,
            ..Self::retry(previous)
        }
    }

    /// A retry which the budget was charged for.
    pub(crate) fn charged(previous: u32, deadline: Instant, needs: NextAttempt) -> Self {
        Self {
            previous,
            charged: true,
            deadline: Some(deadline),
            needs,
            hedge: false,
        }
    }

    /// A hedge, which the budget is charged for when it goes out, of a first attempt or of a retry.
    pub(crate) fn of_hedge(of: Option<Self>, deadline: Instant) -> Self {
        let previous = of.map_or(0, |of| of.previous);
        let needs = NextAttempt {
            credentials: false,
            fresh_id: of.is_some_and(|of| of.needs.fresh_id),
        };
        Self {
            hedge: true,
            ..Self::charged(previous.saturating_add(1), deadline, needs)
        }
    }

    /// Returns whether it was sent while the one before was still out, by a
    /// [`HedgeLayer`](crate::HedgeLayer).
    #[must_use]
    pub fn is_hedge(&self) -> bool {
        self.hedge
    }

    /// Attempts before this one.
    #[must_use]
    pub fn previous(&self) -> u32 {
        self.previous
    }

    /// Returns whether the one before was refused for its credentials.
    #[must_use]
    pub fn wants_credentials(&self) -> bool {
        self.needs.credentials
    }

    /// Returns whether one before was refused for its request id. The header has a fresh one already;
    /// an id inside the body is for a [`PrepareAttempt`](crate::client::retry::PrepareAttempt) hook to renew.
    #[must_use]
    pub fn wants_fresh_id(&self) -> bool {
        self.needs.fresh_id
    }

    /// Marks a request as this attempt, with the time that is left for it.
    pub(crate) fn mark<B>(self, request: &mut Request<B>, send_attempt_count: bool) {
        if send_attempt_count {
            request
                .headers_mut()
                .insert(&ATTEMPT_COUNT, self.number().into());
        }
        if is_grpc(request.headers()) {
            let headers = request.headers_mut();
            headers.insert("grpc-previous-rpc-attempts", self.previous.into());
            if let (Some(timeout), Some(deadline)) = (headers.get_mut(&GRPC_TIMEOUT), self.deadline)
            {
                let left = deadline.saturating_duration_since(Instant::now());
                *timeout = grpc_timeout_of(left);
            }
        }
        request.extensions_mut().insert(self);
    }

    /// This attempt's number; the first is 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.previous.saturating_add(1)
    }
}

/// A `grpc-timeout`: at most eight digits, and a unit.
fn grpc_timeout_of(left: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let text = match left {
        left if left.as_micros() <= MOST => format!("{}u", left.as_micros()),
        left if left.as_millis() <= MOST => format!("{}m", left.as_millis()),
        left => format!("{}S", u128::from(left.as_secs()).min(MOST)),
    };
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("0m"))
}
