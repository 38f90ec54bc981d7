use std::{borrow::Cow, time::SystemTime};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;
use serde_json::Value;

use crate::{
    call::ErrorRecord,
    classify::{Advice, Codes, Rules, is_plain_json},
    http::BufferedBody,
};

/// A JSON document.
pub(super) struct Document(Value);

impl Document {
    /// Reads a document, if all of it was read and it is not over the limit, however it was cut into
    /// frames.
    pub(super) fn read<B: Body>(body: &BufferedBody<B>, limit: usize) -> Option<Self> {
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

    /// Returns the text there, or the number: some APIs number their errors.
    pub(super) fn text_at(&self, pointer: &str) -> Option<Cow<'_, str>> {
        match self.0.pointer(pointer)? {
            Value::String(text) => Some(text.into()),
            Value::Number(number) => Some(number.to_string().into()),
            _ => None,
        }
    }

    /// Returns whether a body may hold guidance that the policy's table reads.
    pub(super) fn may_guide(rules: &Rules, headers: &HeaderMap) -> bool {
        rules.guidance.has_members() && is_plain_json(headers)
    }

    /// Returns the advice with what the document's members say: the larger floor, and no retry if one
    /// says so.
    pub(super) fn guided(&self, advice: Advice, rules: &Rules) -> Advice {
        let (delay, stops) = rules.guidance.in_document(&self.0, SystemTime::now());
        Advice {
            allowed: if stops { Some(false) } else { advice.allowed },
            floor: advice.floor.max(delay.unwrap_or_default()),
            ..advice
        }
    }

    /// Returns the advice beside the code, by the envelope's protocol.
    pub(super) fn advice(&self, codes: &Codes) -> Advice {
        let reader = codes.envelope();
        reader.map_or_else(Advice::default, |reader| (reader.advice)(&self.0))
    }

    /// Returns whether it is a failure out of an idempotency store, which stays the same.
    pub(super) fn is_replayed_failure(&self, codes: &Codes) -> bool {
        codes
            .envelope()
            .is_some_and(|reader| (reader.is_replayed)(&self.0))
    }

    /// Returns the id under which the dependency recorded the error, if it says so: in an object that
    /// is named or marked so, or behind the word in a text.
    pub(super) fn error_record(&self) -> Option<ErrorRecord> {
        record_in(&self.0).and_then(ErrorRecord::new)
    }
}

const RECORDED: &str = "ERROR_RECORDED";

/// The members that may hold the id of a record.
const IDS: [&str; 4] = ["id", "error_id", "errorId", "metadata"];

fn record_in(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => {
            let (_, after) = text.split_once(RECORDED)?;
            let mut words =
                after.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
            words.find(|word| !word.is_empty() && !word.eq_ignore_ascii_case("id"))
        }
        Value::Array(values) => values.iter().find_map(record_in),
        Value::Object(members) => {
            let named = members.get(RECORDED).and_then(id_in);
            let marked = members.values().any(|value| value == RECORDED);
            let marked = || marked.then(|| id_in(value)).flatten();
            let below = || members.values().find_map(record_in);
            named.or_else(marked).or_else(below)
        }
        _ => None,
    }
}

fn id_in(value: &Value) -> Option<&str> {
    match value {
        Value::String(id) => Some(id),
        Value::Object(members) => IDS.iter().find_map(|name| id_in(members.get(*name)?)),
        _ => None,
    }
}
