//! Counters and slots spread over threads, so that cores do not write to one cache line by turns.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of shards. A power of two.
pub(super) const SHARDS: usize = 8;

/// A value in a cache line of its own: no write to a neighbour makes its readers wait.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct CacheLine<T>(pub(super) T);

/// Returns the shard of this thread, which it shares with few others.
pub(super) fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.try_with(|number| *number).unwrap_or_default() % SHARDS
}
