//! Retry guidance that a client reads from an envelope.

use serde::Deserialize;
use serde_json::Value;

use super::{RateLimit, Retry, Strategy, extension::short};
use crate::classify::Advice;
use crate::http::Span;

/// Reads the guidance of an envelope with errors or of a problem document: the retry extension, or
/// else the reset of a rate limit and an error's `retry_after`. Unreadable guidance counts as absent,
/// but `allowed: false` counts whatever the other members are.
pub(crate) fn advice(envelope: &Value) -> Advice {
    let array = |name| envelope.get(name).and_then(Value::as_array);
    let Some(error) = array("errors").and_then(|errors| errors.first()) else {
        return in_problem(envelope).unwrap_or_default();
    };
    let data_of = |wanted: &str| {
        let is_it = |extension: &&Value| {
            let urn = extension.get("urn").and_then(Value::as_str);
            urn.is_some_and(|urn| short(urn) == wanted)
        };
        array("extensions")?.iter().find(is_it)?.get("data")
    };
    if let Some(advice) = data_of(Retry::URN).and_then(by_extension) {
        return advice;
    }
    let details = error.pointer("/details/retry_after");
    let after = details.and_then(|after| Span::deserialize(after).ok());
    let limited = error.get("code").and_then(Value::as_str) == Some(RateLimit::CODE);
    let limit = data_of(RateLimit::URN).and_then(|data| RateLimit::deserialize(data).ok());
    let reset = limit.and_then(|limit| limit.reached(limited));
    Advice {
        floor: after.map(Span::duration).max(reset).unwrap_or_default(),
        ..Advice::default()
    }
}

/// Reads the guidance of a problem document, which is recognised by its status.
fn in_problem(document: &Value) -> Option<Advice> {
    let status = document.get("status")?.as_u64()?;
    let failed = (400..600).contains(&status);
    failed
        .then_some(document.get(Retry::MEMBER)?)
        .and_then(by_extension)
}

fn by_extension(data: &Value) -> Option<Advice> {
    let Ok(retry) = Retry::deserialize(data) else {
        let refused = data.get("allowed") == Some(&Value::Bool(false));
        return refused.then(|| Advice {
            allowed: Some(false),
            ..Advice::default()
        });
    };
    let most = retry.max_attempts;
    Some(Advice {
        allowed: Some(retry.allowed),
        floor: retry.floor(0),
        doubles: retry.strategy == Some(Strategy::Exponential),
        most: most.map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
    })
}
