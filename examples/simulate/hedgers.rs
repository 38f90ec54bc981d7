//! Others that hedge: a plain race, tower's hedge, and tower-resilience's.

use std::time::Duration;

use tower::{
    Layer, ServiceExt,
    buffer::Buffer,
    hedge::{Hedge, Policy},
    service_fn,
    util::BoxCloneService,
};
use tower_resilience_hedge::HedgeLayer;

use crate::{
    hedge::{STATIC, stretched},
    world::{Call, Wire, call},
};

/// A way to send a second request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hedger {
    /// After a fixed delay; the first reply counts.
    Static,
    /// tower's, after the 95th percentile of the last 30 s.
    Tower,
    /// tower-resilience's, after the same fixed delay.
    Resilience,
}

impl Hedger {
    pub(crate) fn client(self, wire: Wire) -> Wire {
        match self {
            Self::Static => race(wire),
            Self::Tower => {
                let period = Duration::from_secs(30);
                let hedge = Hedge::new(wire, Always, 32, 0.95, period);
                // It is no `Clone` by itself.
                Buffer::new(hedge, 1024).boxed_clone()
            }
            Self::Resilience => {
                let layer = HedgeLayer::builder()
                    .delay(stretched(STATIC))
                    .max_hedged_attempts(2)
                    .build();
                // It needs errors that are `Clone`.
                let hedge = layer.layer(wire.map_err(|error| error.to_string()));
                hedge
                    .map_err(|error| format!("{error:?}").into())
                    .boxed_clone()
            }
        }
    }
}

fn race(wire: Wire) -> Wire {
    BoxCloneService::new(service_fn(move |request: Call| {
        let first = wire.clone().oneshot(request);
        let second = wire.clone();
        async move {
            let second = async move {
                tokio::time::sleep(stretched(STATIC)).await;
                second.oneshot(call()).await
            };
            tokio::select! {
                biased;
                first = first => first,
                second = second => second,
            }
        }
    }))
}

#[derive(Debug, Clone, Copy)]
struct Always;

impl Policy<Call> for Always {
    fn clone_request(&self, _: &Call) -> Option<Call> {
        Some(call())
    }

    fn can_retry(&self, _: &Call) -> bool {
        true
    }
}
