//! Locks and atomics: loom's under `cfg(reprise_loom)`, which the models explore, else std's.

#[cfg(all(reprise_loom, feature = "redis"))]
pub(crate) use loom::sync::atomic::AtomicBool;
#[cfg(reprise_loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(all(not(reprise_loom), feature = "redis"))]
pub(crate) use std::sync::atomic::AtomicBool;
#[cfg(not(reprise_loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// Takes the lock, poisoned or not: the counters that it guards are valid after every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
