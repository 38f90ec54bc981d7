//! Ports on loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};

use tokio::net::{TcpListener, TcpSocket};

pub(crate) async fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

/// An address that refuses connections as long as the socket lives: bound, and nobody listens.
pub(crate) fn deaf() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// The same, as a URI.
pub(crate) fn deaf_uri() -> (TcpSocket, String) {
    let (socket, address) = deaf();
    (socket, format!("http://{address}/"))
}

/// A port that is free right now. Systems give none of this range to sockets that do not ask for it
/// by number, nor the one 10,000 above, which a Redis cluster takes too: it stays free until a
/// server takes it, and while that server is down.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = rand::random_range(10_000..20_000);
        if StdListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
