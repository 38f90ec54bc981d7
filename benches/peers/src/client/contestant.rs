//! The contestants, and the loop that measures all of them.

use std::{
    future::{Future, Ready, ready},
    hint::black_box,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use http::{Request, Response};
use tower::{Layer, Service, ServiceBuilder};
use tower_reprise::{Dependencies, HedgeLayer, Policy, RetryLayer, error::BoxError, stacks};

use super::{
    others,
    request::{self, Body, Shape},
};

pub(super) type Call = Request<Body>;
pub(super) type Reply = Response<Body>;
pub(super) type Outcome = Result<Reply, BoxError>;

pub(super) const BARE: &str = "bare";
pub(super) const RETRY: &str = "our-retry";
pub(super) const STACK: &str = "our-stack";
pub(super) const HEDGE: &str = "our-hedge";
pub(super) const TOWER: &str = "tower-retry";
pub(super) const RESILIENCE: &str = "tower-resilience";

/// One way to make calls.
pub(super) struct Contestant {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) future_size: usize,
    calls: Box<dyn FnMut(Shape, u64)>,
}

impl Contestant {
    /// Makes so many calls, one after the other.
    pub(super) fn run(&mut self, shape: Shape, calls: u64) {
        (self.calls)(shape, calls);
    }

    fn new<S>(
        name: &'static str,
        title: &'static str,
        mut service: S,
        size: impl Fn(&S::Future) -> usize,
    ) -> Self
    where
        S: Service<Call, Error = BoxError> + 'static,
    {
        Self {
            name,
            title,
            future_size: size(&service.call(request::get())),
            calls: Box::new(move |shape, calls| match shape {
                Shape::Get => repeat(&mut service, request::get, calls),
                Shape::GetMixed => repeat(&mut service, request::get_mixed, calls),
                Shape::GetConst => repeat(&mut service, request::get_const, calls),
                Shape::Post => repeat(&mut service, request::post, calls),
            }),
        }
    }
}

pub(super) fn all() -> Vec<Contestant> {
    vec![
        Contestant::new(BARE, "bare service", Inner, size_of_val),
        Contestant::new(RETRY, "our RetryLayer", retry(), size_of_val),
        Contestant::new(STACK, "our stacks::client", stack(), size_of_val),
        Contestant::new(HEDGE, "our HedgeLayer", hedge(), size_of_val),
        Contestant::new(
            TOWER,
            "tower::retry, backoff, TpsBudget",
            others::tower(Inner),
            size_of_val,
        ),
        // Its future is boxed, so what counts is the size of what is in the box.
        Contestant::new(
            RESILIENCE,
            "tower-resilience retry, budget",
            others::resilience(Inner),
            |future: &Pin<Box<_>>| size_of_val(&**future),
        ),
    ]
}

pub(super) fn deps() -> Dependencies {
    let policy = Policy::http().service("bench").build();
    Dependencies::new(policy.expect("the defaults are valid"))
}

fn retry() -> impl Service<Call, Response = Reply, Error = BoxError> {
    RetryLayer::new(deps()).layer(Inner)
}

/// Every call could be hedged, and none is late.
fn hedge() -> impl Service<Call, Response = Reply, Error = BoxError> {
    let policy = Policy::http().service("bench").hedge().build();
    let deps = Dependencies::new(policy.expect("the defaults are valid"));
    HedgeLayer::new(deps).layer(Inner)
}

fn stack() -> impl Service<Call, Error = BoxError> {
    let layers = stacks::client(deps());
    ServiceBuilder::new().layer(layers).service(Inner)
}

/// Answers at once. Its error is the type that ours have, so that none has it easier.
#[derive(Debug, Clone)]
pub(super) struct Inner;

impl Service<Call> for Inner {
    type Response = Reply;
    type Error = BoxError;
    type Future = Ready<Outcome>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Call) -> Self::Future {
        drop(black_box(request));
        ready(Ok(Response::new(Body::default())))
    }
}

#[inline(never)]
fn repeat<S>(service: &mut S, request: impl Fn() -> Call, calls: u64)
where
    S: Service<Call, Error = BoxError>,
{
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..calls {
        let request = request();
        let Poll::Ready(Ok(())) = service.poll_ready(&mut cx) else {
            panic!("not ready");
        };
        let future = pin!(service.call(request));
        let Poll::Ready(Ok(reply)) = future.poll(&mut cx) else {
            panic!("no reply");
        };
        drop(black_box(reply));
    }
}
