//! Statements for transactions of other drivers: SQL and parameters.

use std::{fmt, time::Duration};

use bytes::Bytes;

use super::{
    PostgresStore,
    journal::micros,
    row::{columns, number},
};
use crate::store::{FencingToken, RecordKey, Stored, journal::NewEntry};

/// One statement of PostgreSQL and its parameters, to run in a transaction of any driver: sqlx,
/// diesel, SeaORM or another. See the [guide](crate::guide::transactions) for each.
///
/// Bind the [parameters](Self::parameters) in their order, `$1` first.
#[derive(Clone)]
#[must_use = "it has to be run"]
pub struct SqlStatement {
    sql: String,
    parameters: Vec<SqlParameter>,
}

/// A parameter of an [`SqlStatement`]: a type of PostgreSQL and a value.
#[derive(Clone, PartialEq, Eq)]
pub enum SqlParameter {
    /// An `int2`.
    SmallInt(i16),
    /// An `int8`.
    BigInt(i64),
    /// A `text`, or NULL.
    Text(Option<String>),
    /// A `bytea`, or NULL.
    Bytea(Option<Bytes>),
}

impl SqlStatement {
    fn new(sql: &str, parameters: impl Into<Vec<SqlParameter>>) -> Self {
        Self {
            sql: sql.to_owned(),
            parameters: parameters.into(),
        }
    }

    /// Returns the text, with `$1`, `$2` … where the parameters go.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// Returns the values of `$1`, `$2` ….
    #[must_use]
    pub fn parameters(&self) -> &[SqlParameter] {
        &self.parameters
    }

    /// Returns both by value.
    #[must_use]
    pub fn into_parts(self) -> (String, Vec<SqlParameter>) {
        (self.sql, self.parameters)
    }
}

/// Omits the parameters' values, which are bodies and keys.
impl fmt::Debug for SqlStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStatement")
            .field("sql", &self.sql)
            .field("parameters", &self.parameters)
            .finish()
    }
}

/// Names the type and omits the value, which can be a body or a key.
impl fmt::Debug for SqlParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SmallInt(_) => "SmallInt(..)",
            Self::BigInt(_) => "BigInt(..)",
            Self::Text(_) => "Text(..)",
            Self::Bytea(_) => "Bytea(..)",
        })
    }
}

impl PostgresStore {
    /// Returns the statement of [`complete_in`](Self::complete_in), for a transaction that is not one
    /// of `tokio_postgres`. Run it last in your transaction, at `READ COMMITTED`, which is the
    /// server's default.
    ///
    /// It fails (with a division by zero) if the lease was lost, and the server then commits nothing
    /// of the transaction. It needs no reading of its result.
    pub fn complete_statement(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: &Stored,
        retention: Duration,
    ) -> SqlStatement {
        let (state, reply) = columns(stored);
        SqlStatement::new(
            &self.inner.statements.complete_in,
            [
                bytea(key.as_bytes()),
                SqlParameter::BigInt(number(token)),
                SqlParameter::SmallInt(state),
                SqlParameter::Bytea(reply.map(Bytes::copy_from_slice)),
                SqlParameter::BigInt(super::row::micros(retention)),
            ],
        )
    }

    /// Returns the statement of [`enqueue_in`](Self::enqueue_in), for a transaction that is not one of
    /// `tokio_postgres`. Run it at `READ COMMITTED`, which is the server's default.
    ///
    /// It returns one row with one column, the text `enqueued`: `new`, `existing` if an entry has this
    /// id or this operation already, or `mismatch` if an entry has the operation's key and another
    /// fingerprint. It fails (with a division by zero) if such an entry was committed while it waited
    /// for it; the transaction can be repeated then.
    ///
    /// The entry is stored as it is, with its whole payload. Where workers use a `Sealed` store, use that
    /// one's `enqueue_statement`: they can't open what was not sealed.
    pub fn enqueue_statement(&self, entry: NewEntry) -> SqlStatement {
        let (key, fingerprint) = match &entry.dedup {
            Some(dedup) => (
                bytea(dedup.key.as_bytes()),
                bytea(dedup.fingerprint.as_bytes()),
            ),
            None => (SqlParameter::Bytea(None), SqlParameter::Bytea(None)),
        };
        let text = |text| SqlParameter::Text(Some(text));
        SqlStatement::new(
            &self.inner.journal.enqueue_once,
            [
                bytea(entry.id.as_bytes()),
                text(entry.queue.into_owned()),
                text(entry.lane),
                text(entry.owner),
                text(entry.label),
                key,
                fingerprint,
                SqlParameter::SmallInt(entry.priority as i16),
                SqlParameter::BigInt(micros(entry.delay)),
                SqlParameter::BigInt(micros(entry.ttl)),
                SqlParameter::Bytea(Some(entry.payload)),
                SqlParameter::Text(entry.version),
                SqlParameter::Text(entry.reason),
            ],
        )
    }
}

fn bytea(bytes: &[u8]) -> SqlParameter {
    SqlParameter::Bytea(Some(Bytes::copy_from_slice(bytes)))
}
