//! How much of a core there is. A neighbour on the same core leaves one chain of steps as fast as
//! it was, and slows many chains at once. It does the same to what is measured: code that waits
//! for memory or atomics hardly notices, code that keeps the core busy takes twice as long. So
//! ratios of two runs compare only if this number does.

use std::hint::black_box;

use tokio::time::Instant;

const STEPS: u32 = 4000;
const CHAINS: usize = 8;

/// Steps of eight chains in the time of one step of a single chain.
pub(crate) fn parallel_steps() -> f64 {
    let alone = nanos(|| walk([1]));
    let together = nanos(|| walk::<CHAINS>(std::array::from_fn(|n| n as u64 + 1)));
    alone * CHAINS as f64 / together
}

fn nanos(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64
}

fn walk<const N: usize>(chains: [u64; N]) {
    let mut chains = black_box(chains);
    for _ in 0..STEPS {
        for chain in &mut chains {
            *chain ^= *chain << 13;
            *chain ^= *chain >> 7;
            *chain ^= *chain << 17;
        }
    }
    black_box(chains);
}
