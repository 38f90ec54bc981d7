//! A way to a server on which an answer can get lost.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

pub(crate) struct Lossy {
    port: u16,
    state: Arc<State>,
    /// Ends with it.
    _connections: JoinSet<()>,
}

#[derive(Default)]
struct State {
    lose: AtomicBool,
    lost: AtomicU64,
    accepted: AtomicU64,
    /// Whether nothing is carried on new connections.
    held: watch::Sender<bool>,
}

impl Lossy {
    pub(crate) async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State::default());
        let mut connections = JoinSet::new();
        let of_all = Arc::clone(&state);
        connections.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&of_all);
                state.accepted.fetch_add(1, Ordering::SeqCst);
                open.spawn(async move { state.carry(client, server).await });
            }
        });
        Self {
            port,
            state,
            _connections: connections,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The answer to the next script does not arrive, and its connection is closed.
    pub(crate) fn lose_an_answer(&self) {
        self.state.lose.store(true, Ordering::SeqCst);
    }

    pub(crate) fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::SeqCst)
    }

    /// The number of connections so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// New connections are accepted, and get no answer for as long as that is so.
    pub(crate) fn hold(&self, held: bool) {
        self.state.held.send_replace(held);
    }
}

impl State {
    async fn carry(&self, mut client: TcpStream, server: u16) {
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
            return;
        };
        let _ = self.held.subscribe().wait_for(|held| !held).await;
        let (mut asked, mut answered) = ([0; 8192], [0; 8192]);
        let mut losing = false;
        loop {
            tokio::select! {
                read = client.read(&mut asked) => {
                    let Ok(read @ 1..) = read else {
                        return;
                    };
                    // A cluster's client asks for other things as well.
                    let script = asked[..read].windows(7).any(|word| word == b"EVALSHA");
                    losing |= script && self.lose.swap(false, Ordering::SeqCst);
                    if server.write_all(&asked[..read]).await.is_err() {
                        return;
                    }
                }
                read = server.read(&mut answered) => {
                    if losing {
                        self.lost.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    match read {
                        Ok(read) if read > 0 && client.write_all(&answered[..read]).await.is_ok() => {}
                        _ => return,
                    }
                }
            }
        }
    }
}
