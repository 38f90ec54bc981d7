//! The registry: bounded, forgetful, and one entry per dependency.

use std::{
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tower::{Layer, Service, service_fn};
use tower_reprise::{Dependencies, Policy, RetryLayer, error::BoxError, stacks};

fn policy() -> Policy {
    Policy::http().build().unwrap()
}

#[test]
fn g_2_names_are_compared_without_case() {
    let deps = Dependencies::new(policy());
    assert!(Arc::ptr_eq(&deps.get("A.example"), &deps.get("a.EXAMPLE")));
    assert!(!Arc::ptr_eq(&deps.get("a.example"), &deps.get("b.example")));
    assert_eq!(deps.list().len(), 2);
}

#[test]
fn g_2_clones_of_a_registry_share_and_two_registries_do_not() {
    let deps = Dependencies::new(policy());
    deps.clone().get("a").deposit();
    assert_eq!(deps.get("a").status().originals, 1);
    assert_eq!(Dependencies::new(policy()).get("a").status().originals, 0);
}

#[test]
fn g_8_past_the_bound_all_share_one_entry() {
    let deps = Dependencies::builder(policy()).capacity(3).build();
    for i in 0..1000 {
        deps.get(&format!("host-{i}")).deposit();
    }
    let list = deps.list();
    assert_eq!(list.len(), 4);
    let overflow = deps.get("host-999");
    assert_eq!(overflow.name(), "overflow");
    assert_eq!(overflow.status().originals, 997);
    assert_eq!(deps.get("host-0").name(), "host-0");
}

#[test]
fn g_8_a_dependency_with_a_policy_of_its_own_always_has_an_entry() {
    let strict = Policy::http().max_retries(1).build().unwrap();
    let deps = Dependencies::builder(policy())
        .policy_for("Bank.example", strict)
        .capacity(0)
        .build();
    assert_eq!(deps.get("other.example").name(), "overflow");
    assert_eq!(deps.get("bank.example").policy().max_retries(), 1);
}

#[test]
fn s_3_hostile_names_get_no_entry_of_their_own() {
    let deps = Dependencies::new(policy());
    for name in ["", "a\nb", &"x".repeat(256)] {
        assert_eq!(deps.get(name).name(), "overflow");
    }
    assert_eq!(deps.get(&"x".repeat(255)).name().len(), 255);
}

#[tokio::test(start_paused = true)]
async fn g_8_idle_dependencies_are_forgotten() {
    let idle = Duration::from_secs(300);
    let deps = Dependencies::builder(policy()).capacity(2).build();
    deps.get("a").deposit();
    deps.get("b").deposit();
    assert_eq!(deps.get("c").name(), "overflow");
    // The first look finds both in use, a later one finds them idle.
    tokio::time::advance(idle).await;
    assert_eq!(deps.get("c").name(), "overflow");
    tokio::time::advance(idle).await;
    let _ = deps.get("b");
    assert_eq!(deps.get("c").name(), "c");
    let names: Vec<_> = deps.list().iter().map(|d| d.name().to_owned()).collect();
    assert_eq!(names, ["b", "c", "overflow"]);
}

#[tokio::test(start_paused = true)]
async fn g_7_after_days_idle_a_dependency_is_as_new() {
    let deps = Dependencies::new(policy());
    let dependency = deps.get("a");
    (0..100).for_each(|_| dependency.deposit());
    assert_eq!(dependency.status().retries_allowed, Some(20));
    tokio::time::advance(Duration::from_secs(7 * 24 * 3600)).await;
    assert_eq!(dependency.status().originals, 0);
    assert_eq!(dependency.status().retries_allowed, Some(1));
    dependency.deposit();
    assert_eq!(dependency.status().originals, 1);
}

#[test]
fn g_8_racing_threads_never_pass_the_bound() {
    let deps = Dependencies::builder(policy()).capacity(50).build();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let deps = &deps;
            scope.spawn(move || {
                (0..200).for_each(|i| deps.get(&format!("{}-{i}", thread % 2)).deposit());
            });
        }
    });
    let list = deps.list();
    assert_eq!(list.len(), 51);
    assert_eq!(list.iter().map(|d| d.status().originals).sum::<u64>(), 1600);
}

fn get(host: &str) -> Request<()> {
    let uri = format!("http://{host}/");
    Request::get(uri).body(()).unwrap()
}

/// A service that counts its clones.
#[derive(Default)]
struct Counted(Arc<AtomicUsize>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Service<Request<()>> for Counted {
    type Response = Response<http_body_util::Empty<bytes::Bytes>>;
    type Error = BoxError;
    type Future = Ready<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::default()))
    }
}

/// A client of many dependencies does not copy its service for each.
#[tokio::test]
async fn g_2_many_dependencies_share_what_retries_call() {
    let deps = Dependencies::new(policy());
    let counted = Counted::default();
    let clones = Arc::clone(&counted.0);
    let mut client = stacks::client(deps.clone()).layer(counted);
    for round in 1..=2 {
        for host in 0..100 {
            client.call(get(&format!("h{host}"))).await.unwrap();
        }
        let status = |host| deps.get(&format!("h{host}")).status();
        assert!((0..100).all(|host| status(host).originals == round));
    }
    assert_eq!(clones.load(Ordering::Relaxed), 1);
}

/// A service replaces its cached route when it calls another dependency, but a running call keeps
/// its own.
#[tokio::test(start_paused = true)]
async fn g_2_a_call_keeps_its_dependency_while_others_begin() {
    let deps = Dependencies::new(policy());
    let failing = Arc::new(AtomicUsize::new(1));
    let service = service_fn(move |request: Request<()>| {
        let fails = request.uri().host() == Some("a") && failing.swap(0, Ordering::Relaxed) == 1;
        let status = if fails { 503 } else { 200 };
        ready(Response::builder().status(status).body(()))
    });
    let mut client = RetryLayer::new(deps.clone()).layer(service);
    // So that the route to `a` is not the first, which is kept anyway.
    client.call(get("b")).await.unwrap();
    let mut first = tokio_test::task::spawn(client.call(get("a")));
    assert!(first.poll().is_pending(), "it waits before its retry");
    client.call(get("c")).await.unwrap();
    assert_eq!(first.await.unwrap().status(), 200);
    let retries = |host| deps.get(host).status().retries;
    assert_eq!(["a", "b", "c"].map(retries), [1, 0, 0]);
}
