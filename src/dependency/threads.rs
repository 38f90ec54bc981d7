use std::sync::atomic::{AtomicUsize, Ordering};

/// How many cells threads are spread over, where each has one that few others share. A power of two.
pub(super) const CELLS: usize = 8;

/// The cell of this thread.
pub(super) fn cell() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.try_with(|number| *number).unwrap_or_default() % CELLS
}
