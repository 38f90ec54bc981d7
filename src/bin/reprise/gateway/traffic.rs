//! The traffic: metrics for Prometheus, counts for the console, and bodies whose bytes are counted.

use std::{
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use pin_project_lite::pin_project;
use serde_json::{Value, json};

use super::access::Access;

/// Upper bounds of latencies, in seconds.
pub(crate) const BOUNDS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0, 300.0,
];

/// Every metric of the program, with a word on it.
const METRICS: [(&str, &str); 5] = [
    (
        "gateway_bytes_total",
        "Bytes of bodies, from callers and to them",
    ),
    (
        "gateway_connections",
        "Connections of callers that are open",
    ),
    (
        "gateway_executing",
        "Operations with a key that this process executes",
    ),
    (
        "gateway_replies_total",
        "Replies to callers by the class of their status",
    ),
    (
        "gateway_request_seconds",
        "Time from a request's head to its reply's head",
    ),
];

/// Says what each metric is, those of the library too. The kind does not matter to a description.
pub(crate) fn describe() {
    tower_reprise::telemetry::describe();
    for (name, help) in METRICS {
        metrics::describe_counter!(name, help);
        metrics::describe_gauge!(name, help);
        metrics::describe_histogram!(name, help);
    }
}

/// Counts of requests, their failures, and the times to their replies' heads, since the start.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    failed: AtomicU64,
    counts: [AtomicU64; BOUNDS.len() + 1],
}

impl Tally {
    /// Counts a reply, whose head took so long.
    pub(crate) fn count(&self, failed: bool, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        if failed {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn show(&self) -> Value {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = self.counts.each_ref().map(load);
        json!({
            "calls": counts.iter().sum::<u64>(),
            "failed": load(&self.failed),
            "bounds": BOUNDS,
            "counts": counts,
        })
    }
}

/// The metrics of callers' connections, requests and bodies.
pub(crate) struct Traffic {
    seconds: Histogram,
    received: Counter,
    sent: Counter,
    connections: Gauge,
}

impl Traffic {
    pub(crate) fn new() -> Self {
        Self {
            seconds: histogram!("gateway_request_seconds"),
            received: counter!("gateway_bytes_total", "direction" => "in"),
            sent: counter!("gateway_bytes_total", "direction" => "out"),
            connections: gauge!("gateway_connections"),
        }
    }

    /// Records a reply, whose head took so long.
    pub(crate) fn replied(&self, took: Duration) {
        self.seconds.record(took.as_secs_f64());
    }

    pub(crate) fn received(&self) -> Counter {
        self.received.clone()
    }

    pub(crate) fn sent(&self) -> Counter {
        self.sent.clone()
    }

    /// Counts a connection until it is dropped.
    pub(crate) fn connected(&self) -> Connected {
        self.connections.increment(1);
        Connected(self.connections.clone())
    }
}

pub(crate) struct Connected(Gauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

pin_project! {
    /// A body whose bytes are counted as they pass.
    pub(crate) struct Counted<B> {
        #[pin]
        body: B,
        counter: Counter,
        // In a box: replies are moved from layer to layer.
        access: Option<Box<Access>>,
    }
}

impl<B> Counted<B> {
    pub(crate) fn new(body: B, counter: Counter) -> Self {
        Self {
            body,
            counter,
            access: None,
        }
    }

    /// Logs the request when the body has ended.
    pub(crate) fn logged(self, access: Option<Box<Access>>) -> Self {
        Self { access, ..self }
    }
}

impl<B: Body<Data = Bytes>> Body for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        if let Some(data) = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
        {
            let bytes = data.remaining() as u64;
            this.counter.increment(bytes);
            if let Some(access) = this.access {
                access.sent += bytes;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
