use std::fmt::Write as _;

use serde_json::{Map, Number, Value};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of a call's arguments in their [`canonical`] form: `sha256:` and 64 digits.
///
/// Two calls with one idempotency key must have the same hash, however their arguments are spelled.
///
/// ```
/// use serde_json::from_str;
/// use tower_reprise::forrst::arguments_hash;
///
/// let first = arguments_hash(&from_str(r#"{"amount": 100, "currency": "USD"}"#)?);
/// let again = arguments_hash(&from_str(r#"{"currency":"USD","amount":1e2}"#)?);
/// assert_eq!(first, again);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn arguments_hash(arguments: &Value) -> String {
    written(&arguments_digest(arguments))
}

/// Returns the SHA-256 as bytes.
pub(super) fn arguments_digest(arguments: &Value) -> [u8; 32] {
    Sha256::digest(canonical(arguments)).into()
}

/// Returns the text form of a SHA-256.
pub(super) fn written(digest: &[u8; 32]) -> String {
    let mut text = String::from("sha256:");
    for byte in digest {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns one text for all spellings of a value, by RFC 8785: no blanks, members sorted by name,
/// numbers as JavaScript writes them.
///
/// Unlike RFC 8785, integers of up to 64 bits keep all their digits, since two different amounts must
/// not look the same.
#[must_use]
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    put(&mut text, value);
    text
}

fn put(text: &mut String, value: &Value) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(true) => text.push_str("true"),
        Value::Bool(false) => text.push_str("false"),
        Value::Number(number) => put_number(text, number),
        Value::String(string) => put_string(text, string),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                put(text, item);
            }
            text.push(']');
        }
        Value::Object(members) => put_members(text, members),
    }
}

fn put_members(text: &mut String, members: &Map<String, Value>) {
    let mut sorted: Vec<_> = members.iter().collect();
    // RFC 8785 sorts by UTF-16 code units.
    sorted.sort_unstable_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    text.push('{');
    for (index, (name, value)) in sorted.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        put_string(text, name);
        text.push(':');
        put(text, value);
    }
    text.push('}');
}

/// Writes a string with the shortest escapes.
fn put_string(text: &mut String, string: &str) {
    let mut rest = string;
    text.push('"');
    while let Some(at) = rest
        .bytes()
        .position(|b| b < b' ' || b == b'"' || b == b'\\')
    {
        text.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            8 => text.push_str("\\b"),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            12 => text.push_str("\\f"),
            b'\r' => text.push_str("\\r"),
            other => {
                let _ = write!(text, "\\u{other:04x}");
            }
        }
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
    text.push('"');
}

fn put_number(text: &mut String, number: &Number) {
    match (number.is_f64(), number.as_f64()) {
        (true, Some(float)) => put_float(text, float),
        _ => {
            let _ = write!(text, "{number}");
        }
    }
}

/// Writes a number as ECMAScript's `Number::toString`, but integers within 64 bits with all digits.
fn put_float(text: &mut String, float: f64) {
    const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;
    if float == 0.0 {
        return text.push('0');
    }
    if float < 0.0 {
        text.push('-');
    }
    let float = float.abs();
    if float.fract() == 0.0 && float < TWO_TO_64 {
        let _ = write!(text, "{float:.0}");
        return;
    }
    // The shortest digits, and the position of the decimal point.
    let shortest = shortest(float);
    let Some((digits, exponent)) = shortest.split_once('e') else {
        unreachable!("`LowerExp` writes an exponent");
    };
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let exponent: i32 = exponent
        .parse()
        .unwrap_or_else(|_| unreachable!("an exponent is a small integer"));
    let point = exponent + 1;
    let length = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
    match point {
        // All digits are before the point.
        point if length <= point && point <= 21 => {
            text.push_str(&digits);
            text.push_str(&zeros(point - length));
        }
        // The point is among the digits.
        1..=21 => {
            let (whole, part) = digits.split_at(usize::try_from(point).unwrap_or_default());
            let _ = write!(text, "{whole}.{part}");
        }
        // The point is a little before the digits.
        -5..=0 => {
            let _ = write!(text, "0.{}{digits}", zeros(-point));
        }
        point => {
            let (first, rest) = digits.split_at(1);
            text.push_str(first);
            if !rest.is_empty() {
                let _ = write!(text, ".{rest}");
            }
            let _ = write!(text, "e{:+}", point - 1);
        }
    }
}

/// Returns the shortest digits that denote this number; of two equally near, the even ones.
fn shortest(float: f64) -> String {
    let shortest = format!("{float:e}");
    let digits = shortest.bytes().take_while(|byte| *byte != b'e');
    let places = digits.filter(u8::is_ascii_digit).count().saturating_sub(1);
    let nearest = format!("{float:.places$e}");
    match nearest.parse::<f64>() {
        Ok(same) if float == same => nearest,
        _ => shortest,
    }
}
