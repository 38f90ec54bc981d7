use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher, Hasher},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::{
    store::{
        Claim, ClaimId, Claimed, FencingToken, Fingerprint, Lease, Note, Orphans, Ownership,
        RecordKey, StoreError, StoreErrorKind, Stored,
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

/// Part of the records.
#[derive(Default)]
struct Shard {
    /// No record here is past its time before this.
    earliest: AtomicU64,
    records: Mutex<Records>,
}

type Records = HashMap<RecordKey, Slot, KeyHashes>;

/// A record is boxed, since a table of large entries wastes more of what it does not use. The time
/// it is kept until is beside it, so that a sweep does not have to look into each.
struct Slot {
    expires: u64,
    record: Box<Record>,
}

struct Record {
    fingerprint: Fingerprint,
    token: FencingToken,
    state: State,
}

enum State {
    InFlight {
        id: ClaimId,
        lease_until: u64,
        note: Note,
    },
    Done(Stored),
    /// Boxed, so that the many without a note have no room for it.
    Noted(Box<(Stored, Note)>),
}

impl State {
    fn done(stored: Stored, note: Note) -> Self {
        match note.is_empty() {
            true => Self::Done(stored),
            false => Self::Noted(Box::new((stored, note))),
        }
    }

    fn is_in_flight(&self) -> bool {
        matches!(self, Self::InFlight { .. })
    }

    /// What is kept, `None` while in flight.
    fn stored(&self) -> Option<&Stored> {
        match self {
            Self::InFlight { .. } => None,
            Self::Done(stored) => Some(stored),
            Self::Noted(noted) => Some(&noted.0),
        }
    }

    fn note(&self) -> Note {
        match self {
            Self::InFlight { note, .. } => note.clone(),
            Self::Done(_) => Note::NONE,
            Self::Noted(noted) => noted.1.clone(),
        }
    }
}

impl Record {
    fn bytes(&self) -> u64 {
        self.state.stored().map_or(0, stored_bytes)
    }
}

fn stored_bytes(stored: &Stored) -> u64 {
    match stored {
        Stored::Reply(bytes) => bytes.len() as u64,
        Stored::NotRetained | Stored::Unknown => 0,
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
        let lease_until = now.saturating_add(micros(claim.lease));
        let expires = lease_until.saturating_add(micros(claim.retention));
        let in_flight = State::InFlight {
            id: claim.id,
            lease_until,
            note: claim.note.clone(),
        };
        let (shard, mut records) = self.open(&claim.key);
        let slot = match records.entry(claim.key) {
            Entry::Occupied(entry) if entry.get().expires > now => entry.into_mut(),
            entry => {
                if let Entry::Occupied(entry) = &entry {
                    self.forget(&entry.get().record);
                }
                let room =
                    self.bytes() < self.max_bytes && reserve(&self.records, 1, self.max_records);
                if !room {
                    if let Entry::Occupied(entry) = entry {
                        entry.remove();
                    }
                    return None;
                }
                let token = self.next_token();
                shard.earliest.fetch_min(expires, Ordering::Relaxed);
                let record = Box::new(Record {
                    fingerprint: claim.fingerprint,
                    token,
                    state: in_flight,
                });
                entry.insert_entry(Slot { expires, record });
                return Some(Claimed::New(Lease {
                    token,
                    orphaned: false,
                }));
            }
        };
        let record = &mut *slot.record;
        if record.fingerprint != claim.fingerprint {
            return Some(Claimed::Mismatch {
                fingerprint: record.fingerprint,
                note: record.state.note(),
            });
        }
        let (id, until) = match &record.state {
            State::InFlight {
                id, lease_until, ..
            } => (*id, *lease_until),
            State::Done(stored) => return Some(Claimed::done(stored.clone())),
            State::Noted(noted) => {
                let (stored, note) = (**noted).clone();
                return Some(Claimed::Done { stored, note });
            }
        };
        let again = id == claim.id;
        if !again && until > now {
            return Some(Claimed::InFlight {
                remaining: Duration::from_micros(until - now),
                note: record.state.note(),
            });
        }
        if !again {
            record.token = self.next_token();
        }
        if !again && claim.orphans == Orphans::Unknown {
            let note = record.state.note();
            record.state = State::done(Stored::Unknown, note.clone());
            slot.expires = now.saturating_add(micros(claim.retention));
            shard.earliest.fetch_min(slot.expires, Ordering::Relaxed);
            let stored = Stored::Unknown;
            return Some(Claimed::Done { stored, note });
        }
        record.state = in_flight;
        slot.expires = expires;
        shard.earliest.fetch_min(expires, Ordering::Relaxed);
        Some(Claimed::New(Lease {
            token: record.token,
            orphaned: !again,
        }))
    }

    pub(super) fn renew(
        &self,
        key: &RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> Ownership {
        let now = self.now();
        let (shard, mut records) = self.open(key);
        match owned(&mut records, key, token, now) {
            Some(Slot { expires, record }) => match &mut record.state {
                State::InFlight { lease_until, .. } => {
                    *lease_until = now.saturating_add(micros(lease));
                    *expires = lease_until.saturating_add(micros(retention));
                    shard.earliest.fetch_min(*expires, Ordering::Relaxed);
                    Ownership::Held
                }
                State::Done(_) | State::Noted(_) => Ownership::Lost,
            },
            None => Ownership::Lost,
        }
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
        let (shard, mut records) = self.open(key);
        let ownership = match owned(&mut records, key, token, now) {
            Some(Slot { expires, record }) => {
                if let State::InFlight { note, .. } = &mut record.state {
                    let note = std::mem::take(note);
                    record.state = State::done(stored, note);
                    *expires = now.saturating_add(micros(retention));
                    shard.earliest.fetch_min(*expires, Ordering::Relaxed);
                    return Ok(Ownership::Held);
                }
                Ownership::Held
            }
            None => Ownership::Lost,
        };
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(ownership)
    }

    pub(super) fn release(&self, key: RecordKey, token: FencingToken) -> Ownership {
        let now = self.now();
        let (_, mut records) = self.open(&key);
        match owned(&mut records, &key, token, now) {
            Some(slot) if slot.record.state.is_in_flight() => {
                self.forget(&slot.record);
                records.remove(&key);
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

    fn open(&self, key: &RecordKey) -> (&Shard, MutexGuard<'_, Records>) {
        let shard = &self.shards[usize::from(key.as_bytes()[0]) % SHARDS];
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
        let mut earliest = u64::MAX;
        records.retain(|_, slot| {
            let live = slot.expires > now;
            if live {
                earliest = earliest.min(slot.expires);
            } else {
                self.forget(&slot.record);
            }
            live
        });
        shard.earliest.store(earliest, Ordering::Relaxed);
        if records.capacity() / 4 > records.len() {
            let wanted = records.len() * 2;
            records.shrink_to(wanted);
        }
    }
}

/// The record, if it is not past its time and was last owned with this token.
fn owned<'a>(
    records: &'a mut Records,
    key: &RecordKey,
    token: FencingToken,
    now: u64,
) -> Option<&'a mut Slot> {
    records
        .get_mut(key)
        .filter(|slot| slot.expires > now && slot.record.token == token)
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

/// Keys are hashes already: a few of their bytes will do, mixed with what nobody outside knows, so
/// that nobody can choose keys that meet.
#[derive(Clone)]
struct KeyHashes {
    secret: u64,
}

impl Default for KeyHashes {
    fn default() -> Self {
        Self {
            secret: rand::random(),
        }
    }
}

impl BuildHasher for KeyHashes {
    type Hasher = KeyHash;

    fn build_hasher(&self) -> KeyHash {
        KeyHash(self.secret)
    }
}

struct KeyHash(u64);

impl Hasher for KeyHash {
    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.as_chunks::<8>().0 {
            let mixed = u128::from(self.0 ^ u64::from_le_bytes(*piece)) * 0x9e37_79b9_7f4a_7c15;
            let [low, high] = [mixed as u64, (mixed >> 64) as u64];
            self.0 = low ^ high;
        }
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(reprise_loom)]
pub(crate) mod model;

#[cfg(test)]
mod tests {
    use super::*;

    /// T-1: a million of them are in memory, most without a note.
    #[test]
    fn t_1_a_note_takes_no_room_where_there_is_none() {
        assert_eq!(size_of::<State>(), size_of::<Stored>());
        assert_eq!(size_of::<Note>(), size_of::<usize>());
    }
}
