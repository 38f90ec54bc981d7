use crate::store::{ClaimId, FencingToken, Fingerprint, Note, RecordKey, Stored};

/// A record in its table, with the fields that sweeping and growing need: neither follows the
/// pointer, which would be a cache miss a record.
pub(super) struct Slot {
    pub(super) hash: u64,
    /// When the record expires, in microseconds on the store's clock.
    pub(super) expires: u64,
    pub(super) record: Box<Record>,
}

impl Slot {
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

/// The state of one operation.
pub(super) struct Record {
    pub(super) key: RecordKey,
    pub(super) fingerprint: Fingerprint,
    pub(super) token: FencingToken,
    /// Whether an execution before this one may have taken effect.
    pub(super) orphaned: bool,
    pub(super) state: State,
}

pub(super) enum State {
    InFlight {
        id: ClaimId,
        lease_until: u64,
        note: Note,
    },
    Done(Stored),
    /// Boxed, so that records without a note are smaller.
    Noted(Box<(Stored, Note)>),
}

impl State {
    pub(super) fn done(stored: Stored, note: Note) -> Self {
        match note.is_empty() {
            true => Self::Done(stored),
            false => Self::Noted(Box::new((stored, note))),
        }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self, Self::InFlight { .. })
    }

    /// Returns the outcome; `None` while in flight.
    pub(super) fn stored(&self) -> Option<&Stored> {
        match self {
            Self::InFlight { .. } => None,
            Self::Done(stored) => Some(stored),
            Self::Noted(noted) => Some(&noted.0),
        }
    }

    pub(super) fn note(&self) -> Note {
        match self {
            Self::InFlight { note, .. } => note.clone(),
            Self::Done(_) => Note::NONE,
            Self::Noted(noted) => noted.1.clone(),
        }
    }
}

impl Record {
    /// Returns the size of the stored reply.
    pub(super) fn bytes(&self) -> u64 {
        self.state.stored().map_or(0, |stored| stored.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-1: a million of them are in memory, most without a note.
    #[test]
    fn t_1_a_note_takes_no_room_where_there_is_none() {
        assert_eq!(size_of::<State>(), size_of::<Stored>());
        assert_eq!(size_of::<Note>(), size_of::<usize>());
        assert_eq!(size_of::<Record>(), 120);
    }
}
