//! A Retry-After herd: a server that tells everybody to come back in ten seconds, and everybody
//! who does.
//!
//! All clients call within 100 ms and are told `Retry-After: 10`. The server is well from then on.
//! Clients that obey to the second come back as the same crowd; clients that ignore the header come
//! back too early. Then one client goes on calling while it is told to wait, and its calls gather.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::{ServiceExt, service_fn, util::BoxCloneService};
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
    world::{
        Call, Timeline, Wire, call, lock, offer, reply, seconds, share, succeeded, virtual_time,
    },
};

const TERMS: Terms = Terms::STANDARD;
const ASKED: f64 = 10.0;
/// Calls a second of a client that goes on calling, and the seconds for which it does.
const RATE: f64 = 200.0;
const END: f64 = 30.0;
/// The seconds in which its server is busy.
const BUSY: Range<f64> = 10.0..20.0;
/// The time in which the first answer is on its way.
const TOLD: f64 = 0.1;
/// The length of a slot in which arrivals are counted, in milliseconds.
const SLOT: f64 = 100.0;

/// When requests arrived, in seconds, and how many calls succeeded.
#[derive(Default)]
struct Run {
    arrivals: Vec<f64>,
    succeeded: u64,
}

impl Run {
    /// After a first request that was told to wait, and before that wait was over.
    fn early(&self, clients: u64) -> u64 {
        let before = self.arrivals.iter().filter(|at| **at < ASKED).count() as u64;
        before.saturating_sub(clients)
    }

    /// The most that arrived in 100 ms after the wait.
    fn peak(&self) -> u64 {
        let slots = self.slots();
        let most = slots.iter().map(|(_, count)| *count).fold(0.0, f64::max);
        most as u64
    }

    fn between(&self, times: Range<f64>) -> u64 {
        self.arrivals.iter().filter(|at| times.contains(at)).count() as u64
    }

    /// The most that arrived in 100 ms after that time.
    fn most_after(&self, begin: f64) -> u64 {
        let slots = (0_u32..150).map(|slot| begin + f64::from(slot) * SLOT / 1000.0);
        let counts = slots.map(|at| self.between(at..at + SLOT / 1000.0));
        counts.max().unwrap_or_default()
    }

    fn slots(&self) -> Vec<(f64, f64)> {
        let mut slots = vec![0.0; 30];
        for at in self.arrivals.iter().filter(|at| **at >= ASKED) {
            let slot = ((at - ASKED) * 1000.0 / SLOT) as usize;
            if let Some(slot) = slots.get_mut(slot) {
                *slot += 1.0;
            }
        }
        let starts = (0_u32..).map(|slot| ASKED + f64::from(slot) * SLOT / 1000.0);
        starts.zip(slots).collect()
    }
}

pub(crate) fn run(size: Size, seed: u64, progress: &mut Progress) -> Result<Finding, BoxError> {
    let clients = match size {
        Size::Full => 5000,
        Size::Quick => 500,
    };
    let columns = ["too early", "most in 100 ms", "of all", "succeed"];
    let mut table = Table::new("told to wait for 10 s", columns);
    let (mut lines, mut bars) = (Vec::new(), Vec::new());
    for contestant in contestants()? {
        progress.run(format_args!("{}", contestant.name));
        let run = virtual_time(ask(&contestant, clients, seed))??;
        let (early, peak) = (run.early(clients), run.peak());
        table.row(
            contestant.name,
            vec![
                Figure::Count(early),
                Figure::Count(peak),
                Figure::Percent(share(peak, clients)),
                Figure::Percent(share(run.succeeded, clients)),
            ],
        );
        if contestant.name == OURS {
            bars.push(Bar::at_most(
                0.0,
                early as f64,
                "requests that come too early, ours",
            ));
            bars.push(Bar::at_most(
                0.2,
                share(peak, clients),
                "share of all that come back within the same 100 ms, ours",
            ));
            bars.push(Bar::at_least(
                1.0,
                share(run.succeeded, clients),
                "share of calls that succeed, ours",
            ));
        }
        lines.push((contestant.name.to_owned(), run.slots()));
    }
    let columns = ["too early", "most in 100 ms", "of the usual", "succeed"];
    let mut steady = Table::new("200 calls a second", columns);
    for contestant in contestants()? {
        progress.run(format_args!("{}, 200 calls a second", contestant.name));
        let (run, success) = virtual_time(keep_asking(&contestant, seed))??;
        let early = run.between(BUSY.start + TOLD..BUSY.end);
        let most = run.most_after(BUSY.end);
        let usual = most as f64 / (RATE * SLOT / 1000.0);
        let row = vec![
            Figure::Count(early),
            Figure::Count(most),
            Figure::Times(usual),
            Figure::Percent(success),
        ];
        steady.row(contestant.name, row);
        if contestant.name == OURS {
            let early = early as f64;
            bars.push(Bar::at_most(
                0.0,
                early,
                "requests too early, 200 a second, ours",
            ));
            bars.push(Bar::at_most(
                3.0,
                usual,
                "most in 100 ms by the usual, ours",
            ));
        }
    }
    Ok(Finding {
        name: "herd",
        title: "everybody is told the same Retry-After",
        seed,
        tables: vec![table, steady],
        panels: vec![Panel {
            x: Axis::plain("seconds"),
            y: Axis::plain("requests in 100 ms"),
            lines,
        }],
        bars,
        notes: Vec::new(),
    })
}

