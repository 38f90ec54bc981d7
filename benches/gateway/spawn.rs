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
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
