//! The table: made on first use, brought up to date by whoever comes first.

use deadpool_postgres::Transaction;

use super::{builder::Table, error};
use crate::store::{StoreError, StoreErrorKind};

/// One entry for each version, never changed once released. The version of a table is how many of
/// them it has seen.
fn migrations(table: &Table) -> Vec<String> {
    let expires = table.index("expires");
    vec![format!(
        "CREATE TABLE {table} ( \
           key bytea PRIMARY KEY, \
           fingerprint bytea NOT NULL, \
           claim_id bytea NOT NULL, \
           token bigint NOT NULL, \
           state smallint NOT NULL, \
           orphaned boolean NOT NULL, \
           lease_until bigint NOT NULL, \
           expires bigint NOT NULL, \
           reply bytea); \
         CREATE INDEX {expires} ON {table} (expires); \
         COMMENT ON TABLE {table} IS 'Idempotency records of tower-reprise. Times are microseconds \
         since 1970. state: 0 in flight, 1 reply, 2 reply not retained, 3 outcome unknown, 4 released';"
    )]
}

/// Works through what is missing, while others who open the same table wait. A user that may not
/// create anything can open a table that is up to date.
pub(super) async fn migrate(
    transaction: &Transaction<'_>,
    table: &Table,
) -> Result<(), StoreError> {
    let failed = error::of_statement;
    transaction
        .execute(
            "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))",
            &[&format!("tower-reprise {table}")],
        )
        .await
        .map_err(failed)?;
    let versions = table.versions();
    let exists: bool = transaction
        .query_one(
            "SELECT to_regclass($1) IS NOT NULL",
            &[&versions.to_string()],
        )
        .await
        .map_err(failed)?
        .get(0);
    let version: i32 = if exists {
        let select = format!("SELECT coalesce(max(version), 0) FROM {versions}");
        let row = transaction.query_one(&select, &[]).await.map_err(failed)?;
        row.get(0)
    } else {
        0
    };

    let migrations = migrations(table);
    let applied = usize::try_from(version).unwrap_or(usize::MAX);
    let missing = migrations.get(applied..).ok_or_else(|| {
        let known = migrations.len();
        let message = format!(
            "table {table} is of version {version}, and this version of the crate knows {known}: \
             update the crate, or use another table"
        );
        StoreError::new(StoreErrorKind::NewerSchema, message)
    })?;
    if missing.is_empty() {
        return Ok(());
    }
    if !exists {
        let create = format!(
            "{} CREATE TABLE {versions} (version integer PRIMARY KEY, \
             applied timestamptz NOT NULL DEFAULT now())",
            table.create_schema()
        );
        transaction.batch_execute(&create).await.map_err(failed)?;
    }
    for (migration, version) in missing.iter().zip(version + 1..) {
        let insert = format!("INSERT INTO {versions} (version) VALUES ({version})");
        let step = format!("{migration} {insert}");
        transaction.batch_execute(&step).await.map_err(failed)?;
    }
    Ok(())
}
