//! Look-ups in headers.

#[cfg(any(feature = "server", feature = "forrst"))]
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that carries an idempotency key.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Returns a header's value as text if it is fit for a log: short, printable, no blanks.
pub(crate) fn printable(value: &[u8]) -> Option<&str> {
    let text = str::from_utf8(value).ok()?;
    (text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_graphic())).then_some(text)
}

/// Corrects the `Content-Length` of a message, if it has one, for a body that took the place of another.
#[cfg(any(feature = "server", feature = "forrst"))]
pub(crate) fn resize(headers: &mut HeaderMap, length: usize) {
    if let Some(announced) = headers.get_mut(CONTENT_LENGTH) {
        *announced = length.into();
    }
}

/// Parses one or more digits, saturating.
pub(crate) fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    })
}

/// Returns a header's first value. Most messages have few headers and not this one, and a pass over
/// their names is cheaper than a look-up, which hashes.
#[inline]
pub(crate) fn first<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    match may_have(headers, name) {
        true => headers.get(name),
        false => None,
    }
}

/// Returns whether there is such a header, or there are so many that a look-up is cheaper.
#[inline]
pub(crate) fn may_have(headers: &HeaderMap, name: &HeaderName) -> bool {
    const FEW: usize = 16;
    headers.keys_len() > FEW || headers.keys().any(|known| known == name)
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT, HOST};

    use super::*;

    #[test]
    fn c_1_a_pass_finds_what_a_look_up_finds() {
        let other = HeaderName::from_static("x-other");
        for many in [0_u32, 3, 40] {
            let mut headers = HeaderMap::new();
            for number in 0..many {
                let name = HeaderName::try_from(format!("x-{number}")).unwrap();
                headers.insert(name, number.into());
            }
            headers.append(ACCEPT, HeaderValue::from_static("a"));
            headers.append(ACCEPT, HeaderValue::from_static("b"));
            headers.insert(&other, HeaderValue::from_static("c"));
            for name in [&ACCEPT, &HOST, &other] {
                assert_eq!(first(&headers, name), headers.get(name), "{name}, {many}");
            }
        }
    }
}
