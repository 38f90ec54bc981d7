use std::{borrow::Cow, collections::VecDeque};

use bytes::Bytes;
use http_body::Frame;
use serde_json::Value;

use crate::classify::{CodeRule, Codes, Health, Retryable};

/// Where APIs put their codes.
const POINTERS: [&str; 5] = [
    "/errors/0/code",
    "/error/status",
    "/error/code",
    "/code",
    "/type",
];

/// What the body says, as far as the table knows it.
pub(super) fn find(codes: &Codes, frames: &VecDeque<Frame<Bytes>>) -> Option<CodeRule> {
    let data = || frames.iter().filter_map(Frame::data_ref);
    // What is over the limit counts as not read, however it was cut into frames.
    if data().map(Bytes::len).sum::<usize>() > codes.most() {
        return None;
    }
    let mut pieces = data();
    let document: Value = match (pieces.next()?, pieces.next()) {
        (only, None) => serde_json::from_slice(only).ok()?,
        _ => serde_json::from_slice(&data().flatten().copied().collect::<Vec<_>>()).ok()?,
    };
    if is_cached_error(&document) {
        return Some(CACHED);
    }
    let own = codes.pointers.iter().map(String::as_str);
    own.chain(POINTERS)
        .filter_map(|pointer| text(document.pointer(pointer)?))
        .find_map(|code| codes.table.get(&*code).copied())
}

/// Some APIs number their errors.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    }
}

/// A failure that an idempotency store answered with, so that asking again brings the same.
const CACHED: CodeRule = CodeRule {
    name: "cached",
    retry: Retryable::Never,
    health: Some(Health::Success),
};

/// Whether a forrst envelope says so.
fn is_cached_error(document: &Value) -> bool {
    let array = |name| document.get(name).and_then(Value::as_array);
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
