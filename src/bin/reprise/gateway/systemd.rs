//! systemd, if it started the gateway: notifications (`Type=notify`) and sockets (a `.socket` unit).

use std::{
    env,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

use listenfd::ListenFd;

use crate::usage_error::UsageError;

/// Tells a state: `READY=1`, `RELOADING=1`, `STOPPING=1`.
pub(crate) fn tell(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let told = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = told {
        tracing::warn!(%error, "systemd was not told");
    }
}

/// Takes the socket that systemd opened for this process, if it did. Before there are threads, as it
/// changes the environment.
pub(crate) fn socket() -> Result<Option<TcpListener>, UsageError> {
    let mut sockets = ListenFd::from_env();
    let count = sockets.len();
    let wrong = |why: &str| UsageError::new("LISTEN_FDS", &count.to_string(), why);
    match count {
        0 => return Ok(None),
        1 => {}
        _ => return Err(wrong("one, a ListenStream of the socket unit")),
    }
    let socket = sockets.take_tcp_listener(0);
    let socket = socket.map_err(|_| wrong("a ListenStream with a port"))?;
    if let Some(socket) = &socket {
        let set = socket.set_nonblocking(true);
        set.map_err(|error| wrong(&error.to_string()))?;
    }
    Ok(socket)
}
