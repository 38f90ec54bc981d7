use std::borrow::Cow;

use bytes::Bytes;
use http_body::Body;
use serde_json::Value;

use super::PeekBody;
use crate::classify::Advice;

/// A JSON document.
pub(super) struct Document(Value);

impl Document {
    /// Reads a document that is whole in what was read of a body, and not over the limit however it
    /// was cut into frames.
    pub(super) fn read<B: Body>(body: &PeekBody<B>, limit: usize) -> Option<Self> {
        let data = || body.data();
        if data().map(Bytes::len).sum::<usize>() > limit {
            return None;
        }
        let mut pieces = data();
        let value = match (pieces.next()?, pieces.next()) {
            (only, None) => serde_json::from_slice(only),
            _ => serde_json::from_slice(&data().flatten().copied().collect::<Vec<_>>()),
        };
        value.ok().map(Self)
    }

    /// The text there, or the number: some APIs number their errors.
    pub(super) fn text_at(&self, pointer: &str) -> Option<Cow<'_, str>> {
        match self.0.pointer(pointer)? {
            Value::String(text) => Some(text.into()),
            Value::Number(number) => Some(number.to_string().into()),
            _ => None,
        }
    }

    /// What it says about calling again, if it is a forrst envelope with errors.
    #[cfg(feature = "forrst")]
    pub(super) fn advice(&self) -> Advice {
        crate::forrst::advice(&self.0)
    }

    #[cfg(not(feature = "forrst"))]
    pub(super) fn advice(&self) -> Advice {
        Advice::default()
    }

    /// Whether it is a forrst envelope with a failure that an idempotency store answered with, so
    /// that asking again brings the same.
    pub(super) fn is_cached_failure(&self) -> bool {
        let array = |name| self.0.get(name).and_then(Value::as_array);
        let cached = |extension: &Value| {
            let urn = extension.get("urn").and_then(Value::as_str);
            let status = extension.pointer("/data/status").and_then(Value::as_str);
            let idempotency = [
                "urn:forrst:ext:idempotency",
                "urn:cline:forrst:ext:idempotency",
            ];
            urn.is_some_and(|urn| idempotency.contains(&urn)) && status == Some("cached")
        };
        array("errors").is_some_and(|errors| !errors.is_empty())
            && array("extensions").is_some_and(|extensions| extensions.iter().any(cached))
    }
}
