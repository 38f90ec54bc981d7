use std::{sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, Value,
    aio::MultiplexedConnection, cluster::ClusterClientBuilder, cluster_async::ClusterConnection,
};
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};

use super::{error, sentinel::Sentinels};
use crate::{
    store::{StoreError, StoreErrorKind},
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
        replicas: u32,
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
            replicas,
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
            None => Err(StoreError::new(StoreErrorKind::Timeout, "no response in time").in_doubt()),
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
    /// The number of replicas that have to have a transition before it is acknowledged.
    replicas: u32,
    current: Mutex<Current>,
}

/// A connection and its number.
type Numbered = (u64, MultiplexedConnection);

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
    connection: Option<MultiplexedConnection>,
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
        let (number, mut connection) = match self.current_or_attempt() {
            Ok(current) => current,
            Err(attempt) => connected(attempt, deadline).await?,
        };
        let reply = async {
            match self.replicas {
                0 => command.query_async(&mut connection).await.map(Some),
                replicas => replicated(&mut connection, command, replicas, deadline).await,
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
            None => Ok(None),
            Some(Some(reply)) => Ok(Some(reply)),
            Some(None) => {
                let message = "too few replicas have it in time";
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
        opened.unwrap_or_else(|_| Err(not_in_time()))
    }

    fn replace(&self, connection: MultiplexedConnection) -> Numbered {
        let mut current = lock(&self.current);
        current.number += 1;
        current.connection = Some(connection.clone());
        (current.number, connection)
    }
}

/// Waits for an attempt to connect.
async fn connected(mut attempt: Attempt, deadline: Instant) -> Result<Numbered, StoreError> {
    match timeout_at(deadline, attempt.wait_for(Option::is_some)).await {
        Err(_) => Err(not_in_time()),
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

fn not_in_time() -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, "could not connect in time")
}

/// Sends a command, and `WAIT` right behind it. The server answers once so many replicas have all that
/// was written on this connection, or when half of the time is up. Returns `None` if they do not.
async fn replicated(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    replicas: u32,
    deadline: Instant,
) -> RedisResult<Option<Value>> {
    let patience = deadline.saturating_duration_since(Instant::now()) / 2;
    // 0 would be for ever.
    let patience = patience.as_millis().max(1).to_string();
    let mut both = redis::pipe();
    both.add_command(command.clone()).ignore_errors();
    both.cmd("WAIT").arg(replicas).arg(patience);
    let replies: Vec<RedisResult<Value>> = both.query_async(connection).await?;
    let Ok([reply, waited]) = <[_; 2]>::try_from(replies) else {
        return Err(RedisError::from((ErrorKind::Parse, "not two replies")));
    };
    let reply = reply?;
    // An error of `WAIT` says nothing against the command before it, which was made.
    let reached = matches!(waited, Ok(Value::Int(reached)) if reached >= i64::from(replicas));
    Ok(reached.then_some(reply))
}
