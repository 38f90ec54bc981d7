//! A spike and a ramp into metastable collapse: a server that gets slower the more it has to do,
//! and clients that ask again because it is slow.
//!
//! The setting of a published simulator (Brooker's `simple_collapse_sim`): a request takes 1 + 0.01 · inflight
//! seconds and some 0.1 s on each way; clients wait 3 s for it, try three times, and the server
//! never learns that they gave up. The load ramps up from 40 calls a second to 80 and down to
//! none, or it is 40 with a spike of 80 that lasts 5 s.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use tokio::time::{sleep, timeout};
use tower::{service_fn, util::BoxCloneService};
use tower_reprise::error::BoxError;

use crate::{
    Size,
    chart::{Axis, Panel},
    clients::{Contestant, Terms},
    dice::{Dice, mix},
    others::Wait,
    progress::Progress,
    report::{Bar, Finding},
    table::{Figure, Table},
    world::{Call, Counts, Timeline, Wire, lock, offer, reply, seconds, share, sum, virtual_time},
};

const TERMS: Terms = Terms {
    retries: 2,
    timeout: Some(Duration::from_secs(3)),
    ..Terms::STANDARD
};
/// The waits of the published clients with jitter: below 20 s, then below 40 s.
const PUBLISHED: Terms = Terms {
    base: Duration::from_secs(20),
    cap: Duration::from_secs(40),
    ..TERMS
};
const END: f64 = 80.0;

/// The rate of calls over time.
#[derive(Clone, Copy)]
enum Shape {
    Ramp,
    Spike,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Self::Ramp => "ramp",
            Self::Spike => "spike",
        }
    }

    fn rate(self, at: f64) -> f64 {
        match self {
            Self::Ramp => 80.0 - 1.6 * (at - 25.0).abs(),
            Self::Spike if (20.0..25.0).contains(&at) => 80.0,
            Self::Spike => 40.0,
        }
    }

    /// The seconds in which it should be over.
    fn after(self) -> std::ops::Range<usize> {
        match self {
            Self::Ramp => 55..70,
            Self::Spike => 60..75,
        }
    }
}

pub(crate) fn run(size: Size, seed: u64, progress: &mut Progress) -> Result<Finding, BoxError> {
    let (shapes, runs): (&[Shape], u64) = match size {
        Size::Full => (&[Shape::Ramp, Shape::Spike], 10),
        Size::Quick => (&[Shape::Ramp], 1),
    };
    let contestants = contestants()?;
    let (mut tables, mut panels, mut bars) = (Vec::new(), Vec::new(), Vec::new());
    for (&shape, number) in shapes.iter().zip(0..) {
        let columns = ["requests a call", "succeed", "goodput at the end"];
        let mut table = Table::new(shape.name(), columns);
        let (mut lines, mut once) = (Vec::new(), 0.0);
        for (contestant, terms) in &contestants {
            let mut slots = vec![Counts::default(); END as usize];
            for run in 0..runs {
                progress.run(format_args!("{}, {}", shape.name(), contestant.name));
                let seed = mix(mix(seed, number), run);
                let found = virtual_time(serve(contestant, *terms, shape, seed))??;
                for (all, slot) in slots.iter_mut().zip(found) {
                    *all = sum(&[*all, slot]);
                }
            }
            let total = sum(&slots);
            let after = sum(slots.get(shape.after()).unwrap_or_default());
            let goodput = share(after.succeeded, after.calls);
            table.row(
                contestant.name,
                vec![
                    Figure::Times(total.load()),
                    Figure::Percent(total.success()),
                    Figure::Percent(goodput),
                ],
            );
            let what = |what: &str| format!("{what}, {}, {}", shape.name(), contestant.name);
            match contestant.name {
                // Waits of up to 40 s are enough for a spike of 5 s, but not for a ramp.
                JITTERED if matches!(shape, Shape::Ramp) => {
                    bars.push(Bar::at_most(0.05, goodput, what("goodput at the end")));
                }
                ONCE => once = total.success(),
                OURS => {
                    bars.push(Bar::at_most(1.2, total.load(), what("load")));
                    bars.push(Bar::at_least(0.95, goodput, what("goodput at the end")));
                }
                STACK => {
                    let least = match shape {
                        Shape::Ramp => 0.74,
                        Shape::Spike => once,
                    };
                    bars.push(Bar::at_most(1.2, total.load(), what("load")));
                    bars.push(Bar::at_least(least, total.success(), what("success")));
                    bars.push(Bar::at_least(0.999, goodput, what("goodput at the end")));
                }
                _ => {}
            }
            let points = slots
                .iter()
                .zip(0_u32..)
                .map(|(slot, second)| (f64::from(second), slot.succeeded as f64 / runs as f64));
            lines.push((contestant.name.to_owned(), points.collect()));
        }
        let offered = (0_u32..80).map(|at| (f64::from(at), shape.rate(f64::from(at)).max(0.0)));
        lines.insert(0, ("calls made".into(), offered.collect()));
        tables.push(table);
        panels.push(Panel {
            x: Axis::plain("seconds"),
            y: Axis::plain(match shape {
                Shape::Ramp => "calls a second that succeed, ramp",
                Shape::Spike => "calls a second that succeed, spike",
            }),
            lines,
        });
    }
    Ok(Finding {
        name: "collapse",
        title: "a server that gets slower with load, clients that time out after 3 s",
        seed,
        tables,
        panels,
        bars,
        notes: Vec::new(),
    })
}

