//! Unknown outcomes, for the people who resolve them.

use std::{ops::Bound, time::Duration};

use super::{Shards, Slot, State, Table, micros, place};
use crate::{
    store::{
        FencingToken, OutcomeCursor, OutcomePage, RecordKey, Resolution, Resolved, StoreError,
        Stored, UnknownOutcome,
    },
    sync::{Ordering, lock},
};

impl Table {
    fn find(&self, hash: u64, key: &RecordKey) -> Option<&Slot> {
        self.records.find(hash, |slot| slot.record.key == *key)
    }

    /// Returns the outcome of a record if it is unknown.
    fn unknown(&self, slot: &Slot, now: u64) -> Option<UnknownOutcome> {
        let record = &slot.record;
        let ended = match &record.state {
            State::InFlight { lease_until, .. } => *lease_until,
            done if done.stored() == Some(&Stored::Unknown) => {
                let ended = self.watched.as_ref().and_then(|it| it.get(&record.key));
                ended.copied().unwrap_or(now)
            }
            _ => return None,
        };
        (ended <= now && slot.expires > now).then(|| UnknownOutcome {
            key: record.key,
            token: record.token,
            note: record.state.note(),
            unknown_for: Duration::from_micros(now - ended),
            expires_in: Duration::from_micros(slot.expires - now),
        })
    }
}

impl Shards {
    /// Goes on behind the key that the cursor names: shard by shard, in each by key.
    pub(in super::super) fn unknown_outcomes(
        &self,
        after: Option<OutcomeCursor>,
        limit: u32,
    ) -> Result<OutcomePage, StoreError> {
        let now = self.now();
        let limit = limit as usize;
        let after = after.map(|after| after.split::<0>()).transpose()?;
        let after = after.map(|(_, key)| key);
        let first = after.map_or(0, |key| place(self.hash(&key)));
        let mut page = OutcomePage::default();
        let mut from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for shard in &self.shards[first..] {
            let table = lock(&shard.table);
            let watched = table.watched.iter();
            let keys = watched.flat_map(|it| it.range((from, Bound::Unbounded)));
            for (key, _) in keys {
                if page.outcomes.len() == limit {
                    let last = page.outcomes.last().map(|last| last.key).or(after);
                    page.next = last.map(|last| OutcomeCursor::join(&[], &last));
                    return Ok(page);
                }
                let found = table.find(self.hash(key), key);
                page.outcomes
                    .extend(found.and_then(|slot| table.unknown(slot, now)));
            }
            from = Bound::Unbounded;
        }
        Ok(page)
    }

    pub(in super::super) fn unknown_outcome(&self, key: &RecordKey) -> Option<UnknownOutcome> {
        let hash = self.hash(key);
        let (_, table) = self.open(hash);
        table
            .find(hash, key)
            .and_then(|slot| table.unknown(slot, self.now()))
    }

    pub(in super::super) fn resolve(
        &self,
        key: &RecordKey,
        token: FencingToken,
        resolution: Resolution,
    ) -> Result<Resolved, StoreError> {
        let now = self.now();
        let hash = self.hash(key);
        let bytes = match &resolution {
            Resolution::Executed(stored, _) => stored.len() as u64,
            Resolution::NoEffect => 0,
        };
        self.reserve_bytes(bytes, now)?;
        let (shard, mut table) = self.open(hash);
        let is_unknown = |slot: &Slot| {
            let unknown = table.unknown(slot, now);
            unknown.is_some_and(|unknown| unknown.token == token)
        };
        let resolved = match (table.find(hash, key), resolution) {
            (Some(slot), Resolution::Executed(stored, retention)) if is_unknown(slot) => {
                let next = self.next_token();
                let found = table.records.find_mut(hash, |slot| slot.record.key == *key);
                if let Some(slot) = found {
                    let unknown = stored == Stored::Unknown;
                    slot.record.token = next;
                    slot.record.state = State::done(stored, slot.record.state.note());
                    shard.keep(slot, now.saturating_add(micros(retention)));
                    match unknown {
                        true => table.watch(*key, now),
                        false => table.unwatch(key),
                    }
                }
                return Ok(Resolved::Made);
            }
            (Some(slot), Resolution::NoEffect) if is_unknown(slot) => {
                let found = table
                    .records
                    .find_entry(hash, |slot| slot.record.key == *key);
                if let Ok(found) = found {
                    self.forget(&found.remove().0.record);
                }
                table.unwatch(key);
                Resolved::Made
            }
            _ => Resolved::Conflict,
        };
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(resolved)
    }
}
