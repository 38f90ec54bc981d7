//! Passwords that change while the store is in use.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use deadpool_postgres::{ConfigConnectImpl, Connect};
use tokio::task::JoinHandle;
use tokio_postgres::{
    Client, Config, Error, Socket,
    tls::{MakeTlsConnect, TlsConnect},
};

use crate::{error::BoxError, telemetry};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Asks for the password of the next connection.
pub(super) type PasswordProvider =
    Arc<dyn Fn() -> BoxFuture<'static, Result<String, BoxError>> + Send + Sync>;

/// Opens connections with the password of the moment.
pub(super) struct PasswordConnect<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    pub(super) tls: T,
    pub(super) provider: PasswordProvider,
    /// The last one that the provider returned.
    pub(super) last: Mutex<Option<String>>,
}

impl<T> PasswordConnect<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    /// Returns the password; the last one while the provider fails, which is valid still, perhaps.
    async fn password(&self) -> Option<String> {
        let password = (self.provider)().await;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match password {
            Ok(password) => *last = Some(password),
            Err(_) => telemetry::store_trouble("connect", "password"),
        }
        last.clone()
    }
}

impl<T> Connect for PasswordConnect<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        let mut config = config.clone();
        Box::pin(async move {
            if let Some(password) = self.password().await {
                config.password(password);
            }
            let tls = self.tls.clone();
            ConfigConnectImpl { tls }.connect(&config).await
        })
    }
}
