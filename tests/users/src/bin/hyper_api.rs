//! A client of one's own around hyper-util's, in a struct with a named type.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{Layer, Service, ServiceExt};
use tower_reprise::{Dependencies, Policy, RetryOverride, stacks};
use tower_reprise_users::{Result, flaky};

type Hyper = Client<HttpConnector, Full<Bytes>>;

#[derive(Clone)]
struct Api {
    client: stacks::Client<Hyper>,
    server: String,
}

impl Api {
    fn new(server: String) -> Result<Self> {
        let policy = Policy::http().service("api").honours_keys().build()?;
        let hyper = Client::builder(TokioExecutor::new()).build_http();
        let client = stacks::client(Dependencies::new(policy)).layer(hyper);
        Ok(Self { client, server })
    }

    async fn pay(&mut self, retries: bool) -> Result<StatusCode> {
        let mut request = Request::post(format!("{}/pay", self.server)).body(Full::from("100"))?;
        if !retries {
            request.extensions_mut().insert(RetryOverride::off());
        }
        let response = self.client.ready().await?.call(request).await?;
        Ok(response.status())
    }
}

#[tokio::main]
async fn main() -> Result {
    let (server, _) = flaky(2).await?;
    let mut api = Api::new(server)?;
    assert_eq!(api.pay(false).await?, 503);
    let paid = api.clone().pay(true).await?;
    println!("{paid}");
    assert_eq!(paid, 200);
    Ok(())
}
