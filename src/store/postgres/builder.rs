use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, QueueMode, RecyclingMethod,
    Timeouts,
};
use tokio_postgres::{
    Config, NoTls, Socket,
    tls::{MakeTlsConnect, TlsConnect},
};

use super::{
    PostgresStore,
    connection::Sessions,
    error,
    notices::{Connector, PollMessage},
    password::{PasswordConnect, PasswordProvider},
};
use crate::{
    error::{BoxError, ConfigError},
    store::{StoreError, StoreErrorKind, remote},
};

/// Builds a [`PostgresStore`].
#[derive(Clone)]
#[must_use]
pub struct PostgresStoreBuilder {
    source: Source,
    schema: String,
    table: String,
    connections: usize,
    timeout: Duration,
    sessions: Sessions,
    password: Option<PasswordProvider>,
}

/// Where connections come from.
#[derive(Clone)]
enum Source {
    /// A pool of the store's own, to this address.
    Url(String),
    /// The user's.
    Pool(Pool),
}

/// Omits the address, which may contain a password.
impl fmt::Debug for PostgresStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStoreBuilder")
            .field("schema", &self.schema)
            .field("table", &self.table)
            .field("connections", &self.connections)
            .field("timeout", &self.timeout)
            .field("sessions", &self.sessions)
            .finish_non_exhaustive()
    }
}

impl PostgresStoreBuilder {
    pub(super) fn new(url: String) -> Self {
        Self::from_source(Source::Url(url))
    }

    pub(super) fn on_pool(pool: Pool) -> Self {
        Self::from_source(Source::Pool(pool))
    }

    fn from_source(source: Source) -> Self {
        Self {
            source,
            schema: "public".into(),
            table: "reprise_idempotency".into(),
            connections: 16,
            timeout: remote::TIMEOUT,
            sessions: Sessions::Kept,
            password: None,
        }
    }

