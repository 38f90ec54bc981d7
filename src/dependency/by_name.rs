//! A concurrent map by name.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

const SHARDS: usize = 16;

type Shard<T> = RwLock<HashMap<Arc<str>, T>>;
type Reading<'a, T> = RwLockReadGuard<'a, HashMap<Arc<str>, T>>;
type Writing<'a, T> = RwLockWriteGuard<'a, HashMap<Arc<str>, T>>;

/// A map by name, in shards with a lock each.
pub(super) struct ByName<T>([Shard<T>; SHARDS]);

impl<T> ByName<T> {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| RwLock::default()))
    }

    /// Locks the shard that a name is in, to read.
    pub(super) fn read(&self, name: &str) -> Reading<'_, T> {
        read(self.shard(name))
    }

    /// Locks the shard that a name is in, to change it.
    pub(super) fn write(&self, name: &str) -> Writing<'_, T> {
        write(self.shard(name))
    }

    /// Locks the shards one after the other, to read.
    pub(super) fn read_all(&self) -> impl Iterator<Item = Reading<'_, T>> {
        self.0.iter().map(read)
    }

    /// Locks the shards one after the other, to change them.
    pub(super) fn write_all(&self) -> impl Iterator<Item = Writing<'_, T>> {
        self.0.iter().map(write)
    }

    /// Names that are chosen to share a shard wait for one lock, and are found as quickly in it.
    fn shard(&self, name: &str) -> &Shard<T> {
        let mix = |mixed: usize, byte| mixed.wrapping_mul(31).wrapping_add(usize::from(byte));
        &self.0[name.bytes().fold(0, mix) % SHARDS]
    }
}

fn read<T>(shard: &Shard<T>) -> Reading<'_, T> {
    shard.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(shard: &Shard<T>) -> Writing<'_, T> {
    shard.write().unwrap_or_else(PoisonError::into_inner)
}
