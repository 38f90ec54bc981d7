//! Statements on connections of the pool, and in transactions.

use std::ops::{Deref, DerefMut};

use deadpool_postgres::{ClientWrapper, Object, Transaction};
use tokio::{
    runtime::Handle,
    time::{Instant, error::Elapsed},
};
use tokio_postgres::{
    Error, Row,
    types::{ToSql, Type},
};

use super::{PostgresStore, builder, error, parameter::Parameter};
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
            sessions: self.inner.sessions,
            deadline,
        })
    }

    pub(super) async fn rows(
        &self,
        sql: &str,
        parameters: &[&dyn Parameter],
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
        parameters: &[&dyn Parameter],
    ) -> Result<Ownership, StoreError> {
        let rows = self.rows(sql, parameters).await?;
        Ok(Ownership::held_if(!rows.is_empty()))
    }

    /// Runs one statement, which is a transaction of its own.
    pub(super) async fn attempt(
        &self,
        deadline: Instant,
        sql: &str,
        parameters: &[&dyn Parameter],
    ) -> Result<Vec<Row>, StoreError> {
        let client = self.client(deadline).await?;
        let result = tokio::time::timeout_at(deadline, client.rows(sql, parameters)).await;
        client.conclude(result)
    }
}

/// Whose the server's sessions are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sessions {
    /// A connection's own: statements are prepared once.
    Kept,
    /// Those of a pooler, which gives each transaction another one: nothing is left in them.
    Shared,
}

/// Runs statements, on a connection or in a transaction.
pub(super) trait Session: Sync {
    fn rows(
        &self,
        sql: &str,
        parameters: &[&dyn Parameter],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;
}

impl Session for BusyClient {
    async fn rows(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Vec<Row>, Error> {
        match self.sessions {
            Sessions::Kept => {
                let statement = self.prepare_cached(sql).await?;
                self.query(&statement, &values(parameters)).await
            }
            Sessions::Shared => self.query_typed(sql, &typed(parameters)).await,
        }
    }
}

/// A transaction of a connection.
pub(super) struct BusyTransaction<'a> {
    transaction: Transaction<'a>,
    sessions: Sessions,
}

impl BusyTransaction<'_> {
    pub(super) async fn commit(self) -> Result<(), Error> {
        self.transaction.commit().await
    }
}

impl Session for BusyTransaction<'_> {
    async fn rows(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Vec<Row>, Error> {
        let transaction = &self.transaction;
        match self.sessions {
            Sessions::Kept => {
                let statement = transaction.prepare_cached(sql).await?;
                transaction.query(&statement, &values(parameters)).await
            }
            Sessions::Shared => transaction.query_typed(sql, &typed(parameters)).await,
        }
    }
}

/// Of the user, whose connection keeps no statements of ours.
impl Session for tokio_postgres::Transaction<'_> {
    async fn rows(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Vec<Row>, Error> {
        self.query_typed(sql, &typed(parameters)).await
    }
}

fn values<'a>(parameters: &[&'a dyn Parameter]) -> Vec<&'a (dyn ToSql + Sync)> {
    let value = |parameter: &&'a dyn Parameter| *parameter as &(dyn ToSql + Sync);
    parameters.iter().map(value).collect()
}

/// Returns the values of a statement that is not prepared, and so has no types of its own.
fn typed<'a>(parameters: &[&'a dyn Parameter]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    let kinds = parameters.iter().map(|parameter| parameter.kind());
    values(parameters).into_iter().zip(kinds).collect()
}

/// A connection with a statement under way. If its verb is cancelled, a task returns it to the pool
/// after the response: the next verb on it would have to wait for that, too.
pub(super) struct BusyClient {
    /// `None` only while it is dropped.
    client: Option<Object>,
    sessions: Sessions,
    deadline: Instant,
}

impl BusyClient {
    /// Begins a transaction.
    pub(super) async fn begin(&mut self) -> Result<BusyTransaction<'_>, Error> {
        let sessions = self.sessions;
        let transaction = self.transaction().await?;
        Ok(BusyTransaction {
            transaction,
            sessions,
        })
    }

    /// Returns the connection to the pool, or closes it if it did not respond or broke: the next verb
    /// would wait for it, too.
    pub(super) fn conclude<T>(
        mut self,
        result: Result<Result<T, Error>, Elapsed>,
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