    /// The schema of the tables; `public` by default. A missing one is created.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The table of the records; `reprise_idempotency` by default. The other tables append `_reply`,
    /// `_journal`, `_open`, `_entries`, `_finished`, `_shared`, `_released`, `_secret` and `_version` to
    /// its name.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = table.into();
        self
    }

    /// The maximum number of connections; 16 by default, 1 to 1000. They are opened as needed. A pool
    /// of yours has its own.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// The limit of a verb, retries included; 5 s by default, 10 ms to 30 s. At most half of it is
    /// spent on waiting for a connection.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether the connections are those of a pooler that gives each transaction a session of the
    /// server, as PgBouncer does with `pool_mode = transaction`; `false` by default. Nothing is then
    /// kept in a session: statements are sent whole and planned each time, workers poll instead of
    /// listening for notices, and [`session_sql`](Self::session_sql) is not run. Set
    /// `default_transaction_isolation` and `synchronous_commit` for the role or the database if the
    /// server's defaults are other ones: sessions in which verbs would not keep their promises are
    /// refused.
    ///
    /// ```no_run
    /// use tower_reprise::store::{PostgresStore, StoreError};
    ///
    /// # async fn run() -> Result<PostgresStore, StoreError> {
    /// PostgresStore::builder("postgres://shop@pgbouncer.internal:6432/shop")
    ///     .transaction_pooling(true)
    ///     .connect()
    ///     .await
    /// # }
    /// ```
    pub fn transaction_pooling(mut self, pooled: bool) -> Self {
        self.sessions = match pooled {
            true => Sessions::Shared,
            false => Sessions::Kept,
        };
        self
    }

    /// Asks for the password whenever a connection is opened, for passwords and tokens that change:
    /// connections that are open stay so. While it fails, the last password is used. A pool of yours
    /// has its own.
    ///
    /// ```no_run
    /// use tower_reprise::store::{PostgresStore, StoreError};
    ///
    /// # async fn run() -> Result<PostgresStore, StoreError> {
    /// PostgresStore::builder("postgres://shop@db.internal/shop")
    ///     .password(|| async {
    ///         let secret = tokio::fs::read_to_string("/run/secrets/db").await?;
    ///         Ok(secret.trim_end().to_owned())
    ///     })
    ///     .connect()
    ///     .await
    /// # }
    /// ```
    pub fn password<F, Fut>(mut self, provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, BoxError>> + Send + 'static,
    {
        self.password = Some(Arc::new(move || Box::pin(provider())));
        self
    }

    /// Returns the SQL that creates and migrates the tables, one script for each version, for a tool
    /// that applies migrations. Run each in a transaction of its own, in this order; a store that then
    /// connects finds nothing to change, and its user needs no right to create. The second one contains
    /// a fresh secret, with which the journal signs cursors. A store serves tables that are one version
    /// newer than itself, so that they can be migrated before the applications.
    ///
    /// ```
    /// use tower_reprise::store::PostgresStore;
    ///
    /// let builder = PostgresStore::builder("postgres://localhost/shop").schema("reprise");
    /// for (script, version) in builder.migrations()?.iter().zip(1..) {
    ///     assert!(script.contains(&format!("VALUES ({version})")));
    /// }
    /// # Ok::<(), tower_reprise::error::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A setting is out of its range.
    pub fn migrations(&self) -> Result<Vec<String>, ConfigError> {
        Ok(super::schema::migrations(&self.check()?))
    }

    /// Returns the settings that the store makes on each connection of a pool of its own, for the
    /// hook of a pool that serves nothing but the store. A shared pool needs none of them: the planner
    /// settings among them keep plans stable while statistics are out of date, and would change the
    /// plans of your own statements.
    #[must_use]
    pub fn session_sql(&self) -> String {
        // Overrides defaults of the server and the user. The verbs are written for READ COMMITTED, and
        // a commit must be on disk before it is acknowledged. Every statement has its index, and the
        // statistics of a queue are always out of date, so plans must not depend on them.
        format!(
            "SET default_transaction_isolation = 'read committed'; \
             SET statement_timeout = {}; \
             SET plan_cache_mode = force_generic_plan; \
             SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; \
             SELECT set_config('synchronous_commit', 'on', false) \
               WHERE current_setting('synchronous_commit') = 'off'",
            self.timeout.as_millis()
        )
    }

    /// Connects without TLS, or uses the pool that was given, and creates or migrates the tables.
    ///
    /// # Errors
    ///
    /// A setting is out of its range, the server is unreachable or rejects the connection, or the
    /// tables were written by a newer version of this crate. A pool's sessions have another isolation
    /// level than `read committed`, or do not wait for commits.
    pub async fn connect(self) -> Result<PostgresStore, StoreError> {
        self.connect_tls(NoTls).await
    }

    /// Connects with TLS, and creates or migrates the tables. Add `sslmode=require` to the address to
    /// reject a server without TLS. A pool that was given connects in its own way.
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
        let table = self.check()?;
        let url = match &self.source {
            Source::Url(url) => url,
            Source::Pool(pool) => {
                return self.open(pool.clone(), &table, None).await;
            }
        };
        let config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            StoreError::new(StoreErrorKind::Other, "postgres.url can't be read").because(error)
        })?;
        let settings = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let config = self.settings(config);
        let connector = connector(config.clone(), tls.clone(), self.password.clone());
        let manager = match &self.password {
            None => Manager::from_config(config, tls, settings),
            Some(provider) => {
                let connect = PasswordConnect {
                    tls,
                    provider: Arc::clone(provider),
                    last: Mutex::default(),
                };
                Manager::from_connect(config, connect, settings)
            }
        };
        self.open(self.pool(manager)?, &table, Some(connector))
            .await
    }

    async fn open(
        &self,
        pool: Pool,
        table: &Table,
        connector: Option<Connector>,
    ) -> Result<PostgresStore, StoreError> {
        let (timeout, sessions) = (self.timeout, self.sessions);
        // Other sessions are the store's, which has set them.
        let connector = connector.filter(|_| sessions == Sessions::Kept);
        if connector.is_none() {
            check_sessions(&pool, timeout).await?;
        }
        PostgresStore::open(pool, table, timeout, sessions, connector).await
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

    fn settings(&self, mut config: Config) -> Config {
        if config.get_application_name().is_none() {
            config.application_name("tower-reprise");
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(self.timeout);
        }
        config
    }

    fn pool(&self, manager: Manager) -> Result<Pool, StoreError> {
        let session = match self.sessions {
            Sessions::Kept => self.session_sql(),
            Sessions::Shared => String::new(),
        };
        Pool::builder(manager)
            .max_size(self.connections)
            // The connection used last has its statements prepared.
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

/// Returns what opens the connection that listens.
fn connector<T>(config: Config, tls: T, password: Option<PasswordProvider>) -> Connector
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    Arc::new(move || {
        let (mut config, tls, password) = (config.clone(), tls.clone(), password.clone());
        Box::pin(async move {
            // While it fails, the server says what is wrong.
            if let Some(provider) = &password
                && let Ok(password) = provider().await
            {
                config.password(password);
            }
            // Nothing else would notice that the other end is gone.
            config.keepalives_idle(Duration::from_secs(30));
            let (client, mut connection) = config.connect(tls).await?;
            let poll: PollMessage = Box::new(move |context| connection.poll_message(context));
            Ok((client, poll))
        })
    })
}

/// Rejects sessions in which the verbs would not keep their promises.
async fn check_sessions(pool: &Pool, timeout: Duration) -> Result<(), StoreError> {
    let client = client(pool, timeout).await?;
    let sql = "SELECT current_setting('default_transaction_isolation'), \
               current_setting('synchronous_commit')";
    let row = tokio::time::timeout(timeout, client.query_typed_one(sql, &[])).await;
    let row = row
        .map_err(|_| StoreError::new(StoreErrorKind::Timeout, "no response in time"))?
        .map_err(error::of_statement)?;
    let (isolation, commit): (String, String) = (row.get(0), row.get(1));
    if isolation != "read committed" {
        let field = "postgres.pool's default_transaction_isolation";
        return Err(ConfigError::new(None, field, isolation, "read committed").into());
    }
    if commit == "off" {
        let field = "postgres.pool's synchronous_commit";
        let allowed = "local, on, remote_write or remote_apply";
        return Err(ConfigError::new(None, field, commit, allowed).into());
    }
    Ok(())
}

/// Takes a connection of a pool, and waits for one no longer than half of the time. A pool without a
/// runtime has no timeouts of its own.
pub(super) async fn client(pool: &Pool, left: Duration) -> Result<Object, StoreError> {
    let timeouts = Timeouts {
        wait: Some(left / 2),
        create: Some(left),
        recycle: Some(left),
    };
    match pool.timeout_get(&timeouts).await {
        Err(PoolError::NoRuntimeSpecified) => {
            let late = || StoreError::new(StoreErrorKind::Timeout, "no connection in time");
            let client = tokio::time::timeout(left / 2, pool.get()).await;
            client.map_err(|_| late())?.map_err(error::of_pool)
        }
        client => client.map_err(error::of_pool),
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

/// The qualified name of a table, whose parts were checked.
#[derive(Debug, Clone)]
pub(super) struct Table {
    schema: String,
    name: String,
}

impl Table {
    /// Returns the table of the schema version.
    pub(super) fn versions(&self) -> Self {
        self.with_suffix("version")
    }

    /// Returns the table of the journal.
    pub(super) fn journal(&self) -> Self {
        self.with_suffix("journal")
    }

    /// Returns the table that counts the journal's entries with bounds.
    pub(super) fn open(&self) -> Self {
        self.with_suffix("open")
    }

    /// Returns the table that counts the journal's entries.
    pub(super) fn entries(&self) -> Self {
        self.with_suffix("entries")
    }

    /// Returns the table that counts the journal's entries that are over.
    pub(super) fn finished(&self) -> Self {
        self.with_suffix("finished")
    }

    /// Returns the table of the ends that payloads have in common.
    pub(super) fn shared(&self) -> Self {
        self.with_suffix("shared")
    }

    /// Returns the table of entries that need such an end no more, until they are counted.
    pub(super) fn released(&self) -> Self {
        self.with_suffix("released")
    }

    /// Returns the table of the journal's secret.
    pub(super) fn secret(&self) -> Self {
        self.with_suffix("secret")
    }

    /// Returns the table of the replies.
    pub(super) fn replies(&self) -> Self {
        self.with_suffix("reply")
    }

    /// Returns the view of calls, for people.
    pub(super) fn calls(&self) -> Self {
        self.with_suffix("calls")
    }

    pub(super) fn with_suffix(&self, suffix: &str) -> Self {
        Self {
            schema: self.schema.clone(),
            name: format!("{}_{suffix}", self.name),
        }
    }

    /// Returns the name of a column's index. The server truncates names at 63 bytes: after the
    /// longest table name six are left for the column.
    pub(super) fn index(&self, column: &str) -> String {
        format!("\"{}_{column}\"", self.name)
    }

    /// Returns the statement that creates the schema; none for `public`, which exists or was dropped
    /// on purpose.
    pub(super) fn create_schema(&self) -> String {
        if self.schema == "public" {
            return String::new();
        }
        format!("CREATE SCHEMA IF NOT EXISTS \"{}\";", self.schema)
    }
}

/// Quotes both parts.
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
