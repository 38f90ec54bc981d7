//! The receiver of callbacks.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, routing::post};
use http::HeaderMap;
use serde_json::Value;

type Messages = Arc<Mutex<HashMap<String, Vec<Value>>>>;

/// A server on loopback that remembers what it was sent, by message.
pub(crate) struct Receiver {
    pub(crate) url: String,
    messages: Messages,
    task: tokio::task::JoinHandle<()>,
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        let messages = Messages::default();
        let seen = Arc::clone(&messages);
        let hook = move |headers: HeaderMap, body: Bytes| async move {
            let id = headers["webhook-id"].to_str().unwrap().to_owned();
            let event = serde_json::from_slice(&body).unwrap();
            seen.lock().unwrap().entry(id).or_default().push(event);
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let app = Router::new().route("/hook", post(hook));
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            url,
            messages,
            task,
        }
    }

    /// Returns all deliveries, by the message's id.
    pub(crate) fn messages(&self) -> HashMap<String, Vec<Value>> {
        self.messages.lock().unwrap().clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}
