use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{
    Extension,
    canonical::{arguments_digest, written},
    error,
    error::EnvelopeError,
    extension,
};
use crate::call::IdempotencyKey;

/// What a client sends.
///
/// `protocol` and `id` may be missing, as they are in short forms of system calls; a server that
/// insists on them can look. A member that is `null` counts as missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Request {
    /// The protocol's name and version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The id of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What is to be done.
    pub call: Call,
    /// What more is asked for.
    #[serde(
        default,
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub extensions: Vec<Extension>,
    /// What is passed on from call to call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The name and version of the protocol.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Protocol {
    /// `forrst`.
    pub name: String,
    /// Such as `0.1.0`.
    pub version: String,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A function, and what it is called with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Call {
    /// The function's name.
    pub function: String,
    /// The function's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its arguments.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub arguments: Option<Value>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// What a server answers. A member that is `null` counts as missing, but for the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Response {
    /// The protocol's name and version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What came of the call; `null` if it failed.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub result: Option<Value>,
    /// What went wrong.
    #[serde(
        default,
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub errors: Vec<Fault>,
    /// What more is told.
    #[serde(
        default,
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub extensions: Vec<Extension>,
    /// What is told about the response itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// One thing that went wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Fault {
    /// What it is, for programs.
    pub code: String,
    /// What it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// More about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Request {
    /// A call of this function, with a random id.
    ///
    /// ```
    /// use serde_json::json;
    /// use tower_reprise::forrst::{Fault, Request, Response};
    ///
    /// let request = Request::new("orders.cancel", "1.0.0", json!({ "order_id": "ord_xyz" }));
    /// let mut reply = Response::to(&request);
    /// reply.errors.push(Fault::new("NOT_FOUND", "No such order"));
    /// assert_eq!(
    ///     serde_json::to_value(&reply)?,
    ///     json!({
    ///         "protocol": { "name": "forrst", "version": "0.1.0" },
    ///         "id": request.id,
    ///         "result": null,
    ///         "errors": [{ "code": "NOT_FOUND", "message": "No such order" }]
    ///     })
    /// );
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[must_use]
    pub fn new(function: impl Into<String>, version: impl Into<String>, arguments: Value) -> Self {
        Self {
            protocol: Some(Protocol::current()),
            id: Some(IdempotencyKey::random().as_str().to_owned()),
            call: Call {
                function: function.into(),
                version: Some(version.into()),
                arguments: Some(arguments),
                other: Map::new(),
            },
            extensions: Vec::new(),
            context: None,
            other: Map::new(),
        }
    }

    /// Reads an envelope, all of which is this JSON.
    ///
    /// # Errors
    ///
    /// What is not JSON, lacks a member or has one of the wrong type, or is of another protocol.
    pub fn parse(json: &[u8]) -> Result<Self, EnvelopeError> {
        read(json, |request: &Self| request.protocol.as_ref())
    }

    /// The options of an extension, if it is there.
    ///
    /// # Errors
    ///
    /// They are not of the type asked for.
    pub fn options_of<T: DeserializeOwned>(&self, urn: &str) -> Result<Option<T>, EnvelopeError> {
        extension::read(&self.extensions, urn, "options", |extension| {
            extension.options.as_ref()
        })
    }
}

impl Call {
    /// The hash of the arguments: see [`arguments_hash`](super::arguments_hash()).
    #[must_use]
    pub fn arguments_hash(&self) -> String {
        written(&self.arguments_digest())
    }

    pub(super) fn arguments_digest(&self) -> [u8; 32] {
        arguments_digest(self.arguments.as_ref().unwrap_or(&Value::Null))
    }
}

impl Response {
    /// The reply to this request, which says nothing yet: its result is `null`.
    #[must_use]
    pub fn to(request: &Request) -> Self {
        Self::new(request.protocol.clone(), request.id.clone())
    }

    pub(super) fn new(protocol: Option<Protocol>, id: Option<String>) -> Self {
        Self {
            protocol: Some(protocol.unwrap_or_else(Protocol::current)),
            id,
            result: Some(Value::Null),
            errors: Vec::new(),
            extensions: Vec::new(),
            meta: None,
            other: Map::new(),
        }
    }

    /// Reads an envelope, all of which is this JSON.
    ///
    /// # Errors
    ///
    /// What is not JSON, lacks a member or has one of the wrong type, or is of another protocol.
    pub fn parse(json: &[u8]) -> Result<Self, EnvelopeError> {
        read(json, |response: &Self| response.protocol.as_ref())
    }

    /// The data of an extension, if it is there.
    ///
    /// # Errors
    ///
    /// They are not of the type asked for.
    pub fn data_of<T: DeserializeOwned>(&self, urn: &str) -> Result<Option<T>, EnvelopeError> {
        extension::read(&self.extensions, urn, "data", |extension| {
            extension.data.as_ref()
        })
    }
}

impl Fault {
    /// What it is, for programs and for people.
    #[must_use]
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: Some(message.into()),
            details: None,
            other: Map::new(),
        }
    }

    /// With more about it, unless that is `null`.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = Some(details).filter(|details| !details.is_null());
        self
    }
}

impl Protocol {
    /// The protocol's name.
    pub const FORRST: &str = "forrst";

    /// As this crate speaks it.
    fn current() -> Self {
        Self {
            name: Self::FORRST.to_owned(),
            version: "0.1.0".to_owned(),
            other: Map::new(),
        }
    }
}

/// Reads an envelope of this protocol.
fn read<T: DeserializeOwned>(
    json: &[u8],
    protocol: impl FnOnce(&T) -> Option<&Protocol>,
) -> Result<T, EnvelopeError> {
    let envelope = error::read(json)?;
    match protocol(&envelope) {
        Some(Protocol { name, .. }) if name != Protocol::FORRST => {
            let what = format!("is {name:?}, allowed: \"forrst\"");
            Err(EnvelopeError::new("protocol.name", what))
        }
        _ => Ok(envelope),
    }
}

/// A value that is there, even if it is null.
pub(super) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A list, where null is an empty one.
fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
