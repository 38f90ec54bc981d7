use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use crate::{
    call::Guidance,
    forrst::{Fault, IdempotencyData, RateLimit, Response, Retry, codes::NEVER},
};

/// The guidance for each error code; `None` for codes without.
#[derive(Debug, Clone)]
pub(super) struct Table(BTreeMap<Cow<'static, str>, Option<Retry>>);

impl Table {
    /// Returns the table of the retry extension's specification.
    pub(super) fn standard() -> Self {
        let seconds = Duration::from_secs;
        let allowed = [
            ("RATE_LIMITED", Retry::fixed(seconds(60)), 3),
            ("UNAVAILABLE", Retry::exponential(seconds(1)), 5),
            ("DEADLINE_EXCEEDED", Retry::immediate(), 1),
            ("INTERNAL_ERROR", Retry::exponential(seconds(1)), 3),
            ("DEPENDENCY_ERROR", Retry::exponential(seconds(2)), 3),
            ("IDEMPOTENCY_PROCESSING", Retry::fixed(seconds(1)), 3),
            ("SERVER_MAINTENANCE", Retry::fixed(seconds(60)), 1),
            ("FUNCTION_MAINTENANCE", Retry::fixed(seconds(60)), 1),
            ("FUNCTION_DISABLED", Retry::fixed(seconds(30)), 2),
        ];
        let allowed = allowed.map(|(code, retry, times)| (code, retry.max_attempts(times)));
        let never = NEVER.map(|code| (code, Retry::never()));
        let rows = allowed.into_iter().chain(never);
        Self(
            rows.map(|(code, retry)| (code.into(), Some(retry)))
                .collect(),
        )
    }

    pub(super) fn set(&mut self, code: Cow<'static, str>, retry: Option<Retry>) {
        self.0.insert(code, retry);
    }

    /// Returns the row of a code; `None` for a code that is not in the table.
    pub(super) fn get(&self, code: &str) -> Option<&Option<Retry>> {
        self.0.get(code)
    }

    /// Returns the guidance for a failed envelope, overridden by its extensions and its head.
    pub(super) fn guidance(&self, failed: &Response, head: Option<Guidance>) -> Option<Retry> {
        let known = |fault: &Fault| self.0.get(fault.code.as_str())?.as_ref();
        let mut rows = failed.errors.iter().filter_map(known);
        let first = rows.clone().next()?;
        if let Some(never) = rows.find(|retry| !retry.allowed) {
            return Some(never.clone());
        }
        let idempotency: Option<IdempotencyData> =
            failed.data_of(IdempotencyData::URN).unwrap_or_default();
        let kept = idempotency.is_some_and(|data| data.is_kept());
        let guidance = match reset(failed) {
            _ if kept => Some(Guidance::Stop),
            Some(wait) if head != Some(Guidance::Stop) => Some(Guidance::AtLeast(wait)),
            _ => head,
        };
        Some(first.clone().overridden(guidance))
    }
}

/// Returns the wait until an exhausted rate limit is reset.
fn reset(failed: &Response) -> Option<Duration> {
    let limit: RateLimit = failed.data_of(RateLimit::URN).unwrap_or_default()?;
    let mut errors = failed.errors.iter();
    limit.reached(errors.any(|error| error.code == RateLimit::CODE))
}
