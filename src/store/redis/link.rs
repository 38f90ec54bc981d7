use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Client, Cmd, RedisResult, Value, aio::MultiplexedConnection,
    cluster::ClusterClientBuilder, cluster_async::ClusterConnection,
};
use tokio::time::{Instant, timeout_at};

use super::error;
use crate::{
    store::{StoreError, StoreErrorKind},
    sync::{Mutex, lock},
};

/// The way to the server, or to those of a cluster.
pub(super) enum Link {
    Single(Box<Single>),
    /// Finds its way by itself.
    Cluster(ClusterConnection),
}

impl Link {
    pub(super) fn single(url: &str, timeout: Duration) -> Result<Self, StoreError> {
        let client = Client::open(url).map_err(error::of_address)?;
        // The time is taken here, where a connection that does not answer can be given up.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None);
        Ok(Self::Single(Box::new(Single {
            client,
            config,
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
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

    /// Sends one command.
    pub(super) async fn send(
        &self,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let answer = match self {
            Self::Single(single) => single.send(command, deadline).await?,
            Self::Cluster(connection) => {
                let mut connection = connection.clone();
                timeout_at(deadline, command.query_async(&mut connection))
                    .await
                    .ok()
            }
        };
        match answer {
            None => Err(StoreError::new(StoreErrorKind::Timeout, "no answer in time").in_doubt()),
            Some(Err(error)) if error::is_no_script(&error) => Ok(Answer::NoScript),
            Some(Err(error)) => Err(error::of_command(error)),
            Some(Ok(value)) => Ok(Answer::Value(value)),
        }
    }
}

pub(super) enum Answer {
    Value(Value),
    /// The server does not know the script: it was restarted, or this is the first time.
    NoScript,
}

/// One connection, on which the commands of all tasks follow each other without waiting. It is
/// made anew when it broke, by whoever needs it first.
pub(super) struct Single {
    client: Client,
    config: AsyncConnectionConfig,
    current: Mutex<Current>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Current {
    /// How many there have been.
    number: u64,
    connection: Option<MultiplexedConnection>,
}

impl Single {
    /// `None` if there was no answer in time.
    async fn send(
        &self,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<Option<RedisResult<Value>>, StoreError> {
        let (number, mut connection) = match self.current() {
            Some(current) => current,
            None => self.connect(deadline).await?,
        };
        let answer = timeout_at(deadline, command.query_async(&mut connection))
            .await
            .ok();
        let broken = match &answer {
            None => true,
            Some(answer) => answer.as_ref().is_err_and(error::is_of_connection),
        };
        if broken {
            let mut current = lock(&self.current);
            if current.number == number {
                current.connection = None;
            }
        }
        Ok(answer)
    }

    fn current(&self) -> Option<(u64, MultiplexedConnection)> {
        let current = lock(&self.current);
        let connection = current.connection.clone()?;
        Some((current.number, connection))
    }

    async fn connect(&self, deadline: Instant) -> Result<(u64, MultiplexedConnection), StoreError> {
        let connected = timeout_at(deadline, async {
            let _turn = self.connecting.lock().await;
            if let Some(current) = self.current() {
                return Ok(current);
            }
            let connection = self
                .client
                .get_multiplexed_async_connection_with_config(&self.config)
                .await
                .map_err(error::of_connect)?;
            let mut current = lock(&self.current);
            current.number += 1;
            current.connection = Some(connection.clone());
            Ok((current.number, connection))
        });
        connected.await.unwrap_or_else(|_| {
            let message = "could not connect in time";
            Err(StoreError::new(StoreErrorKind::Timeout, message))
        })
    }
}
