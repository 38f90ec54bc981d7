use std::{error::Error, fmt};

use serde::de::DeserializeOwned;

/// What is wrong with an envelope, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvelopeError {
    at: String,
    what: String,
}

impl EnvelopeError {
    /// A peer's words are in the message, so it is never longer than this.
    const LONGEST: usize = 256;

    pub(super) fn new(at: impl Into<String>, what: impl fmt::Display) -> Self {
        Self {
            at: start(&at.into(), Self::LONGEST).to_owned(),
            what: start(&what.to_string(), Self::LONGEST).to_owned(),
        }
    }

    /// The member that is wrong: `errors[0].code`. Empty if it is the document as a whole.
    #[must_use]
    pub fn at(&self) -> &str {
        &self.at
    }

    /// What is wrong with it.
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

/// The longest start of a text that is not longer than this.
fn start(text: &str, longest: usize) -> &str {
    let ends = (0..=longest.min(text.len())).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// Reads a document that is nothing but this.
pub(super) fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, EnvelopeError> {
    // To know the place takes time, so it is asked for only where something is wrong.
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

/// Reads a part of a document, which stands there.
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
