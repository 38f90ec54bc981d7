//! The contestants.

use std::{future::Future, pin::Pin, time::Duration};

use tokio::{runtime::Runtime, time::Instant};
use tower_reprise::{Dependencies, Policy};

use super::timing::runtime;
use crate::allocations;

pub(super) const BARE: &str = "bare";
pub(super) const RETRY: &str = "our-retry";
pub(super) const STACK: &str = "our-stack";
pub(super) const KEYED: &str = "our-stack-keyed";
pub(super) const TIMEOUT: &str = "timeout";
pub(super) const MIDDLEWARE: &str = "our-middleware";
pub(super) const REQWEST_RETRY: &str = "reqwest-retry";

/// The contestants that are measured together: the first of a kind has no layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    NoNetwork,
    Reqwest,
    Hyper,
    Tonic,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::NoNetwork, Self::Reqwest, Self::Hyper, Self::Tonic];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::NoNetwork => "reqwest-middleware whose last middleware answers: GET, 6 headers",
            Self::Reqwest => "reqwest over loopback: GET, 6 headers",
            Self::Hyper => "hyper-util's client over loopback: GET, 6 headers",
            Self::Tonic => "tonic over loopback: a unary call",
        }
    }
}

type Calls = Pin<Box<dyn Future<Output = ()>>>;

/// One way to make calls, in a runtime of its own: a timer that waits in a runtime makes all of its
/// calls a little slower, whoever set it.
pub(super) struct Contestant {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    runtime: Runtime,
    calls: Box<dyn FnMut(u64) -> Calls>,
}

impl Contestant {
    /// `call` makes one call with a client, which is cheap to clone and made in the runtime.
    pub(super) fn new<C, F>(
        kind: Kind,
        name: &'static str,
        title: &'static str,
        client: impl FnOnce() -> C,
        call: F,
    ) -> Self
    where
        C: Clone + 'static,
        F: AsyncFn(&mut C) + Clone + 'static,
    {
        let runtime = runtime();
        let client = {
            let _context = runtime.enter();
            client()
        };
        let calls = move |count| -> Calls {
            let (mut client, call) = (client.clone(), call.clone());
            Box::pin(async move {
                for _ in 0..count {
                    call(&mut client).await;
                }
            })
        };
        Self {
            kind,
            name,
            title,
            runtime,
            calls: Box::new(calls),
        }
    }

    /// Makes so many calls, one after the other, and returns the time that they took.
    pub(super) fn run(&mut self, calls: u64) -> Duration {
        let work = (self.calls)(calls);
        let start = Instant::now();
        self.runtime.block_on(work);
        start.elapsed()
    }

    /// Makes so many calls, and returns the allocations meanwhile.
    pub(super) fn count_allocations(&mut self, calls: u64) -> u64 {
        let work = (self.calls)(calls);
        allocations::during(|| self.runtime.block_on(work))
    }
}

/// The time that all layers give a call.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

pub(super) fn deps() -> Dependencies {
    let policy = Policy::http().service("bench").build();
    Dependencies::new(policy.expect("the defaults are valid"))
}

/// Six headers, made from text.
pub(super) const HEADERS: [(&str, &str); 6] = [
    ("accept", "application/json"),
    ("accept-encoding", "gzip, br"),
    ("user-agent", "checkout/1.4.2"),
    ("authorization", "Bearer xxxxxxxx"),
    ("x-request-id", "0f8fad5b-d9cb-469f-a165-70867728950e"),
    (
        "traceparent",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
];

pub(super) const PATH: &str = "/v1/items/42?fields=name,price";
