//! An outage and its end: what clients ask of a server that is down, and how soon they are back when
//! it is well.
//!
//! One client calls at a steady rate. After five seconds the server fails all calls for thirty, and
//! then none. A client is back from the moment on at which 95 % of the calls of the next half second
//! succeed.

use tower_reprise::error::BoxError;

use crate::{
    Size,
    chart::{Axis, Panel},
    clients::{Contestant, Terms},
    dice::mix,
    others::Wait,
    progress::Progress,
    report::{Bar, Finding},
    table::{Figure, Table},
    trials::{Outage, outage},
    world::virtual_time,
};

const TERMS: Terms = Terms::STANDARD;
pub(crate) fn run(size: Size, seed: u64, progress: &mut Progress) -> Result<Finding, BoxError> {
    let rates: &[(f64, u64)] = match size {
        Size::Full => &[(10.0, 100), (300.0, 10), (5000.0, 2)],
        Size::Quick => &[(10.0, 5)],
    };
    let name = |rate: f64| format!("{rate:.0} a second");
    let columns = || rates.iter().map(|(rate, _)| name(*rate));
    let mut loads = Table::new("requests a call in the outage", columns());
    let mut backs = Table::new("back after", columns());
    let (mut lines, mut bars) = (Vec::new(), Vec::new());
    for contestant in contestants()? {
        let (mut load, mut back) = (Vec::new(), Vec::new());
        for (rate, runs) in rates {
            progress.run(format_args!("{}, {}", contestant.name, name(*rate)));
            let mut all = Outage::default();
            for run in 0..*runs {
                let seed = mix(mix(seed, *rate as u64), run);
                let client = |seed, wire| contestant.client(TERMS, seed, wire);
                all.add(virtual_time(outage(client, *rate, seed))??);
            }
            load.push(Figure::Times(all.load()));
            let seconds = all.back().unwrap_or(f64::INFINITY);
            back.push(Figure::Seconds(seconds));
            if contestant.name == OURS {
                let rate = name(*rate);
                bars.push(Bar::at_most(
                    0.1,
                    all.load(),
                    format!("load in the outage, {rate}"),
                ));
                let what = format!("seconds until it is back, {rate}");
                bars.push(Bar::at_most(0.5, seconds, what));
            }
            if *rate == rates[0].0 {
                let points = (0_u32..=20).map(|tenth| f64::from(tenth) / 5.0);
                let points = points.map(|at| (at, all.success(at) * 100.0));
                lines.push((contestant.name.to_owned(), points.collect()));
            }
        }
        loads.row(contestant.name, load);
        backs.row(contestant.name, back);
    }
    Ok(Finding {
        name: "recovery",
        title: "down for 30 s, then well",
        seed,
        tables: vec![loads, backs],
        panels: vec![Panel {
            x: Axis::plain("seconds after the outage, 10 calls a second"),
            y: Axis::plain("calls that succeed, %"),
            lines,
        }],
        bars,
        notes: Vec::new(),
    })
}

const OURS: &str = "ours: stack";

fn contestants() -> Result<[Contestant; 6], BoxError> {
    Ok([
        Contestant::ONCE,
        Contestant::looped("3 retries, jitter", Wait::Full),
        Contestant::TOWER,
        Contestant::RESILIENCE,
        Contestant::budget("ours: retry, budget", TERMS.policy().build()?),
        Contestant::stack(OURS, TERMS.policy().build()?),
    ])
}
