//! Retry guidance that a client reads from an envelope.

use serde::Deserialize;
use serde_json::Value;

use super::{Retry, Strategy, extension::short};
use crate::classify::Advice;
use crate::http::Span;

/// Reads the guidance of an envelope with errors or of a problem document. Unreadable guidance counts
/// as absent, but `allowed: false` counts whatever the other members are.
pub(crate) fn advice(envelope: &Value) -> Advice {
    let array = |name| envelope.get(name).and_then(Value::as_array);
    let Some(error) = array("errors").and_then(|errors| errors.first()) else {
        return in_problem(envelope).unwrap_or_default();
    };
    let is_retry = |extension: &&Value| {
        let urn = extension.get("urn").and_then(Value::as_str);
        urn.is_some_and(|urn| short(urn) == Retry::URN)
    };
    let mut extensions = array("extensions").into_iter().flatten();
    let data = extensions.find(is_retry).and_then(|e| e.get("data"));
    if let Some(advice) = data.and_then(by_extension) {
        return advice;
    }
    let details = error.pointer("/details/retry_after");
    let after = details.and_then(|after| Span::deserialize(after).ok());
    Advice {
        floor: after.map(Span::duration).unwrap_or_default(),
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
