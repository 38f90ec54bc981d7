use bytes::Bytes;
use http::{HeaderValue, header::CONTENT_TYPE};
use serde_json::Value;

use super::{Extension, Fault, Protocol, Request, Response};

/// Who is answered: what a response repeats of its request.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller {
    pub(super) protocol: Option<Protocol>,
    pub(super) id: Option<String>,
}

impl Caller {
    /// Who sent this.
    pub(super) fn of(request: &mut Request) -> Self {
        Self {
            protocol: request.protocol.take(),
            id: request.id.take(),
        }
    }

    /// Who sent something that is no envelope, as far as that can be told.
    pub(super) fn guess(body: &[u8]) -> Self {
        const LONGEST: usize = 255;

        let json: Option<Value> = serde_json::from_slice(body).ok();
        let id = json.as_ref().and_then(|json| json.get("id")?.as_str());
        let id = id.filter(|id| id.len() <= LONGEST);
        Self {
            protocol: None,
            id: id.map(str::to_owned),
        }
    }

    /// A response to them that says nothing yet.
    pub(super) fn envelope(&self) -> Response {
        Response::new(self.protocol.clone(), self.id.clone())
    }

    /// Tells that something went wrong, in a response that was made for those who read nothing but
    /// its head.
    pub(super) fn failed(
        &self,
        fault: Fault,
        extensions: Vec<Extension>,
        response: http::Response<Bytes>,
    ) -> http::Response<Bytes> {
        let envelope = Response {
            errors: vec![fault],
            extensions,
            ..self.envelope()
        };
        let mut response = response.map(|_| serde_json::to_vec(&envelope).unwrap_or_default());
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response.map(Bytes::from)
    }
}
