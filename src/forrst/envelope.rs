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

/// The envelope of a request.
///
/// `protocol` and `id` are optional, as short forms of system calls lack them. A member that is `null`
/// counts as missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Request {
    /// The protocol's name and version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The id of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The function call.
    pub call: Call,
    /// The extensions, with options.
    #[serde(default, deserialize_with = "list")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Extension>,
    /// Data that is passed on from call to call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The name and version of the protocol.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Protocol {
    /// `forrst`.
    pub name: String,
    /// The version, such as `0.1.0`.
    pub version: String,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A function and its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Call {
    /// The function's name.
    pub function: String,
    /// The function's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The arguments.
    #[serde(default, deserialize_with = "present")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The envelope of a response. A member that is `null` counts as missing, except for the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Response {
    /// The protocol's name and version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The result of the call; `null` if it failed.
    #[serde(default, deserialize_with = "present")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The errors.
    #[serde(default, deserialize_with = "list")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Fault>,
    /// The extensions, with data.
    #[serde(default, deserialize_with = "list")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Extension>,
    /// Metadata about the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// An error in a [`Response`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Fault {
    /// The code, for programs.
    pub code: String,
    /// The message, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Further data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Request {
    /// Creates a call of this function, with a random id.
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

    /// Reads an envelope.
    ///
    /// # Errors
    ///
    /// The text is no JSON, lacks a member, has one of the wrong type, or names another protocol.
    pub fn parse(json: &[u8]) -> Result<Self, EnvelopeError> {
        read(json, |request: &Self| request.protocol.as_ref())
    }

    /// Returns the options of an extension, if there are any.
    ///
    /// # Errors
    ///
    /// They are not of type `T`.
    pub fn options_of<T: DeserializeOwned>(&self, urn: &str) -> Result<Option<T>, EnvelopeError> {
        extension::read(&self.extensions, urn, "options", |extension| {
            extension.options.as_ref()
        })
    }
}

impl Call {
    /// Returns the hash of the arguments: see [`arguments_hash`](super::arguments_hash()).
    #[must_use]
    pub fn arguments_hash(&self) -> String {
        written(&self.arguments_digest())
    }

    pub(super) fn arguments_digest(&self) -> [u8; 32] {
        arguments_digest(self.arguments.as_ref().unwrap_or(&Value::Null))
    }
}

impl Response {
    /// Creates the response to a request, with the result `null`.
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

    /// Reads an envelope.
    ///
    /// # Errors
    ///
    /// The text is no JSON, lacks a member, has one of the wrong type, or names another protocol.
    pub fn parse(json: &[u8]) -> Result<Self, EnvelopeError> {
        read(json, |response: &Self| response.protocol.as_ref())
    }

    /// Returns the data of an extension, if there are any.
    ///
    /// # Errors
    ///
    /// They are not of type `T`.
    pub fn data_of<T: DeserializeOwned>(&self, urn: &str) -> Result<Option<T>, EnvelopeError> {
        extension::read(&self.extensions, urn, "data", |extension| {
            extension.data.as_ref()
        })
    }
}

impl Fault {
    /// Creates an error with a code and a message.
    #[must_use]
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: Some(message.into()),
            details: None,
            other: Map::new(),
        }
    }

    /// Sets further data, unless it is `null`.
    #[must_use]
    pub fn details(mut self, details: Value) -> Self {
        self.details = Some(details).filter(|details| !details.is_null());
        self
    }
}

impl Protocol {
    /// The protocol's name.
    pub const FORRST: &str = "forrst";

    /// Returns the version that this crate writes.
    fn current() -> Self {
        Self {
            name: Self::FORRST.to_owned(),
            version: "0.1.0".to_owned(),
            other: Map::new(),
        }
    }
}

/// Reads an envelope, and refuses one of another protocol.
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

/// Reads a value that may be null.
pub(super) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Reads a list; null is an empty one.
fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
