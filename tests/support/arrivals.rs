//! Requests that reached a server.

use std::sync::{Arc, Mutex};

use http::HeaderMap;

/// One request, as it reached a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrival {
    /// The head as it came, of HTTP/1.
    pub(crate) head: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: HeaderMap,
    /// All of it came.
    pub(crate) whole: bool,
    /// The server said that it will not process it, before it did.
    pub(crate) refused: bool,
}

impl Arrival {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Requests in the order in which they came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Arrival>>>);

impl Log {
    pub(crate) fn all(&self) -> Vec<Arrival> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn begin(&self, arrival: Arrival) -> usize {
        let mut all = self.0.lock().unwrap();
        all.push(arrival);
        all.len() - 1
    }

    pub(crate) fn note(&self, index: usize, note: impl FnOnce(&mut Arrival)) {
        note(&mut self.0.lock().unwrap()[index]);
    }
}
