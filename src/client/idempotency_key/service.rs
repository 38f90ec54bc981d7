use std::{
    fmt,
    future::ready,
    task::{Context, Poll},
};

use http::{Method, Request};
use tower::Service;

use super::{IdempotencyKeyFuture, PersistKey, future::State, layer::Settings};
use crate::call::{IdempotencyKey, RetryOverride, oneshot::Oneshot};
use crate::{
    error::{BoxError, ConfigError},
    http::{grpc::is_one_of, headers::first},
};

/// The service of an [`IdempotencyKeyLayer`](super::IdempotencyKeyLayer).
///
/// # Clone
///
/// Clones share no state.
#[derive(Debug, Clone)]
pub struct IdempotencyKeyService<S, P = ()> {
    pub(super) inner: S,
    pub(super) persist: P,
    pub(super) settings: Settings,
}

impl<S, P, B> Service<Request<B>> for IdempotencyKeyService<S, P>
where
    S: Service<Request<B>> + Clone,
    S::Error: Into<BoxError>,
    P: PersistKey<B>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = IdempotencyKeyFuture<S, P::Future, Request<B>>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let writes = matches!(*request.method(), Method::POST | Method::PATCH);
        let needed = writes
            && !is_one_of(&self.settings.idempotent_methods, &request)
            && !RetryOverride::is_idempotent(request.extensions());
        self.call_with(request, needed)
    }
}

impl<S, P> IdempotencyKeyService<S, P> {
    /// Calls the service, with a key stamped on the request if one is needed.
    #[inline]
    pub(super) fn call_with<B>(
        &mut self,
        mut request: Request<B>,
        needed: bool,
    ) -> IdempotencyKeyFuture<S, P::Future, Request<B>>
    where
        S: Service<Request<B>> + Clone,
        S::Error: Into<BoxError>,
        P: PersistKey<B>,
    {
        match self.stamp(&mut request, needed) {
            Ok(None) => {}
            Ok(Some(future)) => {
                crate::call::release(&mut self.inner);
                return IdempotencyKeyFuture::new(State::Persisting {
                    future,
                    late: Some(Box::pin(Oneshot::new(self.inner.clone(), request))),
                });
            }
            Err(error) => {
                crate::call::release(&mut self.inner);
                let error = ready(error);
                return IdempotencyKeyFuture::new(State::Failed { error });
            }
        }
        IdempotencyKeyFuture::called(self.inner.call(request))
    }
}

impl<S, P> IdempotencyKeyService<S, P> {
    /// Stamps a key on a request that needs one. Returns the future that stores it, which must end
    /// before the request is sent.
    fn stamp<B>(
        &self,
        request: &mut Request<B>,
        needed: bool,
    ) -> Result<Option<P::Future>, BoxError>
    where
        P: PersistKey<B>,
    {
        let writes = matches!(*request.method(), Method::POST | Method::PATCH);
        if !writes && !P::STORES && request.extensions().is_empty() {
            return Ok(None);
        }
        let Settings {
            header,
            quoted,
            longest,
            ..
        } = &self.settings;
        let refused = |value: &dyn fmt::Display, allowed: String| {
            ConfigError::new(None, header.to_string(), value, allowed)
        };
        let fits = |key: &IdempotencyKey| match key.len() {
            length if length > *longest => {
                let value = format_args!("{length} characters long");
                Err(refused(&value, format!("at most {longest}")))
            }
            _ => Ok(()),
        };
        if let Some(value) = first(request.headers(), header) {
            let key = IdempotencyKey::as_sent(value);
            if key.as_str().is_empty() {
                return Err(refused(&"empty or not visible ASCII", "visible ASCII".into()).into());
            }
            fits(&key)?;
            return Ok(self.persist.persist(&key, request));
        }
        let chosen = request.extensions().get::<IdempotencyKey>().cloned();
        let key = match chosen {
            Some(key) => key,
            None if needed => IdempotencyKey::random(),
            None => return Ok(None),
        };
        fits(&key)?;
        let persisting = self.persist.persist(&key, request);
        let mut value = key.into_header(*quoted);
        // Each key is sent by one call only. Marked sensitive, it stays out of HPACK's dynamic
        // table, where it would displace headers that come again.
        value.set_sensitive(true);
        request.headers_mut().insert(header.clone(), value);
        Ok(persisting)
    }
}
