//! A chain of three hops: a client, two services that pass calls on, and a backend that fails.
//!
//! Three attempts at each hop are 27 requests at the backend for one call. A budget at each hop
//! makes 1.2 · 1.2 · 1.2 of it: a service takes its caller's retries for new calls, and retries them
//! in turn. So that the chain as a whole stays within one budget, retries say that they are retries
//! ([`send_attempt_count`]), each service passes that on, and an inbound budget at each of them refuses
//! what is too much and says "do not retry". A [`DeadlineLayer`] needs no help of the services: they
//! make requests of their own, and replies of their own.
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
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{
    DeadlineLayer, Dependencies, InboundBudgetLayer, ProblemLayer, error::BoxError,
    policy::PolicyBuilder,
};

use crate::{
    Size,
    chart::{Axis, Panel},
    clients::{Contestant, Terms},
    dice::{Dice, mix},
    late,
    others::Wait,
    progress::Progress,
    report::{Bar, Finding},
    table::{Figure, Table},
    world::{Call, Timeline, Wire, call, lock, offer, reply, seconds, share, virtual_time},
};

pub(crate) const HOPS: usize = 3;
pub(crate) const TERMS: Terms = Terms {
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

/// The parts of a service besides its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Services {
    /// Nothing: it passes on what it gets.
    Bare,
    /// An inbound budget; it passes on what it gets.
    Inbound,
    /// A [`DeadlineLayer`]; it passes on nothing.
    Deadlines,
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
        let mut with_budgets = 0.0;
        for (contestant, services) in &contestants {
            progress.run(format_args!("{}, {name}", contestant.name));
            let seed = mix(seed, number);
            let run = virtual_time(pass_on(contestant, *services, failing, length, seed))??;
            let loads = run.loads.iter().map(|load| Figure::Times(*load));
            let figures = loads.chain([Figure::Percent(run.success)]);
            table.row(contestant.name, figures.collect());
            if *services != Services::Bare {
                let most = match contestant.is_stack() && failing == 1.0 {
                    true => 0.2,
                    false => 1.2,
                };
                for (load, hop) in run.loads.into_iter().zip(1..) {
                    let what = format!("requests a call at hop {hop}, {name}, {}", contestant.name);
                    bars.push(Bar::at_most(most, load, what));
                }
            }
            if failing < 1.0 {
                let least = match services {
                    Services::Bare => None,
                    Services::Inbound if contestant.is_stack() => Some(0.55),
                    Services::Inbound => {
                        with_budgets = run.success;
                        None
                    }
                    Services::Deadlines => Some(with_budgets),
                };
                let what = format!("success, {name}, {}", contestant.name);
                bars.extend(least.map(|least| Bar::at_least(least, run.success, what)));
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
    let (table, late) = late::run(size, mix(seed, 2), progress)?;
    tables.push(table);
    bars.extend(late);
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

/// The clients of all hops, and what the services have.
fn contestants() -> Result<[(Contestant, Services); 9], BoxError> {
    let policy = || TERMS.policy();
    let telling = || policy().send_attempt_count();
    let timed = || policy().send_deadline(true);
    let (budget, stack) = (Contestant::budget, Contestant::stack);
    Ok([
        (Contestant::looped("loops", Wait::Full), Services::Bare),
        (Contestant::TOWER, Services::Bare),
        (Contestant::RESILIENCE, Services::Bare),
        (budget("ours: budgets", policy().build()?), Services::Bare),
        (
            budget("ours: budgets, inbound", telling().build()?),
            Services::Inbound,
        ),
        (
            budget("ours: budgets, deadlines", timed().build()?),
            Services::Deadlines,
        ),
        (stack("ours: stacks", policy().build()?), Services::Bare),
        (
            stack("ours: stacks, inbound", telling().build()?),
            Services::Inbound,
        ),
        (
            stack("ours: stacks, deadlines", timed().build()?),
            Services::Deadlines,
        ),
    ])
}

async fn pass_on(
    contestant: &Contestant,
    services: Services,
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
        next = match services {
            Services::Bare => next,
            Services::Inbound => guarded(next, TERMS.policy())?,
            Services::Deadlines => within_deadlines(next),
        };
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

/// A service with a [`DeadlineLayer`], whose handler has nothing to do with it.
pub(crate) fn within_deadlines(next: Wire) -> Wire {
    let handler = service_fn(move |asked: Call| {
        let next = next.clone();
        async move {
            let mut own = call();
            own.uri_mut().clone_from(asked.uri());
            let result = next.oneshot(own).await;
            let status = result.map_or(StatusCode::BAD_GATEWAY, |reply| reply.status());
            Ok::<_, BoxError>(reply(status))
        }
    });
    DeadlineLayer::new()
        .trust_callers()
        .layer(handler)
        .map_response(|reply| reply.map(|_| Empty::new()))
        .boxed_clone()
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
