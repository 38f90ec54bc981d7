//! Where operators' commands go: a gateway's admin port, or a store, which is asked the same.

use std::{path::PathBuf, process::ExitCode};

use axum::{Router, body::Body};
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use tower::ServiceExt;
use tower_reprise::error::BoxError;

use crate::{admin::StoreAdmin, output::Format, store::StoreAt, usage_error::UsageError};

/// The admin port of a gateway that was not told otherwise.
const ADMIN: &str = "127.0.0.1:8081";

/// Where to, and how the answer is shown.
#[derive(clap::Args)]
pub(crate) struct At {
    /// The admin port of a running gateway, such as 127.0.0.1:8081 [default: 127.0.0.1:8081]
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "REPRISE_ADMIN",
        hide_env = true,
        global = true
    )]
    admin: Option<String>,
    /// A store instead of a gateway: sqlite:PATH, or with the features of these names postgres://…, redis://…
    #[arg(
        long,
        value_name = "STORE",
        env = "REPRISE_STORE",
        hide_env = true,
        global = true
    )]
    store: Option<String>,
    /// The admin port's token
    #[arg(
        long,
        value_name = "FILE",
        env = "REPRISE_ADMIN_TOKEN_FILE",
        hide_env = true,
        global = true
    )]
    admin_token_file: Option<PathBuf>,
    /// The form of the answer
    #[arg(
        long,
        value_name = "FORMAT",
        env = "REPRISE_FORMAT",
        hide_env = true,
        global = true,
        default_value = "text"
    )]
    pub(crate) format: Format,
}

impl At {
    /// Opens the client and runs a command with it. `store` says that `--store` was written by hand.
    pub(crate) fn run<D>(
        self,
        store: bool,
        command: impl FnOnce(AdminClient, Format) -> D,
    ) -> Result<ExitCode, BoxError>
    where
        D: Future<Output = Result<ExitCode, BoxError>>,
    {
        let format = self.format;
        let place = self.place(store)?;
        let running = async { command(place.open().await?, format).await };
        Ok(crate::block_on(running))
    }

    /// A gateway's admin port.
    pub(crate) fn port(admin: String, admin_token_file: Option<PathBuf>) -> Self {
        Self {
            admin: Some(admin),
            store: None,
            admin_token_file,
            format: Format::Text,
        }
    }

    /// For what only a gateway can do.
    pub(crate) fn without_store(self) -> Self {
        Self {
            store: None,
            ..self
        }
    }

    fn place(self, by_hand: bool) -> Result<Place, BoxError> {
        if let Some(text) = self.store.filter(|_| by_hand || self.admin.is_none()) {
            let store: StoreAt = text
                .parse()
                .map_err(|()| UsageError::new("store", &text, StoreAt::ALLOWED))?;
            let store = store.built_in();
            return match store.map_err(|allowed| UsageError::new("store", &text, allowed))? {
                StoreAt::Memory => {
                    let allowed =
                        "a store that outlives its process: sqlite:PATH, postgres://… or redis://…";
                    Err(UsageError::new("store", "memory", allowed).into())
                }
                store => Ok(Place::Store(store)),
            };
        }
        let text = self.admin.unwrap_or_else(|| ADMIN.to_owned());
        let url = text.trim_end_matches('/').trim_start_matches("http://");
        if url.parse::<http::uri::Authority>().is_err() {
            let allowed = "a host and a port, such as 127.0.0.1:8081";
            return Err(UsageError::new("admin", &text, allowed).into());
        }
        let token = match self.admin_token_file {
            None => None,
            Some(path) => {
                let shown = path.display().to_string();
                let text = std::fs::read_to_string(&path).map_err(|error| {
                    let allowed = format!("a file that can be read ({error})");
                    UsageError::new("admin-token-file", &shown, allowed)
                })?;
                let mut token = HeaderValue::try_from(format!("Bearer {}", text.trim()))?;
                token.set_sensitive(true);
                Some(token)
            }
        };
        Ok(Place::Port(format!("http://{url}"), token))
    }
}

enum Place {
    Store(StoreAt),
    Port(String, Option<HeaderValue>),
}

impl Place {
    async fn open(self) -> Result<AdminClient, BoxError> {
        Ok(match self {
            Self::Store(at) => AdminClient::Store(StoreAdmin::of(at.open().await?)?.routes()),
            Self::Port(url, token) => AdminClient::Port {
                client: Box::new(Client::builder(TokioExecutor::new()).build_http()),
                url,
                token,
            },
        })
    }
}

pub(crate) enum AdminClient {
    Store(Router),
    Port {
        client: Box<Client<HttpConnector, Body>>,
        url: String,
        token: Option<HeaderValue>,
    },
}

impl AdminClient {
    pub(crate) async fn get(&self, path: &str) -> Result<Value, BoxError> {
        self.ask(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str) -> Result<Value, BoxError> {
        self.post_body(path, None).await
    }

    /// Posts a body, if there is one, with its content type.
    pub(crate) async fn post_body(
        &self,
        path: &str,
        body: Option<(String, Vec<u8>)>,
    ) -> Result<Value, BoxError> {
        self.ask(Method::POST, path, body).await
    }

    /// Asks, and returns what was answered. An answer that is no success is an error.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<(String, Vec<u8>)>,
    ) -> Result<Value, BoxError> {
        let mut request = Request::builder().method(method);
        if let Some((kind, _)) = &body {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let body = body.map_or_else(Body::empty, |(_, body)| body.into());
        let (status, body) = match self {
            Self::Store(router) => {
                let request = request.uri(path).body(body)?;
                let Ok(response) = router.clone().oneshot(request).await;
                read(response).await?
            }
            Self::Port { client, url, token } => {
                let mut request = request.uri(format!("{url}{path}")).body(body)?;
                if let Some(token) = token {
                    request
                        .headers_mut()
                        .insert(header::AUTHORIZATION, token.clone());
                }
                let response = client.request(request).await;
                let response = response.map_err(|error| {
                    let text = format!("no gateway answers at {url}");
                    BoxError::from(Unreached(text, error.into()))
                })?;
                read(response).await?
            }
        };
        let value: Value =
            serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into());
        match status.is_success() {
            true => Ok(value),
            false => {
                let why = ["error", "detail"]
                    .iter()
                    .find_map(|name| value[*name].as_str());
                let why = why.map_or_else(|| value.to_string(), str::to_owned);
                Err(format!("{why} ({})", status.as_u16()).into())
            }
        }
    }
}

async fn read<B>(response: http::Response<B>) -> Result<(StatusCode, bytes::Bytes), BoxError>
where
    B: http_body::Body<Data = bytes::Bytes, Error: Into<BoxError>>,
{
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(Into::into)?;
    Ok((head.status, body.to_bytes()))
}

#[derive(Debug)]
struct Unreached(String, BoxError);

impl std::fmt::Display for Unreached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreached {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.1)
    }
}
