use super::Timestamp;

/// One line of an entry's history, for people: no code decides by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEvent {
    /// When it happened, on the store's clock.
    pub at: Timestamp,
    /// The transition that wrote it.
    pub kind: EventKind,
    /// The note of the settlement, or the name of the command.
    pub note: String,
}

/// The transition that wrote a line of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// [`Journal::settle`](super::Journal::settle).
    Settlement,
    /// [`Journal::command`](super::Journal::command).
    Command,
}

impl HistoryEvent {
    /// The longest note that is stored, in bytes.
    pub(crate) const MAX_NOTE: usize = 512;

    /// Returns the part of a note that is stored.
    pub(crate) fn cut(note: &str) -> &str {
        cut(note, Self::MAX_NOTE)
    }

    /// Returns the beginning of a note, up to a length in bytes.
    #[cfg(feature = "delivery")]
    pub(crate) fn cut_to(note: &str, longest: usize) -> &str {
        cut(note, longest)
    }
}

/// Cuts text to a length in bytes, between two characters.
pub(super) fn cut(text: &str, longest: usize) -> &str {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
pub(crate) use self::framing::{frame, parse};

/// History as one text, to which a store appends: the time in sixteen digits, the kind in one, the
/// length of the note in three, the note.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
mod framing {
    use super::{EventKind, HistoryEvent, Timestamp};

    /// Returns a line without its time; nothing for an empty note.
    pub(crate) fn frame(kind: EventKind, note: &str) -> Option<String> {
        let note = HistoryEvent::cut(note);
        let frame = || format!("{}{:03}{note}", kind as u8, note.len());
        (!note.is_empty()).then(frame)
    }

    /// Returns the events of a history, up to the first that can't be read.
    pub(crate) fn parse(bytes: &[u8]) -> Vec<HistoryEvent> {
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
            Some(HistoryEvent {
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

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn notes_come_back_cut_to_their_bound() {
            use EventKind::{Command, Settlement};

            let long = "\u{20ac}".repeat(512);
            let text = [(Settlement, "503"), (Command, "redriven"), (Command, &long)]
                .iter()
                .zip(1..)
                .filter_map(|((kind, note), at): (_, u64)| {
                    Some(format!("{at:016}{}", frame(*kind, note)?))
                })
                .collect::<String>();
            let events = parse(text.as_bytes());
            let seen: Vec<_> = events
                .iter()
                .map(|n| (n.at.as_micros(), n.kind, n.note.len()))
                .collect();
            assert_eq!(
                seen,
                [(1, Settlement, 3), (2, Command, 8), (3, Command, 510)]
            );
            let cut = parse(&text.as_bytes()[..30]);
            assert_eq!(cut.len(), 1, "the rest can't be read");
            assert_eq!(frame(Settlement, ""), None);
        }
    }
}
