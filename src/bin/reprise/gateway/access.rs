//! The access log: a line of JSON for each request, when its reply has ended.

use std::{
    fs::OpenOptions,
    io::{self, BufWriter, Write},
    net::IpAddr,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, SystemTime},
};

use http::{HeaderValue, Method, Uri};
use serde_json::json;
use tokio::time::Instant;

/// Lines that may wait for the disk. More are dropped: a slow disk slows no caller.
const WAITING: usize = 1 << 16;
/// The longest time that a line stays in memory.
const FLUSHED: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub(crate) struct AccessLog(SyncSender<String>);

impl AccessLog {
    /// Appends to a file, or to stdout for `-`.
    pub(crate) fn open(path: &str) -> io::Result<Self> {
        let file: Box<dyn Write + Send> = match path {
            "-" => Box::new(io::stdout()),
            path => Box::new(OpenOptions::new().create(true).append(true).open(path)?),
        };
        let (lines, waiting) = sync_channel(WAITING);
        thread::spawn(move || write(BufWriter::new(file), &waiting));
        Ok(Self(lines))
    }
}

/// Writes until the last sender is gone.
fn write(mut file: BufWriter<Box<dyn Write + Send>>, waiting: &Receiver<String>) {
    loop {
        let written = match waiting.recv_timeout(FLUSHED) {
            Ok(line) => file.write_all(line.as_bytes()),
            Err(RecvTimeoutError::Timeout) => file.flush(),
            Err(RecvTimeoutError::Disconnected) => {
                let _ = file.flush();
                return;
            }
        };
        if let Err(error) = written {
            tracing::warn!(%error, "the access log can't be written");
        }
    }
}

/// A request, logged when it is dropped.
pub(crate) struct Access {
    pub(crate) log: AccessLog,
    pub(crate) started: Instant,
    pub(crate) id: HeaderValue,
    pub(crate) remote: IpAddr,
    pub(crate) method: Method,
    /// Without its query, which may hold secrets.
    pub(crate) path: String,
    pub(crate) status: u16,
    pub(crate) sent: u64,
}

impl Access {
    pub(crate) fn path(uri: &Uri) -> String {
        uri.path().to_owned()
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let line = json!({
            "time": humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            "request_id": String::from_utf8_lossy(self.id.as_bytes()),
            "remote": self.remote.to_string(),
            "method": self.method.as_str(),
            "path": self.path,
            "status": self.status,
            "bytes": self.sent,
            "seconds": self.started.elapsed().as_secs_f64(),
        });
        let _ = self.log.0.try_send(format!("{line}\n"));
    }
}