const OURS: &str = "ours: stack";

fn contestants() -> Result<[Contestant; 5], BoxError> {
    Ok([
        Contestant::looped("obeys to the second", Wait::AsTold),
        Contestant::looped("3 retries, jitter", Wait::Full),
        Contestant::TOWER,
        Contestant::RESILIENCE,
        Contestant::stack(OURS, TERMS.policy().build()?),
    ])
}

async fn ask(contestant: &Contestant, clients: u64, seed: u64) -> Result<Run, BoxError> {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let server = busy(Arc::clone(&arrivals), 0.0..ASKED, Dice::new(mix(seed, 0)));
    let mut calls = JoinSet::new();
    for number in 1..=clients {
        let seed = mix(seed, number);
        let client = contestant.client(TERMS, seed, server.clone())?;
        let begin = Dice::new(mix(seed, 2)).uniform() * 0.1;
        calls.spawn(async move {
            sleep(seconds(begin)).await;
            succeeded(&client.oneshot(call()).await)
        });
    }
    let mut run = Run::default();
    while let Some(ended) = calls.join_next().await {
        run.succeeded += u64::from(ended?);
    }
    run.arrivals = std::mem::take(&mut *lock(&arrivals));
    Ok(run)
}

/// One client that makes 200 calls a second, of which those of ten seconds are told to wait for ten.
async fn keep_asking(contestant: &Contestant, seed: u64) -> Result<(Run, f64), BoxError> {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let dice = Dice::new(mix(seed, 0));
    let server = busy(Arc::clone(&arrivals), BUSY, dice);
    let client = contestant.client(TERMS, mix(seed, 1), server)?;
    let timeline = Timeline::start();
    let dice = Dice::new(mix(seed, 2));
    offer(client, timeline.clone(), dice, |_| RATE, END).await;
    let run = Run {
        arrivals: std::mem::take(&mut *lock(&arrivals)),
        succeeded: 0,
    };
    Ok((run, timeline.total().success()))
}

/// Fails all that comes in these seconds, and says when to come back.
fn busy(arrivals: Arc<Mutex<Vec<f64>>>, busy: Range<f64>, dice: Dice) -> Wire {
    let (start, dice) = (Instant::now(), Arc::new(Mutex::new(dice)));
    BoxCloneService::new(service_fn(move |_: Call| {
        let (arrivals, dice) = (Arc::clone(&arrivals), Arc::clone(&dice));
        let busy = busy.clone();
        async move {
            let way = seconds(lock(&dice).exponential(200.0));
            sleep(way).await;
            let at = start.elapsed();
            lock(&arrivals).push(at.as_secs_f64());
            if !busy.contains(&at.as_secs_f64()) {
                return Ok(reply(StatusCode::OK));
            }
            let mut busy = reply(StatusCode::SERVICE_UNAVAILABLE);
            let asked = HeaderValue::from_static("10");
            busy.headers_mut().insert(RETRY_AFTER, asked);
            Ok(busy)
        }
    }))
}
