//! A network that cuts connections, most cruelly between a reply and who waits for it.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

pub(crate) struct Network {
    address: SocketAddr,
    server: Arc<Mutex<SocketAddr>>,
    pub(crate) cut: Arc<AtomicU64>,
}

/// The fate of a connection.
enum Fate {
    Whole,
    /// Cut when the first request arrives.
    BeforeRequest,
    /// Cut when this reply arrives.
    BeforeReply(u32),
}

impl Fate {
    fn draw() -> Self {
        match rand::random_range(0..6) {
            0 => Self::BeforeRequest,
            1 => Self::BeforeReply(rand::random_range(0..3)),
            _ => Self::Whole,
        }
    }
}

impl Network {
    pub(crate) async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let network = Self {
            address: listener.local_addr()?,
            server: Arc::new(Mutex::new(server)),
            cut: Arc::default(),
        };
        let (server, cut) = (Arc::clone(&network.server), Arc::clone(&network.cut));
        tokio::spawn(async move {
            while let Ok((customer, _)) = listener.accept().await {
                let server = *server.lock().unwrap_or_else(PoisonError::into_inner);
                let cut = Arc::clone(&cut);
                tokio::spawn(async move {
                    // Either side may go away, which ends the connection as it should.
                    if let Ok(true) = carry(customer, server, Fate::draw()).await {
                        cut.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Ok(network)
    }

    /// Where customers connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server has another address now.
    pub(crate) fn leads_to(&self, server: SocketAddr) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }
}

/// Carries one connection to its end; whether it was cut.
async fn carry(mut customer: TcpStream, server: SocketAddr, fate: Fate) -> io::Result<bool> {
    let mut server = TcpStream::connect(server).await?;
    let (mut asked, mut answered) = ([0; 4096], [0; 4096]);
    let mut replies = 0;
    loop {
        tokio::select! {
            read = customer.read(&mut asked) => match read? {
                0 => return Ok(false),
                _ if matches!(fate, Fate::BeforeRequest) => return Ok(true),
                read => server.write_all(&asked[..read]).await?,
            },
            read = server.read(&mut answered) => match read? {
                0 => return Ok(false),
                _ if matches!(fate, Fate::BeforeReply(n) if n == replies) => return Ok(true),
                read => {
                    replies += 1;
                    customer.write_all(&answered[..read]).await?;
                }
            },
        }
    }
}
