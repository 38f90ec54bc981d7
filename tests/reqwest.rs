#![cfg(feature = "reqwest-middleware")]
#![allow(clippy::unwrap_used)]
use async_trait::async_trait;
use http::Extensions;
use reqwest_middleware::{ClientBuilder, Middleware, Next};
use tower_reprise::{
    Dependencies, Policy, RetryLayer,
    stacks::{self, reqwest::Stacked},
};

struct Size(&'static str);
#[async_trait]
impl Middleware for Size {
    async fn handle(
        &self,
        r: reqwest::Request,
        e: &mut Extensions,
        n: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        let f = n.run(r, e);
        println!("{} {}", self.0, std::mem::size_of_val(&*f));
        f.await
    }
}
struct Answer;
#[async_trait]
impl Middleware for Answer {
    async fn handle(
        &self,
        _: reqwest::Request,
        _: &mut Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        Ok(http::Response::new("").into())
    }
}
#[tokio::test]
async fn sizes() {
    use tower::Layer;
    use tower::Service;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let deps = Dependencies::new(Policy::synchronous().build().unwrap());
    println!(
        "reqwest::Request {} http::Request {} Response {}",
        size_of::<reqwest::Request>(),
        size_of::<http::Request<reqwest::Body>>(),
        size_of::<reqwest::Response>()
    );
    let mut r = RetryLayer::new(deps.clone())
        .layer(stacks::reqwest::HttpClient::new(reqwest::Client::new()));
    println!(
        "service {} future {}",
        size_of_val(&r),
        size_of_val(
            &r.call(
                http::Request::get("http://a")
                    .body(reqwest::Body::default())
                    .unwrap()
            )
        )
    );
    let c = ClientBuilder::new(reqwest::Client::new())
        .with(Size("retry"))
        .with(Stacked::new(RetryLayer::new(deps.clone())))
        .with(Answer)
        .build();
    c.get("http://a.example").send().await.unwrap();
    let c = ClientBuilder::new(reqwest::Client::new())
        .with(Size("stack"))
        .with(Stacked::new(stacks::client(deps.clone())))
        .with(Answer)
        .build();
    c.get("http://a.example").send().await.unwrap();
}
