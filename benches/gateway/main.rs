//! The cost of the gateway: its own binary under `wrk`, against itself without a single layer
//! (`--bare`) and against nginx, round by round in one run.
//!
//! ```text
//! tests/run gateway                                    installs wrk and nginx, starts PostgreSQL
//! cargo bench --all-features --bench gateway
//! cargo bench --all-features --bench gateway -- quick
//! ```
//!
//! - GET: requests a second, median and 99th percentile of each, and the medians of the rounds' ratios.
//!   The gateway's memory must not grow from the first round to the last.
//! - POST with a key, on SQLite, and on PostgreSQL where `REPRISE_TEST_POSTGRES` names one: requests a
//!   second and percentiles. Half of them repeat a key, at the same time or soon after. The upstream
//!   must see each key once.
//!
//! Without nginx its part is left out. The last line is `gateway {json}`. A figure out of its bound ends
//! with status 1.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that can't run has nothing to report"
)]

mod client;
mod nginx;
#[path = "../stores/report.rs"]
mod report;
mod spawn;
mod upstream;
mod wrk;

use std::process::ExitCode;

use nginx::Nginx;
use report::Report;
use spawn::Gateway;
use upstream::Upstream;
use wrk::{Load, wrk};

/// The least share of the bare proxy's throughput.
const GET_RATIO: f64 = 0.95;
/// The least share of nginx's throughput.
const NGINX_RATIO: f64 = 0.8;
/// The most that the gateway's memory may grow while it serves GETs.
const RSS_RATIO: f64 = 1.2;

/// Each key of the exact part is sent twice.
const KEYS: usize = 5000;

fn main() -> ExitCode {
    // Cargo adds flags of its own.
    let words: Vec<_> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    // Many short rounds: what else a machine does changes from second to second.
    let (rounds, seconds, posting) = match &*words {
        [] => (30, 1, 5),
        [quick] if quick == "quick" => (3, 1, 1),
        _ => {
            eprintln!("there is: quick");
            return ExitCode::from(2);
        }
    };
    let upstream = Upstream::start();
    let folder = std::env::temp_dir().join(format!("reprise-gateway-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut report = Report::default();
    {
        let nginx = Nginx::start(&upstream.url(), &folder);
        let store = format!("sqlite:{}", folder.join("gateway.db").display());
        let bare = Gateway::start(&upstream.url(), &["--bare"]);
        let layered = keyed(&upstream, &store);
        gets(
            &mut report,
            &bare,
            &layered,
            nginx.as_ref(),
            rounds,
            seconds,
        );
        posts(&mut report, "sqlite", &upstream, &layered, posting);
    }
    match std::env::var("REPRISE_TEST_POSTGRES") {
        Ok(url) => {
            let layered = keyed(&upstream, &url);
            posts(&mut report, "postgres", &upstream, &layered, posting);
        }
        Err(_) => println!("left out: PostgreSQL, as REPRISE_TEST_POSTGRES names none"),
    }
    let _ = std::fs::remove_dir_all(&folder);
    report.print("gateway")
}

/// A gateway with all layers.
fn keyed(upstream: &Upstream, store: &str) -> Gateway {
    let flags = ["--store", store, "--anonymous", "bench", "--wait", "30s"];
    Gateway::start(&upstream.url(), &flags)
}

/// The loads of one proxy, a round each.
type Loads = Vec<Load>;

fn gets(
    report: &mut Report,
    bare: &Gateway,
    layered: &Gateway,
    nginx: Option<&Nginx>,
    rounds: usize,
    seconds: u32,
) {
    let mut proxies = vec![("bare", &bare.url), ("layered", &layered.url)];
    match nginx {
        Some(nginx) => proxies.push(("nginx", &nginx.url)),
        None => println!("left out: nginx, as it is not installed"),
    }
    // Connections to the upstream are made, and what is made once.
    for (_, url) in &proxies {
        wrk(url, 1, None);
    }
    let before = layered.rss();
    let mut all: Vec<Loads> = proxies.iter().map(|_| Loads::new()).collect();
    for round in 0..rounds {
        // Each is first in its turn, so that none gains from it.
        for turn in 0..proxies.len() {
            let which = (round + turn) % proxies.len();
            let (name, url) = proxies[which];
            let load = wrk(url, seconds, None);
            println!(
                "round {round}: {name} {:.0}/s, p50 {:.2} ms, p99 {:.2} ms",
                load.rate, load.p50, load.p99
            );
            assert_eq!(load.failed, 0, "GETs through {name} failed");
            all[which].push(load);
        }
    }
    let of = |loads: &[Load], what: fn(&Load) -> f64| median(loads.iter().map(what).collect());
    for ((name, _), loads) in proxies.iter().zip(&all) {
        report.note(
            &format!("get_{name}_per_second"),
            of(loads, |load| load.rate),
        );
        report.note(&format!("get_{name}_p50_ms"), of(loads, |load| load.p50));
        report.note(&format!("get_{name}_p99_ms"), of(loads, |load| load.p99));
    }
    let ratio = |others: &Loads| {
        let rounds = all[1].iter().zip(others);
        median(rounds.map(|(ours, other)| ours.rate / other.rate).collect())
    };
    report.at_least("get_ratio", ratio(&all[0]), GET_RATIO);
    if let Some(nginx) = all.get(2) {
        report.at_least("get_nginx_ratio", ratio(nginx), NGINX_RATIO);
    }
    report.at_most("get_rss_ratio", layered.rss() / before, RSS_RATIO);
}

fn posts(report: &mut Report, store: &str, upstream: &Upstream, layered: &Gateway, seconds: u32) {
    upstream.forget();
    let load = wrk(&layered.url, seconds, Some(include_str!("duplicates.lua")));
    let name = |what: &str| format!("post_{store}_{what}");
    report.note(&name("per_second"), load.rate);
    report.note(&name("p50_ms"), load.p50);
    report.note(&name("p99_ms"), load.p99);
    let (executions, keys) = upstream.executions();
    println!(
        "under wrk on {store}: {executions} executions of {keys} keys, {} failed",
        load.failed
    );
    let twice = executions - keys;
    assert!(keys > 0, "no POST got through");
    report.at_most(&name("executed_twice"), twice as f64, 0.0);

    upstream.forget();
    client::send_twice(&layered.url, KEYS);
    let (executions, keys) = upstream.executions();
    let of = |count: usize| count as f64 / KEYS as f64;
    report.at_most(&name("executions_per_key"), of(executions), 1.0);
    report.at_least(&name("keys_executed"), of(keys), 1.0);
    report.note(&name("rss_mib"), layered.rss() / 1024.0);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
