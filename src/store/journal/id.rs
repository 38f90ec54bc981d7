use std::{fmt, str::FromStr};

use crate::store::record::of_bytes;

/// The id of an entry: sixteen random bytes that nobody can guess.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId([u8; 16]);

of_bytes!(EntryId, 16, "an id");

impl EntryId {
    /// Draws a random id.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random::<u128>().to_le_bytes())
    }
}

/// Thirty-two hexadecimal digits.
impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryId({self})")
    }
}

/// Error of a text that is no [`EntryId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidEntryId;

impl fmt::Display for InvalidEntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry's id is 32 lower-case hexadecimal digits")
    }
}

impl std::error::Error for InvalidEntryId {}

impl FromStr for EntryId {
    type Err = InvalidEntryId;

    fn from_str(text: &str) -> Result<Self, InvalidEntryId> {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match u128::from_str_radix(text, 16) {
            Ok(number) if digits && text.len() == 32 => Ok(Self(number.to_be_bytes())),
            _ => Err(InvalidEntryId),
        }
    }
}

/// The number of a lease, greater than those of earlier leases of the same entry. At most 2⁵³.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseToken(u64);

impl LeaseToken {
    /// Creates the token with that number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the token's number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// Returns the number as a column holds it; -1, which no entry has, if it is too large.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn column(self) -> i64 {
        i64::try_from(self.0).unwrap_or(-1)
    }
}
