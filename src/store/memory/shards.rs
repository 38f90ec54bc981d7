//! The records of a memory store, spread over shards.
//!
//! # Invariants
//!
//! - Everything about a record changes under the lock of its shard, and a verb holds that lock for
//!   its whole transition: this makes each verb atomic (I-6). No code path holds two locks, so
//!   there is no order to keep and nothing to deadlock.
//! - `records` and `bytes` are raised before a record or a reply is stored and lowered after one is
//!   removed. They never fall short of what is stored, so the limits hold without a common lock
//!   (I-23). In between they may count too much, and a claim at the very limit is refused.
//! - `Shard::earliest` is at most the earliest expiry in the shard: it is lowered under the lock
//!   that stores an earlier expiry, and raised only by a sweep, under the same lock. A stale read
//!   delays a sweep and nothing else, since every verb checks expiry itself.
//!
//! The atomics are independent numbers that publish no other memory, hence `Relaxed` throughout.

#[cfg(reprise_loom)]
pub(crate) mod model;
mod record;
#[cfg(all(test, not(reprise_loom)))]
mod tests;
mod unknown;

use std::{
    collections::BTreeMap,
    hash::BuildHasher,
    time::{Duration, SystemTime},
};

use hashbrown::{
    DefaultHashBuilder, HashTable,
    hash_table::{Entry, OccupiedEntry},
};
use tokio::time::Instant;

use self::record::{Record, Slot, State};
use crate::{
    store::{
        Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Lease, Ownership, RecordKey,
        StoreError, StoreErrorKind, Stored,
    },
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock},
    telemetry,
};

/// Loom needs one shard: its models use one key and the same path each time.
const SHARDS: usize = if cfg!(reprise_loom) { 1 } else { 256 };

/// The time in which the sweeps that come with claims visit every shard once.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The records by key, their number and their size.
pub(super) struct Shards {
    shards: Box<[Shard]>,
    /// Seeded at random, so that a client can't choose keys that collide.
    hasher: DefaultHashBuilder,
    max_records: u64,
    max_bytes: u64,
    records: AtomicU64,
    bytes: AtomicU64,
    /// The last token given. Starts at the wall clock, so that tokens grow over restarts too.
    token: AtomicU64,
    started: Instant,
    next_sweep: AtomicU64,
    cursor: AtomicU64,
}

/// A part of the records, alone on its cache line.
#[derive(Default)]
#[repr(align(64))]
struct Shard {
    /// No record of this shard expires earlier.
    earliest: AtomicU64,
    table: Mutex<Table>,
}

/// The records of a shard.
#[derive(Default)]
struct Table {
    records: HashTable<Slot>,
    /// The records that people may have to look at, with the ends of their leases: those of unknown
    /// outcome, and those in flight that would have one.
    #[allow(
        clippy::box_collection,
        reason = "most stores have none, and a shard is on one cache line"
    )]
    watched: Option<Box<BTreeMap<RecordKey, u64>>>,
}

impl Table {
    fn watch(&mut self, key: RecordKey, lease_until: u64) {
        self.watched
            .get_or_insert_default()
            .insert(key, lease_until);
    }

    fn unwatch(&mut self, key: &RecordKey) {
        if let Some(watched) = &mut self.watched {
            watched.remove(key);
            if watched.is_empty() {
                self.watched = None;
            }
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn full(what: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Full, what)
}

impl Shards {
    pub(super) fn new(max_records: u64, max_bytes: u64) -> Self {
        let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: DefaultHashBuilder::default(),
            max_records,
            max_bytes,
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            token: AtomicU64::new(micros(since_epoch)),
            started: Instant::now(),
            next_sweep: AtomicU64::new(0),
            cursor: AtomicU64::new(0),
        }
    }

    pub(super) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let now = self.now();
        self.sweep_one_if_due(now);
        if let Some(claimed) = self.try_claim(claim, now) {
            return Ok(claimed);
        }
        self.sweep_all(now);
        self.try_claim(claim, now)
            .ok_or_else(|| full("no room for another record, and none is past its time"))
    }

    /// Returns `None` if there is no room.
    fn try_claim(&self, claim: &Claim, now: u64) -> Option<Claimed> {
        let hash = self.hash(&claim.key);
        let (shard, mut table) = self.open(hash);
        let is_same = |slot: &Slot| slot.record.key == claim.key;
        let vacant = match table.records.entry(hash, is_same, Slot::hash) {
            Entry::Occupied(found) if found.get().expires > now => {
                let (claimed, watched) = self.claim_again(claim, now, shard, found.into_mut());
                match watched {
                    Watch::Unchanged => {}
                    Watch::Until(lease_until) => table.watch(claim.key, lease_until),
                    Watch::Ends => table.unwatch(&claim.key),
                }
                return Some(claimed);
            }
            Entry::Occupied(found) => {
                let (expired, vacant) = found.remove();
                self.forget(&expired.record);
                vacant
            }
            Entry::Vacant(vacant) => vacant,
        };
        let room = self.bytes() < self.max_bytes && reserve(&self.records, 1, self.max_records);
        if !room {
            table.unwatch(&claim.key);
            return None;
        }
        let token = self.next_token();
        let (state, expires) = in_flight(claim, now);
        shard.earliest.fetch_min(expires, Ordering::Relaxed);
        vacant.insert(Slot {
            hash,
            expires,
            record: Box::new(Record {
                key: claim.key,
                fingerprint: claim.fingerprint,
                token,
                orphaned: false,
                state,
            }),
        });
        match claim.crash_policy {
            CrashPolicy::Unknown => table.watch(claim.key, lease_until(claim, now)),
            CrashPolicy::Reexecute => table.unwatch(&claim.key),
        }
        Some(Claimed::New(Lease {
            token,
            orphaned: false,
        }))
    }

