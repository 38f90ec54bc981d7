//! The journal in memory: all entries by sequence, and for each lane those that can be leased.

mod bounds;
mod erase;
mod lane;
mod read;
mod shared;
mod stored_entry;
mod waiting;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tokio::time::Instant;

use self::{
    bounds::OpenEntries, lane::Lane, shared::SharedEnds, stored_entry::StoredEntry,
    waiting::Waiting,
};
use crate::store::{
    Ownership, RecordKey, StoreError, StoreErrorKind,
    journal::{
        CommandResult, Enqueued, Entry, EntryCommand, EntryId, LeaseRequest, LeaseToken, NewEntry,
        Priority, Settlement, Status, Timestamp,
    },
};

/// The most entries that are removed along with each new one.
const SWEEP: usize = 8;

/// All queues of a [`MemoryStore`](super::MemoryStore).
pub(super) struct MemoryQueue {
    entries: BTreeMap<u64, StoredEntry>,
    shared: SharedEnds,
    ids: HashMap<EntryId, u64>,
    dedup: HashMap<(String, RecordKey), u64>,
    lanes: BTreeMap<(String, String), Lane>,
    /// The entries of a queue by their status, those past their time as queued.
    counts: HashMap<String, [u64; 6]>,
    /// Queued entries, those past their time among them.
    waiting: HashMap<String, Waiting>,
    /// Entries with bounds that are not over.
    open: OpenEntries,
    /// Entries that are over, by when they may be removed.
    over: BTreeSet<(Timestamp, u64)>,
    sequence: u64,
    bytes: u64,
    max_entries: u64,
    max_bytes: u64,
    secret: [u8; 32],
    opened: (Timestamp, Instant),
}

impl MemoryQueue {
    pub(super) fn new(max_entries: u64, max_bytes: u64) -> Self {
        Self {
            entries: BTreeMap::new(),
            shared: SharedEnds::default(),
            ids: HashMap::new(),
            dedup: HashMap::new(),
            lanes: BTreeMap::new(),
            counts: HashMap::new(),
            waiting: HashMap::new(),
            open: OpenEntries::default(),
            over: BTreeSet::new(),
            sequence: 0,
            bytes: 0,
            max_entries,
            max_bytes,
            secret: rand::random(),
            opened: (SystemTime::now().into(), Instant::now()),
        }
    }

    pub(super) fn secret(&self) -> [u8; 32] {
        self.secret
    }

    /// Returns the wall-clock time when the journal was made, plus tokio's clock since.
    fn now(&self) -> Timestamp {
        let (wall, instant) = self.opened;
        wall.after(instant.elapsed())
    }

    pub(super) fn enqueue(&mut self, new: NewEntry) -> Result<Enqueued, StoreError> {
        let now = self.now();
        if let Some(found) = self.existing(&new, now) {
            return Ok(found);
        }
        if self.open.is_full(&new) {
            return Ok(Enqueued::Full);
        }
        self.make_room(&[&new], now)?;
        let bounded = new.bounds.is_some();
        let sequence = self.insert(new, now);
        self.change(sequence, |stored| stored.bounded = bounded);
        Ok(Enqueued::New(self.summary(sequence, now)))
    }

    pub(super) fn bury(
        &mut self,
        new: NewEntry,
        attempts: u32,
        mut settlement: Settlement,
    ) -> Result<Enqueued, StoreError> {
        let now = self.now();
        if let Some(found) = self.existing(&new, now) {
            return Ok(found);
        }
        let outbox = std::mem::take(&mut settlement.outbox);
        let all: Vec<_> = outbox.iter().chain([&new]).collect();
        self.make_room(&all, now)?;
        let sequence = self.insert(new, now);
        self.insert_outbox(outbox, now);
        self.settle_stored(sequence, settlement, now);
        self.change(sequence, |stored| stored.entry.attempts = attempts);
        Ok(Enqueued::New(self.summary(sequence, now)))
    }

    /// Returns the entry that has the id or the key of a new one. One that is gone makes room.
    fn existing(&mut self, new: &NewEntry, now: Timestamp) -> Option<Enqueued> {
        self.sweep(now, SWEEP);
        if let Some(&sequence) = self.ids.get(&new.id) {
            if !self.is_gone(sequence, now) {
                return Some(Enqueued::Existing(self.summary(sequence, now)));
            }
            self.remove(sequence);
        }
        self.duplicate_of(new, now)
    }

