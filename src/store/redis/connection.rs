use std::{sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, Cmd, RedisResult, Value, aio::MultiplexedConnection,
    cluster::ClusterClientBuilder, cluster_async::ClusterConnection,
};
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};

use super::{
    durability::{self, Durability},
    durable_connection::DurableConnection,
    error,
    sentinel::Sentinels,
};
use crate::{
    store::{StoreError, StoreErrorKind, remote},
    sync::{Mutex, lock},
};

/// The connection to one server, or to a cluster.
pub(super) enum Connection {
    Single(Arc<SharedConnection>),
    /// Reconnects and follows redirections by itself.
    Cluster(ClusterConnection),
}

impl Connection {
    /// Connects to the server at this address, or to the one that sentinels know by its host name.
    pub(super) fn single(
        url: &str,
        sentinels: &[String],
        durability: Durability,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let source = match sentinels {
            [] => Source::Server(Client::open(url).map_err(error::of_address)?),
            _ => Source::Sentinels(Sentinels::new(url, sentinels, timeout)?),
        };
        // `SharedConnection::send` limits the time, since it also drops a silent connection.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None);
        Ok(Self::Single(Arc::new(SharedConnection {
            source,
            config,
            timeout,
            durability,
            current: Mutex::default(),
        })))
    }

    pub(super) async fn cluster(urls: &[String], timeout: Duration) -> Result<Self, StoreError> {
        let client = ClusterClientBuilder::new(urls.iter().map(String::as_str))
            .connection_timeout(timeout)
            .response_timeout(timeout)
            .overall_response_timeout(Some(timeout))
            .build()
            .map_err(error::of_address)?;
        let connection = client.get_async_connection().await;
        connection.map(Self::Cluster).map_err(error::of_connect)
    }

    /// Whether keys are on several servers.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Checks that the server can wait for its disk, if it has to.
    pub(super) async fn check_fsync(&self, deadline: Instant) -> Result<(), StoreError> {
        match self {
            Self::Single(single) if single.durability.fsync => single.check_fsync(deadline).await,
            Self::Single(_) | Self::Cluster(_) => Ok(()),
        }
    }

    /// Sends one command and waits for its reply.
    pub(super) async fn send(
        &self,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<CommandReply, StoreError> {
        let reply = match self {
            Self::Single(single) => single.send(command, deadline).await?,
            Self::Cluster(connection) => {
                let mut connection = connection.clone();
                timeout_at(deadline, command.query_async(&mut connection))
                    .await
                    .ok()
            }
        };
        match reply {
            None => Err(remote::no_response()),
            Some(Err(error)) if error::is_no_script(&error) => Ok(CommandReply::NoScript),
            Some(Err(error)) => Err(error::of_command(error)),
            Some(Ok(value)) => Ok(CommandReply::Value(value)),
        }
    }
}

/// The server's reply to a command.
pub(super) enum CommandReply {
    Value(Value),
    /// The server has not cached the script: it restarted, or this is its first use.
    NoScript,
}

/// One multiplexed connection for all tasks. The next command after a failure opens a new one.
///
/// Commands that find none wait for one attempt to connect, on a task of its own. Were it an attempt of
/// the command that has waited longest, that would have the least time left: a server that takes longer
/// than that to accept a connection would never get one. `current` is held only to read or replace the
/// connection, never across an await. A command that fails clears `current` only if it is still the connection
/// it was sent on (`number`): otherwise it would drop the healthy successor.
pub(super) struct SharedConnection {
    source: Source,
    config: AsyncConnectionConfig,
    /// The limit of an attempt to connect.
    timeout: Duration,
    durability: Durability,
    current: Mutex<Current>,
}

/// A connection and its number.
type Numbered = (u64, DurableConnection);

/// The result of an attempt to connect, once it is there.
type Attempt = watch::Receiver<Option<Result<Numbered, StoreError>>>;

/// Where a connection leads.
enum Source {
    Server(Client),
    Sentinels(Sentinels),
}

#[derive(Default)]
struct Current {
    /// Counts the connections opened so far.
    number: u64,
    connection: Option<DurableConnection>,
    /// The attempt to connect that is under way.
    attempt: Option<Attempt>,
}

impl SharedConnection {
    /// Returns `None` if there was no reply in time.
    async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<Option<RedisResult<Value>>, StoreError> {
        let (number, connection) = match self.current_or_attempt() {
            Ok(current) => current,
            Err(attempt) => connected(attempt, deadline).await?,
        };
        let reply = async {
            match self.durability {
                needed if needed.has_to_wait() => connection.send(command, needed, deadline).await,
                _ => {
                    let mut connection = connection.multiplexed;
                    command.query_async(&mut connection).await.map(Some)
                }
            }
        };
        let reply = timeout_at(deadline, reply).await.ok();
        let broken = match &reply {
            None => true,
            Some(reply) => reply.as_ref().is_err_and(error::is_of_connection),
        };
        if broken {
            let mut current = lock(&self.current);
            if current.number == number {
                current.connection = None;
            }
        }
        match reply.map(Result::transpose) {
            None if !self.durability.has_to_wait() => Ok(None),
            Some(Some(reply)) => Ok(Some(reply)),
            None | Some(None) => {
                let message = match self.durability.fsync {
                    true => "it did not get to enough disks in time",
                    false => "too few replicas have it in time",
                };
                Err(StoreError::new(StoreErrorKind::Unavailable, message).in_doubt())
            }
        }
    }

