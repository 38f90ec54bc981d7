//! How stores that are not in memory write what an entry is made of.

use super::{Attempted, EventKind, Priority, Status, Timestamp};
use crate::store::{StoreError, StoreErrorKind};

/// Returns a note as stores append it to a history, behind its time in sixteen digits: its kind in
/// one digit, its length in three, then the note.
pub(crate) fn framed(kind: EventKind, note: &str) -> String {
    let note = Attempted::cut(note);
    format!("{}{:03}{note}", kind as u8, note.len())
}

/// The notes of a history. What can't be read ends it.
pub(crate) fn history(bytes: &[u8]) -> Vec<Attempted> {
    let mut rest = bytes;
    std::iter::from_fn(|| {
        let at = number(rest.get(..16)?)?;
        let kind = match rest.get(16)? {
            b'0' => EventKind::Settlement,
            _ => EventKind::Command,
        };
        let length = usize::try_from(number(rest.get(17..20)?)?).ok()?;
        let note = rest.get(20..20 + length)?;
        rest = &rest[20 + length..];
        Some(Attempted {
            at: Timestamp::from_micros(at),
            kind,
            note: String::from_utf8_lossy(note).into_owned(),
        })
    })
    .collect()
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The priority with that number, as in [`Priority::ALL`].
pub(crate) fn priority(number: i64) -> Result<Priority, StoreError> {
    pick(&Priority::ALL, number)
}

/// The status with that number, as in [`Status::ALL`].
pub(crate) fn status(number: i64) -> Result<Status, StoreError> {
    pick(&Status::ALL, number)
}

fn pick<T: Copy>(all: &[T], number: i64) -> Result<T, StoreError> {
    let index = usize::try_from(number).ok();
    let found = index.and_then(|index| all.get(index)).copied();
    found.ok_or_else(|| {
        let message = format!(
            "an entry has {number} where up to {} is known",
            all.len() - 1
        );
        StoreError::new(StoreErrorKind::Corrupt, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_cut_to_their_bound() {
        let long = "\u{20ac}".repeat(512);
        let text = ["503", "", &long]
            .iter()
            .zip(1..)
            .map(|(note, at): (_, u64)| {
                let kinds = [EventKind::Settlement, EventKind::Command];
                format!("{at:016}{}", framed(kinds[note.len() % 2], note))
            })
            .collect::<String>();
        let notes = history(text.as_bytes());
        let seen: Vec<_> = notes
            .iter()
            .map(|n| (n.at.as_micros(), n.kind, n.note.len()))
            .collect();
        let (settlement, command) = (EventKind::Settlement, EventKind::Command);
        assert_eq!(
            seen,
            [(1, command, 3), (2, settlement, 0), (3, settlement, 510)]
        );
        assert_eq!(
            history(&text.as_bytes()[..30]).len(),
            1,
            "the rest can't be read"
        );
    }

    #[test]
    fn numbers_are_those_of_the_types() {
        for one in Priority::ALL {
            assert_eq!(priority(one as i64).ok(), Some(one));
        }
        for one in Status::ALL {
            assert_eq!(status(one as i64).ok(), Some(one));
        }
        let error = status(6).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    }
}
