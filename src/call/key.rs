use bytes::Bytes;
use http::HeaderValue;

use crate::error::ConfigError;

/// The longest key that the standard allows, and the longest that can be configured.
pub(crate) const LONGEST: usize = 64;
pub(crate) const LONGEST_CONFIGURABLE: usize = 255;

/// An idempotency key. On a request's extensions, it is the key that the caller chose.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(HeaderValue);

impl IdempotencyKey {
    /// A key of your own: 1 to 255 visible ASCII characters, of which the layer and the standard
    /// allow 64 unless configured otherwise.
    ///
    /// # Errors
    ///
    /// A key that is empty, too long, or that has characters that can't stand in a header.
    pub fn new(key: impl AsRef<str>) -> Result<Self, ConfigError> {
        let key = key.as_ref();
        let fits = (1..=LONGEST_CONFIGURABLE).contains(&key.len());
        let plain = key
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'));
        match HeaderValue::from_str(key) {
            Ok(value) if fits && plain => Ok(Self(value)),
            _ => Err(ConfigError::new(
                None,
                "idempotency key",
                format_args!(
                    "{} characters: {:?}",
                    key.len(),
                    key.chars().take(32).collect::<String>()
                ),
                "1 to 255 visible ASCII characters without quotes and backslashes",
            )),
        }
    }

    /// A random UUID.
    #[must_use]
    pub fn random() -> Self {
        // The thread's generator is a CSPRNG, reseeded by the operating system.
        let uuid = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        let bytes = Bytes::copy_from_slice(uuid.hyphenated().encode_lower(&mut text).as_bytes());
        let value = HeaderValue::from_maybe_shared(bytes);
        Self(value.unwrap_or_else(|_| HeaderValue::from_static("")))
    }

    /// The key that a caller put into the header itself, bare or quoted.
    pub(crate) fn as_sent(value: &HeaderValue) -> Self {
        let text = value.to_str().unwrap_or_default();
        let bare = text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'));
        match bare.map(HeaderValue::from_str) {
            Some(Ok(bare)) => Self(bare),
            _ => Self(value.clone()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The key's characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(crate) fn into_header(self, quoted: bool) -> HeaderValue {
        if !quoted {
            return self.0;
        }
        let quoted = HeaderValue::try_from(format!("\"{}\"", self.as_str()));
        quoted.unwrap_or(self.0)
    }
}
