//! Stragglers: most calls take 5 ms, and one in twenty takes ten times as long.
//!
//! The setting that bhope/hedge publishes: 50,000 requests, log-normal with a mean of 5 ms and a
//! deviation of 2 ms, 5 % of them ten times slower. A second one: after half of the calls everything
//! takes ten times as long, and a tenth of the requests fails.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower::{ServiceExt, service_fn, util::BoxCloneService};
use tower_reprise::{Policy, error::BoxError};

use crate::{
    Size,
    chart::{Axis, Panel},
    clients::{Contestant, Terms},
    dice::{Dice, mix},
    progress::Progress,
    report::{Bar, Finding},
    table::{Figure, Table},
    world::{Call, Wire, call, lock, reply, seconds, share, succeeded, virtual_time},
};

/// The clock moves by a millisecond at least, so a published one is so many of it here.
pub(crate) const STRETCH: f64 = 50.0;
/// The static delay of the published setting, in its milliseconds.
pub(crate) const STATIC: f64 = 10.0;
/// Calls in a stretched second, usually and while all is slow.
const RATE: f64 = 300.0;
const SLOW_RATE: f64 = 100.0;
/// Calls before those that count, so that latencies are known.
const WARM_UP: u64 = 2000;
const MEAN: f64 = 5.0;
const DEVIATION: f64 = 2.0;
const STRAGGLERS: f64 = 0.05;
const SLOWER: f64 = 10.0;
const FAILING: f64 = 0.1;
/// Sends a second request for 7.3 % of the calls, as the static delay is published to.
const AS_MANY: f64 = 0.927;

const TERMS: Terms = Terms {
    retries: 3,
    base: Duration::from_secs(1),
    cap: Duration::from_secs(30),
    timeout: None,
};

const OURS: &str = "ours: as many as static";
const DEFAULT: &str = "ours: default";

/// The time of so many published milliseconds.
pub(crate) fn stretched(millis: f64) -> Duration {
    seconds(millis * STRETCH / 1000.0)
}

pub(crate) fn run(size: Size, seed: u64, progress: &mut Progress) -> Result<Finding, BoxError> {
    // One run has 50 calls beyond its 99.9th percentile, which chance moves by 2 ms.
    let (calls, runs) = match size {
        Size::Full => (50_000, 8),
        Size::Quick => (10_000, 1),
    };
    let columns = ["p50", "p99", "p99.9", "extra requests"];
    let mut usual = Table::new("stragglers", columns);
    let columns = ["most in 30 s", "in all", "succeed"];
    let mut slow = Table::new("ten times slower", columns);
    let (mut lines, mut bars) = (Vec::new(), Vec::new());
    for contestant in contestants()? {
        progress.run(format_args!("{}", contestant.name));
        let mut found = Found::default();
        for run in 0..runs {
            found.add(virtual_time(offer(
                &contestant,
                calls,
                mix(seed, run),
                false,
            ))??);
        }
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| found.quantile(share));
        let extra = found.extra();
        let millis = [p50, p99, p999].map(Figure::Millis);
        usual.row(
            contestant.name,
            [&millis[..], &[Figure::Percent(extra)]].concat(),
        );
        if contestant.name == OURS {
            bars.push(Bar::at_most(17.0, p99, "p99 in ms, ours"));
            bars.push(Bar::at_most(46.0, p999, "p99.9 in ms, ours"));
            bars.push(Bar::at_most(0.074, extra, "extra requests, ours"));
        }
        if contestant.name == DEFAULT {
            bars.push(Bar::at_most(0.06, extra, "extra requests, our default"));
        }
        lines.push((contestant.name.to_owned(), found.tail()));

        let found = virtual_time(offer(&contestant, calls, mix(seed, runs), true))??;
        let most = found.most_in_a_window();
        slow.row(
            contestant.name,
            vec![
                Figure::Percent(most),
                Figure::Percent(found.extra()),
                Figure::Percent(found.success()),
            ],
        );
        if [OURS, DEFAULT].contains(&contestant.name) {
            let name = contestant.name;
            bars.push(Bar::at_most(
                0.2,
                most,
                format!("retries and hedges in any 30 s of slowness, {name}"),
            ));
            bars.push(Bar::at_least(
                0.999,
                found.success(),
                format!("success while all is slow, {name}"),
            ));
        }
    }
    Ok(Finding {
        name: "hedge",
        title: "5 % of the requests take ten times as long",
        seed,
        tables: vec![usual, slow],
        panels: vec![Panel {
            x: Axis::plain("calls that take longer, in 1,000"),
            y: Axis::plain("milliseconds"),
            lines,
        }],
        bars,
        notes: vec![
            "published by bhope/hedge, p99 and p99.9: 64.3 and 104.5 ms without hedges, 17.4 and 46.5 \
             at 7.4 % with a static delay, 17.0 and 59.4 at 8.9 % with an adaptive one"
                .to_owned(),
            format!("the first {WARM_UP} calls of a run are not counted"),
            "the others hedge, and do not retry; tower-resilience has fixed delays only".to_owned(),
        ],
    })
}

