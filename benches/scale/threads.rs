//! The cost of a call while another thread makes calls too: to the same dependency, to many
//! dependencies, and with keys of the same store. The figure is the time of a thread's own calls:
//! if it is twice as high on two threads as on one, the threads wait for each other. The curve
//! without layers shows the machine's share.

use std::{sync::Barrier, thread};

use tower::{Layer, Service};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    Dependencies, IdempotencyLayer, Policy, stacks,
    store::{CrashPolicy, MemoryStore},
};

use crate::{
    curve::{Chart, Turns, draw_below},
    keys::post,
    report::Report,
    requests::{AtOnce, Call, get, nanos, runtime},
};

const SIZES: [usize; 2] = [1, 2];
const MANY: usize = 1000;
const CALLS: usize = 5000;
const ROUNDS: usize = 60;

pub(crate) fn run(report: &mut Report, turns: &mut Turns) -> Vec<Chart> {
    turns.begin("threads");
    let policy = Policy::http().build().expect("a policy");
    let client = stacks::client(Dependencies::new(policy)).layer(AtOnce);
    let none = measure(turns, &AtOnce, |_| get(0));
    let one = measure(turns, &client, |_| get(0));
    let many = measure(turns, &client, |n| get(draw_below(MANY, n)));
    let layer = IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::new(|_| Some("alice")))
        .crash_policy(CrashPolicy::Reexecute)
        .build()
        .expect("a layer");
    let again = measure(turns, &layer.layer(AtOnce), |n| post(draw_below(MANY, n)));

    let curves = [
        ("no layers", none),
        ("one dependency", one),
        ("a thousand dependencies", many),
        ("a key again", again),
    ];
    for (name, nanos) in &curves {
        let name = name.replace(' ', "_");
        report.note(&format!("threads_{name}_growth"), nanos[1] / nanos[0]);
    }
    vec![Chart {
        name: "threads",
        title: "What a call costs, by how many threads make calls",
        grows: "threads",
        sizes: SIZES.to_vec(),
        curves: curves.to_vec(),
    }]
}

fn measure<S>(turns: &mut Turns, service: &S, call: fn(usize) -> Call) -> Vec<f64>
where
    S: Service<Call> + Clone + Send,
    S::Error: std::fmt::Debug,
{
    turns.take(ROUNDS, SIZES.len(), |size, turn| {
        let threads = SIZES[size];
        let begin = Barrier::new(threads);
        thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|thread| {
                    let (mut service, begin) = (service.clone(), &begin);
                    scope.spawn(move || {
                        let first = (turn * threads + thread) * CALLS;
                        let calls = (first..first + CALLS).map(call);
                        let runtime = runtime();
                        begin.wait();
                        runtime.block_on(nanos(&mut service, calls))
                    })
                })
                .collect();
            let took = running
                .into_iter()
                .map(|thread| thread.join().expect("calls"));
            took.sum::<f64>() / threads as f64
        })
    })
}
