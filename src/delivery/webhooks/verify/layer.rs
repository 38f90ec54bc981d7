use std::{
    future::{Future, ready},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::SystemTime,
};

use http::{Request, Response};
use tower::{Layer, Service, ServiceExt};

use super::{Verified, Verifier, VerifyError};
use crate::{
    http::{
        RequestBody,
        problem::Problem,
        read::{ReadError, read_whole},
    },
    server::problem::ProblemBody,
};

/// The largest body that is read by default.
const BODY_LIMIT: usize = 1 << 20;

/// Calls the inner service only for messages with a valid signature. See the [module docs](super).
///
/// The layer reads the whole body first, up to a limit, and drops trailers; the server has to bound
/// the time that takes. It answers with a problem document: 401 for an invalid message, 413 for one
/// that is too large, 400 for one whose body breaks off.
///
/// # Clone
///
/// Clones share the keys.
#[derive(Debug, Clone)]
#[must_use]
pub struct WebhookVerifyLayer {
    settings: Arc<Settings>,
}

#[derive(Debug, Clone)]
struct Settings {
    verifier: Verifier,
    body_limit: usize,
}

impl WebhookVerifyLayer {
    /// Verifies messages with this verifier.
    pub fn new(verifier: Verifier) -> Self {
        let settings = Settings {
            verifier,
            body_limit: BODY_LIMIT,
        };
        Self {
            settings: Arc::new(settings),
        }
    }

    /// Sets the largest body that is read: 1 MiB by default.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        Arc::make_mut(&mut self.settings).body_limit = bytes;
        self
    }
}

impl<S> Layer<S> for WebhookVerifyLayer {
    type Service = WebhookVerify<S>;

    fn layer(&self, inner: S) -> WebhookVerify<S> {
        WebhookVerify {
            inner,
            settings: Arc::clone(&self.settings),
        }
    }
}

/// The service of a [`WebhookVerifyLayer`].
#[derive(Debug, Clone)]
pub struct WebhookVerify<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S, B, R> Service<Request<B>> for WebhookVerify<S>
where
    S: Service<Request<B::Rebuilt>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: RequestBody + Send + 'static,
    B::Data: Send,
    B::Error: Send,
    B::Rebuilt: Send,
    R: Send + 'static,
{
    type Response = Response<ProblemBody<R>>;
    type Error = S::Error;
    type Future = WebhookVerifyFuture<R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The body of a message with invalid headers is not read.
        let head = self
            .settings
            .verifier
            .head(request.headers(), SystemTime::now());
        WebhookVerifyFuture(match head {
            Err(error) => {
                crate::call::release(&mut self.inner);
                Box::pin(ready(Ok(refusal(&unverified(error)))))
            }
            Ok(claimed) => {
                let inner = crate::call::take_ready(&mut self.inner);
                let settings = Arc::clone(&self.settings);
                Box::pin(verify_and_call(settings, inner, request, claimed))
            }
        })
    }
}

async fn verify_and_call<S, B, R>(
    settings: Arc<Settings>,
    inner: S,
    request: Request<B>,
    claimed: Verified,
) -> VerifyResult<R, S::Error>
where
    S: Service<Request<B::Rebuilt>, Response = Response<R>>,
    B: RequestBody,
{
    let (mut parts, body) = request.into_parts();
    let limit = settings.body_limit;
    let body = match read_whole(pin!(body), limit).await {
        Ok(body) => body,
        Err(ReadError::TooLarge) => {
            let detail = format!("At most {limit} bytes are allowed.");
            return Ok(refusal(&Problem::WEBHOOK_TOO_LARGE.detail(detail)));
        }
        Err(ReadError::Broken) => return Ok(refusal(&Problem::WEBHOOK_UNREADABLE)),
    };
    if let Err(error) = settings.verifier.body(&claimed, &parts.headers, &body) {
        return Ok(refusal(&unverified(error)));
    }
    parts.extensions.insert(claimed);
    let request = Request::from_parts(parts, B::rebuilt(body));
    let response = inner.oneshot(request).await?;
    Ok(response.map(ProblemBody::reply))
}

fn unverified(error: VerifyError) -> Problem {
    Problem::WEBHOOK_UNVERIFIED.detail(error.to_string())
}

fn refusal<R>(problem: &Problem) -> Response<ProblemBody<R>> {
    problem.response(false).map(Into::into)
}

type VerifyResult<R, E> = Result<Response<ProblemBody<R>>, E>;

/// The future of a [`WebhookVerify`] service.
#[must_use = "futures do nothing unless polled"]
pub struct WebhookVerifyFuture<R, E>(Pin<Box<dyn Future<Output = VerifyResult<R, E>> + Send>>);

opaque_debug! { WebhookVerifyFuture<R, E> }

impl<R, E> Future for WebhookVerifyFuture<R, E> {
    type Output = VerifyResult<R, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}
