mod hash;
#[cfg(reprise_loom)]
pub(crate) mod model;
mod record;
mod table;

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use self::{
    hash::{Hash, Hashes},
    record::{Record, State, stored_bytes},
    table::{Found, Table},
};
use crate::{
    store::{
        Claim, Claimed, CrashPolicy, FencingToken, Lease, Ownership, RecordKey, StoreError,
        StoreErrorKind, Stored,
    },
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock},
};

/// A model has no use for more than two.
const SHARDS: usize = if cfg!(reprise_loom) { 2 } else { 256 };

/// How long it takes until every shard was looked at once.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The records, in shards, and how much room they take.
pub(super) struct Shards {
    shards: Box<[Shard]>,
    hashes: Hashes,
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

/// Part of the records, on a line of the processor's caches that it shares with no other.
#[derive(Default)]
#[repr(align(64))]
struct Shard {
    /// No record here is past its time before this.
    earliest: AtomicU64,
    records: Mutex<Table<Record>>,
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
            hashes: Hashes::new(),
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

    /// `None` if there is no room.
    fn try_claim(&self, claim: &Claim, now: u64) -> Option<Claimed> {
        let hash = self.hashes.of(&claim.key);
        let (shard, mut records) = self.open(hash);
        match records.find(hash.place, &claim.key) {
            Some(found) if found.expires() > now => {
                return Some(self.claim_again(claim, now, shard, found));
            }
            Some(_) => {
                let past = records.remove(hash.place, &claim.key);
                past.iter().for_each(|record| self.forget(record));
            }
            None => {}
        }
        let room = self.bytes() < self.max_bytes && reserve(&self.records, 1, self.max_records);
        if !room {
            return None;
        }
        let token = self.next_token();
        let (state, expires) = in_flight(claim, now);
        shard.earliest.fetch_min(expires, Ordering::Relaxed);
        let record = Record {
            fingerprint: claim.fingerprint,
            token,
            orphaned: false,
            state,
        };
        records.insert(hash.place, claim.key, expires, record);
        Some(Claimed::New(Lease {
            token,
            orphaned: false,
        }))
    }

    /// A claim of what is there already, and not past its time.
    fn claim_again(
        &self,
        claim: &Claim,
        now: u64,
        shard: &Shard,
        mut found: Found<'_, Record>,
    ) -> Claimed {
        let record = &mut *found;
        if record.fingerprint != claim.fingerprint {
            return Claimed::Mismatch {
                fingerprint: record.fingerprint,
                note: record.state.note(),
            };
        }
        let (id, until) = match &record.state {
            State::InFlight {
                id, lease_until, ..
            } => (*id, *lease_until),
            State::Done(stored) => return Claimed::done(stored.clone()),
            State::Noted(noted) => {
                let (stored, note) = (**noted).clone();
                return Claimed::Done { stored, note };
            }
        };
        let again = id == claim.id;
        if !again && until > now {
            return Claimed::InFlight {
                remaining: Duration::from_micros(until - now),
                note: record.state.note(),
            };
        }
        if !again {
            record.token = self.next_token();
        }
        if !again && claim.orphans == CrashPolicy::Unknown {
            let (stored, note) = (Stored::Unknown, record.state.note());
            record.state = State::done(stored.clone(), note.clone());
            shard.keep(&mut found, now.saturating_add(micros(claim.retention)));
            return Claimed::Done { stored, note };
        }
        record.orphaned |= !again;
        let Record {
            token, orphaned, ..
        } = *record;
        let (state, expires) = in_flight(claim, now);
        record.state = state;
        shard.keep(&mut found, expires);
        Claimed::New(Lease { token, orphaned })
    }

