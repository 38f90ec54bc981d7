//! The faults and their times, drawn from a seed.

use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tower_reprise::store::CrashPolicy;

pub(crate) const CLIENTS: [&str; 2] = ["client-0", "client-1"];
pub(crate) const SERVERS: [&str; 2] = ["server-0", "server-1"];
pub(crate) const STORE: &str = "store";

/// No call takes longer than this.
pub(crate) const TOTAL: Duration = Duration::from_secs(6);
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// Messages arrive at the end of a tick.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// When calls begin, at the latest, and when the last fault is over.
const CALLS: u64 = 3_000;
const FAULTS: u64 = 8_000;

#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) crash_policy: CrashPolicy,
    /// Whether the store knows nothing of a key that is claimed again.
    pub(crate) forgetful: bool,
    pub(crate) operations: Vec<Operation>,
    pub(crate) faults: Vec<Fault>,
}

/// One call of a client.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) number: usize,
    pub(crate) client: usize,
    pub(crate) at: Duration,
    /// Whether the caller sets the key. Else it is stamped.
    pub(crate) own_key: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) at: Duration,
    pub(crate) until: Duration,
    pub(crate) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum What {
    /// Nothing gets through between these two.
    Parted(&'static str, &'static str),
    /// Nothing gets through from the first to the second.
    Lost(&'static str, &'static str),
    /// All that is said between these two is delivered when it is over.
    Held(&'static str, &'static str),
    /// A message takes this long.
    Slow(&'static str, &'static str, Duration),
    /// The process is gone, and then started again.
    Crashed(&'static str),
    /// The clock of a machine is suddenly ahead.
    Leapt(&'static str, Duration),
}

fn millis(random: &mut impl Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(random.random_range(range))
}

/// Two machines that speak with each other, the one that asks first.
fn link(random: &mut impl Rng) -> (&'static str, &'static str) {
    let server = SERVERS.choose(random).unwrap();
    match random.random_bool(0.6) {
        true => (CLIENTS.choose(random).unwrap(), server),
        false => (server, STORE),
    }
}

fn what(random: &mut impl Rng) -> What {
    let (near, far) = link(random);
    match random.random_range(0..10) {
        0 | 1 => What::Parted(near, far),
        // Replies that get lost are what keys are for.
        2 | 3 => What::Lost(far, near),
        4 => What::Lost(near, far),
        5 => What::Held(near, far),
        6 => What::Slow(near, far, millis(random, 50..1000)),
        7 | 8 => What::Crashed(SERVERS.choose(random).unwrap()),
        _ => {
            let by = millis(random, 1000..3_600_000);
            What::Leapt(SERVERS.choose(random).unwrap(), by)
        }
    }
}

impl Schedule {
    pub(crate) fn draw(seed: u64, crash_policy: CrashPolicy) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let random = &mut random;
        let operations = (0..random.random_range(2..8)).map(|number| Operation {
            number,
            client: random.random_range(0..CLIENTS.len()),
            at: millis(random, 0..CALLS),
            own_key: random.random_bool(0.5),
        });
        let operations = operations.collect();
        let mut faults: Vec<_> = (0..random.random_range(1..10))
            .map(|_| {
                let at = millis(random, 0..FAULTS - 1000);
                let until = at + millis(random, 20..4000);
                Fault {
                    at,
                    until: until.min(Duration::from_millis(FAULTS)),
                    what: what(random),
                }
            })
            .collect();
        faults.sort_by_key(|fault| fault.at);
        Self {
            seed,
            crash_policy,
            forgetful: false,
            operations,
            faults,
        }
    }

    /// When all calls are over, and all faults, and what they left behind.
    pub(crate) fn end(&self) -> Duration {
        Duration::from_millis(FAULTS.max(CALLS + TOTAL.as_millis() as u64)) + LEASE * 2
    }
}
