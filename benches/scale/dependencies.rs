//! The cost of a call through all layers of a client, by the number of the client's dependencies. A
//! call lasts from its request's text to its reply, and goes to a dependency that is drawn at
//! random:
//!
//! - over loopback, by a connection that leads to all of them, as a proxy's does: what a call costs,
//!   all in all;
//! - of a service that has its reply at once, each call after much other work: nothing is left in the
//!   processor's caches, be it of one dependency or of many. What grows then is what the layers do;
//! - of such a service, call upon call: one dependency never leaves the caches, and 100,000 never fit.
//!   This is what the machine makes of it, and its bound is one that only a mistake would break.

use std::fmt::Debug;

use tokio::time::Instant;
use tower::{Layer, Service};
use tower_reprise::{Dependencies, Policy, client::peek::PeekResponse, error::BoxError, stacks};

use crate::{
    curve::{Chart, Turns, draw_below},
    report::Report,
    requests::{AtOnce, Call, get, host, nanos, runtime},
    wire::connect,
};

const SIZES: [usize; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
const CALLS: usize = 1000;
const ROUNDS: usize = 200;
/// More than the processor keeps.
const OTHER_WORK: usize = 96 << 20;
const COLD_ROUNDS: usize = 100;
const WIRE_CALLS: usize = 100;
const WIRE_ROUNDS: usize = 60;

pub(crate) fn run(report: &mut Report, turns: &mut Turns) -> Vec<Chart> {
    turns.begin("dependencies");
    let runtime = runtime();
    let draw = |size: usize, turn: usize, calls: usize| {
        let numbers = turn * calls..(turn + 1) * calls;
        numbers.map(move |n| get(draw_below(SIZES[size], n)))
    };
    let mut bare = AtOnce;
    let without = turns.take(ROUNDS, SIZES.len(), |size, turn| {
        runtime.block_on(nanos(&mut bare, draw(size, turn, CALLS)))
    });

    let started = Instant::now();
    let mut clients = SIZES.map(|size| client(size, AtOnce));
    let met: usize = SIZES.iter().sum();
    let first = started.elapsed().as_secs_f64() * 1e9 / met as f64;
    report.note("dependency_made_ns", first);
    let hot = turns.take(ROUNDS, SIZES.len(), |size, turn| {
        runtime.block_on(nanos(&mut clients[size], draw(size, turn, CALLS)))
    });
    let other_work = vec![1_u8; OTHER_WORK];
    let elsewhere = || std::hint::black_box(other_work.iter().step_by(64).copied().max());
    let cold = turns.take(COLD_ROUNDS, SIZES.len(), |size, turn| {
        elsewhere();
        runtime.block_on(nanos(&mut clients[size], draw(size, turn, 1)))
    });
    drop(clients);

    let connected = runtime.block_on(connect());
    let mut clients = SIZES.map(|size| client(size, connected.clone()));
    let wire = turns.take(WIRE_ROUNDS, SIZES.len(), |size, turn| {
        runtime.block_on(nanos(&mut clients[size], draw(size, turn, WIRE_CALLS)))
    });

    let last = SIZES.len() - 1;
    report.note("dependency_call_ns_1", hot[0]);
    report.note("dependency_call_ns_100k", hot[last]);
    report.at_most("dependency_growth", wire[last] / wire[0], 1.5);
    report.at_most("dependency_growth_layers", cold[last] / cold[0], 1.5);
    report.at_most("dependency_growth_call_upon_call", hot[last] / hot[0], 3.0);
    let chart = |name, title, curves| Chart {
        name,
        title,
        grows: "dependencies",
        sizes: SIZES.to_vec(),
        curves,
    };
    vec![
        chart(
            "dependencies",
            "What a call costs, by how many dependencies the client has",
            vec![
                ("no layers", without),
                ("ours, call upon call", hot),
                ("ours, after other work", cold),
            ],
        ),
        chart(
            "dependencies-loopback",
            "What a call over loopback costs, by how many dependencies the client has",
            vec![("ours", wire)],
        ),
    ]
}

/// A client that has met all of its dependencies.
fn client<S>(size: usize, inner: S) -> impl Service<Call, Response: Sized, Error: Debug>
where
    S: Service<Call, Response: PeekResponse, Error: Into<BoxError>> + Clone,
{
    let policy = Policy::http().build().expect("a policy");
    let deps = Dependencies::builder(policy).capacity(size).build();
    for dependency in 0..size {
        drop(deps.get(&host(dependency)));
    }
    stacks::client(deps).layer(inner)
}
