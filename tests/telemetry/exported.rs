//! What an exporter shows: names, help texts, prefixes.

use metrics_exporter_prometheus::PrometheusBuilder;
use tower::ServiceExt;
use tower_reprise::telemetry::{self, Prefixed};

use crate::setup::{URI, deps, get, peer, reply, retry_only};

#[tokio::test(start_paused = true)]
async fn o_2_a_prefix_is_for_metrics_of_this_crate() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let scrape = recorder.handle();
    let prefixed = Prefixed::new("shop", recorder).unwrap();
    let guard = metrics::set_default_local_recorder(&prefixed);
    telemetry::describe();
    metrics::describe_counter!("orders_total", "Orders");
    metrics::counter!("orders_total").increment(1);
    let client = retry_only(&deps(), peer([reply(503, &[]), reply(200, &[])]));
    for _ in 0..2 {
        client.clone().oneshot(get(URI)).await.unwrap();
    }
    drop(guard);

    let text = scrape.render();
    let mut names: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "orders_total",
            "shop_calls_total",
            "shop_retry_attempts_total",
            "shop_retry_backoff_duration_seconds",
            "shop_retry_budget_utilization_ratio",
        ]
    );
    let labels = r#"service="checkout",dependency="stock.example:8080""#;
    for line in [
        format!(r#"shop_calls_total{{{labels},outcome="success"}} 1"#),
        format!(r#"shop_retry_attempts_total{{{labels},attempt_number="1"}} 1"#),
        "orders_total 1".to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nnot in\n{text}");
    }
}

#[test]
fn o_2_a_prefix_is_a_word() {
    for prefix in ["", "9lives", "_shop", "shop-a", "shop a", "caf\u{e9}"] {
        let error = Prefixed::new(prefix, metrics::NoopRecorder).unwrap_err();
        assert_eq!((error.field(), error.value()), ("prefix", prefix));
    }
    for prefix in ["shop", "Shop_2"] {
        Prefixed::new(prefix, metrics::NoopRecorder).unwrap();
    }
}
