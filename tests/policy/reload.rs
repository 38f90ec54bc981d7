//! Other policies for a registry that calls are going through. The rule is P-4's: a file is read
//! while the service runs, and no call is dropped or sees half of it.

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, Policy, RetryAfterLayer, RetryBudgetLayer, RetryLayer,
    RetryOutcome,
    backoff::Backoff,
    call::StopReason,
    dependency::BreakerState,
    error::{BoxError, Refusal, Refused, Rule},
    policy::{Policies, PolicyBuilder, RetryAfterMode},
};

use crate::support::{call, outcome};

const SECOND: Duration = Duration::from_secs(1);
const NAME: &str = "stock.example";

fn get() -> Request<()> {
    Request::get("http://stock.example/").body(()).unwrap()
}

fn policy() -> PolicyBuilder {
    Policy::http().budget_floor(10)
}

fn retries(retries: u32) -> Policy {
    policy().max_retries(retries).build().unwrap()
}

type Client = BoxCloneService<Request<()>, Response<()>, BoxError>;

/// Whatever is asked of it, it answers with that status.
fn always(
    layer: impl Layer<
        BoxCloneService<Request<()>, Response<()>, Infallible>,
        Service: Service<Request<()>, Response = Response<()>, Error = BoxError, Future: Send>
                     + Clone
                     + Send
                     + 'static,
    >,
    status: StatusCode,
) -> Client {
    let server = service_fn(move |_: Request<()>| {
        ready(Ok(Response::builder().status(status).body(()).unwrap()))
    });
    layer.layer(server.boxed_clone()).boxed_clone()
}

fn failing(deps: &Dependencies) -> Client {
    always(
        RetryLayer::new(deps.clone()),
        StatusCode::SERVICE_UNAVAILABLE,
    )
}

async fn attempts(client: &mut Client) -> u32 {
    let result = call(client, get()).await;
    outcome(&result).expect("it failed").0
}

