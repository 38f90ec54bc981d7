//! A reply as bytes, and back.
//!
//! ```text
//! version, status (2 bytes), headers, trailers, body: what is left
//! headers: how many, and for each: length and name, length · 2 + sensitive and value
//! ```
//! Numbers are little-endian base 128. Trailers are headers, and one more than how many there are,
//! since none at all is not the same as an empty block of them.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, response};

use super::hygiene::{Unstored, UnstoredOf};
use crate::wire::read::Trailers;

const VERSION: u8 = 1;

/// What is kept of a reply.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) trailers: Trailers,
    pub(super) body: Bytes,
}

/// Leaves out what is not to be stored.
pub(super) fn encode(
    head: &response::Parts,
    trailers: Option<&HeaderMap>,
    body: &[u8],
    unstored: &Unstored,
) -> Bytes {
    let response::Parts {
        status, headers, ..
    } = head;
    let kept = unstored.of(headers);
    let length = block_length(headers, &kept) + trailers.map_or(1, |t| block_length(t, &kept));
    // As long as it will be, so that it needs no second allocation and no more room when stored.
    let mut out = Vec::with_capacity(3 + length + body.len());
    out.push(VERSION);
    out.extend_from_slice(&status.as_u16().to_le_bytes());
    put_block(&mut out, headers, 0, &kept);
    match trailers {
        None => put_number(&mut out, 0),
        Some(trailers) => put_block(&mut out, trailers, 1, &kept),
    }
    out.extend_from_slice(body);
    out.into()
}

fn fields<'a>(
    headers: &'a HeaderMap,
    kept: &UnstoredOf<'_>,
) -> impl Iterator<Item = (&'a [u8], &'a HeaderValue)> {
    let kept = headers.iter().filter(|(name, _)| kept.keeps(name));
    kept.map(|(name, value)| (name.as_str().as_bytes(), value))
}

fn put_block(out: &mut Vec<u8>, headers: &HeaderMap, more: usize, kept: &UnstoredOf<'_>) {
    put_number(out, fields(headers, kept).count() + more);
    for (name, value) in fields(headers, kept) {
        put_number(out, name.len());
        out.extend_from_slice(name);
        put_number(out, value.len() * 2 + usize::from(value.is_sensitive()));
        out.extend_from_slice(value.as_bytes());
    }
}

fn block_length(headers: &HeaderMap, kept: &UnstoredOf<'_>) -> usize {
    let (mut count, mut length) = (0, 0);
    for (name, value) in fields(headers, kept) {
        count += 1;
        length += number_length(name.len()) + name.len();
        length += number_length(value.len() * 2) + value.len();
    }
    length + number_length(count + 1)
}

fn put_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn number_length(number: usize) -> usize {
    (number.max(1).ilog2() / 7 + 1) as usize
}

/// `None` if these are not the bytes of a reply.
pub(super) fn decode(bytes: Bytes) -> Option<Reply> {
    let mut reader = Reader { bytes, at: 0 };
    let &[VERSION, low, high] = reader.take(3)? else {
        return None;
    };
    let status = StatusCode::from_u16(u16::from_le_bytes([low, high])).ok()?;
    let count = reader.number()?;
    let headers = reader.headers(count)?;
    let trailers = match reader.number()? {
        0 => None,
        more => Some(Box::new(reader.headers(more - 1)?)),
    };
    let body = reader.bytes.split_off(reader.at);
    Some(Reply {
        status,
        headers,
        trailers,
        body,
    })
}

struct Reader {
    bytes: Bytes,
    /// How much of them was read.
    at: usize,
}

impl Reader {
    fn take(&mut self, length: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn number(&mut self) -> Option<usize> {
        let mut number = 0;
        for place in 0..4 {
            let byte = *self.take(1)?.first()?;
            number |= usize::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn headers(&mut self, count: usize) -> Option<HeaderMap> {
        // Each takes at least three bytes, so that the count alone makes nothing large.
        if count > (self.bytes.len() - self.at) / 3 {
            return None;
        }
        let mut headers = HeaderMap::try_with_capacity(count).ok()?;
        for _ in 0..count {
            let length = self.number()?;
            let name = HeaderName::from_bytes(self.take(length)?).ok()?;
            let length = self.number()?;
            let start = self.at;
            self.take(length / 2)?;
            let value = self.bytes.slice(start..self.at);
            let mut value = HeaderValue::from_maybe_shared(value).ok()?;
            value.set_sensitive(length % 2 == 1);
            headers.try_append(name, value).ok()?;
        }
        Some(headers)
    }
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn sample() -> Bytes {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("x-a", HeaderValue::from_static("2, 3"));
        let mut secret = HeaderValue::from_static("s");
        secret.set_sensitive(true);
        headers.append("x-b", secret);
        headers.append("x-long", HeaderValue::from_str(&"v".repeat(300)).unwrap());
        let trailers = HeaderMap::from_iter([(
            HeaderName::from_static("grpc-status"),
            HeaderValue::from_static("0"),
        )]);
        let mut head = Response::new(()).into_parts().0;
        (head.status, head.headers) = (StatusCode::CREATED, headers);
        encode(&head, Some(&trailers), b"paid", &Unstored::default())
    }

    #[test]
    fn i_8_i_10_a_reply_comes_back_as_it_was() {
        let reply = decode(sample()).unwrap();
        assert_eq!(reply.status, StatusCode::CREATED);
        let values: Vec<_> = reply.headers.get_all("x-a").iter().collect();
        assert_eq!(values, ["1", "2, 3"]);
        assert!(reply.headers["x-b"].is_sensitive());
        assert!(!reply.headers["x-a"].is_sensitive());
        assert_eq!(reply.headers["x-long"].len(), 300);
        assert_eq!(reply.trailers.unwrap()["grpc-status"], "0");
        assert_eq!(reply.body, "paid");
    }

    #[test]
    fn i_10_no_trailers_are_not_empty_trailers() {
        let unstored = Unstored::default();
        for trailers in [None, Some(HeaderMap::new())] {
            let head = Response::new(()).into_parts().0;
            let bytes = encode(&head, trailers.as_ref(), b"", &unstored);
            let decoded = decode(bytes).unwrap().trailers;
            assert_eq!(decoded.as_deref(), trailers.as_ref());
        }
    }

    #[test]
    fn lengths_are_those_of_what_is_written() {
        for number in [0, 1, 127, 128, 16_383, 16_384, (1 << 28) - 1] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            assert_eq!(out.len(), number_length(number), "{number}");
        }
    }

    /// S-3: whatever a store holds, reading it ends, and takes no more room than it holds.
    #[test]
    fn s_3_bytes_of_any_kind_are_read_or_refused() {
        let bytes = sample();
        let body = b"paid".len();
        for end in 0..bytes.len() - body {
            assert!(decode(bytes.slice(..end)).is_none(), "cut at {end}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.to_vec();
                changed[at] ^= 1 << bit;
                let _ = decode(changed.into());
            }
        }
        let endless = [VERSION, 200, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert!(decode(Bytes::copy_from_slice(&endless)).is_none());
        assert!(decode(Bytes::from_static(&[2, 200, 0, 0, 0])).is_none());
    }
}
