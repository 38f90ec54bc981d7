//! A reply as bytes, and back.
//!
//! ```text
//! version, status (2 bytes), headers, trailers, body: what is left
//! ```
//! Trailers are headers, and one more than how many there are,
//! since none at all is not the same as an empty block of them.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, response};

use crate::http::header_filter::{FilterFor, HeaderFilter};
use crate::http::{
    buffered::Trailers,
    codec::{Reader, headers_length, put_headers, put_number},
};

const VERSION: u8 = 1;

/// A stored reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) trailers: Trailers,
    pub(crate) body: Bytes,
}

/// Encodes a reply, without the headers that the filter leaves out.
pub(crate) fn encode(
    head: &response::Parts,
    trailers: Option<&HeaderMap>,
    body: &[u8],
    filter: &HeaderFilter,
) -> Bytes {
    let response::Parts {
        status, headers, ..
    } = head;
    let kept = filter.for_reply(headers);
    let length = |headers| headers_length(fields(headers, &kept));
    let length = length(headers) + trailers.map_or(1, length);
    // The exact length: one allocation, and no spare capacity when stored.
    let mut out = Vec::with_capacity(3 + length + body.len());
    out.push(VERSION);
    out.extend_from_slice(&status.as_u16().to_le_bytes());
    put_headers(&mut out, || fields(headers, &kept), 0);
    match trailers {
        None => put_number(&mut out, 0),
        Some(trailers) => put_headers(&mut out, || fields(trailers, &kept), 1),
    }
    out.extend_from_slice(body);
    out.into()
}

fn fields<'a>(
    headers: &'a HeaderMap,
    kept: &FilterFor<'_>,
) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
    headers.iter().filter(|(name, _)| kept.keeps(name))
}

/// Decodes a reply; `None` if these are not the bytes of one.
pub(crate) fn decode(bytes: Bytes) -> Option<Reply> {
    let mut reader = Reader::new(bytes);
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
    Some(Reply {
        status,
        headers,
        trailers,
        body: reader.rest(),
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue, Response};

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
        encode(&head, Some(&trailers), b"paid", &HeaderFilter::default())
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
        let filter = HeaderFilter::default();
        for trailers in [None, Some(HeaderMap::new())] {
            let head = Response::new(()).into_parts().0;
            let bytes = encode(&head, trailers.as_ref(), b"", &filter);
            let decoded = decode(bytes).unwrap().trailers;
            assert_eq!(decoded.as_deref(), trailers.as_ref());
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
