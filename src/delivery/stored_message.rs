//! The payload of an entry: metadata, headers and body.
//!
//! ```text
//! version, length and metadata (JSON), headers, body (the rest)
//! ```

use bytes::Bytes;
use http::HeaderMap;
use serde::{Serialize, de::DeserializeOwned};

use crate::http::codec::{Reader, put_bytes, put_headers};

const VERSION: u8 = 1;

/// A message with metadata of type `M`.
#[derive(Debug)]
pub(crate) struct StoredMessage<M> {
    pub(crate) meta: M,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl<M: Serialize> StoredMessage<M> {
    pub(crate) fn encode(&self) -> Bytes {
        let meta = serde_json::to_vec(&self.meta)
            .unwrap_or_else(|_| unreachable!("metadata are strings and numbers, which are JSON"));
        let mut out = Vec::with_capacity(self.body.len() + meta.len() + 256);
        out.push(VERSION);
        put_bytes(&mut out, &meta);
        put_headers(&mut out, || self.headers.iter(), 0);
        out.extend_from_slice(&self.body);
        out.into()
    }
}

impl<M: DeserializeOwned> StoredMessage<M> {
    /// Reads a message; `None` if these bytes are none of that type.
    pub(crate) fn decode(bytes: Bytes) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.take(1)? != [VERSION] {
            return None;
        }
        let meta = serde_json::from_slice(reader.bytes()?).ok()?;
        let count = reader.number()?;
        Some(Self {
            meta,
            headers: reader.headers(count)?,
            body: reader.rest(),
        })
    }
}

/// Returns the headers and the body of a message with any metadata.
pub(crate) fn contents(bytes: Bytes) -> Option<(HeaderMap, Bytes)> {
    let message = StoredMessage::<serde::de::IgnoredAny>::decode(bytes)?;
    Some((message.headers, message.body))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn sample() -> Bytes {
        let message = StoredMessage {
            meta: ("POST", 7),
            headers: HeaderMap::from_iter([(
                http::header::ACCEPT,
                HeaderValue::from_static("*/*"),
            )]),
            body: Bytes::from_static(b"paid"),
        };
        message.encode()
    }

    #[test]
    fn a_message_comes_back_as_it_was() {
        let message = StoredMessage::<(String, u8)>::decode(sample()).unwrap();
        assert_eq!(message.meta, ("POST".to_owned(), 7));
        let (headers, body) = contents(sample()).unwrap();
        assert_eq!((headers, body), (message.headers, message.body));
        assert!(
            StoredMessage::<u8>::decode(sample()).is_none(),
            "another kind"
        );
    }

    /// S-3: whatever a store holds, reading it ends.
    #[test]
    fn s_3_bytes_of_any_kind_are_read_or_refused() {
        let bytes = sample();
        for end in 0..bytes.len() - 4 {
            assert!(contents(bytes.slice(..end)).is_none(), "cut at {end}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.to_vec();
                changed[at] ^= 1 << bit;
                let _ = contents(changed.into());
            }
        }
    }
}
