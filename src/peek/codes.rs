use std::collections::VecDeque;

use bytes::Bytes;
use http_body::Frame;
use serde_json::Value;

use crate::classify::{CodeRule, Codes};

/// The first code in these frames that the table knows.
pub(super) fn find(codes: &Codes, frames: &VecDeque<Frame<Bytes>>) -> Option<CodeRule> {
    let mut data = frames.iter().filter_map(Frame::data_ref);
    let first = data.next()?;
    let document: Value = match data.next() {
        None => serde_json::from_slice(first).ok()?,
        Some(second) => {
            let all = [first, second].into_iter().chain(data);
            let whole: Vec<u8> = all.flat_map(|data| data.iter().copied()).collect();
            serde_json::from_slice(&whole).ok()?
        }
    };
    codes
        .pointers()
        .filter_map(|pointer| document.pointer(pointer)?.as_str())
        .find_map(|code| codes.get(code))
}
