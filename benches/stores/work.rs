//! The operations that stores are measured with.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{task::JoinSet, time::Instant};
use tower_reprise::store::{
    Claim, ClaimId, Claimed, CrashPolicy, Fingerprint, IdempotencyStore, Note, Ownership,
    RecordKey, Stored,
};

pub(crate) const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// A first claim of operation `n`; keys are spread as hashes are.
pub(crate) fn claim(n: u64) -> Claim {
    let mut key = [0; 32];
    for (word, chunk) in (1..).zip(key.chunks_exact_mut(8)) {
        let mixed = (n ^ word << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        chunk.copy_from_slice(&(mixed ^ mixed >> 32).to_le_bytes());
    }
    Claim {
        key: RecordKey::new(key),
        fingerprint: Fingerprint::new([1; 32]),
        id: ClaimId::random(),
        lease: Duration::from_secs(30),
        retention: RETENTION,
        crash_policy: CrashPolicy::Reexecute,
        note: Note::NONE,
        resumes: None,
    }
}

pub(crate) fn reply(len: usize) -> Stored {
    Stored::Reply(Bytes::from(vec![7; len]))
}

/// Claims and completes one operation.
pub(crate) async fn execute<S: IdempotencyStore>(store: &S, n: u64, reply: Stored) {
    let claim = claim(n);
    let Claimed::New(lease) = store.claim(claim.clone()).await.expect("claim") else {
        panic!("operation {n} is not new");
    };
    let completed = store.complete(claim.key, lease.token, reply, RETENTION);
    assert_eq!(completed.await.expect("complete"), Ownership::Held);
}

/// Transitions a second, two for each operation, with that many tasks at once.
pub(crate) async fn throughput<S: IdempotencyStore>(
    store: &Arc<S>,
    tasks: u64,
    operations: std::ops::Range<u64>,
    reply: &Stored,
) -> f64 {
    let count = operations.end - operations.start;
    let started = Instant::now();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (store, reply) = (Arc::clone(store), reply.clone());
        let (mut n, end) = (operations.start + task, operations.end);
        running.spawn(async move {
            while n < end {
                execute(&*store, n, reply.clone()).await;
                n += tasks;
            }
        });
    }
    running.join_all().await;
    2.0 * count as f64 / started.elapsed().as_secs_f64()
}

/// Of times: near to what it takes when nobody else wants the processor or the disk.
pub(crate) fn lower_quartile(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 4]
}
