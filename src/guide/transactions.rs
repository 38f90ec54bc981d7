//! Transactions of sqlx, diesel and SeaORM that complete an operation or enqueue work.
//!
//! A handler that writes to a database and replies does two things, and a crash between them leaves
//! one without the other. In one transaction there is no such moment: the effect, the reply that
//! repeats get, and the work that follows are committed together or not at all.
//!
//! [`PostgresStore`](crate::store::PostgresStore) takes part in a transaction of `tokio_postgres` by
//! [`complete_in`](crate::store::PostgresStore::complete_in) and
//! [`enqueue_in`](crate::store::PostgresStore::enqueue_in). For every other driver it gives SQL and
//! parameters, an [`SqlStatement`](crate::store::SqlStatement): by
//! [`complete_statement`](crate::store::PostgresStore::complete_statement) and
//! [`enqueue_statement`](crate::store::PostgresStore::enqueue_statement). Each driver needs one
//! function that binds them, which is below; this crate depends on no driver, and its checks run all
//! three against a server.
//!
//! The store keeps connections of its own (or uses [a pool of
//! deadpool](crate::store::PostgresStore::on_pool)); your transactions stay on yours. Both have to
//! reach the same database.
//!
//! # sqlx (0.9)
//!
#![doc = concat!("```rust,ignore\n", include_str!("drivers/sqlx.rs"), "```")]
//!
//! In a handler, with the [`Execution`](crate::server::idempotency::Execution) of the request:
//!
//! ```rust,ignore
//! let mut transaction = pool.begin().await?;
//! sqlx::query("UPDATE accounts SET balance = balance - 10 WHERE id = 7")
//!     .execute(&mut *transaction)
//!     .await?;
//! let response = Response::new(String::from("paid"));
//! let (key, token) = (execution.key(), execution.token());
//! let (stored, kept_for) = (execution.stored(&response)?, execution.retention());
//! let completes = store.complete_statement(key, token, &stored, kept_for);
//! run(&mut transaction, completes).await?;
//! transaction.commit().await?;
//! ```
//!
//! # diesel (2.3, diesel-async 0.9)
//!
#![doc = concat!("```rust,ignore\n", include_str!("drivers/diesel.rs"), "```")]
//!
//! # SeaORM (2.0)
//!
#![doc = concat!("```rust,ignore\n", include_str!("drivers/sea_orm.rs"), "```")]
//!
//! # Results
//!
//! A completion needs no reading of its result: it fails if another execution took the operation
//! over, and the server then commits nothing of the transaction. An enqueued entry answers with one
//! row and one column, the text `enqueued`: `new`, `existing` or `mismatch`.
//!
//! # What goes wrong
//!
//! - **The completion comes first, and a slow statement after it.** The record is locked from the
//!   completion to the commit, and duplicates wait. Run it last.
//! - **The commit fails and the handler replies "not done".** A commit that fails may have happened.
//!   Return an error without a [`HandlerOutcome`](crate::server::idempotency::HandlerOutcome); a
//!   repeat finds the record, or executes again under a new token.
//! - **The transaction's role has no rights on the tables.** A completion needs `SELECT, UPDATE` on
//!   `reprise_idempotency` and `INSERT` on `reprise_idempotency_reply`, where replies are, and `USAGE`
//!   on their schema.
//! - **Workers use a [`Sealed`](crate::store::Sealed) store, and the transaction the bare one.** The
//!   entry is stored in the clear and can't be opened. Take the statement from the sealed store.
//! - **`SERIALIZABLE` transactions.** The statements are written for `READ COMMITTED`. In stricter
//!   ones they fail with a serialization error more often, and the transaction has to be repeated.
//!
//! # SQLite next to these crates
//!
//! Only one crate of a program may link SQLite. The feature `sqlite` takes rusqlite 0.38 to 0.41, so
//! that cargo can choose the one that fits: 0.39 next to sqlx 0.9 or SeaORM 2.0 with their `sqlite`,
//! 0.40 next to diesel 2.3. sqlx 0.8 and SeaORM 1 with their `sqlite` need an older one and can't be
//! used together with this crate's; without it they can.
