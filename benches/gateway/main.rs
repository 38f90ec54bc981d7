//! The cost of the gateway: its own binary under `wrk`, against itself without a single layer
//! (`--bare`), round by round in one run.
//!
//! ```text
//! tests/run gateway                                    installs wrk if need be
//! cargo bench --all-features --bench gateway
//! cargo bench --all-features --bench gateway -- quick
//! ```
//!
//! - GET: requests a second and the 99th percentile of both, and the median of the rounds' ratios.
//! - POST: half of them repeat a key, at the same time or soon after. The upstream must see each key
//!   once.
//!
//! The last line is `gateway {json}`. A figure out of its bound ends with status 1.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark that can't run has nothing to report"
)]

mod client;
#[path = "../stores/report.rs"]
mod report;
mod spawn;
mod upstream;
mod wrk;

use std::process::ExitCode;

use report::Report;
use spawn::Gateway;
use upstream::Upstream;
use wrk::{Load, wrk};

/// One proxy costs no less than so much of the other's throughput.
const GET_RATIO: f64 = 0.85;

/// Each key of the exact part is sent twice.
const KEYS: usize = 5000;

fn main() -> ExitCode {
    // Cargo adds flags of its own.
    let words: Vec<_> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let (rounds, seconds) = match &*words {
        [] => (7, 5),
        [quick] if quick == "quick" => (3, 1),
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
        let store = format!("sqlite:{}", folder.join("gateway.db").display());
        let bare = Gateway::start(&upstream.url(), &["--bare"]);
        let layered = ["--store", &store, "--anonymous", "bench", "--wait", "30s"];
        let layered = Gateway::start(&upstream.url(), &layered);
        gets(&mut report, &bare, &layered, rounds, seconds);
        posts(&mut report, &upstream, &layered, seconds);
    }
    let _ = std::fs::remove_dir_all(&folder);
    report.print("gateway")
}

fn gets(report: &mut Report, bare: &Gateway, layered: &Gateway, rounds: usize, seconds: u32) {
    // Connections to the upstream are made, and what is made once.
    for gateway in [bare, layered] {
        wrk(&gateway.url, 1, None);
    }
    let (mut ratios, mut plain, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        // The order alternates, so that neither gateway gains from being first.
        let (first, second) = match round % 2 {
            0 => (bare, layered),
            _ => (layered, bare),
        };
        let (a, b) = (
            wrk(&first.url, seconds, None),
            wrk(&second.url, seconds, None),
        );
        let (without, with) = if round % 2 == 0 { (a, b) } else { (b, a) };
        println!(
            "round {round}: bare {:.0}/s, p99 {:.2} ms; layered {:.0}/s, p99 {:.2} ms; ratio {:.3}",
            without.rate,
            without.p99,
            with.rate,
            with.p99,
            with.rate / without.rate
        );
        assert_eq!(without.failed + with.failed, 0, "GETs failed");
        ratios.push(with.rate / without.rate);
        plain.push(without);
        ours.push(with);
    }
    let of = |loads: &[Load], what: fn(&Load) -> f64| median(loads.iter().map(what).collect());
    report.note("get_bare_per_second", of(&plain, |load| load.rate));
    report.note("get_per_second", of(&ours, |load| load.rate));
    report.note("get_bare_p99_ms", of(&plain, |load| load.p99));
    report.note("get_p99_ms", of(&ours, |load| load.p99));
    report.at_least("get_ratio", median(ratios), GET_RATIO);
}

fn posts(report: &mut Report, upstream: &Upstream, layered: &Gateway, seconds: u32) {
    upstream.forget();
    let load = wrk(&layered.url, seconds, Some(include_str!("duplicates.lua")));
    report.note("post_per_second", load.rate);
    report.note("post_p99_ms", load.p99);
    let (executions, keys) = upstream.executions();
    println!(
        "under wrk: {executions} executions of {keys} keys, {} failed",
        load.failed
    );
    let twice = executions - keys;
    assert!(keys > 0, "no POST got through");
    report.at_most("post_executed_twice", twice as f64, 0.0);

    upstream.forget();
    client::send_twice(&layered.url, KEYS);
    let (executions, keys) = upstream.executions();
    report.note("post_keys", KEYS as f64);
    report.note("post_executions", executions as f64);
    report.at_most(
        "post_executions_per_key",
        executions as f64 / KEYS as f64,
        1.0,
    );
    report.at_least("post_keys_executed", keys as f64 / KEYS as f64, 1.0);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
