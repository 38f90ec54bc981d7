use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use crate::{
    call::Guidance,
    forrst::{Fault, IdempotencyData, RateLimit, Response, Retry, codes::NEVER},
};

/// What is advised where nobody knows better. `None` is silence.
#[derive(Debug, Clone)]
pub(super) struct Table(BTreeMap<Cow<'static, str>, Option<Retry>>);

impl Table {
    /// As the retry extension's specification has it.
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

    /// What is advised for this code; `None` if that is not known.
    pub(super) fn get(&self, code: &str) -> Option<&Option<Retry>> {
        self.0.get(code)
    }

    /// What is advised on a failure of which a head said this.
    pub(super) fn advise(&self, failed: &Response, said: Option<Guidance>) -> Option<Retry> {
        let known = |fault: &Fault| self.0.get(fault.code.as_str())?.as_ref();
        let mut rows = failed.errors.iter().filter_map(known);
        let first = rows.clone().next()?;
        if let Some(never) = rows.find(|retry| !retry.allowed) {
            return Some(never.clone());
        }
        let idempotency: Option<IdempotencyData> =
            failed.data_of(IdempotencyData::URN).unwrap_or_default();
        let cached = idempotency.is_some_and(|data| data.is_cached());
        let said = match reset(failed) {
            _ if cached => Some(Guidance::Stop),
            Some(wait) if said != Some(Guidance::Stop) => Some(Guidance::AtLeast(wait)),
            _ => said,
        };
        Some(first.clone().told(said))
    }
}

/// When a limit that was reached is lifted.
fn reset(failed: &Response) -> Option<Duration> {
    let limit: RateLimit = failed.data_of(RateLimit::URN).unwrap_or_default()?;
    let limited = || failed.errors.iter().any(|e| e.code == "RATE_LIMITED");
    let reached = limit.remaining == Some(0) || limited();
    Some(limit.reset.filter(|_| reached)?.duration())
}
