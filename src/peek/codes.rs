use std::collections::VecDeque;

use bytes::Bytes;
use http_body::Frame;
use serde_json::Value;

/// A JSON document.
pub(super) struct Document(Value);

impl Document {
    /// Reads a document that is whole in these frames.
    pub(super) fn read(frames: &VecDeque<Frame<Bytes>>) -> Option<Self> {
        let mut data = frames.iter().filter_map(Frame::data_ref);
        let first = data.next()?;
        let value = match data.next() {
            None => serde_json::from_slice(first),
            Some(second) => {
                let all = [first, second].into_iter().chain(data);
                let whole: Vec<u8> = all.flat_map(|data| data.iter().copied()).collect();
                serde_json::from_slice(&whole)
            }
        };
        value.ok().map(Self)
    }

    pub(super) fn text_at(&self, pointer: &str) -> Option<&str> {
        self.0.pointer(pointer)?.as_str()
    }
}
