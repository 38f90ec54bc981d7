//! Parses text into tables, with errors that name the field.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    marker::PhantomData,
};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_path_to_error::{Path, Segment};

use crate::error::ConfigError;

pub(super) fn toml<'de, T: Deserialize<'de>>(
    text: &'de str,
    whole: &str,
) -> Result<T, ConfigError> {
    let document = toml::Deserializer::parse(text)
        .map_err(|error| ConfigError::unreadable("TOML".into(), error.to_string()))?;
    table(document, whole)
}

pub(super) fn json<'de, T: Deserialize<'de>>(
    text: &'de str,
    whole: &str,
) -> Result<T, ConfigError> {
    let mut document = serde_json::Deserializer::from_str(text);
    let read = table(&mut document, whole)?;
    let end = document.end();
    end.map_err(|error| ConfigError::unreadable("JSON".into(), error.to_string()))?;
    Ok(read)
}

/// Reads a table. Errors that concern no single field name `whole`.
pub(super) fn table<'de, T, D>(deserializer: D, whole: &str) -> Result<T, ConfigError>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let field = path(error.path(), whole);
        ConfigError::unreadable(field, error.into_inner().to_string().trim().to_owned())
    })
}

/// Reads tables by name, and rejects duplicates, which JSON allows.
pub(super) fn named<'de, T, D>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Names<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Names<T> {
        type Value = BTreeMap<String, T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("tables by name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut tables = BTreeMap::new();
            while let Some((name, table)) = map.next_entry::<String, T>()? {
                if tables.contains_key(&name) {
                    return Err(Error::custom(format_args!("{name:?} is there twice")));
                }
                tables.insert(name, table);
            }
            Ok(tables)
        }
    }
    deserializer.deserialize_map(Names(PhantomData))
}

/// Formats the path of a field as TOML does: names with dots are quoted.
fn path(path: &Path, whole: &str) -> String {
    let mut text = String::new();
    for segment in path {
        let dot = if text.is_empty() { "" } else { "." };
        // Writing to a string does not fail.
        let _ = match segment {
            Segment::Seq { index } => write!(text, "[{index}]"),
            Segment::Map { key: name } | Segment::Enum { variant: name } => {
                write!(text, "{dot}{}", key(name))
            }
            Segment::Unknown => write!(text, "{dot}?"),
        };
    }
    if text.is_empty() { whole.into() } else { text }
}

/// Formats a key as TOML does.
pub(super) fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(bare) {
        return name.into();
    }
    format!("{name:?}")
}
