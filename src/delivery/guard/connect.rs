use std::{
    error::Error,
    fmt,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};
use tower::Service;

use super::{
    Guard, Resolve, SystemResolver,
    target::{Host, endpoint},
};
use crate::error::{BoxError, ConfigError};

/// The most addresses of an answer that are tried.
const MAX_ADDRESSES: usize = 4;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// A connector for hyper clients that reaches only targets that a [`Guard`] allows.
///
/// ```no_run
/// use http_body_util::Full;
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
/// use tower_reprise::delivery::guard::{Guard, GuardedConnector};
///
/// let connector = GuardedConnector::new(Guard::new().allow_http());
/// let client = Client::builder(TokioExecutor::new()).build::<_, Full<bytes::Bytes>>(connector);
/// # let _ = client;
/// ```
///
/// It opens plain TCP connections: put a TLS connector around it, such as hyper-rustls'.
///
/// # Clone
///
/// Clones share the guard and the resolver.
#[derive(Clone)]
#[must_use]
pub struct GuardedConnector {
    guard: Arc<Guard>,
    resolver: Arc<dyn Resolve>,
    timeout: Duration,
}

impl GuardedConnector {
    /// Creates a connector for this guard, with the resolver of the operating system.
    pub fn new(guard: Guard) -> Self {
        Self {
            guard: Arc::new(guard),
            resolver: Arc::new(SystemResolver),
            timeout: CONNECT_TIMEOUT,
        }
    }

    /// Sets the resolver of names.
    pub fn resolver(mut self, resolver: impl Resolve) -> Self {
        self.resolver = Arc::new(resolver);
        self
    }

    /// Sets the timeout of resolving and connecting: 5 s by default.
    ///
    /// # Errors
    ///
    /// Less than 10 ms, or more than a minute.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self, ConfigError> {
        ConfigError::within("connector.timeout", timeout, TIMEOUTS, "10 ms to 60 s")?;
        self.timeout = timeout;
        Ok(self)
    }
}

opaque_debug! { GuardedConnector, self, guard = self.guard, timeout = self.timeout }

impl Service<Uri> for GuardedConnector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = GuardedConnectorFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        let connecting = async move {
            match timeout(this.timeout, this.connect(&uri)).await {
                Ok(connected) => connected,
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        };
        GuardedConnectorFuture(Box::pin(connecting))
    }
}

impl GuardedConnector {
    async fn connect(&self, uri: &Uri) -> Result<TokioIo<TcpStream>, BoxError> {
        let (host, port) = endpoint(uri, &self.guard)?;
        let addresses = match host {
            Host::Address(address) => vec![address],
            Host::Name(name) => {
                let found = self.resolver.resolve(name).await;
                found.map_err(NotResolved)?
            }
        };
        for address in &addresses {
            self.guard.check(*address)?;
        }
        self.dial(&addresses, port).await
    }

    /// Connects to one of the checked addresses. Each gets an equal part of the timeout.
    async fn dial(&self, addresses: &[IpAddr], port: u16) -> Result<TokioIo<TcpStream>, BoxError> {
        let tried = addresses.len().min(MAX_ADDRESSES);
        let each = self.timeout / u32::try_from(tried.max(1)).unwrap_or(1);
        let mut failed = BoxError::from(NotResolved("no addresses".into()));
        for address in &addresses[..tried] {
            let connecting = TcpStream::connect(SocketAddr::new(*address, port));
            match timeout(each, connecting).await {
                Ok(Ok(stream)) => {
                    // Messages are written whole, so Nagle's delay gains nothing.
                    let _ = stream.set_nodelay(true);
                    return Ok(TokioIo::new(stream));
                }
                Ok(Err(error)) => failed = error.into(),
                Err(_) => failed = io::Error::from(io::ErrorKind::TimedOut).into(),
            }
        }
        Err(failed)
    }
}

/// The future of a [`GuardedConnector`].
#[must_use = "futures do nothing unless polled"]
pub struct GuardedConnectorFuture(
    Pin<Box<dyn Future<Output = Result<TokioIo<TcpStream>, BoxError>> + Send>>,
);

impl Future for GuardedConnectorFuture {
    type Output = Result<TokioIo<TcpStream>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

opaque_debug! { GuardedConnectorFuture }

/// The error for a name without an address.
#[derive(Debug)]
struct NotResolved(BoxError);

impl fmt::Display for NotResolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The words of hyper's connectors, by which errors are classified as DNS failures.
        f.write_str("dns error")
    }
}

impl Error for NotResolved {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}
