//! The cost of a million live keys in memory: room, and time. A map grows slower, too, once it does not
//! fit into the processor's caches: the bound is what a bare one of the same records does.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Mutex,
};

use tokio::time::Instant;
use tower_reprise::store::{Claim, Claimed, IdempotencyStore, MemoryStore, RecordKey, Stored};

use crate::{
    ALLOCATOR,
    report::Report,
    work::{claim, execute, lower_quartile, reply},
};

const FEW: u64 = 1_000;
const MANY: u64 = 1_000_000;
const PAYLOAD: usize = 256;
const CLAIMS: u64 = 200;
const BURSTS: u64 = 501;
const COLD: u64 = 601;
/// More than a core keeps to itself; and more than the cores share, so that the few keys are not
/// there either.
const OTHER_WORK: [usize; 2] = [8 << 20, 64 << 20];

pub(crate) fn run(report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (few, _) = filled(FEW).await;
        let (many, bytes) = filled(MANY).await;
        let allowed = 1.3 * PAYLOAD as f64 + 300.0;
        report.at_most("memory_bytes_per_key", bytes as f64 / MANY as f64, allowed);

        // Back to back, where the few keys never leave the processor's caches and the many never
        // fit: what that makes of it is the machine's.
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for burst in 0..BURSTS {
            small.push(nanos_per_claim(&few, FEW, burst * CLAIMS, CLAIMS).await);
            large.push(nanos_per_claim(&many, MANY, burst * CLAIMS, CLAIMS).await);
        }
        let (small, large) = (lower_quartile(small), lower_quartile(large));
        report.note("memory_claim_hot_ns_1k", small);
        report.note("memory_claim_hot_ns_1m", large);

        let (mut bare_few, mut bare_many) = (Bare::filled(FEW), Bare::filled(MANY));
        // One at a time, as in a server that does other things between two of them.
        for (other_work, name) in OTHER_WORK.into_iter().zip(["", "_uncached"]) {
            let other_work = vec![1_u8; other_work];
            let elsewhere = || std::hint::black_box(other_work.iter().step_by(64).copied().max());
            let mut took = [const { Vec::new() }; 4];
            for n in BURSTS * CLAIMS..BURSTS * CLAIMS + COLD {
                elsewhere();
                took[0].push(nanos_per_claim(&few, FEW, n, 1).await);
                elsewhere();
                took[1].push(nanos_per_claim(&many, MANY, n, 1).await);
                elsewhere();
                took[2].push(bare_few.nanos(FEW, n));
                elsewhere();
                took[3].push(bare_many.nanos(MANY, n));
            }
            let [small, large, small_bare, large_bare] = took.map(lower_quartile);
            report.note(&format!("memory_bare_map_ns_1k{name}"), small_bare);
            report.note(&format!("memory_bare_map_ns_1m{name}"), large_bare);
            report.note(&format!("memory_claim_ns_1k{name}"), small);
            report.note(&format!("memory_claim_ns_1m{name}"), large);
            report.note(&format!("memory_claim_growth{name}"), large / small);
            let bare = large_bare / small_bare;
            report.note(&format!("memory_bare_map_growth{name}"), bare);
            let ratio = format!("memory_claim_growth_ratio{name}");
            report.at_most(&ratio, large / small / bare, 1.25);
        }
    });
}

/// A store with that many replies, and the bytes that they take.
async fn filled(keys: u64) -> (MemoryStore, usize) {
    let store = MemoryStore::builder()
        .max_records(2 * MANY)
        .max_bytes(1 << 40)
        .build()
        .expect("a store");
    let before = ALLOCATOR.allocated();
    for n in 0..keys {
        execute(&store, n, reply(PAYLOAD)).await;
    }
    (store, ALLOCATOR.allocated() - before)
}

/// A map of the same records with a lock, as an application without a store has it.
struct Bare(Mutex<HashMap<RecordKey, Box<(Claim, Stored)>>>);

impl Bare {
    fn filled(keys: u64) -> Self {
        let record = |n| (claim(n).key, Box::new((claim(n), reply(PAYLOAD))));
        Self(Mutex::new((0..keys).map(record).collect()))
    }

    /// The same as a claim of the store: of what is there, or of what is new.
    fn nanos(&mut self, keys: u64, n: u64) -> f64 {
        let claim = claimed(keys, n);
        let cloned = claim.clone();
        let started = Instant::now();
        let found = match self.0.lock().expect("a lock").entry(cloned.key) {
            Entry::Occupied(found) => {
                let (first, stored) = &**found.get();
                assert_eq!(first.fingerprint, cloned.fingerprint);
                Some(stored.clone())
            }
            Entry::Vacant(vacant) => {
                vacant.insert(Box::new((cloned, Stored::Unknown)));
                None
            }
        };
        let took = started.elapsed();
        if found.is_none() {
            self.0.lock().expect("a lock").remove(&claim.key);
        }
        took.as_secs_f64() * 1e9
    }
}

/// Half of the claims are of what is there, half of what is new.
fn claimed(keys: u64, n: u64) -> Claim {
    match n % 2 {
        0 => claim(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys),
        _ => claim(MANY + n),
    }
}

/// Returns the time of one of so many claims.
async fn nanos_per_claim(store: &MemoryStore, keys: u64, first: u64, count: u64) -> f64 {
    let claims: Vec<_> = (first..first + count).map(|n| claimed(keys, n)).collect();
    let mut answers = Vec::with_capacity(claims.len());
    let cloned = claims.clone();
    let started = Instant::now();
    for claim in cloned {
        answers.push(store.claim(claim).await.expect("claim"));
    }
    let took = started.elapsed();
    for (claim, answer) in claims.iter().zip(answers) {
        if let Claimed::New(lease) = answer {
            let _ = store.release(claim.key, lease.token).await;
        }
    }
    took.as_secs_f64() * 1e9 / count as f64
}