    fn insert_outbox(&mut self, outbox: Vec<NewEntry>, now: Timestamp) {
        for new in outbox {
            if !self.ids.contains_key(&new.id) && self.duplicate_of(&new, now).is_none() {
                self.insert(new, now);
            }
        }
    }

    fn settle_stored(&mut self, sequence: u64, settlement: Settlement, now: Timestamp) {
        self.resize(sequence, |stored| stored.settle(settlement, now));
    }

    /// Returns the entry that makes this one a duplicate.
    fn duplicate_of(&self, new: &NewEntry, now: Timestamp) -> Option<Enqueued> {
        let dedup = new.dedup?;
        let key = (new.queue.clone().into_owned(), dedup.key);
        let sequence = *self.dedup.get(&key)?;
        let stored = self.entries.get(&sequence)?;
        match stored.status(now) {
            _ if stored.is_gone(now) => None,
            Status::Cancelled | Status::Expired => None,
            _ if stored
                .dedup
                .is_some_and(|(_, print)| print != dedup.fingerprint) =>
            {
                Some(Enqueued::Mismatch)
            }
            _ => Some(Enqueued::Existing(stored.summary(now))),
        }
    }

    fn make_room(&mut self, new: &[&NewEntry], now: Timestamp) -> Result<(), StoreError> {
        let stored = |new: &&NewEntry| match new.parts() {
            (own, Some(shared)) if self.shared.contains(shared) => own.len() as u64,
            _ => new.payload.len() as u64,
        };
        let bytes: u64 = new.iter().map(stored).sum();
        let fits = |queue: &Self| {
            queue.entries.len() as u64 + new.len() as u64 <= queue.max_entries
                && queue.bytes + bytes <= queue.max_bytes
        };
        while !fits(self) {
            if !self.sweep(now, SWEEP) {
                let message = format!(
                    "the journal has {} entries of {} bytes, allowed: {} of {}",
                    self.entries.len(),
                    self.bytes,
                    self.max_entries,
                    self.max_bytes
                );
                return Err(StoreError::new(StoreErrorKind::Full, message));
            }
        }
        Ok(())
    }

    fn insert(&mut self, new: NewEntry, now: Timestamp) -> u64 {
        self.sequence += 1;
        let sequence = self.sequence;
        let dedup = new.dedup.map(|dedup| (dedup.key, dedup.fingerprint));
        let (own, shared) = new.parts();
        let payload = match shared {
            Some(_) => Bytes::copy_from_slice(own),
            None => new.payload.clone(),
        };
        let shared = shared.map(|shared| {
            self.bytes += self.shared.keep(shared);
            *shared.id()
        });
        let entry = Entry {
            payload,
            ..new.queued(sequence, now)
        };
        if let Some((key, _)) = dedup {
            self.dedup.insert((entry.queue.clone(), key), sequence);
        }
        self.ids.insert(entry.id, sequence);
        self.bytes += entry.payload.len() as u64;
        let stored = StoredEntry {
            dedup,
            shared,
            bounded: false,
            until: now,
            entry,
        };
        self.entries.insert(sequence, stored);
        self.index(sequence);
        sequence
    }

    pub(super) fn lease(&mut self, request: &LeaseRequest) -> Vec<Entry> {
        let now = self.now();
        let key = (request.queue.clone().into_owned(), request.lane.clone());
        let lapsed = self
            .lanes
            .get(&key)
            .map(|lane| Lane::past(&lane.leased, now))
            .unwrap_or_default();
        for sequence in lapsed {
            self.lapse(sequence);
        }
        let Some(lane) = self.lanes.get(&key) else {
            return Vec::new();
        };
        let mut next = Lane::past(&lane.expiring, now);
        let mut due = Priority::ALL
            .iter()
            .take_while(|&&priority| priority <= request.through)
            .flat_map(|&priority| lane.due(priority, now))
            .filter(|sequence| !next.contains(sequence))
            .take(if request.in_order {
                1
            } else {
                request.limit as usize
            })
            .collect::<Vec<_>>();
        if request.in_order {
            let free = lane.leased.is_empty();
            due.retain(|sequence| free && self.entries[sequence].until <= now);
        }
        next.extend(due);
        next.truncate(request.limit as usize);
        let lease = |&sequence: &u64| {
            self.change(sequence, |stored| {
                let entry = &mut stored.entry;
                entry.status = Status::Processing;
                entry.lease_token = LeaseToken::new(entry.lease_token.get() + 1);
                entry.changed_at = now;
                entry.attempts += u32::from(entry.expires_at > now);
                stored.until = now.after(request.lease);
            })?;
            Some(self.whole(self.entries.get(&sequence)?))
        };
        next.iter().filter_map(lease).collect()
    }

