//! The number of executions of an operation that is requested more than once.

use std::{collections::BTreeMap, time::Duration};

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::{Request, Response};
use tokio::{task::JoinSet, time::timeout};
use tower::ServiceExt;

use super::contestant::{Contestant, Server, request};

pub(super) const DUPLICATES: u64 = 100;

/// The time that the handler takes.
const HANDLER: Duration = Duration::from_millis(50);

pub(super) struct Safety {
    /// Executions of as many requests at once, all the same.
    pub(super) concurrent: f64,
    pub(super) replies: String,
    /// Executions when a caller hangs up while the handler works, and asks again.
    pub(super) hung_up: f64,
    /// The outcome of another body with a key that was used.
    pub(super) other_body: String,
}

pub(super) fn measure() -> Vec<Safety> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .expect("a runtime");
    let safeties = Contestant::ALL.map(|contestant| {
        runtime.block_on(async {
            let (concurrent, replies) = concurrent(&server(contestant)).await;
            Safety {
                concurrent: concurrent as f64,
                replies,
                hung_up: hung_up(&server(contestant)).await as f64,
                other_body: other_body(&server(contestant)).await,
            }
        })
    });
    safeties.into()
}

fn server(contestant: Contestant) -> Server {
    contestant.server(Some(HANDLER))
}

async fn concurrent(server: &Server) -> (u64, String) {
    let mut calls = JoinSet::new();
    for _ in 0..DUPLICATES {
        calls.spawn(send(server, "100 EUR"));
    }
    let mut counts = BTreeMap::new();
    for reply in calls.join_all().await {
        *counts.entry(reply.status().as_u16()).or_insert(0) += 1;
    }
    let counts = counts
        .iter()
        .map(|(status, count)| format!("{count} × {status}"));
    (server.executions(), counts.collect::<Vec<_>>().join(", "))
}

async fn hung_up(server: &Server) -> u64 {
    let started = timeout(HANDLER / 2, send(server, "100 EUR")).await;
    assert!(started.is_err(), "it hangs up before there is a reply");
    // Either it is still at work, or it was stopped with its caller.
    tokio::time::sleep(HANDLER * 2).await;
    let before = server.executions();
    send(server, "100 EUR").await;
    // An execution that was stopped halfway counts too: a part of it took effect.
    1 + server.executions() - before
}

async fn other_body(server: &Server) -> String {
    send(server, "100 EUR").await;
    let before = server.executions();
    let reply = send(server, "5000 EUR").await;
    let status = reply.status().as_u16();
    let body = to_bytes(reply.into_body(), 4096).await.expect("a body");
    match (server.executions() - before, status) {
        (0, 200) if body == "paid 7" => "the first one's reply".into(),
        (0, status) => format!("refused: {status}"),
        _ => "executed".into(),
    }
}

fn send(
    server: &Server,
    body: &'static str,
) -> impl Future<Output = Response<Body>> + Send + 'static {
    let request: Request<Body> = request(1, 1, &Bytes::from_static(body.as_bytes()));
    let app = server.app.clone();
    async move {
        let Ok(reply) = app.oneshot(request).await;
        reply
    }
}
