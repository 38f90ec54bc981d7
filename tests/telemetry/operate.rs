//! The dashboard, the alert rules and the guide, against what an exporter shows.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer as _, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyLayer,
    delivery::replay::Replay,
    server::dialect::Scope,
    store::{CrashPolicy, MemoryStore},
    telemetry,
};

use crate::{
    hedges,
    setup::{URI, deps, get, peer, policy, reply, retry_only},
    support::{
        flaky::Flaky,
        promql::{Exported, alerts, assert_documented, panels},
    },
};

const MINUTE: Duration = Duration::from_secs(60);

async fn hedged_calls() {
    let deps = Dependencies::new(hedges::hedging().build().unwrap());
    let lost = [Some((15, 200)), None];
    let client = || hedges::client(&deps, lost).oneshot(get(URI));
    // The first is not funded.
    client().await.unwrap();
    (0..100).for_each(|_| deps.get("stock.example:8080").deposit());
    client().await.unwrap();
}

async fn calls() {
    let replies = [200, 503, 200, 404].map(|status| reply(status, &[]));
    let client = retry_only(&deps(), peer(replies));
    for _ in 0..3 {
        client.clone().oneshot(get(URI)).await.unwrap();
    }
    let down = || (0..4).map(|_| reply(503, &[]));
    retry_only(&deps(), peer(down()))
        .oneshot(get(URI))
        .await
        .unwrap();
    let frugal = policy().budget_floor(0).budget_ratio(0.0).build().unwrap();
    let client = retry_only(&Dependencies::new(frugal), peer(down()));
    client.oneshot(get(URI)).await.unwrap();
    let deps = deps();
    deps.get("stock.example:8080").force_open();
    let client = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new(deps))
        .service(peer([]));
    client.oneshot(get(URI)).await.unwrap_err();
}

fn keyed(key: &str) -> Request<Full<Bytes>> {
    let request = Request::post("/orders").header("idempotency-key", key);
    request.body(Full::default()).unwrap()
}

async fn operations() {
    let store = Flaky::default();
    let layer = IdempotencyLayer::builder(store.clone())
        .scope(Scope::anonymous("everybody"))
        .crash_policy(CrashPolicy::Reexecute)
        .build()
        .unwrap();
    let goes_down = store.clone();
    let handler = service_fn(move |request: Request<_>| {
        let key = request.headers()["idempotency-key"].clone();
        if key == "settled-late" {
            goes_down.go_down();
        }
        async move {
            if key == "broken-off" {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    let server = layer.layer(handler);
    let _ = server.clone().oneshot(keyed("settled-late")).await;
    let _ = server.clone().oneshot(keyed("refused")).await;
    store.heal();
    // Its lease is not renewed while the store is down.
    let broken_off = tokio::spawn(server.clone().oneshot(keyed("broken-off")));
    tokio::time::sleep(Duration::from_secs(1)).await;
    store.go_down();
    tokio::time::sleep(10 * MINUTE).await;
    store.heal();
    let repeated = tokio::spawn(server.oneshot(keyed("broken-off")));
    tokio::time::sleep(Duration::from_secs(1)).await;
    broken_off.abort();
    repeated.abort();
}

async fn replays() {
    let failing = service_fn(async |_: Request<Full<Bytes>>| {
        let reply = Response::builder().status(500);
        Ok::<_, Infallible>(reply.body(Full::<Bytes>::default()).unwrap())
    });
    let replay_on = |store| {
        let replay = Replay::builder(store, Scope::new(|_| Some("ada")));
        let replay = replay.build().unwrap();
        replay.maintenance().on(None);
        replay
    };
    let queued = async |replay: &Replay<MemoryStore>, key| {
        let mut request = keyed(key);
        request
            .headers_mut()
            .insert("replay", "true".parse().unwrap());
        let accepted = replay.layer().layer(failing).oneshot(request).await;
        accepted.unwrap().status()
    };
    let full = replay_on(MemoryStore::builder().max_entries(1).build().unwrap());
    assert_eq!(queued(&full, "a").await, 202);
    assert_eq!(queued(&full, "b").await, 503);

    let replay = replay_on(MemoryStore::new());
    assert_eq!(queued(&replay, "a").await, 202);
    let worker = replay.worker::<Full<Bytes>, _>(failing).start().unwrap();
    replay.maintenance().off();
    tokio::time::sleep(10 * MINUTE).await;
    drop(worker);
}

/// Makes every metric of the crate, and returns what an exporter shows then.
async fn exported() -> Exported {
    let recorder = PrometheusBuilder::new().build_recorder();
    let guard = metrics::set_default_local_recorder(&recorder);
    telemetry::describe();
    calls().await;
    hedged_calls().await;
    operations().await;
    replays().await;
    drop(guard);
    Exported::parse(&recorder.handle().render())
}

#[tokio::test(start_paused = true)]
async fn o_2_the_guide_has_every_metric_as_it_is_exported() {
    let exported = exported().await;
    // The others need a gateway, or a server.
    let here = |name: &str| {
        !["gateway_", "postgres_", "store_batch_"]
            .iter()
            .any(|of| name.starts_with(of))
    };
    assert_documented(&exported, here);
}

#[tokio::test(start_paused = true)]
async fn o_2_dashboard_and_alerts_ask_for_what_is_exported() {
    let exported = exported().await;
    let dashboard = include_str!("../../examples/operate/dashboard.json");
    let panels = panels(&serde_json::from_str(dashboard).unwrap());
    assert!(panels.len() > 20, "{panels:?}");
    for expr in panels {
        assert_eq!(exported.misses(&expr), [""; 0], "{expr}");
    }
    let mut alerts = alerts(include_str!("../../examples/operate/alerts.yml"));
    alerts.retain(|(name, _)| !name.starts_with("Gateway"));
    assert_eq!(alerts.len(), 9);
    for (name, expr) in alerts {
        assert_eq!(exported.misses(&expr), [""; 0], "{name}: {expr}");
    }
}

/// The test of the files can fail.
#[test]
fn what_is_not_exported_is_found() {
    let exported = Exported::parse(
        "# HELP calls_total Calls\n# TYPE calls_total counter\ncalls_total{outcome=\"success\"} 1\n",
    );
    for (expr, misses) in [
        ("sum by (outcome) (rate(calls_total[5m])) > 0.05", ""),
        (
            "rate(calls_total{outcome=\"success\"}[$__rate_interval])",
            "",
        ),
        ("sum(rate(call_total[5m]))", "metric call_total"),
        (
            "calls_total{outcome!~\"success|sucess\"}",
            "outcome!~sucess of calls_total",
        ),
        (
            "calls_total{result=\"success\"}",
            "label result of calls_total",
        ),
        ("sum by (dependency) (calls_total)", "label dependency"),
        ("label_values(calls_total, service)", "label service"),
        ("calls_total unless calls_total offset 10m", ""),
    ] {
        assert_eq!(exported.misses(expr).join(", "), misses, "{expr}");
    }
}
