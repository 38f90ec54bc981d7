use std::{fmt, time::Duration};

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod,
};
use tokio_postgres::{
    Config, NoTls, Socket,
    tls::{MakeTlsConnect, TlsConnect},
};

use super::PostgresStore;
use crate::{
    error::ConfigError,
    store::{StoreError, StoreErrorKind, remote},
};

/// Builds a [`PostgresStore`].
#[derive(Clone)]
#[must_use]
pub struct PostgresStoreBuilder {
    url: String,
    schema: String,
    table: String,
    connections: usize,
    timeout: Duration,
}

/// Without the address, which may hold a password.
impl fmt::Debug for PostgresStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStoreBuilder")
            .field("schema", &self.schema)
            .field("table", &self.table)
            .field("connections", &self.connections)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl PostgresStoreBuilder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            schema: "public".into(),
            table: "reprise_idempotency".into(),
            connections: 16,
            timeout: remote::TIMEOUT,
        }
    }

    /// The schema of the table; `public` unless told otherwise. It is created if it is missing.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The table; `reprise_idempotency` unless told otherwise. Beside it are the journal and what
    /// belongs to both, with `_journal`, `_secret` and `_version` at the end of their names.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = table.into();
        self
    }

    /// The most connections at a time; 16 unless told otherwise. They are opened as needed.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How long a verb may take, with retries; 5 s unless told otherwise. Half of it may go by
    /// until a connection is free.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connects without TLS, and creates or updates the table.
    ///
    /// # Errors
    ///
    /// A setting is not allowed, the server can't be reached or refuses, or the table was written
    /// by a newer version of this crate.
    pub async fn connect(self) -> Result<PostgresStore, StoreError> {
        self.connect_tls(NoTls).await
    }

    /// Connects with TLS, and creates or updates the table. Add `sslmode=require` to the address,
    /// so that a server without TLS is refused.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    pub async fn connect_tls<T>(self, tls: T) -> Result<PostgresStore, StoreError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let table = self.check().map_err(remote::misconfigured)?;
        let config: Config = self.url.parse().map_err(|error: tokio_postgres::Error| {
            StoreError::new(StoreErrorKind::Other, "postgres.url can't be read").because(error)
        })?;
        let pool = self.pool(config, tls)?;
        PostgresStore::open(pool, &table, self.timeout).await
    }

    fn check(&self) -> Result<Table, ConfigError> {
        if !(1..=1000).contains(&self.connections) {
            let field = "postgres.connections";
            return Err(ConfigError::new(None, field, self.connections, "1 to 1000"));
        }
        remote::check_timeout("postgres.timeout", self.timeout)?;
        Ok(Table {
            schema: identifier("postgres.schema", &self.schema)?,
            name: identifier("postgres.table", &self.table)?,
        })
    }

    fn pool<T>(&self, mut config: Config, tls: T) -> Result<Pool, StoreError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        if config.get_application_name().is_none() {
            config.application_name("tower-reprise");
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(self.timeout);
        }
        // Whatever the server's or the user's defaults are: the verbs are made for READ COMMITTED,
        // and an answer is given when the record is on disk. Every statement has its index, and a
        // queue is never as long as its statistics say.
        let session = format!(
            "SET default_transaction_isolation = 'read committed'; \
             SET statement_timeout = {}; \
             SET plan_cache_mode = force_generic_plan; \
             SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; \
             SELECT set_config('synchronous_commit', 'on', false) \
               WHERE current_setting('synchronous_commit') = 'off'",
            self.timeout.as_millis()
        );
        let settings = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        Pool::builder(Manager::from_config(config, tls, settings))
            .max_size(self.connections)
            // What was used last has its statements planned.
            .queue_mode(QueueMode::Lifo)
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .post_create(Hook::async_fn(move |client, _| {
                let session = session.clone();
                Box::pin(async move {
                    let set = client.batch_execute(&session).await;
                    set.map_err(HookError::Backend)
                })
            }))
            .build()
            .map_err(|error| StoreError::new(StoreErrorKind::Other, "no pool").because(error))
    }
}

fn identifier(field: &'static str, name: &str) -> Result<String, ConfigError> {
    let mut chars = name.bytes();
    let valid = name.len() <= 48
        && chars
            .next()
            .is_some_and(|c| c.is_ascii_lowercase() || c == b'_')
        && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_');
    if valid {
        return Ok(name.to_owned());
    }
    let allowed = "1 to 48 of a-z, 0-9 and _, not starting with a digit";
    Err(ConfigError::new(
        None,
        field,
        format_args!("{name:?}"),
        allowed,
    ))
}

/// A table's name, whose parts were checked.
#[derive(Debug, Clone)]
pub(super) struct Table {
    schema: String,
    name: String,
}

impl Table {
    /// Where the version is kept.
    pub(super) fn versions(&self) -> Self {
        Self {
            schema: self.schema.clone(),
            name: format!("{}_version", self.name),
        }
    }

    /// Where the journal is.
    pub(super) fn journal(&self) -> Self {
        Self {
            schema: self.schema.clone(),
            name: format!("{}_journal", self.name),
        }
    }

    /// Where the journal's secret is.
    pub(super) fn secret(&self) -> Self {
        Self {
            schema: self.schema.clone(),
            name: format!("{}_secret", self.name),
        }
    }

    /// The server cuts names after 63 bytes: with the longest table's, six are left for a column.
    pub(super) fn index(&self, column: &str) -> String {
        format!("\"{}_{column}\"", self.name)
    }

    /// Nothing for `public`, which is there or was removed on purpose.
    pub(super) fn create_schema(&self) -> String {
        if self.schema == "public" {
            return String::new();
        }
        format!("CREATE SCHEMA IF NOT EXISTS \"{}\";", self.schema)
    }
}

/// Quoted, as SQL wants it.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\".\"{}\"", self.schema, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: &PostgresStoreBuilder) -> String {
        builder.check().unwrap_err().to_string()
    }

    #[test]
    fn s_3_names_are_checked() {
        let builder = || PostgresStoreBuilder::new("postgres://localhost".into());
        assert!(builder().schema("_a9").table("a").check().is_ok());
        let allowed = "allowed: 1 to 48 of a-z, 0-9 and _, not starting with a digit";
        for name in ["", "9a", "a-b", "a\"b", "A", "a b", "ä"] {
            assert_eq!(
                refused(&builder().table(name)),
                format!("postgres.table is {name:?}, {allowed}")
            );
        }
        assert!(refused(&builder().schema("a".repeat(49))).starts_with("postgres.schema is "));
        assert_eq!(
            refused(&builder().connections(0)),
            "postgres.connections is 0, allowed: 1 to 1000"
        );
    }

    #[test]
    fn s_2_the_address_is_not_shown() {
        let builder = PostgresStoreBuilder::new("postgres://a:secret@localhost".into());
        assert!(!format!("{builder:?}").contains("secret"));
    }
}
