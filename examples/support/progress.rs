//! The progress display of the examples and benchmarks.

use std::io::{IsTerminal, Write, stderr};

/// Says what is being done: in place on a terminal, lines elsewhere.
pub(crate) struct Progress {
    verb: &'static str,
    terminal: bool,
    quiet: bool,
    setting: &'static str,
    done: usize,
}

impl Progress {
    pub(crate) fn new(verb: &'static str, quiet: bool) -> Self {
        Self {
            verb,
            terminal: stderr().is_terminal(),
            quiet,
            setting: "",
            done: 0,
        }
    }

    pub(crate) fn begin(&mut self, setting: &'static str) {
        (self.setting, self.done) = (setting, 0);
        if !self.quiet && !self.terminal {
            eprintln!("{}: {setting}", self.verb);
        }
    }

    /// One run begins.
    pub(crate) fn run(&mut self, what: std::fmt::Arguments<'_>) {
        self.done += 1;
        if !self.quiet && self.terminal {
            eprint!("\r\x1b[2K{} {}: {what}", self.setting, self.done);
            // A terminal that is gone is no reason to stop.
            let _ = stderr().flush();
        }
    }

    /// Whether there is a terminal, on which nothing scrolls by.
    pub(crate) fn is_in_place(&self) -> bool {
        self.terminal
    }

    /// Where it stands, for those who wait: a line of its own where nothing can be in place.
    pub(crate) fn tell(&self, what: std::fmt::Arguments<'_>) {
        match (self.quiet, self.terminal) {
            (true, _) => {}
            (false, true) => eprint!("\r\x1b[2K{} {what}", self.setting),
            (false, false) => eprintln!("{} {what}", self.setting),
        }
        let _ = stderr().flush();
    }

    pub(crate) fn end(&self) {
        if !self.quiet && self.terminal {
            eprint!("\r\x1b[2K");
        }
    }
}
