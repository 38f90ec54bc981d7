//! A client-count sweep: a budget of one's own is little, but a thousand of them are not.
//!
//! The same 1,000 calls a second come from 10, 100 or 1,000 clients whose server fails all of them.
//! Then there are 1,000 clients that are nearly idle, with a call every 30 s, which is where the
//! floor of a budget ("so many retries, however few calls there are") is all that counts: the outage
//! is short, and then long. What keeps them small is that a floor is regained by successes, a
//! smaller floor, or one budget for clients that live in one process. What that costs is shown too:
//! retries on a good day, when a call in ten fails.

use tokio::task::JoinSet;
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
    world::{Counts, Timeline, flaky, offer, virtual_time},
};

const TERMS: Terms = Terms::STANDARD;
/// Seconds between two calls of a client that is nearly idle.
const IDLE: f64 = 30.0;

/// So many clients that call at that rate for so long.
#[derive(Clone, Copy)]
struct Crowd {
    clients: u64,
    rate: f64,
    length: f64,
    failing: f64,
}

pub(crate) fn run(size: Size, seed: u64, progress: &mut Progress) -> Result<Finding, BoxError> {
    // Calls a second and seconds of busy clients, number of idle ones, and their long outage.
    let (total, busy, small, long) = match size {
        Size::Full => (1000.0, 10.0, 1000, 600.0),
        Size::Quick => (300.0, 1.0, 100, 90.0),
    };
    let contestants = contestants()?;
    let counts = [10, 100, 1000];
    let columns = counts.iter().map(|count| format!("{count} clients"));
    let mut table = Table::new("requests a call, outage", columns);
    let (mut lines, mut bars) = (Vec::new(), Vec::new());
    for (contestant, shared) in &contestants {
        let mut points = Vec::new();
        for clients in counts {
            progress.run(format_args!("{}, {clients} clients", contestant.name));
            let crowd = Crowd {
                clients,
                rate: total / clients as f64,
                length: busy,
                failing: 1.0,
            };
            let counts = virtual_time(outage(contestant, *shared, crowd, mix(seed, clients)))??;
            points.push((clients as f64, counts.load()));
        }
        if contestant.name == STACK {
            let most = points.iter().map(|(_, load)| *load).fold(0.0, f64::max);
            bars.push(Bar::at_most(
                1.0,
                most,
                format!("load in an outage, {STACK}"),
            ));
        }
        let loads = points.iter().map(|(_, load)| Figure::Times(*load));
        table.row(contestant.name, loads.collect());
        lines.push((contestant.name.to_owned(), points));
    }

    let mut idle = Table::new(
        "nearly idle clients",
        ["30 s outage", "long outage", "10 % fail", "then succeed"],
    );
    for (contestant, shared) in &contestants {
        progress.run(format_args!("{}, nearly idle", contestant.name));
        let run = |length: f64, failing: f64| {
            let crowd = Crowd {
                clients: small,
                rate: 1.0 / IDLE,
                length,
                failing,
            };
            let seed = mix(seed, length.to_bits() ^ failing.to_bits());
            virtual_time(outage(contestant, *shared, crowd, seed))?
        };
        let (short, long, good) = (run(30.0, 1.0)?, run(long, 1.0)?, run(long, 0.1)?);
        idle.row(
            contestant.name,
            vec![
                Figure::Times(short.load()),
                Figure::Times(long.load()),
                Figure::Times(good.load()),
                Figure::Percent(good.success()),
            ],
        );
        if contestant.name == STACK {
            for (most, load, outage) in [(2.0, short.load(), "short"), (1.3, long.load(), "long")] {
                let what = format!("load of nearly idle clients, {outage} outage, {STACK}");
                bars.push(Bar::at_most(most, load, what));
            }
            let what = format!("success of nearly idle clients at 10 % failures, {STACK}");
            bars.push(Bar::at_least(0.995, good.success(), what));
        }
        if [SHARED, NO_FLOOR].contains(&contestant.name) {
            for (outage, counts) in [("short", short), ("long", long)] {
                let what = format!(
                    "load of nearly idle clients, {outage} outage, {}",
                    contestant.name
                );
                bars.push(Bar::at_most(1.5, counts.load(), what));
            }
        }
    }
    Ok(Finding {
        name: "crowd",
        title: "an outage, and many small clients with budgets of their own",
        seed,
        tables: vec![table, idle],
        panels: vec![Panel {
            x: Axis::logarithmic("clients"),
            y: Axis::plain("requests a call in an outage"),
            lines,
        }],
        bars,
        notes: Vec::new(),
    })
}

const DEFAULT: &str = "ours: retry, budget";
const STACK: &str = "ours: stack";
const SHARED: &str = "ours: one budget";
const NO_FLOOR: &str = "ours: floor 0";

/// And whether all clients share what they know.
fn contestants() -> Result<[(Contestant, bool); 9], BoxError> {
    let policy = || TERMS.policy();
    Ok([
        (Contestant::looped("3 retries", Wait::Full), false),
        (Contestant::BUCKET, false),
        (Contestant::TOWER, false),
        (Contestant::RESILIENCE, false),
        (Contestant::budget(DEFAULT, policy().build()?), false),
        (
            Contestant::budget("ours: floor 1", policy().budget_floor(1).build()?),
            false,
        ),
        (
            Contestant::budget(NO_FLOOR, policy().budget_floor(0).build()?),
            false,
        ),
        (Contestant::budget(SHARED, policy().build()?), true),
        (Contestant::stack(STACK, policy().build()?), false),
    ])
}

async fn outage(
    contestant: &Contestant,
    shared: bool,
    crowd: Crowd,
    seed: u64,
) -> Result<Counts, BoxError> {
    let timeline = Timeline::start();
    let server = flaky(&timeline, Dice::new(mix(seed, 0)), move |_| crowd.failing);
    let one = contestant.client(TERMS, seed, server.clone())?;
    let mut clients = JoinSet::new();
    for number in 1..=crowd.clients {
        let seed = mix(seed, number);
        let client = match shared {
            true => one.clone(),
            false => contestant.client(TERMS, seed, server.clone())?,
        };
        let dice = Dice::new(mix(seed, 2));
        let rate = move |_| crowd.rate;
        clients.spawn(offer(client, timeline.clone(), dice, rate, crowd.length));
    }
    while clients.join_next().await.is_some() {}
    Ok(timeline.total())
}
