//! The bank's payments, in a SQLite file.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, OptionalExtension, params};
use tower_reprise::error::BoxError;

pub(crate) struct Ledger {
    connection: Connection,
}

impl Ledger {
    pub(crate) fn open(folder: &Path) -> Result<Self, BoxError> {
        let connection = Connection::open(folder.join("ledger.db"))?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS payments (
                 id INTEGER PRIMARY KEY,
                 operation TEXT NOT NULL,
                 order_number INTEGER NOT NULL,
                 amount INTEGER NOT NULL
             );
             CREATE TABLE IF NOT EXISTS guarded (operation TEXT NOT NULL);",
        )?;
        Ok(Self { connection })
    }

    /// Books a payment and returns its number. An operation whose server was killed after this and
    /// before its reply was stored is executed again (`CrashPolicy::Reexecute`), and finds here that
    /// it was done.
    pub(crate) fn book(
        &mut self,
        operation: &str,
        order: u64,
        amount: u64,
        again: bool,
    ) -> Result<i64, BoxError> {
        let transaction = self.connection.transaction()?;
        if again {
            let done = "SELECT id FROM payments WHERE operation = ?1";
            let done = transaction.query_row(done, [operation], |row| row.get(0));
            if let Some(id) = done.optional()? {
                transaction.execute("INSERT INTO guarded VALUES (?1)", [operation])?;
                transaction.commit()?;
                return Ok(id);
            }
        }
        transaction.execute(
            "INSERT INTO payments (operation, order_number, amount) VALUES (?1, ?2, ?3)",
            params![operation, i64::try_from(order)?, i64::try_from(amount)?],
        )?;
        let id = transaction.last_insert_rowid();
        transaction.commit()?;
        Ok(id)
    }

    /// Returns the number of orders that are there once with the right amount, more than once, or
    /// not.
    pub(crate) fn compare(&self, orders: u64) -> Result<(u64, u64, u64), BoxError> {
        let (mut once, mut twice, mut missing) = (0, 0, 0);
        let mut rows = self.connection.prepare(
            "SELECT count(*), coalesce(sum(amount), 0) FROM payments WHERE order_number = ?1",
        )?;
        for order in 0..orders {
            let row = rows.query_row([i64::try_from(order)?], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
            })?;
            match row {
                (0, _) => missing += 1,
                (1, amount) if amount.unsigned_abs() == amount_of(order) => once += 1,
                _ => twice += 1,
            }
        }
        Ok((once, twice, missing))
    }

    pub(crate) fn guarded(&self) -> Result<i64, BoxError> {
        let count = "SELECT count(*) FROM guarded";
        Ok(self.connection.query_row(count, [], |row| row.get(0))?)
    }
}

/// Returns the price of an order.
pub(crate) fn amount_of(order: u64) -> u64 {
    100 + order % 900
}
