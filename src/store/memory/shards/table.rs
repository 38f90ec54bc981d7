#[cfg(test)]
mod tests;

use std::ops::{Deref, DerefMut};

use crate::store::RecordKey;

/// Marks a free place of an index. No slot has that number: there are more places than slots.
const FREE: u32 = u32::MAX;

/// How many microseconds make a tick, as a power of two: about a second.
const TICK: u32 = 20;

/// Entries by their keys, each with a time that it is kept until.
///
/// With a million of them, what an operation costs is how often it waits for memory. So what every
/// operation looks into at random is as small as it can be, an index of four bytes for each place;
/// what is new goes to the end of the slots, where others just went. Growing reads no entry at all,
/// and a sweep none but those that are about to be past their time.
pub(super) struct Table<T> {
    /// As many places as a power of two, or none, and a quarter of them free. The lower bits of a
    /// hash say where its mark is: in that place, or after it, with no free one in between. The
    /// lower bits of a mark say which slot it is for; the others are those of the hash.
    index: Box<[u32]>,
    slots: Vec<Slot<T>>,
}

/// An entry, and what there is to know of it without looking at it.
struct Slot<T> {
    hash: u32,
    /// In which tick the entry is past its time: not before it.
    tick: u32,
    entry: Box<Entry<T>>,
}

struct Entry<T> {
    key: RecordKey,
    expires: u64,
    value: T,
}

/// An entry that was found.
pub(super) struct Found<'a, T>(&'a mut Slot<T>);

/// The tick of a time. The last one never ends.
fn tick(time: u64) -> u32 {
    u32::try_from(time >> TICK).unwrap_or(u32::MAX)
}

/// How many slots there are for that many places, at the most.
fn room(places: usize) -> usize {
    places / 4 * 3
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            index: Box::default(),
            slots: Vec::new(),
        }
    }
}

impl<T> Found<'_, T> {
    pub(super) fn expires(&self) -> u64 {
        self.0.entry.expires
    }

    pub(super) fn keep_until(&mut self, expires: u64) {
        self.0.tick = tick(expires);
        self.0.entry.expires = expires;
    }
}

impl<T> Deref for Found<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.entry.value
    }
}

impl<T> DerefMut for Found<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.entry.value
    }
}

impl<T> Table<T> {
    pub(super) fn find(&mut self, hash: u32, key: &RecordKey) -> Option<Found<'_, T>> {
        let slot = self.slot_of(hash, key)?;
        Some(Found(&mut self.slots[slot]))
    }

    /// Adds what is not there yet.
    pub(super) fn insert(&mut self, hash: u32, key: RecordKey, expires: u64, value: T) {
        if self.slots.len() == room(self.index.len()) {
            self.resize(self.slots.len() + 1);
        }
        self.mark(hash, self.slots.len());
        self.slots.push(Slot {
            hash,
            tick: tick(expires),
            entry: Box::new(Entry {
                key,
                expires,
                value,
            }),
        });
    }

    pub(super) fn remove(&mut self, hash: u32, key: &RecordKey) -> Option<T> {
        let slot = self.slot_of(hash, key)?;
        Some(self.take(slot))
    }

    /// Removes what is past its time. Nothing that is left will be before the time returned.
    pub(super) fn sweep(&mut self, now: u64, removed: impl Fn(&T)) -> u64 {
        let mut earliest = u64::MAX;
        // From the end, so that what takes the place of another was looked at.
        for slot in (0..self.slots.len()).rev() {
            let tick_of = self.slots[slot].tick;
            let expires = match tick_of <= tick(now) {
                true => self.slots[slot].entry.expires,
                false => u64::from(tick_of) << TICK,
            };
            if expires > now {
                earliest = earliest.min(expires);
            } else {
                removed(&self.take(slot));
            }
        }
        if room(self.index.len()) / 4 > self.slots.len() {
            let len = self.slots.len() * 2;
            self.slots.shrink_to(len);
            self.resize(len);
        }
        earliest
    }

    /// Takes an entry out. The last one takes its place.
    fn take(&mut self, slot: usize) -> T {
        self.unmark(slot);
        let last = self.slots.len() - 1;
        if slot != last {
            let hash = self.slots[last].hash;
            let at = self.marked(hash, last);
            self.index[at] = self.mark_of(hash, slot);
        }
        self.slots.swap_remove(slot).entry.value
    }

    fn slot_of(&self, hash: u32, key: &RecordKey) -> Option<usize> {
        if self.index.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        while self.index[at] != FREE {
            let slot = self.marked_slot(at);
            if self.index[at] == self.mark_of(hash, slot) && self.slots[slot].entry.key == *key {
                return Some(slot);
            }
            at = self.after(at);
        }
        None
    }

    /// Where the mark of a slot is.
    fn marked(&self, hash: u32, slot: usize) -> usize {
        let mark = self.mark_of(hash, slot);
        let mut at = self.home(hash);
        while self.index[at] != mark {
            at = self.after(at);
        }
        at
    }

    fn mark(&mut self, hash: u32, slot: usize) {
        let mut at = self.home(hash);
        while self.index[at] != FREE {
            at = self.after(at);
        }
        self.index[at] = self.mark_of(hash, slot);
    }

    /// Frees the place of a slot, and moves marks up that would not be found with a free one there.
    fn unmark(&mut self, slot: usize) {
        let mut free = self.marked(self.slots[slot].hash, slot);
        let mut at = self.after(free);
        while self.index[at] != FREE {
            let home = self.home(self.slots[self.marked_slot(at)].hash);
            if self.distance(home, at) >= self.distance(free, at) {
                self.index[free] = self.index[at];
                free = at;
            }
            at = self.after(at);
        }
        self.index[free] = FREE;
    }

    /// Makes the index as large as that many need.
    fn resize(&mut self, len: usize) {
        let places = (len + len.div_ceil(3)).next_power_of_two().max(4);
        self.index = vec![FREE; places].into();
        for slot in 0..self.slots.len() {
            self.mark(self.slots[slot].hash, slot);
        }
    }

    /// Memory ends long before there are as many slots as don't fit.
    fn mark_of(&self, hash: u32, slot: usize) -> u32 {
        hash & !(self.mask() as u32) | slot as u32
    }

    fn marked_slot(&self, at: usize) -> usize {
        self.index[at] as usize & self.mask()
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & self.mask()
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & self.mask()
    }

    /// From one place on to another, around the end.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & self.mask()
    }

    fn mask(&self) -> usize {
        self.index.len() - 1
    }
}
