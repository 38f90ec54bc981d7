use axum::{
    Json,
    extract::{self, FromRequestParts, Query},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tower_reprise::store::StoreError;

/// Why an operator gets no answer: `{"error": …}`.
pub(crate) struct AdminError(StatusCode, String);

impl AdminError {
    pub(crate) fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self(status, why.into())
    }

    pub(crate) fn invalid(field: &str, value: &str, allowed: &str) -> Self {
        let shown: String = value.chars().take(64).collect();
        let message = format!("{field} is {shown}, allowed: {allowed}");
        Self(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is no such thing")
    }

    pub(crate) fn method() -> Self {
        let why = "not with this method: GET / lists what there is";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, why)
    }

    pub(crate) fn conflict(why: String) -> Self {
        Self(StatusCode::CONFLICT, why)
    }
}

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

/// A query string; one that can't be read is told as all else is.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = AdminError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, AdminError> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(error) => Err(AdminError::new(StatusCode::BAD_REQUEST, error.body_text())),
        }
    }
}

/// A part of the path; one that can't be read is told as all else is.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = AdminError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AdminError> {
        match extract::Path::from_request_parts(parts, state).await {
            Ok(extract::Path(part)) => Ok(Self(part)),
            Err(error) => Err(AdminError::new(error.status(), error.body_text())),
        }
    }
}
