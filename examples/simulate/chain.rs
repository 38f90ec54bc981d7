//! A chain of three hops: a client, two services that pass calls on, and a backend that fails.
//!
//! Three attempts at each hop are 27 requests at the backend for one call. A budget at each hop
//! makes 1.2 · 1.2 · 1.2 of it: a service takes its caller's retries for new calls, and retries them
//! in turn. So that the chain as a whole stays within one budget, retries say that they are retries
//! ([`send_attempt_count`]), each service passes that on, and an inbound budget at each of them refuses
//! what is too much and says "do not retry".
//!
//! [`send_attempt_count`]: tower_reprise::policy::PolicyBuilder::send_attempt_count

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use http_body_util::Empty;
use tokio::time::sleep;
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    Dependencies, InboundBudgetLayer, ProblemLayer, error::BoxError, policy::PolicyBuilder,
};

use crate::{
    Size,
    chart::{Axis, Panel},
    clients::{Contestant, Terms},
    dice::{Dice, mix},
    others::Wait,
    progress::Progress,
    report::{Bar, Finding},
    table::{Figure, Table},
    world::{Call, Timeline, Wire, lock, offer, reply, seconds, share, virtual_time},
};

const HOPS: usize = 3;
const TERMS: Terms = Terms {
    retries: 2,
    base: Duration::from_millis(100),
    ..Terms::STANDARD
};
const RATE: f64 = 50.0;

/// Requests that reached each hop, and calls.
struct Run {
    loads: [f64; HOPS],
    success: f64,
}

pub(crate) fn run(size: Size, seed: u64, progress: &mut Progress) -> Result<Finding, BoxError> {
    let length = match size {
        Size::Full => 120.0,
        Size::Quick => 10.0,
    };
    let contestants = contestants()?;
    let mut tables = Vec::new();
    let (mut panels, mut bars) = (Vec::new(), Vec::new());
    let names = [(1.0, "all fail"), (0.5, "half fail")];
    for ((failing, name), number) in names.into_iter().zip(0..) {
        let columns = ["1st hop", "2nd hop", "backend", "succeed"];
        let mut table = Table::new(name, columns);
        let mut lines = Vec::new();
        for (contestant, inbound) in &contestants {
            progress.run(format_args!("{}, {name}", contestant.name));
            let seed = mix(seed, number);
            let run = virtual_time(pass_on(contestant, *inbound, failing, length, seed))??;
            let loads = run.loads.iter().map(|load| Figure::Times(*load));
            let figures = loads.chain([Figure::Percent(run.success)]);
            table.row(contestant.name, figures.collect());
            if *inbound {
                let most = match contestant.name == STACKS && failing == 1.0 {
                    true => 0.2,
                    false => 1.2,
                };
                for (load, hop) in run.loads.into_iter().zip(1..) {
                    let what = format!("requests a call at hop {hop}, {name}, {}", contestant.name);
                    bars.push(Bar::at_most(most, load, what));
                }
            }
            if failing < 1.0 && contestant.name == STACKS {
                bars.push(Bar::at_least(
                    0.55,
                    run.success,
                    format!("success, {name}, {STACKS}"),
                ));
            }
            let points = run.loads.into_iter().zip(1_u8..);
            let points = points.map(|(load, hop)| (f64::from(hop), load));
            lines.push((contestant.name.to_owned(), points.collect()));
        }
        tables.push(table);
        panels.push(Panel {
            x: Axis::plain("hop"),
            y: Axis::logarithmic(match number {
                0 => "requests a call, all fail",
                _ => "requests a call, half fail",
            }),
            lines,
        });
    }
    Ok(Finding {
        name: "chain",
        title: "three hops with three attempts each",
        seed,
        tables,
        panels,
        bars,
        notes: Vec::new(),
    })
}

const STACKS: &str = "ours: stacks, inbound";

/// And whether each service has an inbound budget.
fn contestants() -> Result<[(Contestant, bool); 7], BoxError> {
    let policy = || TERMS.policy();
    let telling = || policy().send_attempt_count();
    Ok([
        (Contestant::looped("loops", Wait::Full), false),
        (Contestant::TOWER, false),
        (Contestant::RESILIENCE, false),
        (
            Contestant::budget("ours: budgets", policy().build()?),
            false,
        ),
        (
            Contestant::budget("ours: budgets, inbound", telling().build()?),
            true,
        ),
        (Contestant::stack("ours: stacks", policy().build()?), false),
        (Contestant::stack(STACKS, telling().build()?), true),
    ])
}

async fn pass_on(
    contestant: &Contestant,
    inbound: bool,
    failing: f64,
    length: f64,
    seed: u64,
) -> Result<Run, BoxError> {
    let timeline = Timeline::start();
    let arrived: [_; HOPS] = std::array::from_fn(|_| Arc::new(AtomicU64::new(0)));
    let mut next = backend(failing, Dice::new(mix(seed, 0)));
    for (hop, arrived) in arrived.iter().enumerate().rev() {
        let seed = mix(seed, 1 + hop as u64);
        if hop + 1 < HOPS {
            next = contestant.client(TERMS, seed, next)?;
        }
        if inbound {
            next = guarded(next, TERMS.policy())?;
        }
        next = network(next, arrived, Dice::new(mix(seed, 1)));
    }
    let client = contestant.client(TERMS, mix(seed, 10), next)?;
    let dice = Dice::new(mix(seed, 11));
    offer(client, timeline.clone(), dice, |_| RATE, length).await;
    let total = timeline.total();
    Ok(Run {
        loads: arrived.map(|arrived| share(arrived.load(Ordering::Relaxed), total.calls)),
        success: total.success(),
    })
}

fn backend(failing: f64, dice: Dice) -> Wire {
    let dice = Arc::new(Mutex::new(dice));
    BoxCloneService::new(service_fn(move |_: Call| {
        let fails = lock(&dice).uniform() < failing;
        async move {
            Ok(reply(match fails {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::OK,
            }))
        }
    }))
}

/// A service with an inbound budget, whose errors are responses.
fn guarded(service: Wire, policy: PolicyBuilder) -> Result<Wire, BoxError> {
    let deps = Dependencies::new(policy.build()?);
    Ok(ServiceBuilder::new()
        .layer(InboundBudgetLayer::new(deps))
        .layer(ProblemLayer::new())
        .service(service)
        .map_response(|reply| reply.map(|_| Empty::new()))
        .map_err(BoxError::from)
        .boxed_clone())
}

/// The way to a service. Headers pass, and nothing else that one process tells another.
fn network(service: Wire, arrived: &Arc<AtomicU64>, dice: Dice) -> Wire {
    let (arrived, dice) = (Arc::clone(arrived), Arc::new(Mutex::new(dice)));
    BoxCloneService::new(service_fn(move |mut call: Call| {
        let (service, arrived) = (service.clone(), Arc::clone(&arrived));
        let dice = Arc::clone(&dice);
        async move {
            call.extensions_mut().clear();
            let way = || sleep(seconds(lock(&dice).exponential(200.0)));
            way().await;
            arrived.fetch_add(1, Ordering::Relaxed);
            let mut reply = service.oneshot(call).await;
            way().await;
            if let Ok(reply) = &mut reply {
                reply.extensions_mut().clear();
            }
            reply
        }
    }))
}
