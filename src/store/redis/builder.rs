use std::{fmt, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::{
    RedisStore,
    connection::{CommandReply, Connection},
    durability::Durability,
    error::is_not_permitted,
};
use crate::{
    error::ConfigError,
    store::{StoreError, StoreErrorKind, remote},
};

/// Builds a [`RedisStore`].
#[derive(Clone)]
#[must_use]
pub struct RedisStoreBuilder {
    urls: Vec<String>,
    cluster: bool,
    prefix: String,
    timeout: Duration,
    sentinels: Vec<String>,
    durability: Durability,
    assume_noeviction: bool,
    assume_durable: bool,
}

/// Omits the addresses, which may contain passwords.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("cluster", &self.cluster)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("sentinels", &self.sentinels.len())
            .field("durability", &self.durability)
            .field("assume_noeviction", &self.assume_noeviction)
            .field("assume_durable", &self.assume_durable)
            .finish_non_exhaustive()
    }
}

impl RedisStoreBuilder {
    pub(super) fn new(urls: Vec<String>, cluster: bool) -> Self {
        Self {
            urls,
            cluster,
            prefix: "reprise".into(),
            timeout: remote::TIMEOUT,
            sentinels: Vec::new(),
            durability: Durability::default(),
            assume_noeviction: false,
            assume_durable: false,
        }
    }

    /// The prefix of all keys; `reprise` by default. Keys of the journal have a brace before it.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The limit of a verb, retries included; 5 s by default, 10 ms to 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The addresses of sentinels, which know the primary by the name that is the host of the store's
    /// own address. They are asked one after the other, before each connection. User, password and
    /// database of the store's address are those of the servers.
    ///
    /// ```no_run
    /// use tower_reprise::store::{RedisStore, StoreError};
    ///
    /// # async fn run() -> Result<RedisStore, StoreError> {
    /// RedisStore::builder("redis://shop:secret@orders/0")
    ///     .sentinels(["redis://s1.internal:26379", "redis://s2.internal:26379"])
    ///     .connect()
    ///     .await
    /// # }
    /// ```
    pub fn sentinels(mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.sentinels = urls.into_iter().map(Into::into).collect();
        self
    }

    /// The number of replicas that must have a transition before it is acknowledged (`WAIT`); 0 by
    /// default, at most 100, and 0 for a cluster. A verb that too few of them take in time fails with
    /// [`Unavailable`](StoreErrorKind::Unavailable), and may have happened: while replicas are away
    /// nothing new is begun.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.durability.replicas = replicas;
        self
    }

    /// Acknowledges a transition only once it is on the disk of the server, and of as many replicas as
    /// [`replicas`](Self::replicas) says (`WAITAOF`). Off by default, and for a cluster.
    ///
    /// The server needs `appendonly yes` and Redis 7.2 or Valkey 7.2, which is checked when connecting.
    /// With `appendfsync everysec` a transition takes up to two seconds: until the server has answered those
    /// before it, and then until its next write, which those that came meanwhile share. With `always` the server's own disk has it in any case. A verb that does not
    /// get there in time fails with [`Unavailable`](StoreErrorKind::Unavailable), and may have happened.
    pub fn fsync(mut self) -> Self {
        self.durability.fsync = true;
        self
    }

    /// Skips the check of the server's `maxmemory-policy`, for servers that do not report it. It must
    /// be `noeviction` all the same.
    pub fn assume_noeviction(mut self) -> Self {
        self.assume_noeviction = true;
        self
    }

    /// Allows a journal on a server without `appendonly`, which loses accepted entries when it ends,
    /// or on one that does not report the setting.
    pub fn assume_durable(mut self) -> Self {
        self.assume_durable = true;
        self
    }

    /// Connects, and checks that the server never evicts records. On a server without `appendonly`
    /// the verbs of the journal fail, unless [told otherwise](Self::assume_durable).
    ///
    /// # Errors
    ///
    /// A setting is out of its range, the server is unreachable or rejects the connection, it may evict
    /// live records, or it can't wait for its [disk](Self::fsync).
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        self.check()?;
        let connection = match &*self.urls {
            [url] if !self.cluster => {
                Connection::single(url, &self.sentinels, self.durability, self.timeout)?
            }
            urls => Connection::cluster(urls, self.timeout).await?,
        };
        let check = |deadline| connection.check_fsync(deadline);
        remote::with_retries(self.timeout, check).await?;
        let mut journal = None;
        if !(self.assume_noeviction && self.assume_durable) {
            let ask = |deadline| server_info(&connection, deadline);
            let info = remote::with_retries(self.timeout, ask).await?;
            if !self.assume_noeviction {
                check_eviction(&info)?;
            }
            if !self.assume_durable {
                journal = why_volatile(&info);
            }
        }
        let (prefix, timeout) = (self.prefix, self.timeout);
        Ok(RedisStore::new(connection, prefix, timeout, journal))
    }

    fn check(&self) -> Result<(), ConfigError> {
        remote::check_timeout("redis.timeout", self.timeout)?;
        let most = if self.cluster { 0 } else { 100 };
        let Durability { replicas, fsync } = self.durability;
        if replicas > most {
            let allowed = format!("0 to {most}");
            return Err(ConfigError::new(None, "redis.replicas", replicas, allowed));
        }
        if self.cluster && fsync {
            return Err(ConfigError::new(
                None,
                "redis.fsync",
                fsync,
                "false for a cluster",
            ));
        }
        if self.cluster && !self.sentinels.is_empty() {
            let (field, value) = ("redis.sentinels", self.sentinels.len());
            return Err(ConfigError::new(None, field, value, "none for a cluster"));
        }
        check_name("redis.prefix", &self.prefix)
    }
}