#[tokio::test(start_paused = true)]
async fn p_4_services_and_their_clones_see_the_next_policies() {
    let deps = Dependencies::new(retries(3));
    let template = failing(&deps);
    let mut used = template.clone();
    assert_eq!(attempts(&mut used).await, 4);
    tokio::time::advance(60 * SECOND).await;
    for next in [1, 2, 1, 2] {
        deps.clone().reload(retries(next));
        // Enough originals for all retries.
        (0..100).for_each(|_| deps.get(NAME).deposit());
        assert_eq!(deps.get(NAME).policy().max_retries(), next);
        assert_eq!(attempts(&mut used).await, next + 1, "one that was used");
        assert_eq!(attempts(&mut template.clone()).await, next + 1, "a clone");
        assert_eq!(attempts(&mut used.clone()).await, next + 1);
        let mut fresh = failing(&deps);
        assert_eq!(attempts(&mut fresh).await, next + 1, "a new one");
        tokio::time::advance(60 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p_4_a_call_ends_by_the_policy_it_began_with() {
    let deps = Dependencies::new(retries(3));
    let seen = Arc::new(AtomicUsize::new(0));
    let (counted, reloaded) = (Arc::clone(&seen), deps.clone());
    let mut client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps))
        .service_fn(move |_: Request<()>| {
            if counted.fetch_add(1, Ordering::Relaxed) == 0 {
                // By this one there would be no retry at all.
                let strict = policy()
                    .max_retries(1)
                    .no_retry_status(StatusCode::SERVICE_UNAVAILABLE);
                reloaded.reload(strict.build().unwrap());
            }
            let busy = Response::builder().status(StatusCode::SERVICE_UNAVAILABLE);
            ready(Ok::<_, Infallible>(busy.body(()).unwrap()))
        });
    let first = call(&mut client, get()).await;
    assert_eq!(outcome(&first), Some((4, Some(StopReason::Exhausted))));
    let second = call(&mut client, get()).await;
    assert_eq!(outcome(&second), Some((1, Some(StopReason::NotRetryable))));
    assert_eq!(seen.load(Ordering::Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn p_4_a_dependency_that_is_held_keeps_its_policy_and_shares_the_state() {
    let deps = Dependencies::new(retries(3));
    let held = deps.get(NAME);
    deps.reload(Policies::new(retries(2)).policy_for(NAME, retries(1)));
    let next = deps.get(NAME);
    assert!(!Arc::ptr_eq(&held, &next));
    assert_eq!(held.policy().max_retries(), 3);
    assert_eq!(next.policy().max_retries(), 1);
    assert_eq!(deps.get("other.example").policy().max_retries(), 2);
    held.deposit();
    assert_eq!(next.status().originals, 1);
    assert_eq!(deps.list().len(), 2);
    assert_eq!(deps.audit(), Policies::new(retries(3)).audit());
}

#[tokio::test(start_paused = true)]
async fn g_1_a_reload_gives_no_retries_away() {
    let generous = policy().budget_floor(10).build().unwrap();
    let deps = Dependencies::new(generous.clone());
    let mut client = failing(&deps);
    // The floor is ten retries in 30 s.
    for _ in 0..4 {
        let _ = attempts(&mut client).await;
        deps.reload(generous.clone());
    }
    let status = deps.get(NAME).status();
    assert_eq!((status.originals, status.retries), (4, 10));
    let result = call(&mut client, get()).await;
    assert_eq!(outcome(&result), Some((1, Some(StopReason::Budget))));

    deps.reload(policy().budget_floor(2).build().unwrap());
    let status = deps.get(NAME).status();
    assert_eq!((status.retries, status.retries_allowed), (10, Some(2)));
    deps.reload(
        policy()
            .budget_floor(11)
            .approve(Rule::R7, "test")
            .build()
            .unwrap(),
    );
    assert_eq!(attempts(&mut client).await, 1, "only successes earn more");
}

fn broken(deps: &Dependencies) -> Client {
    always(
        CircuitBreakerLayer::new(deps.clone()),
        StatusCode::INTERNAL_SERVER_ERROR,
    )
}

#[tokio::test(start_paused = true)]
async fn cb_1_a_reload_forgets_no_failures_in_a_row() {
    let deps = Dependencies::new(policy().consecutive_failures(9).build().unwrap());
    let mut client = broken(&deps);
    for _ in 0..4 {
        assert!(call(&mut client, get()).await.is_ok());
    }
    deps.reload(policy().consecutive_failures(5).build().unwrap());
    assert_eq!(deps.get(NAME).status().breaker, BreakerState::Closed);
    assert!(call(&mut client, get()).await.is_ok());
    let breaker = deps.get(NAME).status().breaker;
    assert!(matches!(breaker, BreakerState::Open(_)), "{breaker:?}");

    // It stays open, for the cooldown it was opened with.
    let cooldown = policy().cooldown(60 * SECOND, 60 * SECOND);
    deps.reload(cooldown.build().unwrap());
    let error = call(&mut client, get()).await.unwrap_err();
    assert_eq!(Refused::find(&*error).unwrap().kind(), Refusal::Breaker);
    tokio::time::advance(SECOND).await;
    assert!(call(&mut client, get()).await.is_ok(), "the probe");
    let BreakerState::Open(left) = deps.get(NAME).status().breaker else {
        unreachable!("the probe failed");
    };
    assert!(left >= 48 * SECOND, "the next cooldown is the new one");
}

#[tokio::test(start_paused = true)]
async fn cb_1_a_window_of_another_length_begins_anew() {
    let rate = |window| {
        policy()
            .consecutive_failures(100)
            .failure_rate(0.5, 4, window)
    };
    for (before, after) in [(10, 1000), (1000, 10)] {
        let deps = Dependencies::new(rate(SECOND * before).build().unwrap());
        let mut client = broken(&deps);
        tokio::time::advance(5000 * SECOND).await;
        for _ in 0..3 {
            assert!(call(&mut client, get()).await.is_ok());
        }
        deps.reload(rate(SECOND * after).build().unwrap());
        for _ in 0..3 {
            assert!(call(&mut client, get()).await.is_ok());
            assert_eq!(deps.get(NAME).status().breaker, BreakerState::Closed);
        }
        assert!(call(&mut client, get()).await.is_ok());
        let breaker = deps.get(NAME).status().breaker;
        assert!(matches!(breaker, BreakerState::Open(_)), "{breaker:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ra_9_a_reload_opens_no_gate() {
    let deps = Dependencies::new(policy().build().unwrap());
    let mut client = ServiceBuilder::new()
        .layer(RetryAfterLayer::new(deps.clone()))
        .service_fn(|_: Request<()>| {
            let busy = Response::builder()
                .status(StatusCode::SERVICE_UNAVAILABLE)
                .header("retry-after", "20");
            ready(Ok::<_, Infallible>(busy.body(()).unwrap()))
        });
    let _ = call(&mut client, get()).await;
    let refusing = policy().retry_after_mode(RetryAfterMode::Refuse);
    deps.reload(refusing.build().unwrap());
    let error = call(&mut client, get()).await.unwrap_err();
    assert_eq!(Refused::find(&*error).unwrap().kind(), Refusal::RetryAfter);
    assert_eq!(deps.get(NAME).status().hold, Some(20 * SECOND));
}

#[test]
fn g_8_what_has_no_entry_of_its_own_is_reloaded_too() {
    let deps = Dependencies::builder(retries(3)).capacity(0).build();
    assert_eq!(deps.get("a").name(), "overflow");
    deps.get("a").deposit();
    deps.reload(Policies::new(retries(1)).policy_for("b", retries(2)));
    assert_eq!(deps.get("a").policy().max_retries(), 1);
    assert_eq!(deps.get("a").status().originals, 1);
    assert_eq!((deps.get("b").name(), deps.list().len()), ("b", 2));
}

#[tokio::test(start_paused = true)]
async fn g_8_a_reload_keeps_no_idle_dependency_alive() {
    let idle = Duration::from_secs(300);
    let deps = Dependencies::new(retries(3));
    let _ = deps.get("a");
    for i in 0..12 {
        tokio::time::advance(idle / 4).await;
        deps.reload(retries(1 + i % 3));
        let _ = deps.get(&format!("other-{i}"));
    }
    let names: Vec<_> = deps.list().iter().map(|d| d.name().to_owned()).collect();
    assert!(!names.contains(&"a".to_owned()), "{names:?}");
}

#[test]
fn p_4_a_dependency_that_is_met_during_a_reload_has_the_next_policy() {
    let (before, after) = (retries(3), retries(1));
    for _ in 0..300 {
        let deps = Dependencies::new(before.clone());
        let (all, met) = (Barrier::new(3), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    all.wait();
                    for _ in 0..100 {
                        let next = met.fetch_add(1, Ordering::Relaxed);
                        let _ = deps.get(&format!("new-{next}"));
                    }
                });
            }
            all.wait();
            while met.load(Ordering::Relaxed) < 50 {
                std::hint::spin_loop();
            }
            deps.reload(after.clone());
        });
        let policies = deps.list();
        let policies = policies.iter().map(|dependency| dependency.policy());
        assert_eq!(
            policies.map(Policy::max_retries).collect::<Vec<_>>(),
            [1; 200]
        );
    }
}

/// P-4: calls whose host can't be a name find their dependency while the policies change.
#[test]
fn p_4_a_reload_and_a_call_to_no_known_dependency_do_not_wait_for_each_other() {
    let (done, is_done) = mpsc::channel();
    let racing = move || {
        let deps = Dependencies::new(retries(3));
        (0..200).for_each(|n| drop(deps.get(&format!("known-{n}"))));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let server =
                        service_fn(|_: Request<()>| ready(Ok::<_, BoxError>(Response::new(()))));
                    let layer = CircuitBreakerLayer::new(deps.clone());
                    let long = format!("http://{}/", "a".repeat(1000));
                    while !stop.load(Ordering::Relaxed) {
                        // A client of its own knows no dependency yet.
                        let request = Request::get(&long).body(()).unwrap();
                        drop(layer.layer(server).call(request));
                    }
                });
            }
            (0..2000).for_each(|n| deps.reload(retries(1 + n % 3)));
            stop.store(true, Ordering::Relaxed);
        });
        done.send(()).unwrap();
    };
    std::thread::spawn(racing);
    let ended = is_done.recv_timeout(60 * SECOND);
    assert!(ended.is_ok(), "they wait for each other");
}