    /// Returns the connection, or the attempt to open one.
    fn current_or_attempt(self: &Arc<Self>) -> Result<Numbered, Attempt> {
        let mut current = lock(&self.current);
        if let Some(connection) = &current.connection {
            return Ok((current.number, connection.clone()));
        }
        // An attempt without a sender was ended with its runtime.
        let attempt = current.attempt.as_ref();
        if let Some(attempt) = attempt.filter(|attempt| attempt.has_changed().is_ok()) {
            return Err(attempt.clone());
        }
        let (sender, attempt) = watch::channel(None);
        current.attempt = Some(attempt.clone());
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let opened = shared.open().await;
            let opened = opened.map(|connection| shared.replace(connection));
            lock(&shared.current).attempt = None;
            // Those that wait may have left.
            let _ = sender.send(Some(opened));
        });
        Err(attempt)
    }

    async fn check_fsync(self: &Arc<Self>, deadline: Instant) -> Result<(), StoreError> {
        let (_, connection) = match self.current_or_attempt() {
            Ok(current) => current,
            Err(attempt) => connected(attempt, deadline).await?,
        };
        let mut connection = connection.multiplexed;
        // Nothing was written on this connection: it is answered at once.
        let wait = self.durability.wait(Duration::ZERO);
        let waited = timeout_at(deadline, wait.query_async::<Value>(&mut connection)).await;
        let waited = waited.map_err(|_| remote::no_response())?;
        waited.map(drop).map_err(durability::of_fsync)
    }

    async fn open(&self) -> Result<MultiplexedConnection, StoreError> {
        let opening = async {
            match &self.source {
                Source::Server(client) => client
                    .get_multiplexed_async_connection_with_config(&self.config)
                    .await
                    .map_err(error::of_connect),
                Source::Sentinels(sentinels) => sentinels.connect(&self.config).await,
            }
        };
        let opened = timeout(self.timeout, opening).await;
        opened.unwrap_or_else(|_| {
            // No timeout: a verb that joined the attempt may have time for another one.
            let message = "the server accepted no connection in time";
            Err(StoreError::new(StoreErrorKind::Unavailable, message))
        })
    }

    fn replace(&self, connection: MultiplexedConnection) -> Numbered {
        let connection = DurableConnection::new(connection);
        let mut current = lock(&self.current);
        current.number += 1;
        current.connection = Some(connection.clone());
        (current.number, connection)
    }
}

/// Waits for an attempt to connect.
async fn connected(mut attempt: Attempt, deadline: Instant) -> Result<Numbered, StoreError> {
    match timeout_at(deadline, attempt.wait_for(Option::is_some)).await {
        Err(_) => {
            let message = "could not connect in time";
            Err(StoreError::new(StoreErrorKind::Timeout, message))
        }
        Ok(attempted) => match attempted.as_deref() {
            Ok(Some(Ok(connected))) => Ok(connected.clone()),
            Ok(Some(Err(error))) => Err(error.share()),
            Ok(None) | Err(_) => {
                let message = "the attempt to connect was ended";
                Err(StoreError::new(StoreErrorKind::Unavailable, message))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// I-21: an attempt to connect that ends leaves a verb that joined it late the rest of its time.
    #[tokio::test(start_paused = true)]
    async fn i_21_only_the_time_of_the_verb_is_a_timeout() {
        // Answers nothing.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", silent.local_addr().unwrap());
        let limit = Duration::from_secs(5);
        let connection = Connection::single(&url, &[], Durability::default(), limit).unwrap();
        let failed = async |deadline| {
            let sent = connection.send(&redis::cmd("PING"), deadline).await;
            let error = sent.err().expect("it is silent");
            assert!(!error.may_have_happened());
            error.kind()
        };
        let early = failed(Instant::now() + limit / 2).await;
        assert_eq!(early, StoreErrorKind::Timeout);
        let joined = failed(Instant::now() + limit).await;
        assert_eq!(joined, StoreErrorKind::Unavailable);
    }
}
