//! Changes to an envelope that keep the bytes of all other members: numbers keep their digits, and
//! members their order.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::Extension;

/// The members of an object, unparsed.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;

        impl<'de> Visitor<'de> for Each {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an envelope")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(Each).map(Self)
    }
}

/// Adds an extension to an envelope; `None` if it is none.
pub(super) fn with_extension(envelope: &[u8], extension: &Extension) -> Option<Vec<u8>> {
    with(envelope, extension, |_| true)
}

/// Sets an extension of an envelope in place of those with its URN; `None` if it is no envelope.
#[cfg(feature = "server")]
pub(super) fn with_only(envelope: &[u8], extension: &Extension) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    struct Named {
        urn: super::Urn,
    }

    with(envelope, extension, |other| {
        let other: Result<Named, _> = serde_json::from_str(other);
        !other.is_ok_and(|other| other.urn == extension.urn)
    })
}

fn with(envelope: &[u8], extension: &Extension, keep: impl Fn(&str) -> bool) -> Option<Vec<u8>> {
    const EXTENSIONS: &str = "extensions";

    let Members(members) = serde_json::from_slice(envelope).ok()?;
    let written = serde_json::value::to_raw_value(extension).ok()?;
    let place = members.iter().position(|(name, _)| name == EXTENSIONS);
    let mut list: Vec<&RawValue> = match place {
        Some(place) => {
            let list: Option<_> = serde_json::from_str(members[place].1.get()).ok()?;
            list.unwrap_or_default()
        }
        None => Vec::new(),
    };
    list.retain(|other| keep(other.get()));
    list.push(&written);
    let list = serde_json::value::to_raw_value(&list).ok()?;
    write(members, EXTENSIONS, &list)
}

/// Sets the id of an envelope; `None` if it is none.
pub(super) fn with_id(envelope: &[u8], id: Option<&str>) -> Option<Vec<u8>> {
    with_member(envelope, "id", &id)
}

/// Sets a member of an object; `None` if it is none.
pub(super) fn with_member(object: &[u8], name: &str, value: &impl Serialize) -> Option<Vec<u8>> {
    let Members(members) = serde_json::from_slice(object).ok()?;
    write(members, name, &serde_json::value::to_raw_value(value).ok()?)
}

/// Sets one of the members, and writes them as an object.
fn write<'a>(
    mut members: Vec<(String, &'a RawValue)>,
    name: &str,
    value: &'a RawValue,
) -> Option<Vec<u8>> {
    match members.iter_mut().find(|member| member.0 == name) {
        Some(member) => member.1 = value,
        None => members.push((name.to_owned(), value)),
    }
    let mut out = Vec::new();
    for (index, (name, value)) in members.iter().enumerate() {
        out.push(if index == 0 { b'{' } else { b',' });
        serde_json::to_writer(&mut out, name).ok()?;
        out.push(b':');
        out.extend_from_slice(value.get().as_bytes());
    }
    out.push(b'}');
    Some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn c_6_all_else_keeps_its_bytes() {
        let extension = Extension::with_data("urn:x", json!(1));
        let with = |envelope: &str| {
            let with = with_extension(envelope.as_bytes(), &extension);
            with.map(|json| String::from_utf8(json).unwrap())
        };
        let new = r#"{"urn":"urn:x","data":1}"#;
        for (envelope, expected) in [
            (
                r#"{ "z": 1.50, "a\n": 123456789012345678901234567890, "errors": [ 1 ] }"#,
                format!(
                    r#"{{"z":1.50,"a\n":123456789012345678901234567890,"errors":[ 1 ],"extensions":[{new}]}}"#
                ),
            ),
            (
                r#"{"extensions":[{"urn": 1e0}],"id":"1"}"#,
                format!(r#"{{"extensions":[{{"urn": 1e0}},{new}],"id":"1"}}"#),
            ),
            (
                r#"{"extensions":null}"#,
                format!(r#"{{"extensions":[{new}]}}"#),
            ),
            ("{}", format!(r#"{{"extensions":[{new}]}}"#)),
        ] {
            assert_eq!(with(envelope), Some(expected));
        }
        #[cfg(feature = "server")]
        {
            let with = |envelope: &[u8]| with_only(envelope, &extension).unwrap();
            let twice = br#"{"extensions":[{"urn":"urn:y"},{"urn":"urn:x","data":2.50},7]}"#;
            let once = format!(r#"{{"extensions":[{{"urn":"urn:y"}},7,{new}]}}"#);
            assert_eq!(with(twice), once.as_bytes());
        }
        let id = with_id(br#"{"z": 1.50, "id": 7, "y": 2}"#, Some("a\"b")).unwrap();
        assert_eq!(id, br#"{"z":1.50,"id":"a\"b","y":2}"#);
        assert_eq!(with_id(b"{}", Some("a")).unwrap(), br#"{"id":"a"}"#);
        for strange in ["", "[]", r#"{"extensions":{}}"#, "{} {}"] {
            assert_eq!(with(strange), None, "{strange}");
        }
    }
}
