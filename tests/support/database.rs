//! Servers that a test starts for itself, and can stop.

use std::{
    env,
    future::Future,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

/// A server that can be stopped in the middle of something, as a crash would, and started again
/// with what it has on disk.
pub(crate) trait Restart {
    fn stop(&mut self) -> impl Future<Output = ()>;
    fn start(&mut self) -> impl Future<Output = ()>;

    /// In good order: sessions are told.
    fn shut_down(&mut self) -> impl Future<Output = ()> {
        self.stop()
    }

    /// As if its machine had no memory left: no process of it ends anything.
    fn kill(&mut self) -> impl Future<Output = ()> {
        self.stop()
    }
}

/// A folder that any user can reach, removed with all that is in it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let name = format!("reprise-{:016x}", rand::random::<u64>());
        let folder = env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits for something to become true, but not for ever.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let give_up = Duration::from_secs(60);
    let waited = tokio::time::timeout(give_up, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "still not so: {what}");
}

/// Says what is not tested here, and why.
pub(crate) fn left_out(what: &str, why: &str) {
    // Not `eprintln`, which is not shown for a test that passes.
    let line = format!("left out: {what} ({why})\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Where a program is: in the folder or file that the variable names, or where Debian has it.
pub(crate) fn program(variable: &str, usual: &[&str]) -> Option<PathBuf> {
    let named = env::var_os(variable).map(PathBuf::from);
    let mut candidates = named.into_iter().chain(usual.iter().map(PathBuf::from));
    candidates.find(|path| path.exists())
}

pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().expect("a program");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}
