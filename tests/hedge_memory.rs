//! The memory that a call takes whose hedge never goes out. Alone in its file, since the allocator
//! counts for the whole process.
#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

mod support;

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Empty;
use peak_alloc::PeakAlloc;
use tower::{Layer, Service, service_fn};
use tower_reprise::{HedgeLayer, Policy, policy::PolicyBuilder, stacks};

use support::{deps, secs};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn get() -> Request<()> {
    let mut request = Request::new(());
    *request.uri_mut() = "http://a.example/items".parse().unwrap();
    let accepts = HeaderValue::from_static("application/json");
    request.headers_mut().insert("accept", accepts);
    request
}

/// Calls a service until its dependency and its buffers are made, and returns the most memory that a
/// further call had in use at a time, beyond what was before.
fn peak<S, B>(client: &mut S) -> usize
where
    S: Service<Request<()>, Response = Response<B>, Error: std::fmt::Debug>,
{
    let mut peak = 0;
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1000 {
        let request = get();
        MEMORY.reset_peak_usage();
        let before = MEMORY.current_usage();
        assert!(client.poll_ready(&mut cx).is_ready());
        let mut future = pin!(client.call(request));
        let result = loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut cx) {
                break result;
            }
        };
        assert_eq!(result.unwrap().status(), 200);
        peak = MEMORY.peak_usage() - before;
    }
    peak
}

/// A server that allocates nothing, and answers after so many polls.
fn server(
    polls: u32,
) -> impl Service<
    Request<()>,
    Response = Response<Empty<Bytes>>,
    Error = Infallible,
    Future: Future<Output = Result<Response<Empty<Bytes>>, Infallible>>,
> + Clone {
    service_fn(move |_: Request<()>| {
        let mut left = polls;
        poll_fn(move |_| match left {
            0 => Poll::Ready(Ok(Response::new(Empty::new()))),
            _ => {
                left -= 1;
                Poll::Pending
            }
        })
    })
}

/// One test, as others would allocate meanwhile.
#[tokio::test(start_paused = true)]
async fn h_6_a_call_without_a_hedge_allocates_nothing() {
    type With = fn(PolicyBuilder) -> PolicyBuilder;
    let policies: [(&str, With); 3] = [
        ("off", |policy| policy),
        ("on", PolicyBuilder::hedge),
        ("fixed", |policy| policy.hedge_delay(secs(1), secs(1))),
    ];
    assert_eq!(peak(&mut server(1)), 0, "the server");
    for (name, with) in policies {
        for polls in [0, 1] {
            let deps = || deps(with(Policy::http()));
            let alone = peak(&mut HedgeLayer::new(deps()).layer(server(polls)));
            let in_stack = peak(&mut stacks::client(deps()).layer(server(polls)));
            assert_eq!((alone, in_stack), (0, 0), "{name}, {polls} polls");
        }
    }
}
