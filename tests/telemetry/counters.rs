//! O-2: counters, gauges and histograms, under which names.

use std::{collections::BTreeSet, time::Duration};

use metrics_exporter_prometheus::PrometheusBuilder;
use metrics_util::debugging::DebuggingRecorder;
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, RetryAfterLayer, RetryBudgetLayer,
    call::Attempt,
    dependency::BreakerState,
    error::{Refused, Rule},
};

use crate::{
    setup::{URI, deps, get, peer, policy, refused, reply, retry_only, stack},
    support::telemetry::{Log, count, counted, expected, gauge, measured, samples},
};

#[tokio::test(start_paused = true)]
async fn o_2_an_exhausted_call_is_counted_under_these_names() {
    let measured = measured(async {
        let busy = || reply(503, &[("retry-after", "7")]);
        let client = stack(&deps(), peer([busy(), busy(), busy(), busy()]));
        assert_eq!(client.oneshot(get(URI)).await.unwrap().status(), 503);
    })
    .await;
    let labels = "service=checkout,dependency=stock.example:8080";
    let attempts = |n| format!("retry_attempts_total{{{labels},attempt_number={n}}}");
    assert_eq!(
        measured,
        expected([
            (&attempts(1), count(1)),
            (&attempts(2), count(1)),
            (&attempts(3), count(1)),
            (&format!("retry_exhausted_total{{{labels}}}"), count(1)),
            (
                &format!("calls_total{{{labels},outcome=exhausted}}"),
                count(1)
            ),
            (
                &format!("retry_backoff_duration_seconds{{{labels}}}"),
                samples(&[7.0, 7.0, 7.0])
            ),
            // Three of the ten that a quiet client is allowed.
            (
                &format!("retry_budget_utilization_ratio{{{labels}}}"),
                gauge(0.3)
            ),
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn o_2_calls_are_counted_by_outcome() {
    let measured = measured(async {
        let replies = [200, 404, 503, 200, 200];
        let client = stack(&deps(), peer(replies.map(|status| reply(status, &[]))));
        for _ in 0..4 {
            client.clone().oneshot(get(URI)).await.unwrap();
        }
        // Ready at once or not, a success is a success.
        let slow = service_fn(async |_| {
            tokio::time::sleep(Duration::from_millis(1)).await;
            reply(200, &[])
        });
        let client = retry_only(&deps(), BoxCloneService::new(slow));
        client.oneshot(get(URI)).await.unwrap();
    })
    .await;
    for (outcome, calls) in [
        ("success", 3),
        ("success_after_retry", 1),
        ("not_retryable", 1),
    ] {
        let labels = format!("service=checkout,dependency=stock.example:8080,outcome={outcome}");
        let counted = measured.get(&format!("calls_total{{{labels}}}"));
        assert_eq!(counted, Some(&count(calls)), "{outcome}");
    }
}

/// A recorder that comes later is not heard of then; otherwise each call looks for the one there is.
#[tokio::test(start_paused = true)]
async fn o_2_an_installed_recorder_is_looked_up_once() {
    for (installed, seen_by_the_second) in [(false, Some(count(1))), (true, None)] {
        let builder = Dependencies::builder(policy().build().unwrap());
        let deps = match installed {
            true => builder.recorder_installed().build(),
            false => builder.build(),
        };
        let calls = |times| {
            let client = retry_only(&deps, peer([]));
            async move {
                for _ in 0..times {
                    client.clone().oneshot(get(URI)).await.unwrap();
                }
            }
        };
        let name = "calls_total{service=checkout,dependency=stock.example:8080,outcome=success}";
        let first = measured(calls(2)).await;
        assert_eq!(first.get(name), Some(&count(2)), "{installed}");
        let second = measured(calls(1)).await;
        assert_eq!(second.get(name), seen_by_the_second.as_ref(), "{installed}");
    }
}

#[tokio::test(start_paused = true)]
async fn o_2_a_retry_that_succeeds_is_not_exhausted() {
    let measured = measured(async {
        let client = retry_only(&deps(), peer([reply(503, &[])]));
        client.oneshot(get(URI)).await.unwrap();
    })
    .await;
    let names: BTreeSet<_> = measured
        .keys()
        .map(|key| &key[..key.find('{').unwrap()])
        .collect();
    assert_eq!(
        Vec::from_iter(names),
        [
            "calls_total",
            "retry_attempts_total",
            "retry_backoff_duration_seconds",
            "retry_budget_utilization_ratio"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn o_2_a_wait_that_does_not_fit_is_exhaustion() {
    let measured = measured(async {
        let client = retry_only(&deps(), peer([reply(503, &[("retry-after", "3600")])]));
        client.oneshot(get(URI)).await.unwrap();
    })
    .await;
    let labels = "service=checkout,dependency=stock.example:8080";
    assert_eq!(
        measured,
        expected([
            (&format!("retry_exhausted_total{{{labels}}}"), count(1)),
            (
                &format!("calls_total{{{labels},outcome=deadline}}"),
                count(1)
            ),
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn g_4_a_retry_that_the_budget_refused_is_suppressed() {
    let (log, _guard) = Log::listen();
    let measured = measured(async {
        let policy = policy().budget_floor(0).budget_ratio(0.0);
        let deps = Dependencies::new(policy.build().unwrap());
        let client = retry_only(&deps, peer([reply(503, &[])]));
        assert_eq!(client.oneshot(get(URI)).await.unwrap().status(), 503);
    })
    .await;
    let labels = "service=checkout,dependency=stock.example:8080";
    assert_eq!(
        measured,
        expected([
            (&format!("retry_suppressed{{{labels}}}"), count(1)),
            (&format!("calls_total{{{labels},outcome=budget}}"), count(1)),
            (
                &format!("retry_budget_utilization_ratio{{{labels}}}"),
                gauge(1.0)
            ),
        ])
    );
    assert!(log.retries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn o_2_a_breaker_shows_its_state_and_whom_it_refused() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (log, _guard) = Log::listen();
    let policy = policy().consecutive_failures(2);
    let deps = Dependencies::new(policy.build().unwrap());
    let client = ServiceBuilder::new()
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .service(peer([reply(503, &[]), refused()]));
    let _ = client.clone().oneshot(get(URI)).await;
    let _ = client.clone().oneshot(get(URI)).await;
    for _ in 0..3 {
        let error = client.clone().oneshot(get(URI)).await.unwrap_err();
        assert!(Refused::find(&*error).is_some());
    }
    let labels = "service=checkout,dependency=stock.example:8080";
    let open = format!("circuit_breaker_open{{{labels}}}");
    let refusals = format!("calls_refused_total{{{labels},by=breaker}}");
    let measured = counted(&snapshotter);
    assert_eq!(
        measured,
        expected([(&open, gauge(1.0)), (&refusals, count(3))])
    );
    let opened = log.with_message("circuit breaker opened");
    assert_eq!(opened.len(), 1);
    assert_eq!(opened[0].fields["reason"], "failures");
    assert_eq!(opened[0].fields["error_type"], "connect");

    tokio::time::advance(Duration::from_secs(2)).await;
    client.oneshot(get(URI)).await.unwrap();
    assert_eq!(counted(&snapshotter)[&open], gauge(0.0));
    assert_eq!(log.with_message("circuit breaker closed").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn o_2_other_refusals_say_by_whom() {
    let labels = "service=checkout,dependency=stock.example:8080";
    let by_gate = measured(async {
        let client = ServiceBuilder::new()
            .layer(RetryAfterLayer::new(deps()))
            .service(peer([reply(503, &[("retry-after", "3600")])]));
        client.clone().oneshot(get(URI)).await.unwrap();
        client.oneshot(get(URI)).await.unwrap_err();
    })
    .await;
    let refusals = format!("calls_refused_total{{{labels},by=retry_after}}");
    assert_eq!(by_gate, expected([(&refusals, count(1))]));

    let by_budget = measured(async {
        let policy = policy().budget_floor(0).budget_ratio(0.0);
        let client = ServiceBuilder::new()
            .layer(RetryBudgetLayer::new(Dependencies::new(
                policy.build().unwrap(),
            )))
            .service(peer([]));
        let mut request = get(URI);
        request.extensions_mut().insert(Attempt::retry(1));
        client.oneshot(request).await.unwrap_err();
    })
    .await;
    let refusals = format!("calls_refused_total{{{labels},by=budget}}");
    assert_eq!(by_budget[&refusals], count(1));
}

#[tokio::test(start_paused = true)]
async fn o_2_attempt_numbers_are_bounded() {
    let measured = measured(async {
        let policy = policy()
            .max_retries(14)
            .budget_floor(100)
            .approve(Rule::R2, "a test")
            .approve(Rule::R7, "a test");
        let deps = Dependencies::new(policy.build().unwrap());
        let client = retry_only(&deps, peer((0..20).map(|_| reply(503, &[]))));
        client.oneshot(get(URI)).await.unwrap();
    })
    .await;
    let mut numbers: Vec<_> = measured
        .iter()
        .filter_map(|(key, value)| {
            let (name, number) = key.split_once("attempt_number=")?;
            assert!(name.starts_with("retry_attempts_total{"), "{name}");
            Some((number.trim_end_matches('}'), value))
        })
        .collect();
    numbers.sort_by_key(|(number, _)| number.parse().unwrap_or(u32::MAX));
    assert_eq!(numbers.len(), 11);
    for (i, (number, value)) in numbers.iter().enumerate().take(10) {
        assert_eq!((*number, *value), (&*(i + 1).to_string(), &count(1)));
    }
    assert_eq!(numbers[10], ("more", &count(4)));
}

#[tokio::test(start_paused = true)]
async fn o_2_dependency_labels_are_bounded() {
    let (log, _guard) = Log::listen();
    let measured = measured(async {
        let deps = Dependencies::builder(policy().build().unwrap())
            .capacity(2)
            .build();
        for i in 0..9 {
            let client = retry_only(&deps, peer([reply(503, &[])]));
            let uri = format!("http://host-{i}.example/");
            client.oneshot(get(&uri)).await.unwrap();
        }
    })
    .await;
    let dependencies: BTreeSet<_> = measured
        .keys()
        .map(|key| {
            let (_, rest) = key.split_once("dependency=").unwrap();
            rest.split([',', '}']).next().unwrap()
        })
        .collect();
    assert_eq!(
        Vec::from_iter(dependencies),
        ["host-0.example", "host-1.example", "overflow"]
    );
    let warned = log.with_message(
        "no entry for a dependency, for want of room or for its name: such share one",
    );
    assert_eq!(warned.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn o_2_the_dependency_is_host_and_port() {
    for (uri, dependency) in [
        (
            "http://user:hunter2@stock.example:8080/a?b=c",
            "stock.example:8080",
        ),
        ("http://Stock.Example/a", "stock.example"),
        ("https://stock.example:8443/a", "stock.example:8443"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ] {
        let measured = measured(async {
            let client = retry_only(&deps(), peer([reply(503, &[])]));
            client.oneshot(get(uri)).await.unwrap();
        })
        .await;
        let name = format!("dependency={dependency}");
        let named = |key: &String| {
            key.trim_end_matches('}')
                .split(['{', ','])
                .any(|part| part == name)
        };
        assert_eq!(measured.len(), 4);
        assert!(measured.keys().all(named), "{measured:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn o_2_prometheus_can_scrape_it() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let guard = metrics::set_default_local_recorder(&recorder);
    let far = Duration::from_secs(9);
    let policy = policy().consecutive_failures(4).cooldown(far, far);
    let deps = Dependencies::new(policy.build().unwrap());
    let busy = || reply(503, &[]);
    let client = stack(&deps, peer([busy(), busy(), busy(), busy()]));
    client.clone().oneshot(get(URI)).await.unwrap();
    client.oneshot(get(URI)).await.unwrap_err();
    drop(guard);

    let text = recorder.handle().render();
    let labels = r#"service="checkout",dependency="stock.example:8080""#;
    for line in [
        &*format!(r#"retry_attempts_total{{{labels},attempt_number="1"}} 1"#),
        &format!(r#"retry_attempts_total{{{labels},attempt_number="3"}} 1"#),
        &format!("retry_exhausted_total{{{labels}}} 1"),
        &format!("retry_backoff_duration_seconds_count{{{labels}}} 3"),
        &format!("retry_budget_utilization_ratio{{{labels}}} 0.3"),
        &format!("circuit_breaker_open{{{labels}}} 1"),
        &format!(r#"calls_refused_total{{{labels},by="breaker"}} 1"#),
        "# TYPE retry_attempts_total counter",
        "# TYPE retry_budget_utilization_ratio gauge",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nnot in\n{text}");
    }
}

/// O-4: the gauge of a budget falls when calls succeed again, without a further retry.
#[tokio::test(start_paused = true)]
async fn o_4_the_gauge_of_a_clients_budget_falls_after_recovery() {
    let ratio = "retry_budget_utilization_ratio{service=checkout,dependency=stock.example:8080}";
    let used = async |recovers: bool| {
        let measured = measured(async {
            let deps = Dependencies::new(policy().budget_floor(1).build().unwrap());
            let client = retry_only(&deps, peer([reply(503, &[])]));
            client.clone().oneshot(get(URI)).await.unwrap();
            for _ in 0..if recovers { 4 } else { 0 } {
                tokio::time::sleep(Duration::from_secs(20)).await;
                client.clone().oneshot(get(URI)).await.unwrap();
            }
        });
        measured.await.remove(ratio)
    };
    assert_ne!(used(false).await, Some(gauge(0.0)));
    assert_eq!(used(true).await, Some(gauge(0.0)));
}

/// O-4: a dependency that goes away takes its gauges along.
#[tokio::test(start_paused = true)]
async fn o_4_gauges_fall_when_a_dependency_is_evicted() {
    let labels = "{service=checkout,dependency=stock.example:8080}";
    let mut measured = measured(async {
        let second = Duration::from_secs(1);
        let policy = policy().consecutive_failures(2).cooldown(second, second);
        let deps = Dependencies::builder(policy.build().unwrap());
        let deps = deps.idle(Duration::from_secs(60)).build();
        let busy = || reply(503, &[]);
        let client = stack(&deps, peer([busy(), busy(), busy(), busy()]));
        let _ = client.oneshot(get(URI)).await;
        assert!(!matches!(
            deps.get("stock.example:8080").status().breaker,
            BreakerState::Closed
        ));
        // Others make the registry look what is idle.
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            let _ = deps.get(&format!("{}.example", rand::random::<u32>()));
        }
        assert!(
            deps.list()
                .iter()
                .all(|known| known.name() != "stock.example:8080")
        );
    })
    .await;
    for name in ["circuit_breaker_open", "retry_budget_utilization_ratio"] {
        let value = measured.remove(&format!("{name}{labels}"));
        assert_eq!(value, Some(gauge(0.0)), "{name}");
    }
}
