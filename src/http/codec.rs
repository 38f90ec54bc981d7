//! Headers and lengths as bytes, and back: the parts of stored replies and requests.
//!
//! ```text
//! headers: how many, and for each: length and name, length · 2 + sensitive and value
//! ```
//! Numbers are little-endian base 128.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Writes some fields of a header map, with `more` added to their count.
pub(crate) fn put_headers<'a, I>(out: &mut Vec<u8>, fields: impl Fn() -> I, more: usize)
where
    I: Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
{
    put_number(out, fields().count() + more);
    for (name, value) in fields() {
        put_bytes(out, name.as_str().as_bytes());
        put_number(out, value.len() * 2 + usize::from(value.is_sensitive()));
        out.extend_from_slice(value.as_bytes());
    }
}

/// Returns the length of that, at most.
pub(crate) fn headers_length<'a>(
    fields: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
) -> usize {
    let (mut count, mut length) = (0, 0);
    for (name, value) in fields {
        let name = name.as_str();
        count += 1;
        length += number_length(name.len()) + name.len();
        length += number_length(value.len() * 2) + value.len();
    }
    length + number_length(count + 1)
}

/// Writes bytes with their length before them.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len());
    out.extend_from_slice(bytes);
}

pub(crate) fn put_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn number_length(number: usize) -> usize {
    (number.max(1).ilog2() / 7 + 1) as usize
}

/// Reads what was written. Whatever the bytes are, it ends, and allocates no more than they take.
pub(crate) struct Reader {
    bytes: Bytes,
    /// The position of the next byte.
    at: usize,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn take(&mut self, length: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    /// Reads bytes with their length before them.
    pub(crate) fn bytes(&mut self) -> Option<&[u8]> {
        let length = self.number()?;
        self.take(length)
    }

    pub(crate) fn number(&mut self) -> Option<usize> {
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

    /// Reads as many headers as [`number`](Self::number) said.
    pub(crate) fn headers(&mut self, count: usize) -> Option<HeaderMap> {
        // Each takes at least three bytes, so that the count alone allocates nothing large.
        if count > (self.bytes.len() - self.at) / 3 {
            return None;
        }
        let mut headers = HeaderMap::try_with_capacity(count).ok()?;
        for _ in 0..count {
            let name = HeaderName::from_bytes(self.bytes()?).ok()?;
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

    /// Returns the rest.
    pub(crate) fn rest(mut self) -> Bytes {
        self.bytes.split_off(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_what_is_written() {
        for number in [0, 1, 127, 128, 16_383, 16_384, (1 << 28) - 1] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            assert_eq!(out.len(), number_length(number), "{number}");
            assert_eq!(Reader::new(out.into()).number(), Some(number));
        }
    }
}
