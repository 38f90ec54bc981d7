use std::collections::{HashMap, hash_map};

use bytes::Bytes;

use crate::store::journal::SharedPayload;

/// The ends of payloads that entries share, each with the number of entries that need it.
#[derive(Default)]
pub(super) struct SharedEnds(HashMap<[u8; 16], (Bytes, usize)>);

impl SharedEnds {
    pub(super) fn contains(&self, shared: &SharedPayload) -> bool {
        self.0.contains_key(shared.id())
    }

    /// Counts one more entry, and returns how many bytes that adds.
    pub(super) fn keep(&mut self, shared: &SharedPayload) -> u64 {
        match self.0.entry(*shared.id()) {
            hash_map::Entry::Occupied(mut kept) => {
                kept.get_mut().1 += 1;
                0
            }
            hash_map::Entry::Vacant(new) => {
                new.insert((shared.bytes().clone(), 1));
                shared.bytes().len() as u64
            }
        }
    }

    /// Counts one entry less, and returns how many bytes that frees.
    pub(super) fn release(&mut self, id: [u8; 16]) -> u64 {
        let hash_map::Entry::Occupied(mut kept) = self.0.entry(id) else {
            return 0;
        };
        kept.get_mut().1 -= 1;
        match kept.get().1 {
            0 => kept.remove().0.len() as u64,
            _ => 0,
        }
    }

    /// Returns the payload of which an entry stores these bytes itself.
    pub(super) fn whole(&self, own: &Bytes, shared: Option<[u8; 16]>) -> Bytes {
        match shared.and_then(|id| self.0.get(&id)) {
            Some((end, _)) => [&**own, end].concat().into(),
            None => own.clone(),
        }
    }
}
