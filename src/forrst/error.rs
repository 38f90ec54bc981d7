use std::{error::Error, fmt};

use serde::de::DeserializeOwned;

/// An invalid envelope: the member and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvelopeError {
    at: String,
    what: String,
}

impl EnvelopeError {
    /// Bounds the text, which quotes the peer.
    const MAX_LEN: usize = 256;

    pub(super) fn new(at: impl Into<String>, what: impl fmt::Display) -> Self {
        Self {
            at: start(&at.into(), Self::MAX_LEN).to_owned(),
            what: start(&what.to_string(), Self::MAX_LEN).to_owned(),
        }
    }

    /// Returns the invalid member, such as `errors[0].code`; empty for the whole document.
    #[must_use]
    pub fn at(&self) -> &str {
        &self.at
    }

    /// Returns what is wrong with it.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for EnvelopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at.as_str() {
            "" => write!(f, "forrst envelope: {}", self.what),
            at => write!(f, "forrst envelope, {at}: {}", self.what),
        }
    }
}

impl Error for EnvelopeError {}

/// Cuts a text to at most so many bytes.
fn start(text: &str, longest: usize) -> &str {
    let ends = (0..=longest.min(text.len())).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// Reads a whole document.
pub(super) fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, EnvelopeError> {
    // Tracking the path costs time, so only a document that failed is read again with it.
    if let Ok(value) = serde_json::from_slice(json) {
        return Ok(value);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let value = at_its_place("", &mut deserializer)?;
    deserializer
        .end()
        .map_err(|error| EnvelopeError::new("", error))?;
    Ok(value)
}

/// Reads the part of a document at `place`.
pub(super) fn at_its_place<'de, T, D>(place: &str, deserializer: D) -> Result<T, EnvelopeError>
where
    T: DeserializeOwned,
    D: serde::Deserializer<'de>,
    D::Error: fmt::Display,
{
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = match error.path().to_string() {
            path if path == "." => String::new(),
            path => path,
        };
        let at = match (place, path.as_str()) {
            ("", path) => path.to_owned(),
            (place, "") => place.to_owned(),
            (place, path) => format!("{place}.{path}"),
        };
        EnvelopeError::new(at, error.inner())
    })
}
