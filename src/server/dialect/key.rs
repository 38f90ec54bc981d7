use std::borrow::Cow;

#[cfg(feature = "delivery")]
use http::HeaderValue;
use http::{HeaderMap, HeaderName};
use sfv::{
    BareItemFromInput, GenericBareItem, Parser,
    visitor::{Ignored, ItemVisitor, ParameterVisitor, parameter_visitor_with},
};

/// The form of a key in a header.
#[derive(Debug, Clone)]
pub(crate) struct KeyFormat {
    pub(crate) header: HeaderName,
    /// Only as a structured-field string.
    pub(super) strict: bool,
}

impl KeyFormat {
    /// Returns the characters of the key, sent bare or quoted, or what is wrong with it; `None` if
    /// there is no such header.
    pub(super) fn read<'a>(
        &self,
        headers: &'a HeaderMap,
        max_len: usize,
    ) -> Option<Result<Cow<'a, str>, Cow<'static, str>>> {
        let mut lines = headers.get_all(&self.header).iter();
        let value = lines.next()?.as_bytes().trim_ascii();
        if lines.next().is_some() {
            return Some(Err("The header occurs more than once.".into()));
        }
        Some(self.parse(value, max_len))
    }

    /// Writes a key, quoted if the one that it replaces is.
    #[cfg(feature = "delivery")]
    pub(crate) fn write(&self, key: &str, replaced: Option<&HeaderValue>) -> Option<HeaderValue> {
        let quoted = replaced.map_or(self.strict, |value| value.as_bytes().starts_with(b"\""));
        match quoted {
            true => HeaderValue::try_from(format!("\"{key}\"")).ok(),
            false => HeaderValue::try_from(key).ok(),
        }
    }

    fn parse<'a>(
        &self,
        value: &'a [u8],
        max_len: usize,
    ) -> Result<Cow<'a, str>, Cow<'static, str>> {
        let key = match value.first() {
            None => return Err("The key is empty.".into()),
            Some(b'"') => string(value)
                .ok_or("The key starts with a quote but is no structured-field string.")?,
            Some(_) if self.strict => {
                return Err("The key is not a structured-field string, in quotes.".into());
            }
            Some(_) => bare(value).ok_or(
                "The key has characters other than visible ASCII, or a quote, a comma or a backslash, outside of quotes.",
            )?,
        };
        match key.len() {
            0 => Err("The key is empty.".into()),
            length if length > max_len => {
                Err(format!("The key has {length} characters, allowed are {max_len}.").into())
            }
            _ => Ok(key),
        }
    }
}

/// A comma joins two fields, of which neither is the key.
fn bare(value: &[u8]) -> Option<Cow<'_, str>> {
    let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',');
    let text = str::from_utf8(value).ok()?;
    value.iter().all(plain).then_some(Cow::Borrowed(text))
}

/// Parses a structured-field string, whose parameters mean nothing here.
fn string(value: &[u8]) -> Option<Cow<'_, str>> {
    let inner = value
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""));
    // Nothing but plain characters between two quotes, as nearly always.
    if let Some(key) = inner.and_then(bare) {
        return Some(key);
    }
    Parser::new(value).parse_item_with_visitor(AsString).ok()?
}

struct AsString;

impl<'de> ItemVisitor<'de> for AsString {
    type Out = Option<Cow<'de, str>>;
    type Error = std::convert::Infallible;

    fn bare_item(
        self,
        item: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = Self::Out>, Self::Error> {
        let key = match item {
            GenericBareItem::String(text) => Some(match text {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_str()),
                Cow::Owned(text) => Cow::Owned(text.into()),
            }),
            _ => None,
        };
        Ok(parameter_visitor_with(Ignored, move |_| Ok(key)))
    }
}