    pub(super) fn extend(
        &mut self,
        id: EntryId,
        lease_token: LeaseToken,
        lease: Duration,
    ) -> Ownership {
        let until = self.now().after(lease);
        match self.owned(id, lease_token) {
            Some((sequence, true)) => {
                self.change(sequence, |stored| stored.until = until);
                Ownership::Held
            }
            _ => Ownership::Lost,
        }
    }

    /// Returns the entry of this lease, unless it was leased again, and whether the lease is open.
    fn owned(&self, id: EntryId, lease_token: LeaseToken) -> Option<(u64, bool)> {
        let sequence = *self.ids.get(&id)?;
        let entry = &self.entries.get(&sequence)?.entry;
        (entry.lease_token == lease_token).then_some((sequence, entry.status == Status::Processing))
    }

    pub(super) fn settle(
        &mut self,
        id: EntryId,
        lease_token: LeaseToken,
        mut settlement: Settlement,
    ) -> Result<Ownership, StoreError> {
        let now = self.now();
        let sequence = match self.owned(id, lease_token) {
            Some((sequence, true)) => sequence,
            Some((_, false)) => return Ok(Ownership::Held),
            None => return Ok(Ownership::Lost),
        };
        let outbox = std::mem::take(&mut settlement.outbox);
        // A full journal takes the end of what runs all the same: each entry was accepted, and its
        // outbox is bounded.
        let _ = self.make_room(&outbox.iter().collect::<Vec<_>>(), now);
        self.insert_outbox(outbox, now);
        self.settle_stored(sequence, settlement, now);
        Ok(Ownership::Held)
    }

    pub(super) fn command(&mut self, id: EntryId, command: EntryCommand) -> Option<CommandResult> {
        let now = self.now();
        let sequence = *self.ids.get(&id)?;
        if self.is_gone(sequence, now) {
            return None;
        }
        let status = self.entries.get(&sequence)?.status(now);
        let applied = status == command.applies_to();
        if applied && command == EntryCommand::Purge {
            let entry = self.summary(sequence, now);
            self.remove(sequence);
            return Some(CommandResult { applied, entry });
        }
        if applied {
            self.resize(sequence, |stored| stored.command(command, now));
        }
        let entry = self.summary(sequence, now);
        Some(CommandResult { applied, entry })
    }

    /// Removes a few entries that were kept long enough, and returns whether there was one.
    fn sweep(&mut self, now: Timestamp, limit: usize) -> bool {
        let mut swept = false;
        for _ in 0..limit {
            match self.over.first() {
                Some(&(until, sequence)) if until <= now => self.remove(sequence),
                _ => break,
            }
            swept = true;
        }
        swept
    }

    fn remove(&mut self, sequence: u64) {
        self.unindex(sequence);
        let Some(stored) = self.entries.remove(&sequence) else {
            return;
        };
        let freed = stored.shared.map_or(0, |id| self.shared.release(id));
        self.bytes = self.bytes.saturating_sub(stored.bytes() + freed);
        self.ids.remove(&stored.entry.id);
        if let Some((key, _)) = stored.dedup {
            let key = (stored.entry.queue, key);
            // A later entry may have taken the key over.
            if self.dedup.get(&key) == Some(&sequence) {
                self.dedup.remove(&key);
            }
        }
    }

    /// Changes an entry, and moves it between the indexes.
    fn change(&mut self, sequence: u64, change: impl FnOnce(&mut StoredEntry)) -> Option<()> {
        self.unindex(sequence);
        change(self.entries.get_mut(&sequence)?);
        self.index(sequence);
        Some(())
    }