    pub(super) fn renew(
        &self,
        key: &RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> Ownership {
        let now = self.now();
        let hash = self.hashes.of(key);
        let (shard, mut records) = self.open(hash);
        let Some(mut found) = owned(&mut records, hash, key, token, now) else {
            return Ownership::Lost;
        };
        let State::InFlight { lease_until, .. } = &mut found.state else {
            return Ownership::Lost;
        };
        *lease_until = now.saturating_add(micros(lease));
        let expires = lease_until.saturating_add(micros(retention));
        shard.keep(&mut found, expires);
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
        let bytes = stored_bytes(&stored);
        if !reserve(&self.bytes, bytes, self.max_bytes) {
            self.sweep_all(now);
            if !reserve(&self.bytes, bytes, self.max_bytes) {
                return Err(full("no room for the reply"));
            }
        }
        let hash = self.hashes.of(key);
        let (shard, mut records) = self.open(hash);
        let ownership = match owned(&mut records, hash, key, token, now) {
            Some(mut found) => {
                if let State::InFlight { note, .. } = &mut found.state {
                    let note = std::mem::take(note);
                    found.state = State::done(stored, note);
                    shard.keep(&mut found, now.saturating_add(micros(retention)));
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
        let hash = self.hashes.of(key);
        let (_, mut records) = self.open(hash);
        match owned(&mut records, hash, key, token, now) {
            Some(found) if found.state.is_in_flight() => {
                let released = records.remove(hash.place, key);
                released.iter().for_each(|record| self.forget(record));
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

    fn open(&self, hash: Hash) -> (&Shard, MutexGuard<'_, Table<Record>>) {
        let shard = &self.shards[hash.shard as usize % SHARDS];
        (shard, lock(&shard.records))
    }

    /// Counts a record out.
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
            let next = self.cursor.fetch_add(1, Ordering::Relaxed).to_le_bytes()[0];
            self.sweep(&self.shards[usize::from(next) % SHARDS], now);
        }
    }

    /// Costs little when there is nothing to remove.
    fn sweep_all(&self, now: u64) {
        self.shards.iter().for_each(|shard| self.sweep(shard, now));
    }

    fn sweep(&self, shard: &Shard, now: u64) {
        if shard.earliest.load(Ordering::Relaxed) > now {
            return;
        }
        let mut records = lock(&shard.records);
        let earliest = records.sweep(now, |record| self.forget(record));
        shard.earliest.store(earliest, Ordering::Relaxed);
    }
}

impl Shard {
    /// Keeps a record of this shard until then.
    fn keep(&self, found: &mut Found<'_, Record>, expires: u64) {
        found.keep_until(expires);
        self.earliest.fetch_min(expires, Ordering::Relaxed);
    }
}

/// The state of a new owner, and how long it is kept.
fn in_flight(claim: &Claim, now: u64) -> (State, u64) {
    let lease_until = now.saturating_add(micros(claim.lease));
    let state = State::InFlight {
        id: claim.id,
        lease_until,
        note: claim.note.clone(),
    };
    (state, lease_until.saturating_add(micros(claim.retention)))
}

/// The record, if it is not past its time and was last owned with this token.
fn owned<'a>(
    records: &'a mut Table<Record>,
    hash: Hash,
    key: &RecordKey,
    token: FencingToken,
    now: u64,
) -> Option<Found<'a, Record>> {
    let found = records.find(hash.place, key)?;
    (found.expires() > now && found.token == token).then_some(found)
}

/// Takes `more` of what there is, if there is as much.
fn reserve(taken: &AtomicU64, more: u64, limit: u64) -> bool {
    let before = taken.fetch_add(more, Ordering::Relaxed);
    let fits = before.saturating_add(more) <= limit;
    if !fits {
        taken.fetch_sub(more, Ordering::Relaxed);
    }
    fits
}

#[cfg(all(test, not(reprise_loom)))]
mod tests {
    use super::*;

    /// T-1: each operation starts here.
    #[test]
    fn t_1_a_shard_is_on_one_line() {
        assert_eq!(size_of::<Shard>(), 64);
    }
}
