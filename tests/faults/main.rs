//! Clients and servers on machines of their own, with a network between them that loses, holds and
//! slows what they say, and servers that crash: whatever happens, nothing is done twice, nothing
//! that was acknowledged is lost, and every call ends in time.
//!
//! The machines are simulated, and so is time. What is called and what goes wrong is drawn from a
//! seed. A failure tells it, and `REPRISE_SEED=7 cargo test --all-features --test faults` tries that
//! one again, under either policy for orphans: nearly always it runs as it did, but what happens at
//! the very same moment on one machine may come in either order. `REPRISE_SCHEDULES=5000` tries so
//! many, half of them under each policy; without it there are 200.
#![cfg(all(
    feature = "axum",
    feature = "codes",
    feature = "hyper",
    feature = "server"
))]
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers are tests too"
)]

mod client;
mod leases;
mod ledger;
mod remote;
mod run;
mod schedule;
mod server;
mod verdict;

use schedule::Schedule;
use tower_reprise::store::CrashPolicy;
use verdict::Tally;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name}={value} is not a number"),
    }
}

/// Runs as many schedules as there are to be tried.
fn try_schedules(crash_policy: CrashPolicy) -> Tally {
    let seeds = match number("REPRISE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("REPRISE_SCHEDULES").unwrap_or(200).div_ceil(2),
    };
    let mut tally = Tally::default();
    for seed in seeds {
        println!("seed {seed}");
        let schedule = Schedule::draw(seed, crash_policy);
        let judged = run::run(&schedule).and_then(|witness| verdict::judge(&schedule, &witness));
        match judged {
            Ok(judged) => tally.add(&judged),
            Err(error) => panic!("REPRISE_SEED={seed}: {error}\n{schedule:#?}"),
        }
    }
    println!("{tally:?}");
    tally
}

/// I-6, I-14, I-16, D-1: no operation takes effect twice, where that is worse than not at all.
#[test]
fn i_14_no_effect_twice_where_orphans_are_left_alone() {
    let tally = try_schedules(CrashPolicy::Unknown);
    if number("REPRISE_SEED").is_none() {
        tally.saw_it_all();
        assert!(tally.unknown > 0, "no server died while executing");
    }
}

/// I-14, I-15, I-22, D-1: where orphans are executed again, what was acknowledged stands if the
/// store has taken it, and an owner that lost its lease changes nothing any more.
#[test]
fn i_15_what_was_acknowledged_and_stored_stands_where_orphans_are_executed_again() {
    let tally = try_schedules(CrashPolicy::Reexecute);
    if number("REPRISE_SEED").is_none() {
        tally.saw_it_all();
        assert!(tally.executed_again > 0, "no orphan was executed again");
    }
}

/// The judge would see it: a store that does not know a key again lets payments be made twice.
#[test]
fn i_6_without_a_memory_there_are_two_effects() {
    let found = (0..20).find_map(|seed| {
        let mut schedule = Schedule::draw(seed, CrashPolicy::Unknown);
        schedule.forgetful = true;
        let witness = run::run(&schedule).ok()?;
        verdict::judge(&schedule, &witness).err()
    });
    let found = found.expect("a duplicate under one of the schedules");
    assert!(found.contains("took effect twice"), "{found}");
}

/// A failure can be repeated by its seed: nearly always, since what happens at the very same moment
/// on one machine may come in either order.
#[test]
fn a_seed_is_a_run() {
    let same = (0..10).filter(|seed| {
        let schedule = Schedule::draw(*seed, CrashPolicy::Unknown);
        let runs = [(); 2].map(|()| run::run(&schedule).unwrap().to_string());
        runs[0] == runs[1]
    });
    assert!(same.count() >= 8);
}
