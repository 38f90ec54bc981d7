//! Operations of unknown outcome, for the people who find out how they ended.

use std::{fmt, str::FromStr, time::Duration};

use super::{FencingToken, Note, RecordKey, StoreError, StoreErrorKind, Stored};

/// An operation of which nobody knows whether it took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownOutcome {
    /// The operation.
    pub key: RecordKey,
    /// The token of its last owner, which [`resolve`](super::IdempotencyStore::resolve) asks for: an
    /// operation that was executed again meanwhile has another one.
    pub token: FencingToken,
    /// The note of its last owner.
    pub note: Note,
    /// The time since its owner's lease ended.
    pub unknown_for: Duration,
    /// The time until the record is forgotten, and a repeat is executed.
    pub expires_in: Duration,
}

/// A part of a list of unknown outcomes, in the store's own order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutcomePage {
    /// The outcomes: as many as were asked for, or fewer.
    pub outcomes: Vec<UnknownOutcome>,
    /// Where the next page begins; `None` at the end of the list.
    pub next: Option<OutcomeCursor>,
}

/// A place in a list of unknown outcomes. Only the store that returned it can read it.
#[derive(Clone, PartialEq, Eq)]
pub struct OutcomeCursor(Box<[u8]>);

impl OutcomeCursor {
    /// The maximum length in bytes.
    pub const MAX_LEN: usize = 64;

    /// Creates a cursor of these bytes; `None` if there are more than [`MAX_LEN`](Self::MAX_LEN).
    #[must_use]
    pub fn new(bytes: impl AsRef<[u8]>) -> Option<Self> {
        let bytes = bytes.as_ref();
        (bytes.len() <= Self::MAX_LEN).then(|| Self(bytes.into()))
    }

    /// Returns its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the key of a record that is the whole cursor or the end of it, and what is before.
    pub(super) fn split<const N: usize>(&self) -> Result<([u8; N], RecordKey), StoreError> {
        let parts = self.0.split_first_chunk::<N>();
        let parts = parts.and_then(|(first, key)| Some((*first, key.try_into().ok()?)));
        let (first, key) = parts.ok_or_else(foreign)?;
        Ok((first, RecordKey::new(key)))
    }

    /// Returns the number that is the whole cursor.
    #[cfg(feature = "sqlite")]
    pub(super) fn number(&self) -> Result<i64, StoreError> {
        let bytes = (*self.0).try_into().map_err(|_| foreign())?;
        Ok(i64::from_be_bytes(bytes))
    }

    /// Returns the number, the record's key and the claim id that are the whole cursor.
    #[cfg(feature = "redis")]
    pub(super) fn split_claim(&self) -> Result<(u64, RecordKey, super::ClaimId), StoreError> {
        let id = self.0.last_chunk().ok_or_else(foreign)?;
        let rest = Self(self.0[..self.0.len() - id.len()].into());
        let (number, key) = rest.split()?;
        Ok((u64::from_be_bytes(number), key, super::ClaimId::new(*id)))
    }

    #[cfg(feature = "redis")]
    pub(super) fn of_claim(number: u64, claim: &[u8]) -> Self {
        Self([&number.to_be_bytes(), claim].concat().into())
    }

    pub(super) fn join(first: &[u8], key: &RecordKey) -> Self {
        Self([first, key.as_bytes()].concat().into())
    }
}

fn foreign() -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        "the cursor of unknown outcomes is of another store, allowed: one that this store returned",
    )
}

/// Hexadecimal digits.
impl fmt::Display for OutcomeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for OutcomeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutcomeCursor({self})")
    }
}

/// Error of a text that is not the hexadecimal digits of a [`RecordKey`] or an [`OutcomeCursor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidHex;

impl fmt::Display for InvalidHex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record's key is 64 hexadecimal digits, a cursor at most 128")
    }
}

impl std::error::Error for InvalidHex {}

fn from_hex(text: &str) -> Result<Vec<u8>, InvalidHex> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| {
        let byte = digit(high)? << 4 | digit(low)?;
        u8::try_from(byte).ok()
    });
    let bytes = bytes.collect::<Option<_>>().ok_or(InvalidHex)?;
    rest.is_empty().then_some(bytes).ok_or(InvalidHex)
}

impl FromStr for RecordKey {
    type Err = InvalidHex;

    fn from_str(text: &str) -> Result<Self, InvalidHex> {
        let bytes = from_hex(text)?.try_into().map_err(|_| InvalidHex)?;
        Ok(Self::new(bytes))
    }
}

impl FromStr for OutcomeCursor {
    type Err = InvalidHex;

    fn from_str(text: &str) -> Result<Self, InvalidHex> {
        Self::new(from_hex(text)?).ok_or(InvalidHex)
    }
}

/// The finding about an operation whose outcome was unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// It took effect: repeats get this outcome, which is kept for that long.
    Executed(Stored, Duration),
    /// It had no effect: the key is free, and a repeat is executed.
    NoEffect,
}

/// The result of resolving an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub enum Resolved {
    /// The transition was made; a late owner has lost the record.
    Made,
    /// The outcome is not unknown, or not that of this token's owner (any more): the record is gone,
    /// in flight under a lease, done, or another owner's. Nothing changed.
    Conflict,
}

/// Returns the error of a store without these verbs.
pub(super) fn unsupported() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unsupported,
        "this store does not list or resolve unknown outcomes: its `IdempotencyStore` lacks \
         `unknown_outcomes`, `unknown_outcome` and `resolve`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_27_keys_and_cursors_are_read_as_they_are_written() {
        let key = RecordKey::new([0xa7; 32]);
        assert_eq!(key.to_string().parse(), Ok(key));
        let cursor = OutcomeCursor::join(&[1, 2, 255], &key);
        assert_eq!(cursor.to_string().parse(), Ok(cursor.clone()));
        assert_eq!(cursor.split().unwrap(), ([1, 2, 255], key));
        assert!(cursor.split::<8>().is_err());
        for wrong in ["", "a", "0g", "+1", &"0".repeat(63), &"é".repeat(32)] {
            assert_eq!(wrong.parse::<RecordKey>(), Err(InvalidHex), "{wrong}");
        }
        assert!("00".repeat(65).parse::<OutcomeCursor>().is_err());
    }
}
