//! The journal in memory: all entries in the sequence in which they came, and for each lane what
//! is next.

mod held;
mod lane;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map},
    ops::Bound,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use self::{held::Held, lane::Lane};
use crate::store::{
    Ownership, RecordKey, StoreError, StoreErrorKind,
    journal::{
        CommandResult, Counts, Enqueued, Entry, EntryCommand, EntryId, LeaseRequest, LeaseToken,
        NewEntry, Priority, Query, Settlement, Status, Timestamp,
    },
};

/// How many entries past their time are removed along with each new one.
const SWEEP: usize = 8;

pub(super) struct Book {
    entries: BTreeMap<u64, Held>,
    ids: HashMap<EntryId, u64>,
    dedup: HashMap<(String, RecordKey), u64>,
    lanes: BTreeMap<(String, String), Lane>,
    /// What is over, by when it may go.
    over: BTreeSet<(Timestamp, u64)>,
    sequence: u64,
    bytes: u64,
    max_entries: u64,
    max_bytes: u64,
    secret: [u8; 32],
    opened: (Timestamp, Instant),
}

impl Book {
    pub(super) fn new(max_entries: u64, max_bytes: u64) -> Self {
        Self {
            entries: BTreeMap::new(),
            ids: HashMap::new(),
            dedup: HashMap::new(),
            lanes: BTreeMap::new(),
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

    /// Wall-clock time when the journal was made, tokio's clock from then on.
    fn now(&self) -> Timestamp {
        let (wall, instant) = self.opened;
        wall.after(instant.elapsed())
    }

    pub(super) fn enqueue(&mut self, new: NewEntry) -> Result<Enqueued, StoreError> {
        let now = self.now();
        self.sweep(now, SWEEP);
        if let Some(&sequence) = self.ids.get(&new.id) {
            if !self.is_gone(sequence, now) {
                return Ok(Enqueued::Existing(self.summary(sequence, now)));
            }
            self.remove(sequence);
        }
        if let Some(found) = self.same_as(&new, now) {
            return Ok(found);
        }
        self.make_room(&[&new], now)?;
        let sequence = self.insert(new, now);
        Ok(Enqueued::New(self.summary(sequence, now)))
    }

    /// The entry that makes this one a duplicate.
    fn same_as(&self, new: &NewEntry, now: Timestamp) -> Option<Enqueued> {
        let dedup = new.dedup?;
        let key = (new.queue.clone().into_owned(), dedup.key);
        let sequence = *self.dedup.get(&key)?;
        let held = self.entries.get(&sequence)?;
        match held.status(now) {
            _ if held.is_gone(now) => None,
            Status::Cancelled | Status::Expired => None,
            _ if held
                .dedup
                .is_some_and(|(_, print)| print != dedup.fingerprint) =>
            {
                Some(Enqueued::Mismatch)
            }
            _ => Some(Enqueued::Existing(held.summary(now))),
        }
    }

    fn make_room(&mut self, new: &[&NewEntry], now: Timestamp) -> Result<(), StoreError> {
        let bytes: u64 = new.iter().map(|new| new.payload.len() as u64).sum();
        let fits = |book: &Self| {
            book.entries.len() as u64 + new.len() as u64 <= book.max_entries
                && book.bytes + bytes <= book.max_bytes
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
        let entry = new.queued(sequence, now);
        if let Some((key, _)) = dedup {
            self.dedup.insert((entry.queue.clone(), key), sequence);
        }
        self.ids.insert(entry.id, sequence);
        self.bytes += entry.payload.len() as u64;
        let held = Held {
            dedup,
            until: now,
            entry,
        };
        self.entries.insert(sequence, held);
        self.show(sequence);
        sequence
    }

    pub(super) fn lanes(&self, queue: &str, after: Option<&str>, limit: u32) -> Vec<String> {
        let now = self.now();
        let from = match after {
            Some(after) => Bound::Excluded((queue.to_owned(), after.to_owned())),
            None => Bound::Included((queue.to_owned(), String::new())),
        };
        self.lanes
            .range((from, Bound::Unbounded))
            .take_while(|((of, _), _)| of == queue)
            .filter(|(_, lane)| lane.has_work(now))
            .map(|((_, name), _)| name.clone())
            .take(limit as usize)
            .collect()
    }

    pub(super) fn lease(&mut self, want: &LeaseRequest) -> Vec<Entry> {
        let now = self.now();
        let key = (want.queue.clone().into_owned(), want.lane.clone());
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
        let due = Priority::ALL
            .iter()
            .take_while(|&&priority| priority <= want.through)
            .flat_map(|&priority| lane.due(priority, now))
            .filter(|sequence| !next.contains(sequence))
            .take(want.limit as usize)
            .collect::<Vec<_>>();
        next.extend(due);
        next.truncate(want.limit as usize);
        let lease = |&sequence: &u64| {
            self.change(sequence, |held| {
                let entry = &mut held.entry;
                entry.status = Status::Processing;
                entry.turn = LeaseToken::new(entry.turn.get() + 1);
                entry.changed_at = now;
                entry.attempts += u32::from(entry.expires_at > now);
                held.until = now.after(want.lease);
            })?;
            Some(self.entries.get(&sequence)?.entry.clone())
        };
        next.iter().filter_map(lease).collect()
    }

    pub(super) fn extend(&mut self, id: EntryId, turn: LeaseToken, lease: Duration) -> Ownership {
        let until = self.now().after(lease);
        match self.owned(id, turn) {
            Some((sequence, true)) => {
                self.change(sequence, |held| held.until = until);
                Ownership::Held
            }
            _ => Ownership::Lost,
        }
    }

    /// Where it is, and whether that turn is still on.
    fn owned(&self, id: EntryId, turn: LeaseToken) -> Option<(u64, bool)> {
        let sequence = *self.ids.get(&id)?;
        let entry = &self.entries.get(&sequence)?.entry;
        (entry.turn == turn).then_some((sequence, entry.status == Status::Processing))
    }

    pub(super) fn settle(
        &mut self,
        id: EntryId,
        turn: LeaseToken,
        mut settle: Settlement,
    ) -> Result<Ownership, StoreError> {
        let now = self.now();
        let sequence = match self.owned(id, turn) {
            Some((sequence, true)) => sequence,
            Some((_, false)) => return Ok(Ownership::Held),
            None => return Ok(Ownership::Lost),
        };
        let follows: Vec<_> = settle.outbox.iter().collect();
        self.make_room(&follows, now)?;
        for new in std::mem::take(&mut settle.outbox) {
            if !self.ids.contains_key(&new.id) && self.same_as(&new, now).is_none() {
                self.insert(new, now);
            }
        }
        let (mut before, mut after) = (0, 0);
        self.change(sequence, |held| {
            before = held.bytes();
            held.settle(settle, now);
            after = held.bytes();
        });
        self.bytes = (self.bytes + after).saturating_sub(before);
        Ok(Ownership::Held)
    }

    pub(super) fn command(&mut self, id: EntryId, command: EntryCommand) -> Option<CommandResult> {
        let now = self.now();
        let sequence = *self.ids.get(&id)?;
        if self.is_gone(sequence, now) {
            return None;
        }
        let status = self.entries.get(&sequence)?.status(now);
        let applied = match command {
            EntryCommand::Cancel(_) | EntryCommand::Trigger => status == Status::Queued,
            EntryCommand::Redrive(_) => status == Status::Failed,
        };
        if applied {
            self.change(sequence, |held| held.command(command, now));
        }
        let entry = self.summary(sequence, now);
        Some(CommandResult { applied, entry })
    }

    pub(super) fn find(&self, id: EntryId) -> Option<Entry> {
        let now = self.now();
        let held = self.entries.get(self.ids.get(&id)?)?;
        (!held.is_gone(now)).then(|| Entry {
            status: held.status(now),
            ..held.entry.clone()
        })
    }

    pub(super) fn list(&self, query: &Query) -> Vec<Entry> {
        let now = self.now();
        let wanted = |held: &&Held| {
            let entry = &held.entry;
            entry.queue == query.queue
                && query
                    .owner
                    .as_ref()
                    .is_none_or(|owner| *owner == entry.owner)
                && query
                    .label
                    .as_ref()
                    .is_none_or(|label| *label == entry.label)
                && query.status.is_none_or(|status| status == held.status(now))
                && !held.is_gone(now)
        };
        self.entries
            .range((Bound::Excluded(query.after), Bound::Unbounded))
            .map(|(_, held)| held)
            .filter(wanted)
            .take(query.limit as usize)
            .map(|held| held.summary(now))
            .collect()
    }

    pub(super) fn counts(&self, queue: &str) -> Counts {
        let now = self.now();
        let mut counts = Counts::default();
        for held in self.entries.values() {
            if held.entry.queue == queue && !held.is_gone(now) {
                let status = held.status(now);
                counts.by_status[usize::from(status.number())] += 1;
                if status == Status::Queued {
                    let age = now.since(held.entry.queued_at);
                    counts.oldest = counts.oldest.max(Some(age));
                }
            }
        }
        counts
    }

    pub(super) fn position(&self, id: EntryId, limit: u32) -> Option<u32> {
        let now = self.now();
        let held = self.entries.get(self.ids.get(&id)?)?;
        let entry = &held.entry;
        if held.status(now) != Status::Queued {
            return None;
        }
        let lane = self.lanes.get(&(entry.queue.clone(), entry.lane.clone()))?;
        let before = lane
            .queued
            .range(..(entry.priority, entry.due_at, entry.sequence));
        u32::try_from(before.take(limit as usize).count()).ok()
    }

    /// Removes a few entries that were kept long enough; whether there was one.
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
        self.hide(sequence);
        let Some(held) = self.entries.remove(&sequence) else {
            return;
        };
        self.bytes = self.bytes.saturating_sub(held.bytes());
        self.ids.remove(&held.entry.id);
        if let Some((key, _)) = held.dedup {
            let key = (held.entry.queue, key);
            // A later entry may have taken the key over.
            if self.dedup.get(&key) == Some(&sequence) {
                self.dedup.remove(&key);
            }
        }
    }

    /// Changes an entry, and where it can be found.
    fn change(&mut self, sequence: u64, change: impl FnOnce(&mut Held)) -> Option<()> {
        self.hide(sequence);
        change(self.entries.get_mut(&sequence)?);
        self.show(sequence);
        Some(())
    }

    /// Lets what has lost its worker stand in line again. It stays its owner's until somebody
    /// takes it.
    fn lapse(&mut self, sequence: u64) -> Option<()> {
        let held = self.entries.get(&sequence)?;
        let entry = &held.entry;
        let key = (entry.queue.clone(), entry.lane.clone());
        let lane = self.lanes.get_mut(&key)?;
        lane.leased.remove(&(held.until, sequence));
        lane.queued.insert((entry.priority, entry.due_at, sequence));
        lane.expiring.insert((entry.expires_at, sequence));
        Some(())
    }

    fn show(&mut self, sequence: u64) {
        let Some(held) = self.entries.get(&sequence) else {
            return;
        };
        let entry = &held.entry;
        let lane = || (entry.queue.clone(), entry.lane.clone());
        match entry.status {
            Status::Queued => {
                let lane = self.lanes.entry(lane()).or_default();
                lane.queued.insert((entry.priority, entry.due_at, sequence));
                lane.expiring.insert((entry.expires_at, sequence));
            }
            Status::Processing => {
                let lane = self.lanes.entry(lane()).or_default();
                lane.leased.insert((held.until, sequence));
            }
            _ => drop(self.over.insert((held.until, sequence))),
        }
    }

    fn hide(&mut self, sequence: u64) {
        let Some(held) = self.entries.get(&sequence) else {
            return;
        };
        let entry = &held.entry;
        self.over.remove(&(held.until, sequence));
        let key = (entry.queue.clone(), entry.lane.clone());
        if let btree_map::Entry::Occupied(mut lane) = self.lanes.entry(key) {
            let sets = lane.get_mut();
            sets.queued
                .remove(&(entry.priority, entry.due_at, sequence));
            sets.expiring.remove(&(entry.expires_at, sequence));
            sets.leased.remove(&(held.until, sequence));
            if sets.queued.is_empty() && sets.leased.is_empty() {
                lane.remove();
            }
        }
    }

    fn is_gone(&self, sequence: u64, now: Timestamp) -> bool {
        let held = self.entries.get(&sequence);
        held.is_none_or(|held| held.is_gone(now))
    }

    fn summary(&self, sequence: u64, now: Timestamp) -> Entry {
        self.entries[&sequence].summary(now)
    }
}