const ONCE: &str = Contestant::ONCE.name;
const JITTERED: &str = "retries with jitter";
const OURS: &str = "ours: retry, budget";
const STACK: &str = "ours: stack";

fn contestants() -> Result<[(Contestant, Terms); 8], BoxError> {
    Ok([
        (Contestant::ONCE, TERMS),
        (Contestant::looped("retries at once", Wait::Never), TERMS),
        (Contestant::looped(JITTERED, Wait::Full), PUBLISHED),
        (Contestant::BUCKET, TERMS),
        (Contestant::TOWER, TERMS),
        (Contestant::RESILIENCE, TERMS),
        (Contestant::budget(OURS, TERMS.policy().build()?), TERMS),
        (Contestant::stack(STACK, TERMS.policy().build()?), TERMS),
    ])
}

/// All calls come from one client, so that a budget is shared.
async fn serve(
    contestant: &Contestant,
    terms: Terms,
    shape: Shape,
    seed: u64,
) -> Result<Vec<Counts>, BoxError> {
    let timeline = Timeline::start();
    let server = slower_with_load(&timeline, Dice::new(mix(seed, 0)));
    let client = contestant.client(terms, mix(seed, 1), server)?;
    let dice = Dice::new(mix(seed, 2));
    let offered = offer(client, timeline.clone(), dice, |at| shape.rate(at), END);
    // A call that is not over by then counts as not served.
    let _ = timeout(seconds(END), offered).await;
    Ok(timeline.counts())
}

fn slower_with_load(timeline: &Arc<Timeline>, dice: Dice) -> Wire {
    let (timeline, dice) = (Arc::clone(timeline), Arc::new(Mutex::new(dice)));
    let inflight = Arc::new(AtomicU64::new(0));
    BoxCloneService::new(service_fn(move |_: Call| {
        let (timeline, dice) = (Arc::clone(&timeline), Arc::clone(&dice));
        let inflight = Arc::clone(&inflight);
        // A task of its own, because the server does not learn that a client gave up.
        let work = tokio::spawn(async move {
            let way = || sleep(seconds(lock(&dice).exponential(10.0)));
            way().await;
            timeline.count(|counts| counts.requests += 1);
            let busy = inflight.fetch_add(1, Ordering::Relaxed) + 1;
            sleep(seconds(1.0 + 0.01 * busy as f64)).await;
            inflight.fetch_sub(1, Ordering::Relaxed);
            way().await;
        });
        async move {
            work.await?;
            Ok(reply(StatusCode::OK))
        }
    }))
}