    /// Changes an entry, and counts its bytes anew.
    fn resize(&mut self, sequence: u64, change: impl FnOnce(&mut StoredEntry)) {
        let (mut before, mut after, mut released) = (0, 0, None);
        self.change(sequence, |stored| {
            before = stored.bytes();
            let shared = stored.shared;
            change(stored);
            after = stored.bytes();
            released = shared.filter(|_| stored.shared.is_none());
        });
        before += released.map_or(0, |id| self.shared.release(id));
        self.bytes = (self.bytes + after).saturating_sub(before);
    }

    /// Queues an entry whose lease ran out. It stays its owner's until it is leased again.
    fn lapse(&mut self, sequence: u64) -> Option<()> {
        let stored = self.entries.get(&sequence)?;
        let entry = &stored.entry;
        let key = (entry.queue.clone(), entry.lane.clone());
        let lane = self.lanes.get_mut(&key)?;
        lane.leased.remove(&(stored.until, sequence));
        lane.queued.insert((entry.priority, entry.due_at, sequence));
        lane.expiring.insert((entry.expires_at, sequence));
        Some(())
    }

    /// Adds an entry to the indexes of its state.
    fn index(&mut self, sequence: u64) {
        let Some(stored) = self.entries.get(&sequence) else {
            return;
        };
        let entry = &stored.entry;
        let lane = || (entry.queue.clone(), entry.lane.clone());
        let status = usize::from(entry.status.number());
        match self.counts.get_mut(&entry.queue) {
            Some(counts) => counts[status] += 1,
            None => {
                let mut counts = [0; 6];
                counts[status] = 1;
                self.counts.insert(entry.queue.clone(), counts);
            }
        }
        if stored.is_counted() {
            self.open.add(entry);
        }
        match entry.status {
            Status::Queued => {
                let lane = self.lanes.entry(lane()).or_default();
                lane.queued.insert((entry.priority, entry.due_at, sequence));
                lane.expiring.insert((entry.expires_at, sequence));
                match self.waiting.get_mut(&entry.queue) {
                    Some(waiting) => waiting.add(stored),
                    None => {
                        let waiting = self.waiting.entry(entry.queue.clone());
                        waiting.or_default().add(stored);
                    }
                }
            }
            Status::Processing => {
                let lane = self.lanes.entry(lane()).or_default();
                lane.leased.insert((stored.until, sequence));
            }
            _ => drop(self.over.insert((stored.until, sequence))),
        }
    }

    /// Removes an entry from the indexes.
    fn unindex(&mut self, sequence: u64) {
        let Some(stored) = self.entries.get(&sequence) else {
            return;
        };
        let entry = &stored.entry;
        if let Some(counts) = self.counts.get_mut(&entry.queue) {
            counts[usize::from(entry.status.number())] -= 1;
        }
        if stored.is_counted() {
            self.open.remove(entry);
        }
        self.over.remove(&(stored.until, sequence));
        if entry.status == Status::Queued
            && let Some(waiting) = self.waiting.get_mut(&entry.queue)
            && waiting.remove(stored)
        {
            self.waiting.remove(&entry.queue);
        }
        let key = (entry.queue.clone(), entry.lane.clone());
        if let btree_map::Entry::Occupied(mut lane) = self.lanes.entry(key) {
            let sets = lane.get_mut();
            sets.queued
                .remove(&(entry.priority, entry.due_at, sequence));
            sets.expiring.remove(&(entry.expires_at, sequence));
            sets.leased.remove(&(stored.until, sequence));
            if sets.queued.is_empty() && sets.leased.is_empty() {
                lane.remove();
            }
        }
    }

    fn is_gone(&self, sequence: u64, now: Timestamp) -> bool {
        let stored = self.entries.get(&sequence);
        stored.is_none_or(|stored| stored.is_gone(now))
    }

    /// Returns an entry with its payload as it was enqueued.
    fn whole(&self, stored: &StoredEntry) -> Entry {
        Entry {
            payload: self.shared.whole(&stored.entry.payload, stored.shared),
            ..stored.entry.clone()
        }
    }

    fn summary(&self, sequence: u64, now: Timestamp) -> Entry {
        self.entries[&sequence].summary(now)
    }
}
