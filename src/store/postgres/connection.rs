//! Statements on connections of the pool.

use std::ops::{Deref, DerefMut};

use deadpool_postgres::{ClientWrapper, Object};
use tokio::{
    runtime::Handle,
    time::{Instant, error::Elapsed},
};
use tokio_postgres::{Row, types::ToSql};

use super::{PostgresStore, builder, error};
use crate::{
    store::{Ownership, StoreError, remote},
    telemetry,
};

impl PostgresStore {
    /// Takes a connection, and leaves at least half of the time to use it.
    pub(super) async fn client(&self, deadline: Instant) -> Result<BusyClient, StoreError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let client = builder::client(&self.inner.pool, left).await?;
        telemetry::store_connections(|| {
            let pool = self.inner.pool.status();
            pool.size.saturating_sub(pool.available) as f64 / pool.max_size.max(1) as f64
        });
        Ok(BusyClient {
            client: Some(client),
            deadline,
        })
    }

    pub(super) async fn rows(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        remote::with_retries(self.inner.timeout, |deadline| {
            self.attempt(deadline, sql, parameters)
        })
        .await
    }

    /// Returns [`Ownership::Held`] if the statement changed a row.
    pub(super) async fn owned(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Ownership, StoreError> {
        let rows = self.rows(sql, parameters).await?;
        Ok(Ownership::held_if(!rows.is_empty()))
    }

    /// Runs one statement, which is a transaction of its own.
    pub(super) async fn attempt(
        &self,
        deadline: Instant,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let client = self.client(deadline).await?;
        let result = tokio::time::timeout_at(deadline, async {
            let statement = client.prepare_cached(sql).await?;
            client.query(&statement, parameters).await
        });
        let result = result.await;
        client.conclude(result)
    }
}

/// A connection with a statement under way. If its verb is cancelled, a task returns it to the pool
/// after the response: the next verb on it would have to wait for that, too.
pub(super) struct BusyClient {
    /// `None` only while it is dropped.
    client: Option<Object>,
    deadline: Instant,
}

impl BusyClient {
    /// Returns the connection to the pool, or closes it if it did not respond or broke: the next verb
    /// would wait for it, too.
    pub(super) fn conclude<T>(
        mut self,
        result: Result<Result<T, tokio_postgres::Error>, Elapsed>,
    ) -> Result<T, StoreError> {
        let client = self.client.take();
        let error = match result {
            Ok(Ok(rows)) => return Ok(rows),
            Ok(Err(error)) => error::of_statement(error),
            Err(_) => remote::no_response(),
        };
        if error.is_transient() {
            drop(client.map(Object::take));
        }
        Err(error)
    }
}

impl Drop for BusyClient {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        let Ok(runtime) = Handle::try_current() else {
            drop(Object::take(client));
            return;
        };
        let deadline = self.deadline;
        runtime.spawn(async move {
            let response = tokio::time::timeout_at(deadline, client.batch_execute("")).await;
            if !matches!(response, Ok(Ok(()))) {
                drop(Object::take(client));
            }
        });
    }
}

impl Deref for BusyClient {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        match &self.client {
            Some(client) => client,
            None => unreachable!("it is taken where the connection is given up"),
        }
    }
}

impl DerefMut for BusyClient {
    fn deref_mut(&mut self) -> &mut ClientWrapper {
        match &mut self.client {
            Some(client) => client,
            None => unreachable!("it is taken where the connection is given up"),
        }
    }
}