    /// Claims a key whose record has not expired.
    fn claim_again(
        &self,
        claim: &Claim,
        now: u64,
        shard: &Shard,
        slot: &mut Slot,
    ) -> (Claimed, Watch) {
        let unchanged = |claimed| (claimed, Watch::Unchanged);
        let record = &mut *slot.record;
        if record.fingerprint != claim.fingerprint {
            return unchanged(Claimed::Mismatch {
                fingerprint: record.fingerprint,
                note: record.state.note(),
            });
        }
        let (id, until) = match &record.state {
            State::InFlight {
                id, lease_until, ..
            } => (*id, *lease_until),
            State::Done(stored) => return unchanged(Claimed::done(stored.clone())),
            State::Noted(noted) => {
                let (stored, note) = (**noted).clone();
                return unchanged(Claimed::Done { stored, note });
            }
        };
        let again = id == claim.id;
        let resumed = claim.resumes == Some(id);
        if !again && !resumed && until > now {
            return unchanged(Claimed::InFlight {
                remaining: Duration::from_micros(until - now),
                note: record.state.note(),
            });
        }
        if !again {
            record.token = self.next_token();
        }
        if !again && !resumed && claim.crash_policy == CrashPolicy::Unknown {
            let (stored, note) = (Stored::Unknown, record.state.note());
            record.state = State::done(stored.clone(), note.clone());
            shard.keep(slot, now.saturating_add(micros(claim.retention)));
            return (Claimed::Done { stored, note }, Watch::Until(until));
        }
        record.orphaned |= !again;
        let Record {
            token, orphaned, ..
        } = *record;
        let (state, expires) = in_flight(claim, now);
        record.state = state;
        shard.keep(slot, expires);
        let watch = match claim.crash_policy {
            CrashPolicy::Unknown => Watch::Until(lease_until(claim, now)),
            CrashPolicy::Reexecute => Watch::Ends,
        };
        (Claimed::New(Lease { token, orphaned }), watch)
    }

    /// Restarts the lease, and hands the record over to another claim if one is given.
    pub(super) fn renew(
        &self,
        key: &RecordKey,
        token: FencingToken,
        resumed_by: Option<ClaimId>,
        lease: Duration,
        retention: Duration,
    ) -> Ownership {
        let now = self.now();
        let hash = self.hash(key);
        let (shard, mut table) = self.open(hash);
        let Some(mut owned) = owned(&mut table.records, hash, key, token, now) else {
            return Ownership::Lost;
        };
        let slot = owned.get_mut();
        let State::InFlight {
            id, lease_until, ..
        } = &mut slot.record.state
        else {
            return Ownership::Lost;
        };
        *id = resumed_by.unwrap_or(*id);
        *lease_until = now.saturating_add(micros(lease));
        let expires = lease_until.saturating_add(micros(retention));
        shard.keep(slot, expires);
        Ownership::Held
    }

    pub(super) fn complete(
        &self,
        key: &RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let now = self.now();
        let bytes = stored.len() as u64;
        self.reserve_bytes(bytes, now)?;
        let hash = self.hash(key);
        let (shard, mut table) = self.open(hash);
        let ownership = match owned(&mut table.records, hash, key, token, now) {
            Some(mut owned) => {
                let slot = owned.get_mut();
                if let State::InFlight {
                    note, lease_until, ..
                } = &mut slot.record.state
                {
                    let (note, lease_until) = (std::mem::take(note), *lease_until);
                    let unknown = stored == Stored::Unknown;
                    slot.record.state = State::done(stored, note);
                    shard.keep(slot, now.saturating_add(micros(retention)));
                    match unknown {
                        // The lease ends here.
                        true => table.watch(*key, lease_until.min(now)),
                        false => table.unwatch(key),
                    }
                    return Ok(Ownership::Held);
                }
                Ownership::Held
            }
            None => Ownership::Lost,
        };
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(ownership)
    }

