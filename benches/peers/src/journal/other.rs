use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/queues/Cargo.toml");

/// Another queue, in a process of its own, which does what it is told line by line.
pub(super) struct Other {
    pub(super) name: &'static str,
    process: Child,
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Other {
    pub(super) fn start(name: &'static str, arguments: &[&str]) -> Self {
        let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
        let mut process = Command::new(cargo)
            .args(["run", "--locked", "--release", "--quiet"])
            .args(["--manifest-path", MANIFEST, "--"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cargo");
        Self {
            name,
            asks: process.stdin.take(),
            answers: BufReader::new(process.stdout.take().expect("an output")),
            process,
        }
    }

    /// Rates, as `MEASURED` has them.
    pub(super) fn round(&mut self, jobs: usize, alone: usize) -> [f64; 3] {
        [
            self.ask(&format!("enqueue 1 {alone}")),
            self.ask(&format!("enqueue 64 {}", jobs - alone)),
            self.ask(&format!("drain {jobs}")),
        ]
    }

    fn ask(&mut self, what: &str) -> f64 {
        let asks = self.asks.as_mut().expect("an input");
        writeln!(asks, "{what}").expect("a process that listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("an answer");
        answer.trim().parse().expect("a rate")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It ends when there is nothing more to read.
        self.asks = None;
        let _ = self.process.wait();
    }
}
