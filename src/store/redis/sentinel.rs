//! Servers that sentinels watch: which one is the primary is asked before each connection.

use std::time::Duration;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    aio::MultiplexedConnection,
};

use tokio::time::timeout;

use super::error;
use crate::store::{StoreError, StoreErrorKind};

/// The sentinels of one primary.
pub(super) struct Sentinels {
    sentinels: Vec<Client>,
    /// The time for each of them, so that one that does not answer leaves time for the others.
    patience: Duration,
    /// The address of the primary, with its name as the host.
    primary: ConnectionInfo,
}

impl Sentinels {
    pub(super) fn new(
        url: &str,
        sentinels: &[String],
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let shares = u32::try_from(sentinels.len()).unwrap_or(u32::MAX);
        let patience = timeout / shares.saturating_add(1);
        let sentinels = sentinels.iter().map(|url| Client::open(&**url));
        let sentinels: Result<_, _> = sentinels.collect();
        let sentinels = sentinels.map_err(|error| {
            let message = "redis.sentinels has an address that can't be read";
            StoreError::new(StoreErrorKind::Other, message).because(error)
        })?;
        Ok(Self {
            sentinels,
            patience,
            primary: url.into_connection_info().map_err(error::of_address)?,
        })
    }

    /// Connects to the server that a sentinel says to be the primary, and that says so itself: a
    /// sentinel may not know yet, and a former primary not any more.
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, StoreError> {
        let message = "no sentinel was asked";
        let mut failed = StoreError::new(StoreErrorKind::Unavailable, message);
        for sentinel in &self.sentinels {
            failed = match timeout(self.patience, self.connect_by(sentinel, config)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => error,
                Err(_) => {
                    let message = "a sentinel did not answer in time";
                    StoreError::new(StoreErrorKind::Unavailable, message)
                }
            }
        }
        Err(failed)
    }

    async fn connect_by(
        &self,
        sentinel: &Client,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, StoreError> {
        let connect = async |client: &Client| {
            let connected = client.get_multiplexed_async_connection_with_config(config);
            connected.await.map_err(error::of_connect)
        };
        let mut asked = connect(sentinel).await?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("get-master-addr-by-name").arg(self.name());
        let address: Option<(String, u16)> = ask
            .query_async(&mut asked)
            .await
            .map_err(error::of_connect)?;
        let Some((host, port)) = address else {
            let message = format!("a sentinel knows no primary of the name {:?}", self.name());
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        };
        let info = self.primary.clone().set_addr(self.at(host, port));
        let client = Client::open(info).map_err(error::of_address)?;
        let mut connection = connect(&client).await?;
        let role = redis::cmd("ROLE");
        let role: redis::Value = role
            .query_async(&mut connection)
            .await
            .map_err(error::of_connect)?;
        match role {
            redis::Value::Array(role) if role.first() == Some(&text("master")) => Ok(connection),
            _ => {
                let message = "the server that was the primary is none any more";
                Err(StoreError::new(StoreErrorKind::Unavailable, message))
            }
        }
    }

    fn name(&self) -> &str {
        match self.primary.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "",
        }
    }

    /// Returns an address that is reached as the primary's is, by TLS or not.
    fn at(&self, host: String, port: u16) -> ConnectionAddr {
        match self.primary.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        }
    }
}

fn text(word: &str) -> redis::Value {
    redis::Value::BulkString(word.as_bytes().to_vec())
}