    pub(super) fn release(&self, key: &RecordKey, token: FencingToken) -> Ownership {
        let now = self.now();
        let hash = self.hash(key);
        let (_, mut table) = self.open(hash);
        match owned(&mut table.records, hash, key, token, now) {
            Some(owned) if owned.get().record.state.is_in_flight() => {
                let (released, _) = owned.remove();
                self.forget(&released.record);
                table.unwatch(key);
                Ownership::Held
            }
            _ => Ownership::Lost,
        }
    }

    fn now(&self) -> u64 {
        micros(self.started.elapsed())
    }

    fn next_token(&self) -> FencingToken {
        FencingToken::new(self.token.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn hash(&self, key: &RecordKey) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Locks the shard of a hash. The table takes the lowest and the seven highest bits, the shard
    /// comes from those in between.
    fn open(&self, hash: u64) -> (&Shard, MutexGuard<'_, Table>) {
        let shard = &self.shards[place(hash)];
        (shard, lock(&shard.table))
    }

    /// Returns the share of the limits that is used.
    fn fill(&self) -> f64 {
        let share = |used: u64, limit: u64| used as f64 / limit as f64;
        let records = share(self.records(), self.max_records);
        records.max(share(self.bytes(), self.max_bytes))
    }

    /// Takes room for a reply, that of expired records if there is no other.
    fn reserve_bytes(&self, bytes: u64, now: u64) -> Result<(), StoreError> {
        let has_room = || reserve(&self.bytes, bytes, self.max_bytes);
        if !has_room() {
            self.sweep_all(now);
            if !has_room() {
                return Err(full("no room for the reply"));
            }
        }
        Ok(())
    }

    /// Subtracts a removed record from the counters.
    fn forget(&self, record: &Record) {
        self.records.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(record.bytes(), Ordering::Relaxed);
    }

    fn sweep_one_if_due(&self, now: u64) {
        let due = self.next_sweep.load(Ordering::Relaxed);
        if now < due {
            return;
        }
        let pause = micros(SWEEP_EVERY) / SHARDS as u64;
        let taken = self.next_sweep.compare_exchange(
            due,
            now.saturating_add(pause),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if taken.is_ok() {
            telemetry::store_fill(|| self.fill());
            let next = self.cursor.fetch_add(1, Ordering::Relaxed).to_le_bytes()[0];
            self.sweep(&self.shards[usize::from(next) % SHARDS], now);
        }
    }

    /// Removes all expired records; reads one number a shard if there is none.
    fn sweep_all(&self, now: u64) {
        self.shards.iter().for_each(|shard| self.sweep(shard, now));
    }

    fn sweep(&self, shard: &Shard, now: u64) {
        if shard.earliest.load(Ordering::Relaxed) > now {
            return;
        }
        let mut table = lock(&shard.table);
        let Table { records, watched } = &mut *table;
        let mut earliest = u64::MAX;
        records.retain(|slot| {
            let live = slot.expires > now;
            match live {
                true => earliest = earliest.min(slot.expires),
                false => {
                    self.forget(&slot.record);
                    if let Some(watched) = watched {
                        watched.remove(&slot.record.key);
                    }
                }
            }
            live
        });
        shard.earliest.store(earliest, Ordering::Relaxed);
        if records.capacity() / 4 > records.len() {
            let room = records.len() * 2;
            records.shrink_to(room, Slot::hash);
        }
    }
}

impl Shard {
    /// Keeps a record of this shard until `expires`. Call it under the shard's lock.
    fn keep(&self, slot: &mut Slot, expires: u64) {
        slot.expires = expires;
        self.earliest.fetch_min(expires, Ordering::Relaxed);
    }
}

/// The change of what people may have to look at.
enum Watch {
    Unchanged,
    Until(u64),
    Ends,
}

/// Returns the shard of a hash.
fn place(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

fn lease_until(claim: &Claim, now: u64) -> u64 {
    now.saturating_add(micros(claim.lease))
}

/// Returns the state that a claim leaves, and when the record expires.
fn in_flight(claim: &Claim, now: u64) -> (State, u64) {
    let lease_until = lease_until(claim, now);
    let state = State::InFlight {
        id: claim.id,
        lease_until,
        note: claim.note.clone(),
    };
    (state, lease_until.saturating_add(micros(claim.retention)))
}

/// Finds a record that has not expired and whose last owner holds this token.
fn owned<'a>(
    records: &'a mut HashTable<Slot>,
    hash: u64,
    key: &RecordKey,
    token: FencingToken,
    now: u64,
) -> Option<OccupiedEntry<'a, Slot>> {
    let found = records
        .find_entry(hash, |slot| slot.record.key == *key)
        .ok()?;
    let slot = found.get();
    (slot.expires > now && slot.record.token == token).then_some(found)
}

/// Adds `more` to a counter if that keeps it within `limit`.
fn reserve(taken: &AtomicU64, more: u64, limit: u64) -> bool {
    let before = taken.fetch_add(more, Ordering::Relaxed);
    let fits = before.saturating_add(more) <= limit;
    if !fits {
        taken.fetch_sub(more, Ordering::Relaxed);
    }
    fits
}