#[cfg(feature = "serde")]
#[test]
fn p_4_a_file_that_is_wrong_changes_nothing() {
    let deps = Dependencies::new(retries(2));
    let before = deps.get(NAME);
    let reload = |text: &str| Policies::from_toml(text).map(|policies| deps.reload(policies));
    let wrong = "default.profile = 'bank'\ndependencies.'stock.example'.max_retries = 6";
    let error = reload(wrong).unwrap_err();
    assert_eq!(error.field(), "dependencies.\"stock.example\".max_retries");
    assert!(Arc::ptr_eq(&before, &deps.get(NAME)));
    reload("default.profile = 'bank'").unwrap();
    assert_eq!(deps.get(NAME).policy().max_retries(), 3);
}

/// No waits, so that a great many calls are made.
#[derive(Debug)]
struct AtOnce;

impl Backoff for AtOnce {
    fn delay(&self, _: u32, _: Duration, _: f64) -> Duration {
        Duration::ZERO
    }
}

/// One of two policies that differ in all that a call goes by.
fn either(first: bool) -> Policy {
    let (retries, not_retried) = match first {
        true => (1, StatusCode::BAD_GATEWAY),
        false => (4, StatusCode::GATEWAY_TIMEOUT),
    };
    policy()
        .backoff(AtOnce)
        .max_retries(retries)
        .no_retry_status(not_retried)
        .consecutive_failures(u32::MAX)
        .failure_rate(1.0, u32::MAX, SECOND * if first { 5 } else { 60 })
        .without_budget()
        .approve(Rule::R1, "at once")
        .approve(Rule::R7, "all are retried")
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p_4_calls_go_on_through_thousands_of_reloads() {
    const RELOADS: usize = 3000;
    let deps = Dependencies::new(either(true));
    let stop = Arc::new(AtomicBool::new(false));
    // It fails as the path says: with a status, once or for good.
    let server = service_fn(|request: Request<()>| async move {
        tokio::task::yield_now().await;
        let status = match request.uri().path() {
            "/502" => 502,
            "/504" => 504,
            // Retried by either.
            _ if request.headers().contains_key("x-again") => 200,
            _ => 503,
        };
        Ok::<_, Infallible>(Response::builder().status(status).body(()).unwrap())
    });
    let client = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(deps.clone()))
        .layer(
            RetryLayer::new(deps.clone()).with_prepare(|mut request: Request<()>, _| {
                request
                    .headers_mut()
                    .insert("x-again", "1".parse().unwrap());
                ready(Ok::<_, BoxError>(request))
            }),
        )
        .layer(RetryAfterLayer::new(deps.clone()))
        .layer(CircuitBreakerLayer::new(deps.clone()))
        .service(server)
        .boxed_clone();
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let (template, stop) = (client.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut used = template.clone();
                let mut seen = [[0_usize; 2]; 2];
                let mut calls = 0_usize;
                while !stop.load(Ordering::Relaxed) {
                    calls += 1;
                    let path = ["/503", "/502", "/504"][calls % 3];
                    let host = ["a.example", "b.example"][caller % 2];
                    let request = Request::get(format!("http://{host}{path}"))
                        .body(())
                        .unwrap();
                    let result = if calls.is_multiple_of(2) {
                        call(&mut used, request).await
                    } else {
                        template.clone().oneshot(request).await
                    };
                    let response = result.expect("no call is refused");
                    let attempts = RetryOutcome::of(&response).map_or(1, RetryOutcome::attempts);
                    match (path, attempts) {
                        ("/503", 2) => assert_eq!(response.status(), 200, "none fails"),
                        // The first policy does not retry 502, and retries 504 once.
                        ("/502", 1) => seen[0][0] += 1,
                        ("/504", 2) => seen[0][1] += 1,
                        // The second retries 502 four times, and 504 not at all.
                        ("/502", 5) => seen[1][0] += 1,
                        ("/504", 1) => seen[1][1] += 1,
                        half => unreachable!("{half:?} is of neither policy"),
                    }
                }
                seen
            })
        })
        .collect();
    let reloads = {
        let deps = deps.clone();
        tokio::task::spawn_blocking(move || {
            for i in 0..RELOADS {
                deps.reload(
                    Policies::new(either(i % 2 == 0)).policy_for("b.example", either(i % 3 == 0)),
                );
                // Names that are met for the first time, while policies change.
                assert!(deps.get(&format!("new-{}", i % 20)).policy().max_retries() > 0);
            }
        })
    };
    let others: Vec<_> = (0..2)
        .map(|thread| {
            let (deps, stop) = (deps.clone(), Arc::clone(&stop));
            tokio::task::spawn_blocking(move || {
                let mut i = 0_usize;
                while !stop.load(Ordering::Relaxed) {
                    i += 1;
                    let _ = deps.get(&format!("met-{thread}-{}", i % 20));
                    std::thread::yield_now();
                }
            })
        })
        .collect();
    reloads.await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let mut seen = [[0; 2]; 2];
    for caller in callers {
        let its = caller.await.unwrap();
        for (sum, count) in seen.iter_mut().flatten().zip(its.iter().flatten()) {
            *sum += count;
        }
    }
    for other in others {
        other.await.unwrap();
    }
    assert!(
        seen.iter().flatten().all(|count| *count > 0),
        "both policies were met: {seen:?}"
    );
    deps.reload(retries(2));
    let left = deps.list();
    assert!(left.len() > 40);
    assert!(
        left.iter()
            .all(|dependency| dependency.policy().max_retries() == 2)
    );
}
