//! Redis servers that a test starts for itself, and can stop.

use std::{path::PathBuf, process::Stdio};

use super::{
    database::{Folder, Restart, eventually, program, run},
    ports::free_port,
};

/// A server of the test's own.
pub(crate) struct Own {
    folder: Folder,
    pub(crate) port: u16,
    program: PathBuf,
    arguments: &'static [&'static str],
    process: Option<tokio::process::Child>,
}

impl Own {
    /// `None` if there is no program.
    pub(crate) async fn new(arguments: &'static [&'static str]) -> Option<Self> {
        Some(Self::of(redis_server()?, arguments).await)
    }

    pub(crate) async fn of(program: PathBuf, arguments: &'static [&'static str]) -> Self {
        let mut server = Self {
            folder: Folder::new(),
            port: free_port(),
            program,
            arguments,
            process: None,
        };
        server.start().await;
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn signal(&self, name: &str) {
        let process = self.process.as_ref().and_then(tokio::process::Child::id);
        let pid = process.expect("a server that runs").to_string();
        run(std::process::Command::new("kill").args([name, &pid]));
    }
}

pub(crate) fn redis_server() -> Option<PathBuf> {
    program(
        "REPRISE_TEST_REDIS_BIN",
        &["/usr/bin/redis-server", "/usr/local/bin/redis-server"],
    )
}

/// A server of Redis 7.2 or newer, or Valkey, which has commands that Debian 12's does not have.
pub(crate) fn newer_server() -> Option<PathBuf> {
    program("REPRISE_TEST_REDIS_NEWER_BIN", &["/usr/bin/valkey-server"])
}

impl Restart for Own {
    async fn stop(&mut self) {
        let mut process = self.process.take().expect("a server that runs");
        process.kill().await.expect("kill");
    }

    async fn shut_down(&mut self) {
        self.signal("-TERM");
        let mut process = self.process.take().expect("a server that runs");
        process.wait().await.expect("its end");
    }

    async fn start(&mut self) {
        let process = tokio::process::Command::new(&self.program)
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--dir", self.folder.path().to_str().expect("a path")])
            .args(["--save", "", "--appendonly", "yes"])
            .args(self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        self.process = Some(process.expect("a server"));
        let client = redis::Client::open(self.url()).expect("an address");
        // It listens before it has read what it has on disk.
        let ready = async || match client.get_multiplexed_async_connection().await {
            Ok(mut connection) => {
                let size = redis::cmd("DBSIZE");
                size.query_async::<i64>(&mut connection).await.is_ok()
            }
            Err(_) => false,
        };
        eventually("the server is ready", ready).await;
    }
}
