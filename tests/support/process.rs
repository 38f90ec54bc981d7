//! Processes of a test's own, that can be killed and stopped.
//!
//! A test makes its own children: beside it is an ignored test which calls [`child`], and it runs
//! its own binary again with just that one. A child says line by line through a pipe what happens
//! to it: what was written there outlives it.

use std::{
    env,
    io::{self, Write},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStderr, Command},
};

const ROLE: &str = "REPRISE_CHILD_ROLE";
const WORDS: &str = "REPRISE_CHILD_WORDS";
const PATIENCE: Duration = Duration::from_secs(60);

/// The whole life of a child, with its role and what it was told. Nothing happens if the process is
/// none.
pub(crate) fn child(live: impl AsyncFnOnce(&str, &[&str])) {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    let words = env::var(WORDS).expect("words");
    let words: Vec<&str> = words.split('\n').collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(live(&role, &words));
}

/// Says a line to the parent, if there is one.
pub(crate) fn say(line: &str) {
    if env::var_os(ROLE).is_none() {
        return;
    }
    // One write, so that a kill can't tear it.
    let line = format!("| {line}\n");
    io::stderr().write_all(line.as_bytes()).expect("a parent");
}

/// Waits until the parent tells it to go on.
pub(crate) fn listen() {
    io::stdin()
        .read_line(&mut String::new())
        .expect("a parent that answers");
}

/// A child, as its parent sees it. It is killed when dropped.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Process {
    /// Runs that test of this binary, which calls [`child`].
    pub(crate) fn start(test: &str, role: &str, words: &[&str]) -> Self {
        let binary = env::current_exe().expect("this binary");
        Self::run(Command::new(binary), test, role, words)
    }

    /// The same by a command that ends with this binary's name.
    pub(crate) fn run(mut command: Command, test: &str, role: &str, words: &[&str]) -> Self {
        let mut child = command
            .args([test, "--exact", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .env(WORDS, words.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a child");
        let stderr = child.stderr.take().expect("a pipe");
        Self {
            child,
            lines: BufReader::new(stderr).lines(),
        }
    }

    /// Returns the next line of the child; `None` when it has ended.
    pub(crate) async fn line(&mut self) -> Option<String> {
        while let Some(line) = self.lines.next_line().await.expect("a pipe") {
            match line.strip_prefix("| ") {
                Some(line) => return Some(line.to_owned()),
                None => eprintln!("child: {line}"),
            }
        }
        None
    }

    /// The rest of the next line that begins like this, which is not waited for for ever.
    pub(crate) async fn expect(&mut self, start: &str) -> String {
        let give_up = tokio::time::Instant::now() + PATIENCE;
        loop {
            let line = tokio::time::timeout_at(give_up, self.line()).await;
            let line = line.unwrap_or_else(|_| panic!("the child does not say {start}"));
            let line = line.unwrap_or_else(|| panic!("the child ended before it said {start}"));
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Waits until the child has ended by itself, but not for ever.
    pub(crate) async fn ended(&mut self) {
        let ending = async { while self.line().await.is_some() {} };
        let ended = tokio::time::timeout(PATIENCE, ending).await;
        assert!(ended.is_ok(), "the child lives on");
    }

    /// Lets a child go on that listens.
    pub(crate) async fn tell(&mut self) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"go\n").await.expect("a child");
    }

    /// SIGKILL; the child is gone when this returns.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.expect("a child");
    }

    /// SIGSTOP or SIGCONT.
    pub(crate) async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("a child that lives");
        let kill = format!("kill -{name} {pid}");
        let sent = Command::new("sh").args(["-c", &kill]).status().await;
        assert!(sent.expect("a shell").success(), "{kill}");
    }
}
