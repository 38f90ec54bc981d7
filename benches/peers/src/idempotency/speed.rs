//! The requests a second that one thread gets through, one after the other.

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::{Request, StatusCode};
use tokio::time::Instant;
use tower::{Service, ServiceExt};

use super::contestant::{Contestant, Server, request};
use crate::report::quantile;

const BODY: usize = 1024;
/// Calls in a round, and of the busy caller: few, so that it stays about as busy as it is.
const CALLS: u64 = 200;
const BUSY_CALLS: u64 = 10;
/// The number of keys of a caller.
const KEYS: u64 = 10;
/// The one caller that has more than that, and how many at the start.
const BUSY: u64 = u32::MAX as u64;
const BUSY_KEYS: u64 = 2_000;

/// The cost of one kind of request for each contestant.
pub(super) struct Speed {
    pub(super) load: &'static str,
    pub(super) title: &'static str,
    pub(super) of: Vec<Of>,
}

pub(super) struct Of {
    pub(super) nanos: f64,
    pub(super) added_nanos: f64,
    /// The median over the rounds.
    pub(super) ours_to_this: f64,
}

#[derive(Clone, Copy)]
enum Load {
    Fresh,
    Replay,
    Busy,
}

impl Load {
    const ALL: [Self; 3] = [Self::Fresh, Self::Replay, Self::Busy];

    fn titles(self) -> (&'static str, &'static str) {
        match self {
            Self::Fresh => ("fresh", "1 KiB of body, a fresh key, callers with few keys"),
            Self::Replay => ("replay", "the same requests again"),
            Self::Busy => (
                "busy_caller",
                "a fresh key of a caller that has 2,000 to 4,000",
            ),
        }
    }

    fn calls(self) -> u64 {
        match self {
            Self::Fresh | Self::Replay => CALLS,
            Self::Busy => BUSY_CALLS,
        }
    }

    fn caller_and_key(self, n: u64) -> (u64, u64) {
        match self {
            Self::Fresh | Self::Replay => (n / KEYS, n),
            Self::Busy => (BUSY, BUSY_KEYS + n),
        }
    }
}

/// The contestants take turns in short rounds, so that a slow moment of the machine is one for
/// all.
pub(super) fn measure(rounds: u64) -> Vec<Speed> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.expect("a runtime").block_on(async {
        let body = Bytes::from(vec![7; BODY]);
        let mut servers = Contestant::ALL.map(|contestant| contestant.server(None));
        for server in &mut servers {
            let calls = (0..BUSY_KEYS).map(|key| request(BUSY, key, &body));
            nanos_per_call(server, calls.collect()).await;
        }
        let mut nanos = Load::ALL.map(|_| Contestant::ALL.map(|_| Vec::new()));
        // The first round is not counted.
        for round in 0..=rounds {
            for (load, nanos) in Load::ALL.into_iter().zip(&mut nanos) {
                for (at, (server, nanos)) in servers.iter_mut().zip(nanos).enumerate() {
                    let count = load.calls();
                    let calls = (round * count..(round + 1) * count).map(|n| {
                        let (caller, key) = load.caller_and_key(n);
                        request(caller, key, &body)
                    });
                    let before = server.executions();
                    let took = nanos_per_call(server, calls.collect()).await;
                    let executed = match (load, Contestant::ALL[at]) {
                        (Load::Replay, contestant) if contestant != Contestant::Bare => 0,
                        _ => count,
                    };
                    assert_eq!(server.executions() - before, executed);
                    if round > 0 {
                        nanos.push(took);
                    }
                }
            }
        }
        let loads = Load::ALL.into_iter().zip(&nanos);
        loads.map(|(load, nanos)| speed(load, nanos)).collect()
    })
}

fn speed(load: Load, nanos: &[Vec<f64>]) -> Speed {
    let (load, title) = load.titles();
    let at = |wanted| {
        Contestant::ALL
            .iter()
            .position(|c| *c == wanted)
            .unwrap_or(0)
    };
    let (bare, ours) = (&nanos[at(Contestant::Bare)], &nanos[at(Contestant::Ours)]);
    let of = nanos.iter().map(|nanos| Of {
        nanos: quantile(nanos.clone(), 0.25),
        added_nanos: quantile(nanos.clone(), 0.25) - quantile(bare.clone(), 0.25),
        ours_to_this: quantile(nanos.iter().zip(ours).map(|(n, o)| n / o).collect(), 0.5),
    });
    Speed {
        load,
        title,
        of: of.collect(),
    }
}

async fn nanos_per_call(server: &mut Server, calls: Vec<Request<Body>>) -> f64 {
    let count = calls.len() as f64;
    let started = Instant::now();
    for call in calls {
        let Ok(ready) = ServiceExt::<Request<Body>>::ready(&mut server.app).await;
        let Ok(reply) = ready.call(call).await;
        assert_eq!(reply.status(), StatusCode::OK);
        let body = to_bytes(reply.into_body(), BODY).await.expect("a body");
        assert_eq!(body, "paid 1024");
    }
    started.elapsed().as_secs_f64() * 1e9 / count
}
