//! Twice as many calls as a server can bear, for a minute.
//!
//! The server works on 100 calls a second, lets a second's work wait, and answers all that is more
//! with 429. A rejected call costs it a tenth of a served one, so each call that need not have been
//! sent takes work from those that are served. Goodput is the share of its capacity that the server
//! spends on calls that succeed.

use std::sync::{Arc, Mutex};

use http::StatusCode;
use tokio::time::{Instant, sleep};
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
    world::{Call, Counts, Timeline, Wire, lock, offer, reply, seconds, sum, virtual_time},
};

const TERMS: Terms = Terms::STANDARD;
/// Calls a second that the server can serve.
const CAPACITY: f64 = 100.0;
/// Seconds of work that may wait.
const QUEUE: f64 = 1.0;
/// The work of rejecting a call, by that of serving one.
const REJECTION: f64 = 0.1;
/// The seconds of overload, after a start with little load.
const OVERLOAD: std::ops::Range<usize> = 10..70;
const END: f64 = 80.0;

pub(crate) fn run(size: Size, seed: u64, progress: &mut Progress) -> Result<Finding, BoxError> {
    let runs = match size {
        Size::Full => 5,
        Size::Quick => 1,
    };
    let columns = ["goodput", "requests a call", "succeed", "then succeed"];
    let mut table = Table::new("twice the capacity", columns);
    let (mut lines, mut bars) = (Vec::new(), Vec::new());
    for contestant in contestants()? {
        progress.run(format_args!("{}", contestant.name));
        let mut slots = vec![Counts::default(); END as usize];
        for run in 0..runs {
            let found = virtual_time(serve(&contestant, mix(seed, run)))??;
            for (all, slot) in slots.iter_mut().zip(found) {
                *all = sum(&[*all, slot]);
            }
        }
        let overload = sum(&slots[OVERLOAD]);
        let after = sum(&slots[OVERLOAD.end..]);
        let seconds = OVERLOAD.len() as f64 * runs as f64;
        let goodput = overload.succeeded as f64 / (CAPACITY * seconds);
        let row = vec![
            Figure::Percent(goodput),
            Figure::Times(overload.load()),
            Figure::Percent(overload.success()),
            Figure::Percent(after.success()),
        ];
        table.row(contestant.name, row);
        if contestant.name == OURS {
            bars.push(Bar::at_least(0.9, goodput, "goodput, ours"));
            bars.push(Bar::at_least(
                0.98,
                after.success(),
                "success after it, ours",
            ));
        }
        let points = slots.iter().zip(0_u32..);
        let points = points.map(|(slot, at)| (f64::from(at), slot.succeeded as f64 / runs as f64));
        lines.push((contestant.name.to_owned(), points.collect()));
    }
    Ok(Finding {
        name: "overload",
        title: "twice the capacity for a minute, rejections cost a tenth",
        seed,
        tables: vec![table],
        panels: vec![Panel {
            x: Axis::plain("seconds"),
            y: Axis::plain("calls a second that succeed"),
            lines,
        }],
        bars,
        notes: Vec::new(),
    })
}

const OURS: &str = "ours: stack";

fn contestants() -> Result<[Contestant; 7], BoxError> {
    let policy = || TERMS.policy();
    Ok([
        Contestant::ONCE,
        Contestant::looped("3 retries, jitter", Wait::Full),
        Contestant::TOWER,
        Contestant::RESILIENCE,
        Contestant::ENVOY,
        Contestant::stack("ours: breaker alone", policy().without_throttle().build()?),
        Contestant::stack(OURS, policy().build()?),
    ])
}

/// All calls come from one client.
async fn serve(contestant: &Contestant, seed: u64) -> Result<Vec<Counts>, BoxError> {
    let timeline = Timeline::start();
    let server = bounded(&timeline, Dice::new(mix(seed, 0)));
    let client = contestant.client(TERMS, mix(seed, 1), server)?;
    let dice = Dice::new(mix(seed, 2));
    let rate = |at| match OVERLOAD.contains(&(at as usize)) {
        true => 2.0 * CAPACITY,
        false => 0.5 * CAPACITY,
    };
    offer(client, timeline.clone(), dice, rate, END).await;
    Ok(timeline.counts())
}

/// A server with a queue that has an end, some 5 ms away in each direction.
fn bounded(timeline: &Arc<Timeline>, dice: Dice) -> Wire {
    let (timeline, dice) = (Arc::clone(timeline), Arc::new(Mutex::new(dice)));
    let busy_until = Arc::new(Mutex::new(Instant::now()));
    BoxCloneService::new(service_fn(move |_: Call| {
        let (timeline, dice) = (Arc::clone(&timeline), Arc::clone(&dice));
        let busy_until = Arc::clone(&busy_until);
        async move {
            let way = || sleep(seconds(lock(&dice).exponential(200.0)));
            way().await;
            timeline.count(|counts| counts.requests += 1);
            let now = Instant::now();
            let work = seconds(1.0 / CAPACITY);
            let served = {
                let mut busy_until = lock(&busy_until);
                let begin = now.max(*busy_until);
                let fits = begin - now <= seconds(QUEUE);
                *busy_until = begin + if fits { work } else { work.mul_f64(REJECTION) };
                fits.then_some(*busy_until)
            };
            let status = match served {
                Some(at) => {
                    tokio::time::sleep_until(at).await;
                    StatusCode::OK
                }
                None => StatusCode::TOO_MANY_REQUESTS,
            };
            way().await;
            Ok(reply(status))
        }
    }))
}