fn contestants() -> Result<[Contestant; 6], BoxError> {
    // The longest delay of the defaults would be a short one on this clock.
    let policy = || {
        Policy::batch_item()
            .total_timeout(Duration::from_secs(3600))
            .max_retries(TERMS.retries)
            .hedge_delay(Duration::from_millis(1), Duration::from_secs(3600))
    };
    Ok([
        Contestant::ONCE,
        Contestant::HEDGE_STATIC,
        Contestant::HEDGE_TOWER,
        Contestant::HEDGE_RESILIENCE,
        Contestant::stack(DEFAULT, policy().build()?),
        Contestant::stack(OURS, policy().hedge_quantile(AS_MANY).build()?),
    ])
}

/// The latencies of calls in published milliseconds, and the times at which they and the requests
/// went out.
#[derive(Default)]
struct Found {
    millis: Vec<f64>,
    calls: Vec<f64>,
    requests: Vec<f64>,
    succeeded: u64,
}

impl Found {
    /// Adds another run.
    fn add(&mut self, run: Self) {
        self.millis.extend(run.millis);
        self.millis.sort_by(f64::total_cmp);
        self.calls.extend(run.calls);
        self.requests.extend(run.requests);
        self.succeeded += run.succeeded;
    }

    fn extra(&self) -> f64 {
        self.requests.len() as f64 / self.calls.len() as f64 - 1.0
    }

    fn success(&self) -> f64 {
        share(self.succeeded, self.calls.len() as u64)
    }

    fn quantile(&self, share: f64) -> f64 {
        let index = (self.millis.len() as f64 * share) as usize;
        self.millis.get(index).copied().unwrap_or(f64::NAN)
    }

    /// The latency of the calls that so many of 1,000 exceed.
    fn tail(&self) -> Vec<(f64, f64)> {
        let shares = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0];
        let point = |slower: f64| (slower, self.quantile(1.0 - slower / 1000.0));
        shares.map(point).to_vec()
    }

    /// The largest share of further requests among those of a window of 30 s, after the first one.
    fn most_in_a_window(&self) -> f64 {
        let last = self.calls.last().copied().unwrap_or_default();
        let within = |times: &[f64], from: f64| {
            let before = |at: f64| times.partition_point(|time| *time < at);
            (before(from + 30.0) - before(from)) as f64
        };
        let mut most = 0.0_f64;
        let mut from = 0.0;
        while from + 30.0 <= last {
            let calls = within(&self.calls, from);
            // Requests of calls from before the window are none of its calls.
            most = most.max((within(&self.requests, from) - calls) / calls);
            from += 1.0;
        }
        most
    }
}

/// All calls come from one client.
async fn offer(
    contestant: &Contestant,
    calls: u64,
    seed: u64,
    gets_slow: bool,
) -> Result<Found, BoxError> {
    let start = Instant::now();
    let found = Arc::new(Mutex::new(Found::default()));
    let (rate, slow_from) = match gets_slow {
        true => (SLOW_RATE, calls as f64 / SLOW_RATE / 2.0),
        false => (RATE, f64::INFINITY),
    };
    let wire = straggling(&found, start, Dice::new(mix(seed, 0)), slow_from);
    let client = contestant.client(TERMS, mix(seed, 1), wire)?;
    let mut dice = Dice::new(mix(seed, 2));
    let mut running = JoinSet::new();
    let mut at = 0.0;
    for number in 0..calls + WARM_UP {
        at += dice.exponential(rate);
        sleep_until(start + seconds(at)).await;
        if number == WARM_UP {
            *lock(&found) = Found::default();
        }
        let (client, found) = (client.clone(), Arc::clone(&found));
        running.spawn(async move {
            let made = Instant::now();
            lock(&found).calls.push((made - start).as_secs_f64());
            let good = succeeded(&client.oneshot(call()).await);
            if number < WARM_UP {
                return;
            }
            let mut found = lock(&found);
            found.succeeded += u64::from(good);
            found
                .millis
                .push(made.elapsed().as_secs_f64() * 1000.0 / STRETCH);
        });
        while running.try_join_next().is_some() {}
    }
    while running.join_next().await.is_some() {}
    Ok(std::mem::take(&mut *lock(&found)))
}

/// A server whose latency is drawn anew for each request.
fn straggling(found: &Arc<Mutex<Found>>, start: Instant, dice: Dice, slow_from: f64) -> Wire {
    let spread = (1.0 + (DEVIATION / MEAN).powi(2)).ln();
    let middle = MEAN.ln() - spread / 2.0;
    let (found, dice) = (Arc::clone(found), Arc::new(Mutex::new(dice)));
    BoxCloneService::new(service_fn(move |_: Call| {
        let (found, dice) = (Arc::clone(&found), Arc::clone(&dice));
        let at = start.elapsed().as_secs_f64();
        async move {
            lock(&found).requests.push(at);
            let (mut millis, fails) = {
                let mut dice = lock(&dice);
                let millis = dice.normal(middle, spread.sqrt()).exp();
                let straggles = dice.uniform() < STRAGGLERS;
                let fails = dice.uniform() < FAILING;
                (if straggles { millis * SLOWER } else { millis }, fails)
            };
            let slow = at >= slow_from;
            if slow {
                millis *= SLOWER;
            }
            sleep(stretched(millis)).await;
            Ok(reply(match slow && fails {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::OK,
            }))
        }
    }))
}