/// Checks a part of the names of keys.
pub(super) fn check_name(field: &'static str, name: &str) -> Result<(), ConfigError> {
    // The first braces of a key decide on its slot: those around the record's key must.
    let is_part = |c: u8| c.is_ascii_graphic() && c != b'{' && c != b'}';
    if (1..=64).contains(&name.len()) && name.bytes().all(is_part) {
        return Ok(());
    }
    let allowed = "1 to 64 visible ASCII characters other than { and }";
    Err(ConfigError::new(
        None,
        field,
        format_args!("{name:?}"),
        allowed,
    ))
}

/// Returns the settings of a server, or of each server of a cluster; none if the user lacks the right
/// to ask.
async fn server_info(
    connection: &Connection,
    deadline: Instant,
) -> Result<Vec<String>, StoreError> {
    let mut found = Vec::new();
    match connection.send(&redis::cmd("INFO"), deadline).await {
        Ok(CommandReply::Value(info)) => texts(&info, &mut found),
        Err(error) if !is_not_permitted(&error) => return Err(error),
        Ok(CommandReply::NoScript) | Err(_) => {}
    }
    Ok(found)
}

fn texts(info: &Value, found: &mut Vec<String>) {
    match info {
        Value::BulkString(text) => found.push(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => found.push(text.clone()),
        Value::Map(servers) => servers.iter().for_each(|(_, info)| texts(info, found)),
        Value::Array(servers) => servers.iter().for_each(|info| texts(info, found)),
        _ => {}
    }
}

/// Returns the first value of a setting that is not the one wanted; `Some(None)` if no server
/// reports it.
fn other_than<'a>(info: &'a [String], setting: &str, wanted: &str) -> Option<Option<&'a str>> {
    let lines = info.iter().flat_map(|text| text.lines());
    let mut values = lines
        .filter_map(|line| line.strip_prefix(setting)?.strip_prefix(':'))
        .map(str::trim)
        .peekable();
    match values.peek() {
        None => Some(None),
        Some(_) => values.find(|value| *value != wanted).map(Some),
    }
}

/// Fails unless the server's policy is `noeviction`: any other one drops live records when memory is
/// full, and their operations are executed again.
fn check_eviction(info: &[String]) -> Result<(), StoreError> {
    let wrong = match other_than(info, "maxmemory_policy", "noeviction") {
        Some(Some(policy)) => format!("the server's maxmemory-policy is {policy}"),
        Some(None) => "the server does not report its maxmemory-policy".to_owned(),
        None => return Ok(()),
    };
    let message = format!(
        "{wrong}, and only noeviction keeps live records: set it in the server, or use \
         assume_noeviction() if it is set already"
    );
    Err(StoreError::new(StoreErrorKind::Other, message))
}

/// Returns the reason why a journal would lose what it accepted when the server ends.
fn why_volatile(info: &[String]) -> Option<&'static str> {
    match other_than(info, "aof_enabled", "1")? {
        Some(_) => Some(
            "the server has appendonly off, and would lose the journal: set it in the server, or \
             use assume_durable()",
        ),
        None => Some(
            "the server does not report whether appendonly is on, without which it would lose the \
             journal: use assume_durable() if it is",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_3_the_prefix_is_checked() {
        let builder = || RedisStoreBuilder::new(vec!["redis://localhost".into()], false);
        assert!(builder().prefix("shop:eu").check().is_ok());
        for prefix in ["", "a b", "a{b", "}", "ä", "\n"] {
            let error = builder().prefix(prefix).check().unwrap_err();
            assert_eq!(error.field(), "redis.prefix");
        }
        assert!(builder().prefix("a".repeat(65)).check().is_err());
    }

    #[test]
    fn s_2_the_address_is_not_shown() {
        let builder = RedisStoreBuilder::new(vec!["redis://:secret@localhost".into()], false);
        assert!(!format!("{builder:?}").contains("secret"));
    }
}
