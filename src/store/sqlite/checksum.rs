//! Checksums of rows: what was damaged on disk is not taken for what was written.
//!
//! SQLite has none for its pages (its checksum VFS is an extension in C). A row that is read is
//! verified here; a row that can't be found any more is noticed by the check of the whole file when
//! it is opened.

use rusqlite::{
    Connection, Error, Row,
    functions::FunctionFlags,
    types::{Type, ValueRef},
};

use crate::http::digest::Digest;

/// Adds `reprise_checksum(value, …)` to the SQL of a connection.
pub(super) fn add_function(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_DIRECTONLY;
    connection.create_scalar_function("reprise_checksum", -1, flags, |context| {
        let values = (0..context.len()).map(|n| context.get_raw(n));
        Ok(checksum(values))
    })
}

/// Compares columns of a row with the checksum in the column `at`.
pub(super) fn verify(
    row: &Row<'_>,
    columns: impl IntoIterator<Item = usize>,
    at: usize,
) -> rusqlite::Result<()> {
    let values = columns
        .into_iter()
        .map(|column| row.get_ref(column))
        .collect::<Result<Vec<_>, _>>()?;
    let stored: i64 = row.get(at)?;
    let values = || values.iter().copied();
    if checksum(values()) == stored || checksum_before_8(values()) == stored {
        return Ok(());
    }
    let message = "the checksum of a row is wrong".into();
    Err(Error::FromSqlConversionFailure(at, Type::Integer, message))
}

/// Returns 64 bits of a hash that finds damage, and no forgery. A cryptographic one took a tenth of the
/// writer's time.
pub(super) fn checksum<'a>(values: impl Iterator<Item = ValueRef<'a>>) -> i64 {
    let mut sum = Sum(0x243f_6a88_85a3_08d3);
    for value in values {
        match value {
            ValueRef::Null => sum.word(u64::MAX),
            ValueRef::Integer(number) => sum.bytes(&number.to_le_bytes()),
            ValueRef::Real(number) => sum.bytes(&number.to_le_bytes()),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => sum.bytes(bytes),
        }
    }
    i64::from_le_bytes(sum.0.to_le_bytes())
}

/// Both halves of a product with an odd constant, for each word.
struct Sum(u64);

impl Sum {
    fn word(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    /// Adds the length, too, so that no two lists of values are the same words.
    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.word(u64::from_le_bytes(last));
        }
    }
}

/// The checksum of rows that were written before version 8 of the schema.
fn checksum_before_8<'a>(values: impl Iterator<Item = ValueRef<'a>>) -> i64 {
    let mut digest = Digest::new("row");
    for value in values {
        match value {
            ValueRef::Null => digest.part([]),
            ValueRef::Integer(number) => digest.part(number.to_le_bytes()),
            ValueRef::Real(number) => digest.part(number.to_le_bytes()),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => digest.part(bytes),
        }
    }
    let [a, b, c, d, e, f, g, h, ..] = digest.finish();
    i64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [ValueRef<'_>; 5] = [
        ValueRef::Blob(b"a key that is longer than a word"),
        ValueRef::Null,
        ValueRef::Integer(-7),
        ValueRef::Text(b""),
        ValueRef::Blob(&[0; 9]),
    ];

    /// T-5: files of this version and of those before it stay readable.
    #[test]
    fn t_5_checksums_stay_as_they_are() {
        let values = || VALUES.into_iter();
        assert_eq!(checksum(values()), 7_303_451_962_971_053_938);
        assert_eq!(checksum_before_8(values()), -6_799_037_462_629_920_639);
    }

    #[test]
    fn t_5_a_row_with_either_checksum_is_read() {
        let connection = Connection::open_in_memory().unwrap();
        let read = |sum: i64, blob: &[u8]| {
            let sql = "SELECT ?1, NULL, ?2";
            connection.query_row(sql, (blob, sum), |row| verify(row, 0..2, 2))
        };
        let values = || [ValueRef::Blob(b"kept"), ValueRef::Null].into_iter();
        for sum in [checksum(values()), checksum_before_8(values())] {
            assert!(read(sum, b"kept").is_ok());
            assert!(read(sum, b"kepp").is_err());
            assert!(read(sum ^ 1, b"kept").is_err());
        }
    }

    /// Each bit of a row counts, and so does where one value ends and the next one begins.
    #[test]
    fn every_bit_counts() {
        let sum = |bytes: &[u8], split: usize| {
            let (first, second) = bytes.split_at(split);
            checksum([ValueRef::Blob(first), ValueRef::Blob(second)].into_iter())
        };
        let mut bytes = [0x5a; 40];
        let mut sums = std::collections::HashSet::new();
        assert!((0..40).all(|split| sums.insert(sum(&bytes, split))));
        for bit in 0..8 * bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(sums.insert(sum(&bytes, 20)), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
