//! A server that is gone blocks its keys for as long as its lease, by the store's clock.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::{advance, sleep};
use tower_reprise::store::CrashPolicy;
use turmoil::Sim;

use crate::{
    client::{ask, request},
    ledger::{Reply, Witness},
    run::machines,
    schedule::{LEASE, SERVERS, STORE, Schedule, TICK},
};

fn payment() -> Request<Full<Bytes>> {
    let request = request(0).header("idempotency-key", "k");
    request.body(Full::from("100 EUR")).unwrap()
}

/// Machines on which a payment was begun by the first server.
fn begun<'a>(crash_policy: CrashPolicy, script: [(u64, u64); 2]) -> (Sim<'a>, Witness) {
    let schedule = Schedule {
        seed: 1,
        crash_policy,
        forgetful: false,
        operations: vec![],
        faults: vec![],
    };
    let witness = Witness::new(0);
    witness.look().script.extend(script);
    let mut sim = machines(&schedule, &witness);
    sim.client("first", async move {
        let _ = ask(SERVERS[0], payment()).await;
        Ok(())
    });
    while witness.look().begun == 0 {
        sim.step().unwrap();
    }
    (sim, witness)
}

/// Asks the second server until it has an answer, on a machine whose clock leaps. What it was told,
/// and when it asked, by the simulation's clock.
fn ask_second(mut sim: Sim<'_>, leap: Duration) -> Vec<(Duration, Reply)> {
    let told: Arc<Mutex<Vec<(Duration, Reply)>>> = Arc::default();
    let clock = Rc::new(Cell::new(Duration::ZERO));
    let (telling, now) = (Arc::clone(&told), Rc::clone(&clock));
    sim.client("second", async move {
        sleep(Duration::from_millis(100)).await;
        advance(leap).await;
        loop {
            let asked = now.get();
            let reply = ask(SERVERS[1], payment()).await?;
            let waits = reply.is_still_processing();
            telling.lock().unwrap().push((asked, reply));
            if !waits {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    let started = sim.elapsed();
    while !sim.step().unwrap() {
        clock.set(sim.elapsed() - started);
    }
    // Runs the remaining work to its end.
    for _ in 0..300 {
        sim.step().unwrap();
    }
    std::mem::take(&mut *told.lock().unwrap())
}

/// I-14, T-3
#[test]
fn i_14_a_crashed_owner_blocks_for_its_lease_by_the_clock_of_the_store() {
    for crash_policy in [CrashPolicy::Unknown, CrashPolicy::Reexecute] {
        for leap in [Duration::ZERO, Duration::from_secs(3600)] {
            let (mut sim, witness) = begun(crash_policy, [(0, 500), (100, 100)]);
            while witness.look().effects.is_empty() {
                sim.step().unwrap();
            }
            sim.crash(SERVERS[0]);
            witness.look().leaps.push((SERVERS[1], leap));
            let told = ask_second(sim, leap);
            let (last, refused) = told.split_last().unwrap();
            // The lease began with the claim, a moment before the crash.
            assert!(refused.len() > 2, "{leap:?}: {told:?}");
            assert!(last.0 >= LEASE - TICK * 10, "{leap:?}: {told:?}");
            assert!(last.0 <= LEASE + TICK * 20, "{leap:?}: {told:?}");
            let effects = witness.look().effects[&0].len();
            match crash_policy {
                CrashPolicy::Unknown => {
                    assert!(last.1.says("outcome-unknown"), "{told:?}");
                    assert_eq!(effects, 1);
                }
                CrashPolicy::Reexecute => {
                    assert_eq!(last.1.status, 201, "{told:?}");
                    assert_eq!(effects, 2);
                }
            }
        }
    }
}

/// I-15: who can't reach the store loses its lease, and what it writes after that is refused.
#[test]
fn i_15_an_owner_that_was_cut_off_writes_too_late() {
    for held in [false, true] {
        let (sim, witness) = begun(CrashPolicy::Reexecute, [(4000, 100), (100, 100)]);
        match held {
            true => sim.hold(SERVERS[0], STORE),
            false => sim.partition(SERVERS[0], STORE),
        }
        let told = ask_second(sim, Duration::ZERO);
        let (_, reply) = told.last().unwrap();
        assert_eq!(reply.status, 201, "{told:?}");
        let account = witness.look();
        assert_eq!(account.fenced, 1);
        let effects = account.effects[&0].iter().map(u64::to_string);
        assert_eq!(effects.collect::<Vec<_>>(), [reply.body.clone().unwrap()]);
    }
}
