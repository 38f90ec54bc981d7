//! Layers of others around the client.

use std::{
    future::{Future, pending},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use http::Request;
use reqwest::{Body, Response};
use reqwest_middleware::{ClientBuilder, Middleware};
use tokio::{sync::Notify, time::timeout};
use tower::{Layer, Service, buffer::BufferLayer, layer::layer_fn, limit::ConcurrencyLimitLayer};
use tower_reprise::{
    RetryLayer,
    call::StopReason,
    error::{BoxError, Refused},
    stacks::{
        self,
        reqwest::{ChainFuture, ChainService, TowerMiddleware},
    },
};

use super::{Inner, answering, failed, get, said};
use crate::{
    client, outcome,
    support::{deps, quick},
};

#[tokio::test(start_paused = true)]
async fn d_7_a_limit_inside_never_deadlocks() {
    let running = Arc::new(AtomicUsize::new(0));
    let counted = running.clone();
    let layers = (
        RetryLayer::new(deps(quick())),
        ConcurrencyLimitLayer::new(1),
    );
    let client = answering(layers, move |_, n| {
        let running = counted.clone();
        async move {
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
            tokio::time::sleep(Duration::from_secs(1)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(said(if n == 0 { 503 } else { 200 }))
        }
    });
    let calls = (0..3).map(|_| tokio::spawn(get(&client).send()));
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test]
async fn d_7_a_layer_that_spawns_is_told_so() {
    let chain = |layered: Arc<dyn Middleware>| {
        let chain = ClientBuilder::new(client()).with_arc(layered);
        chain.with(Inner(|_, _| async { Ok(said(200)) })).build()
    };
    let buffered = layer_fn(|hop: ChainService| BufferLayer::new(4).layer(hop));
    let error = failed(get(&chain(Arc::new(TowerMiddleware::new(buffered))))).await;
    let told = |error: &BoxError| error.to_string().contains("another task");
    assert!(told(&error), "{error}");

    // One that calls where it should, and waits elsewhere.
    let spawned = layer_fn(|hop: ChainService| {
        tower::service_fn(move |request: Request<Body>| {
            let answer = tokio::spawn(hop.clone().call(request));
            async { answer.await.unwrap() }
        })
    });
    let error = failed(get(&chain(Arc::new(TowerMiddleware::new(spawned))))).await;
    assert!(told(&error), "{error}");

    // One that calls anew before it lets go of what it had is not.
    let late = layer_fn(|hop: ChainService| {
        tower::service_fn(move |request: Request<Body>| {
            let mut hop = hop.clone();
            async move {
                let again = Request::get(request.uri()).body(Body::default())?;
                let mut first = pin!(hop.call(request));
                assert_eq!(first.as_mut().await?.status(), 200);
                let again = hop.call(again).await;
                assert!(first.await.is_err(), "it was answered");
                again
            }
        })
    });
    let response = get(&chain(Arc::new(TowerMiddleware::new(late))))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn s_3_an_answer_is_for_the_call_that_asked() {
    // Waits for what another call asked for, which is gone.
    let stash: Arc<Mutex<Option<ChainFuture>>> = Arc::default();
    let steals = layer_fn(move |hop: ChainService| {
        let stash = stash.clone();
        tower::service_fn(move |request: Request<Body>| {
            let (mine, stash) = (hop.clone().call(request), stash.clone());
            async move {
                let stolen = stash.lock().unwrap().take();
                let Some(stolen) = stolen else {
                    *stash.lock().unwrap() = Some(mine);
                    return pending().await;
                };
                assert!(stolen.await.is_err());
                mine.await
            }
        })
    });
    let client = answering(steals, |_, n| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(said(if n == 0 { 200 } else { 500 }))
    });
    let call = get(&client).send();
    assert!(timeout(Duration::from_millis(1), call).await.is_err());
    assert_eq!(get(&client).send().await.unwrap().status(), 200);
}

/// Polls a future only when its own waker was woken, as sets of futures do.
struct OwnWaker {
    future: ChainFuture,
    flag: Arc<Flag>,
}

struct Flag {
    woken: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if let Some(task) = self.task.lock().unwrap().take() {
            task.wake();
        }
    }
}

impl Future for OwnWaker {
    type Output = Result<Response, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        *self.flag.task.lock().unwrap() = Some(cx.waker().clone());
        if !self.flag.woken.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        let waker = Waker::from(self.flag.clone());
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }
}

#[tokio::test(start_paused = true)]
async fn d_7_a_layer_with_wakers_of_its_own_is_woken() {
    let waking = layer_fn(|mut hop: ChainService| {
        tower::service_fn(move |request: Request<Body>| OwnWaker {
            future: hop.call(request),
            flag: Arc::new(Flag {
                woken: AtomicBool::new(true),
                task: Mutex::default(),
            }),
        })
    });
    struct Shared<S>(Arc<Mutex<S>>);
    impl<S> Clone for Shared<S> {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }
    impl<S: Service<Request<Body>>> Service<Request<Body>> for Shared<S> {
        type Response = S::Response;
        type Error = S::Error;
        type Future = S::Future;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
            self.0.lock().unwrap().poll_ready(cx)
        }

        fn call(&mut self, request: Request<Body>) -> S::Future {
            self.0.lock().unwrap().call(request)
        }
    }
    let shared = layer_fn(move |hop: ChainService| Shared(Arc::new(Mutex::new(waking.layer(hop)))));
    let let_go = Arc::new(Notify::new());
    let held = let_go.clone();
    let layers = (RetryLayer::new(deps(quick())), shared);
    let client = answering(layers, move |_, n| {
        let held = held.clone();
        async move {
            held.notified().await;
            Ok(said(if n == 0 { 503 } else { 200 }))
        }
    });
    let call = tokio::spawn(get(&client).send());
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let_go.notify_one();
    }
    assert_eq!(outcome(&call.await.unwrap().unwrap()), (2, None));
}

#[tokio::test(start_paused = true)]
async fn cb_7_an_open_breaker_keeps_the_last_real_answer() {
    let far = Duration::from_secs(9);
    let deps = deps(quick().consecutive_failures(2).cooldown(far, far));
    let client = answering(stacks::client(deps), |_, _| async { Ok(said(500)) });
    let response = get(&client).send().await.unwrap();
    assert_eq!(outcome(&response), (2, Some(StopReason::Breaker)));
    assert_eq!(response.text().await.unwrap(), "said");
    let error = failed(get(&client)).await;
    assert!(Refused::find(&*error).is_some());
}
