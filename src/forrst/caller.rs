use bytes::Bytes;
use http::{HeaderValue, header::CONTENT_TYPE};
use serde_json::Value;

use super::{Extension, Fault, Protocol, Request, Response};

/// The parts of a request that its response repeats.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller {
    pub(super) protocol: Option<Protocol>,
    pub(super) id: Option<String>,
}

impl Caller {
    /// Takes the parts of a request.
    pub(super) fn of(request: &mut Request) -> Self {
        Self {
            protocol: request.protocol.take(),
            id: request.id.take(),
        }
    }

    /// Reads the id of a body that is no valid envelope.
    pub(super) fn guess(body: &[u8]) -> Self {
        const MAX_ID_LEN: usize = 255;

        let json: Option<Value> = serde_json::from_slice(body).ok();
        let id = json.as_ref().and_then(|json| json.get("id")?.as_str());
        let id = id.filter(|id| id.len() <= MAX_ID_LEN);
        Self {
            protocol: None,
            id: id.map(str::to_owned),
        }
    }

    /// Returns an empty response.
    pub(super) fn envelope(&self) -> Response {
        Response::new(self.protocol.clone(), self.id.clone())
    }

    /// Replaces the body of a response by an envelope with this fault.
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
        let body = serde_json::to_vec(&envelope)
            .unwrap_or_else(|_| unreachable!("an envelope holds strings and JSON values"));
        let mut response = response.map(|_| body);
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response.map(Bytes::from)
    }
}
