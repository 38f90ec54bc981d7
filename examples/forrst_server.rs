//! A forrst server: functions on axum, with retry guidance, idempotency and replay by layers.
//!
//! ```text
//! cargo run --release --features full --example forrst_server
//! cargo run --release --features full --example forrst_client -- --server http://127.0.0.1:8090
//! ```
//!
//! `--listen 127.0.0.1:PORT` is another place than 127.0.0.1:8090, `--store sqlite:PATH` remembers
//! keys and replays in a file instead of memory. `POST /maintenance/on` and `/off` switch
//! maintenance. Ctrl-C stops it. You see the address that it listens on. With `--quick` it takes a
//! free port, calls itself once, prints the reply and stops.

#[path = "forrst/shop.rs"]
mod shop;

use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
};

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::json;
use tower_reprise::{
    error::BoxError,
    forrst,
    store::{MemoryStore, SqliteStore},
};

use crate::shop::Shop;

const USAGE: &str =
    "usage: forrst_server [--listen 127.0.0.1:PORT] [--store memory|sqlite:PATH] [--quick]";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 8090));
    let (mut file, mut quick) = (None, false);
    let mut flags = env::args().skip(1);
    while let Some(flag) = flags.next() {
        let mut value = || flags.next().ok_or(USAGE);
        match &*flag {
            "--listen" => listen = value()?.parse().map_err(|_| USAGE)?,
            "--store" => match &*value()? {
                "memory" => file = None,
                store => file = Some(store.strip_prefix("sqlite:").ok_or(USAGE)?.to_owned()),
            },
            "--quick" => quick = true,
            _ => return Err(USAGE.into()),
        }
    }
    // Everyone who reaches the server can switch maintenance, so it listens on loopback alone.
    if !listen.ip().is_loopback() {
        return Err(format!("--listen is {listen}, allowed: an address of this machine").into());
    }
    if quick {
        listen.set_port(0);
    }
    let shop = match file {
        None => Shop::open(listen, MemoryStore::new()).await?,
        Some(path) => Shop::open(listen, SqliteStore::open(path)?).await?,
    };
    println!("forrst at http://{}/forrst", shop.address);
    match quick {
        true => check(shop.address).await?,
        false => tokio::signal::ctrl_c().await?,
    }
    shop.close().await;
    Ok(())
}

/// Calls a function, and looks at what comes back.
async fn check(address: SocketAddr) -> Result<(), BoxError> {
    let call = forrst::Request::new("orders.create", "1.0.0", json!({}));
    let request = Request::post(format!("http://{address}/forrst"))
        .header("content-type", "application/json")
        .body(Body::from(serde_json::to_vec(&call)?))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await?;
    let status = response.status();
    let reply = forrst::Response::parse(&response.into_body().collect().await?.to_bytes())?;
    println!("{} → {status} {}", call.call.function, json!(reply));
    let right = status == StatusCode::OK && reply.id == call.id && reply.errors.is_empty();
    right
        .then_some(())
        .ok_or("that is not what it should say".into())
}
