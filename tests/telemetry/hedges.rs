//! O-2: what hedges did, and why others were not sent.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Method;
use metrics_util::debugging::DebugValue;
use tower::{Layer, ServiceExt, service_fn};
use tower_reprise::{
    Dependencies, HedgeLayer, RetryOverride, dependency::Dependency, policy::PolicyBuilder,
};

use crate::{
    setup::{Client, URI, get, policy, reply},
    support::telemetry::{Log, count, expected, measured},
};

const LABELS: &str = "service=checkout,dependency=stock.example:8080";

pub(crate) fn hedging() -> PolicyBuilder {
    let delay = Duration::from_millis(10);
    policy().hedge_delay(delay, delay)
}

/// The attempts of a call are answered with these statuses after so many milliseconds, or never.
pub(crate) fn client(deps: &Dependencies, attempts: [Option<(u64, u16)>; 2]) -> Client {
    let next = Arc::new(AtomicUsize::new(0));
    let server = service_fn(move |_| {
        let attempt = attempts[next.fetch_add(1, Ordering::Relaxed)];
        async move {
            let Some((after, status)) = attempt else {
                return pending().await;
            };
            tokio::time::sleep(Duration::from_millis(after)).await;
            reply(status, &[])
        }
    });
    Client::new(HedgeLayer::new(deps.clone()).layer(server))
}

/// The counts of hedges, by result and by reason.
fn of_hedges(measured: BTreeMap<String, DebugValue>) -> BTreeMap<String, DebugValue> {
    let hedges = measured.into_iter();
    hedges
        .filter(|(name, _)| name.starts_with("hedges"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn o_2_hedges_are_counted_by_their_results() {
    for (result, attempts) in [
        ("won", [None, Some((5, 200))]),
        ("lost", [Some((15, 200)), None]),
        ("failed", [Some((50, 200)), Some((5, 503))]),
        ("cancelled", [None, None]),
    ] {
        let found = measured(async {
            let deps = Dependencies::new(hedging().build().unwrap());
            (0..100).for_each(|_| deps.get("stock.example:8080").deposit());
            let call = client(&deps, attempts).oneshot(get(URI));
            let _ = tokio::time::timeout(Duration::from_secs(1), call).await;
        })
        .await;
        let name = format!("hedges_total{{{LABELS},result={result}}}");
        assert_eq!(of_hedges(found), expected([(&name, count(1))]), "{result}");
    }
}

#[tokio::test(start_paused = true)]
async fn o_2_hedges_that_are_not_sent_are_counted_by_their_reasons() {
    type Before = fn(&Dependency);
    let funded: Before = |dependency| (0..100).for_each(|_| dependency.deposit());
    let broken: Before = |dependency| {
        (0..100).for_each(|_| dependency.deposit());
        dependency.force_open();
    };
    for (reason, method, off, before) in [
        ("not_idempotent", Method::POST, false, funded),
        ("off", Method::GET, true, funded),
        ("budget", Method::GET, false, (|_| {}) as Before),
        ("breaker", Method::GET, false, broken),
    ] {
        let (log, _guard) = Log::listen();
        let found = measured(async {
            let deps = Dependencies::new(hedging().build().unwrap());
            before(&deps.get("stock.example:8080"));
            let mut request = get(URI);
            *request.method_mut() = method;
            if off {
                request.extensions_mut().insert(RetryOverride::off());
            }
            let client = client(&deps, [Some((50, 200)), None]);
            client.oneshot(request).await.unwrap();
        })
        .await;
        let name = format!("hedges_suppressed_total{{{LABELS},reason={reason}}}");
        assert_eq!(of_hedges(found), expected([(&name, count(1))]), "{reason}");
        let logged = log.with_message("no hedge");
        assert_eq!(logged[0].fields["reason"], reason);
    }
}
