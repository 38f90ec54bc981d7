use std::{fmt, time::Duration};

use serde_json::Value;

use crate::{error::ConfigError, http::GrpcCode};

/// A value of a JSON document, with its path.
pub(super) struct Node<'a> {
    pub(super) path: String,
    value: &'a Value,
}

impl<'a> Node<'a> {
    pub(super) fn root(value: &'a Value) -> Self {
        Self {
            path: String::new(),
            value,
        }
    }

    /// Returns an error that names the value and what is allowed instead.
    pub(super) fn wrong(&self, allowed: &'static str) -> ConfigError {
        self.wrong_value(self.value, allowed)
    }

    fn wrong_value(&self, value: impl fmt::Display, allowed: &'static str) -> ConfigError {
        const LONGEST: usize = 80;
        let mut text = value.to_string();
        if let Some((end, _)) = text.char_indices().nth(LONGEST) {
            text.truncate(end);
            text.push('…');
        }
        let whole = "service config";
        let path = if self.path.is_empty() {
            whole
        } else {
            &self.path
        };
        ConfigError::new(None, path.to_owned(), text, allowed)
    }

    /// Returns a member; `null` is none, as in every JSON of protocol buffers.
    pub(super) fn member(&self, name: &str) -> Result<Option<Node<'a>>, ConfigError> {
        let members = self.value.as_object();
        let members = members.ok_or_else(|| self.wrong("an object"))?;
        let value = members.get(name).filter(|value| !value.is_null());
        let dot = if self.path.is_empty() { "" } else { "." };
        Ok(value.map(|value| Node {
            path: format!("{}{dot}{name}", self.path),
            value,
        }))
    }

    pub(super) fn required(
        &self,
        name: &str,
        allowed: &'static str,
    ) -> Result<Node<'a>, ConfigError> {
        self.member(name)?.ok_or_else(|| {
            let path = format!("{}.{name}", self.path);
            ConfigError::new(None, path, "absent", allowed)
        })
    }

    pub(super) fn elements(&self) -> Result<impl Iterator<Item = Node<'a>>, ConfigError> {
        let elements = self.value.as_array();
        let elements = elements.ok_or_else(|| self.wrong("an array"))?;
        let path = self.path.clone();
        Ok(elements.iter().enumerate().map(move |(index, value)| Node {
            path: format!("{path}[{index}]"),
            value,
        }))
    }

    pub(super) fn text(&self) -> Result<&'a str, ConfigError> {
        self.value.as_str().ok_or_else(|| self.wrong("a string"))
    }

    pub(super) fn number(&self, allowed: &'static str) -> Result<f64, ConfigError> {
        self.value.as_f64().ok_or_else(|| self.wrong(allowed))
    }

    /// Returns an integer of at least 2: a number of attempts.
    pub(super) fn attempts(&self) -> Result<u64, ConfigError> {
        let whole = |number: &f64| number.fract() == 0.0 && *number >= 0.0;
        let number = self
            .value
            .as_f64()
            .filter(whole)
            .map(|number| number as u64);
        number
            .filter(|attempts| *attempts >= 2)
            .ok_or_else(|| self.wrong("an integer of at least 2"))
    }

    /// Parses a duration of protocol buffers: `"0.1s"`.
    pub(super) fn duration(&self, positive: bool) -> Result<Duration, ConfigError> {
        let allowed = match positive {
            true => "a duration of more than 0 such as \"0.1s\"",
            false => "a duration of at least 0 such as \"0.1s\"",
        };
        let duration = self.value.as_str().and_then(proto_duration);
        duration
            .filter(|duration| !positive || !duration.is_zero())
            .ok_or_else(|| self.wrong(allowed))
    }

    /// Parses a status by its number or its name, in any case.
    pub(super) fn code(&self) -> Result<GrpcCode, ConfigError> {
        let named = |name: &str| GrpcCode::from_name(&name.to_ascii_uppercase());
        let numbered = || {
            let number = self.value.as_f64().filter(|number| number.fract() == 0.0)?;
            (0.0..17.0)
                .contains(&number)
                .then(|| GrpcCode::from_number(number as u64))
        };
        let code = self.value.as_str().map_or_else(numbered, named);
        code.filter(|code| *code != GrpcCode::Ok)
            .ok_or_else(|| self.wrong("the name or number of a gRPC status other than OK"))
    }
}

/// Parses seconds with at most nine decimals and an `s`.
fn proto_duration(text: &str) -> Option<Duration> {
    /// The longest that protocol buffers have, about 10,000 years.
    const LONGEST: u64 = 315_576_000_000;
    let number = text.strip_suffix('s')?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let seconds = whole.parse().ok().filter(|seconds| *seconds <= LONGEST)?;
    Some(Duration::new(
        seconds,
        format!("{fraction:0<9}").parse().ok()?,
    ))
}
