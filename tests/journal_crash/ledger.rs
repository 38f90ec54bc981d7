//! The executions that really happened, in a file that is only appended to. The lines of a process
//! outlive the process.

use std::{
    fs::{self, File},
    io::Write,
    sync::Arc,
};

#[derive(Clone)]
pub(crate) struct Ledger(Arc<File>);

impl Ledger {
    pub(crate) fn open(path: &str) -> Self {
        let file = File::options().append(true).create(true).open(path);
        Self(Arc::new(file.expect("a ledger")))
    }

    pub(crate) fn write(&self, line: &str) {
        // One write, so that a kill can't tear it.
        let line = format!("{line}\n");
        (&*self.0).write_all(line.as_bytes()).expect("a ledger");
    }

    /// Its lines, as words.
    pub(crate) fn read(path: &str) -> Vec<Vec<String>> {
        let text = fs::read_to_string(path).unwrap_or_default();
        assert!(text.is_empty() || text.ends_with('\n'), "a torn line");
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        text.lines().map(words).collect()
    }
}
