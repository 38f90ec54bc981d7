//! One run of a schedule.

use std::time::Duration;

use http_body_util::Full;
use tokio::time::sleep;
use turmoil::{Builder, Sim};

use crate::{
    client,
    ledger::{Reply, Witness},
    remote::Remote,
    schedule::{CLIENTS, Fault, SERVERS, STORE, Schedule, TICK, What},
    server,
};

/// A simulation with servers and their store.
pub(crate) fn machines<'a>(schedule: &Schedule, witness: &Witness) -> Sim<'a> {
    let mut sim = Builder::new()
        .rng_seed(schedule.seed)
        .enable_random_order()
        .tick_duration(TICK)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(40))
        .tcp_capacity(4096)
        .simulation_duration(Duration::from_secs(180))
        .build();
    let store = Remote::new(schedule.forgetful, witness.clone());
    let remote = store.clone();
    sim.host(STORE, move || remote.clone().serve());
    for name in SERVERS {
        let (store, witness, crash_policy) =
            (store.clone(), witness.clone(), schedule.crash_policy);
        sim.host(name, move || {
            server::serve(name, crash_policy, store.clone(), witness.clone())
        });
    }
    sim
}

/// Runs it to the end.
pub(crate) fn run(schedule: &Schedule) -> Result<Witness, String> {
    let witness = Witness::new(schedule.seed);
    let mut sim = machines(schedule, &witness);
    for (number, name) in CLIENTS.into_iter().enumerate() {
        let operations = schedule.operations.iter();
        let operations = operations.filter(|operation| operation.client == number);
        let operations = operations.cloned().collect();
        let seed = schedule.seed ^ number as u64;
        sim.client(name, client::run(seed, operations, witness.clone()));
    }
    sim.client("auditor", audit(schedule.end(), witness.clone()));
    let mut faults = Faults::new(schedule, &witness);
    loop {
        faults.pass(&mut sim);
        match sim.step() {
            Ok(true) => return Ok(witness),
            Ok(false) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The faults to come, and those that are still to be mended.
struct Faults<'a> {
    coming: std::slice::Iter<'a, Fault>,
    going_on: Vec<&'a Fault>,
    witness: &'a Witness,
}

impl<'a> Faults<'a> {
    fn new(schedule: &'a Schedule, witness: &'a Witness) -> Self {
        Self {
            coming: schedule.faults.iter(),
            going_on: Vec::new(),
            witness,
        }
    }

    fn pass(&mut self, sim: &mut Sim<'_>) {
        let now = sim.elapsed();
        self.going_on.retain(|fault| {
            let over = fault.until <= now;
            if over {
                end(sim, fault.what);
            }
            !over
        });
        while let Some(fault) = self
            .coming
            .as_slice()
            .first()
            .filter(|fault| fault.at <= now)
        {
            self.coming.next();
            // One thing at a time on each link, and to each machine.
            let place = fault.what.place();
            if self
                .going_on
                .iter()
                .any(|other| other.what.place() == place)
            {
                continue;
            }
            if let What::Leapt(name, by) = fault.what {
                self.witness.look().leaps.push((name, by));
                continue;
            }
            begin(sim, fault.what);
            self.going_on.push(fault);
        }
    }
}

impl What {
    fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::Parted(a, b) | Self::Lost(a, b) | Self::Held(a, b) | Self::Slow(a, b, _) => {
                (a.min(b), a.max(b))
            }
            Self::Crashed(name) => (name, name),
            Self::Leapt(name, _) => (name, "clock"),
        }
    }
}

fn begin(sim: &mut Sim<'_>, what: What) {
    match what {
        What::Parted(a, b) => sim.partition(a, b),
        What::Lost(from, to) => sim.partition_oneway(from, to),
        What::Held(a, b) => sim.hold(a, b),
        What::Slow(a, b, latency) => sim.set_link_latency(a, b, latency),
        What::Crashed(name) => sim.crash(name),
        What::Leapt(..) => {}
    }
}

fn end(sim: &mut Sim<'_>, what: What) {
    match what {
        What::Parted(a, b) => sim.repair(a, b),
        What::Lost(from, to) => sim.repair_oneway(from, to),
        What::Held(a, b) => sim.release(a, b),
        What::Slow(a, b, _) => sim.set_link_latency(a, b, Duration::from_millis(5)),
        What::Crashed(name) => sim.bounce(name),
        What::Leapt(..) => {}
    }
}

/// Asks again for everything that ever reached a server, once all is well.
async fn audit(after: Duration, witness: Witness) -> turmoil::Result {
    sleep(after).await;
    let keys = witness.look().keys.clone();
    for (operation, keys) in keys {
        let reply = insist(operation, &keys[0]).await?;
        witness.look().audited.insert(operation, reply);
    }
    Ok(())
}

/// Until it is known.
async fn insist(operation: usize, key: &str) -> turmoil::Result<Reply> {
    for attempt in 0..40 {
        let request = client::request(operation).header("idempotency-key", key);
        let request = request.body(Full::from("100 EUR"))?;
        let reply = client::ask(SERVERS[attempt % 2], request).await;
        match reply {
            Ok(reply) if !reply.is_still_processing() && reply.status != 503 => return Ok(reply),
            _ => sleep(Duration::from_millis(500)).await,
        }
    }
    Err(format!("operation {operation} has no answer, long after all faults").into())
}

impl Reply {
    pub(crate) fn is_still_processing(&self) -> bool {
        self.says("idempotency-processing")
    }

    pub(crate) fn says(&self, problem: &str) -> bool {
        let body = self.body.as_deref().unwrap_or_default();
        self.status == 409 && body.contains(problem)
    }
}
