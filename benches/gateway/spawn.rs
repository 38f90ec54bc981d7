//! Processes of the gateway.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

/// A gateway, which is killed when dropped.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) url: String,
}

impl Gateway {
    pub(crate) fn start(upstream: &str, flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_reprise"))
            .args(["gateway", "--listen", "127.0.0.1:0", "--upstream", upstream])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url =
            lines.find_map(|line| Some(line.unwrap().strip_prefix("listening on ")?.to_owned()));
        Self {
            child,
            url: url.expect("it listens"),
        }
    }

    /// Returns the memory that it has now, in KiB.
    pub(crate) fn rss(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse().ok()).expect("a size")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
