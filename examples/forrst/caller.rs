//! A client that speaks forrst: the layers of a client, and what went over the wire.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    Dependencies, IdempotencyKeyLayer, PeekLayer, Policy, RetryLayer,
    classify::Codes,
    error::BoxError,
    forrst::{self, EnvelopeKeyLayer, FreshId, IdempotencyData, IdempotencyOptions, ReplayData},
};

/// An attempt, as it went over the wire.
pub(crate) struct Sent {
    pub(crate) id: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) code: Option<String>,
}

/// The attempts of one call: an extension of its request.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Sent>>>);

/// The result of a call.
pub(crate) struct Called {
    pub(crate) status: StatusCode,
    pub(crate) reply: forrst::Response,
    pub(crate) sent: Vec<Sent>,
}

impl Called {
    pub(crate) fn code(&self) -> Option<&str> {
        self.reply.errors.first().map(|error| &*error.code)
    }

    /// A detail of its error.
    pub(crate) fn detail(&self, name: &str) -> Option<&Value> {
        self.reply.errors.first()?.details.as_ref()?.get(name)
    }

    /// Whether one of its attempts was told this.
    pub(crate) fn was_told(&self, code: &str) -> bool {
        let mut codes = self.sent.iter().map(|sent| sent.code.as_deref());
        codes.any(|sent| sent == Some(code))
    }

    pub(crate) fn idempotency(&self) -> Result<IdempotencyData, BoxError> {
        let data = self.reply.data_of(IdempotencyData::URN)?;
        data.ok_or("no idempotency extension".into())
    }

    pub(crate) fn replay(&self) -> Result<ReplayData, BoxError> {
        let data = self.reply.data_of(ReplayData::URN)?;
        data.ok_or("no replay extension".into())
    }
}

pub(crate) struct Caller {
    server: String,
    http: Client<HttpConnector, Full<Bytes>>,
    deps: Dependencies,
}

impl Caller {
    pub(crate) fn new(server: String) -> Result<Self, BoxError> {
        let policy = Policy::http().service("forrst").codes(Codes::forrst());
        Ok(Self {
            server,
            http: Client::builder(TokioExecutor::new()).build_http(),
            deps: Dependencies::new(policy.build()?),
        })
    }

    /// Makes a call, with as many attempts as that takes.
    pub(crate) async fn call(&self, call: forrst::Request) -> Result<Called, BoxError> {
        let http = self.http.clone();
        let client = ServiceBuilder::new()
            .layer(EnvelopeKeyLayer::new()) // a key in the envelope
            .layer(IdempotencyKeyLayer::new()) // and in the header, so that a POST may be repeated
            .layer(RetryLayer::new(self.deps.clone()).with_prepare(FreshId)) // an id per attempt
            .layer(PeekLayer::new(self.deps.clone())) // reads what replies say
            .service(service_fn(move |request| send(http.clone(), request)));
        let log = Log::default();
        let request = Request::post(format!("{}/forrst", self.server))
            .header("content-type", "application/json")
            .extension(log.clone())
            .body(Full::from(serde_json::to_vec(&call)?))?;
        let response = client.oneshot(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Called {
            status,
            reply: forrst::Response::parse(&body)?,
            sent: std::mem::take(&mut *log.0.lock().unwrap_or_else(PoisonError::into_inner)),
        })
    }

    /// The result of `forrst.replay.…`.
    pub(crate) async fn function(&self, name: &str, arguments: Value) -> Result<Value, BoxError> {
        let function = format!("forrst.replay.{name}");
        let call = forrst::Request::new(function, "1.0.0", arguments);
        let called = self.call(call).await?;
        Ok(called.reply.result.unwrap_or_default())
    }

    pub(crate) async fn post(&self, path: &str) -> Result<(), BoxError> {
        println!("   POST {path}");
        let request = Request::post(format!("{}{path}", self.server)).body(Full::default())?;
        let status = self.http.request(request).await?.status();
        status
            .is_success()
            .then_some(())
            .ok_or_else(|| format!("{path}: {status}").into())
    }
}

/// One attempt, which is written down on its way.
async fn send(
    http: Client<HttpConnector, Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Full<Bytes>>, BoxError> {
    let log = request
        .extensions()
        .get::<Log>()
        .cloned()
        .unwrap_or_default();
    let body = request.body().clone().collect().await?.to_bytes();
    let call = forrst::Request::parse(&body)?;
    let options: Option<IdempotencyOptions> = call.options_of(IdempotencyOptions::URN)?;
    let key = options.map(|options| options.key);
    let short = |text: &Option<String>| {
        text.as_deref()
            .unwrap_or("none")
            .chars()
            .take(16)
            .collect::<String>()
    };
    println!(
        "   → {}, id {}, key {}",
        call.call.function,
        short(&call.id),
        short(&key)
    );

    let (head, body) = http.request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    let reply = forrst::Response::parse(&body)?;
    let code = reply.errors.into_iter().next().map(|error| error.code);
    let said = code.clone().or_else(|| Some(reply.result?.to_string()));
    println!(
        "   ← {}, {}",
        head.status.as_u16(),
        said.unwrap_or_default()
    );
    for extension in reply.extensions {
        let name = extension
            .urn
            .as_str()
            .rsplit(':')
            .next()
            .unwrap_or_default();
        println!("       {name} {}", extension.data.unwrap_or_default());
    }
    let mut log = log.0.lock().unwrap_or_else(PoisonError::into_inner);
    log.push(Sent {
        id: call.id,
        key,
        code,
    });
    drop(log);
    Ok(Response::from_parts(head, Full::new(body)))
}
