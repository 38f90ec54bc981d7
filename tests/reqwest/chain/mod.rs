//! The layers as a middleware in a chain.

mod dropped;
mod errors;
mod kept;
mod layers;
mod order;

use std::future::Future;

use async_trait::async_trait;
use http::Extensions;
use reqwest::{Body, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, RequestBuilder};
use tower::Layer;
use tower_reprise::{
    error::BoxError,
    stacks::reqwest::{ChainService, TowerMiddleware},
};

use crate::client;

pub(crate) type Handled = reqwest_middleware::Result<Response>;

/// A middleware made of a closure, which decides what becomes of each attempt.
pub(crate) struct Inner<F>(pub(crate) F);

#[async_trait]
impl<F, Fut> Middleware for Inner<F>
where
    F: Fn(reqwest::Request, usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send,
{
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        _next: Next<'_>,
    ) -> Handled {
        let Count(count) = *extensions.get_or_insert_default();
        extensions.insert(Count(count + 1));
        self.0(request, count).await
    }
}

/// Attempts of one call, in its extensions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) usize);

pub(crate) fn said(status: u16) -> Response {
    let response = http::Response::builder().status(status);
    response.body(Body::from("said")).unwrap().into()
}

/// Layers, and a last middleware that answers.
pub(crate) fn answering<L, S, F, Fut>(layers: L, inner: F) -> ClientWithMiddleware
where
    L: Layer<ChainService, Service = S>,
    TowerMiddleware<S>: Middleware,
    F: Fn(reqwest::Request, usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send + 'static,
{
    let chain = ClientBuilder::new(client()).with(TowerMiddleware::new(layers));
    chain.with(Inner(inner)).build()
}

pub(crate) fn get(client: &ClientWithMiddleware) -> RequestBuilder {
    client.get("http://stock.example/items")
}

pub(crate) async fn failed(request: RequestBuilder) -> BoxError {
    request.send().await.unwrap_err().into()
}
