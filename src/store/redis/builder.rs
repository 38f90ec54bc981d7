use std::{fmt, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::{
    RedisStore,
    connection::{CommandReply, Connection},
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
    assume_noeviction: bool,
}

/// Omits the addresses, which may contain passwords.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("cluster", &self.cluster)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("assume_noeviction", &self.assume_noeviction)
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
            assume_noeviction: false,
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

    /// Skips the check of the server's `maxmemory-policy`, for servers that do not report it. It must
    /// be `noeviction` all the same.
    pub fn assume_noeviction(mut self) -> Self {
        self.assume_noeviction = true;
        self
    }

    /// Connects, and checks that the server never evicts records.
    ///
    /// # Errors
    ///
    /// A setting is out of its range, the server is unreachable or rejects the connection, or it may
    /// evict live records.
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        self.check()?;
        let connection = match &*self.urls {
            [url] if !self.cluster => Connection::single(url, self.timeout)?,
            urls => Connection::cluster(urls, self.timeout).await?,
        };
        if !self.assume_noeviction {
            remote::with_retries(self.timeout, |deadline| {
                check_eviction(&connection, deadline)
            })
            .await?;
        }
        Ok(RedisStore::new(connection, self.prefix, self.timeout))
    }

    fn check(&self) -> Result<(), ConfigError> {
        remote::check_timeout("redis.timeout", self.timeout)?;
        let prefix = &self.prefix;
        // The first braces of a key decide on its slot: those around the record's key must.
        let valid = (1..=64).contains(&prefix.len())
            && prefix
                .bytes()
                .all(|c| c.is_ascii_graphic() && c != b'{' && c != b'}');
        if valid {
            return Ok(());
        }
        let allowed = "1 to 64 visible ASCII characters other than { and }";
        let value = format_args!("{prefix:?}");
        Err(ConfigError::new(None, "redis.prefix", value, allowed))
    }
}

/// Fails unless the server's policy is `noeviction`: any other one drops live records when memory is
/// full, and their operations are executed again.
async fn check_eviction(connection: &Connection, deadline: Instant) -> Result<(), StoreError> {
    let mut command = redis::cmd("INFO");
    command.arg("memory");
    let mut policies = Vec::new();
    match connection.send(&command, deadline).await {
        Ok(CommandReply::Value(info)) => find_policies(&info, &mut policies),
        Err(error) if error.is_transient() => return Err(error),
        // The user may lack the right to ask.
        Ok(CommandReply::NoScript) | Err(_) => {}
    }
    let wrong = match policies.iter().find(|policy| *policy != "noeviction") {
        Some(policy) => format!("the server's maxmemory-policy is {policy}"),
        None if policies.is_empty() => "the server does not report its maxmemory-policy".to_owned(),
        None => return Ok(()),
    };
    let message = format!(
        "{wrong}, and only noeviction keeps live records: set it in the server, or use \
         assume_noeviction() if it is set already"
    );
    Err(StoreError::new(StoreErrorKind::Other, message))
}

/// Collects the policies of a server, or of each server of a cluster.
fn find_policies(info: &Value, policies: &mut Vec<String>) {
    match info {
        Value::BulkString(text) => find_policy(&String::from_utf8_lossy(text), policies),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => {
            find_policy(text, policies);
        }
        Value::Map(servers) => servers
            .iter()
            .for_each(|(_, info)| find_policies(info, policies)),
        Value::Array(servers) => servers
            .iter()
            .for_each(|info| find_policies(info, policies)),
        _ => {}
    }
}

fn find_policy(info: &str, policies: &mut Vec<String>) {
    let found = info
        .lines()
        .find_map(|line| line.strip_prefix("maxmemory_policy:"));
    policies.extend(found.map(|policy| policy.trim().to_owned()));
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
