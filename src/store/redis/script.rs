use redis::{Cmd, Script};

/// A transition that runs inside the server: atomically, in one round trip, on one key and those
/// that have its name in front of theirs.
#[derive(Debug)]
pub(super) struct Transition {
    code: &'static str,
    hash: String,
}

#[derive(Debug)]
pub(super) struct Transitions {
    pub(super) claim: Transition,
    pub(super) renew: Transition,
    pub(super) complete: Transition,
    pub(super) release: Transition,
}

/// Those of a journal.
#[derive(Debug)]
pub(super) struct JournalTransitions {
    pub(super) enqueue: Transition,
    pub(super) lanes: Transition,
    pub(super) lease: Transition,
    pub(super) extend: Transition,
    pub(super) settle: Transition,
    pub(super) command: Transition,
    pub(super) find: Transition,
    pub(super) list: Transition,
    pub(super) counts: Transition,
    pub(super) position: Transition,
    pub(super) secret: Transition,
}

/// A verb behind what it shares with others.
macro_rules! joined {
    ($($file:literal),*) => {
        Transition::new(concat!($(include_str!(concat!("journal/", $file, ".lua"))),*))
    };
}

impl JournalTransitions {
    pub(super) fn new() -> Self {
        Self {
            enqueue: joined!("common", "insert", "enqueue"),
            lanes: joined!("common", "lanes"),
            lease: joined!("common", "lease"),
            extend: joined!("common", "extend"),
            settle: joined!("common", "insert", "settle"),
            command: joined!("common", "command"),
            find: joined!("common", "find"),
            list: joined!("common", "list"),
            counts: joined!("common", "counts"),
            position: joined!("common", "position"),
            secret: joined!("common", "secret"),
        }
    }
}

impl Transitions {
    pub(super) fn new() -> Self {
        Self {
            claim: Transition::new(include_str!("scripts/claim.lua")),
            renew: Transition::new(include_str!("scripts/renew.lua")),
            complete: Transition::new(include_str!("scripts/complete.lua")),
            release: Transition::new(include_str!("scripts/release.lua")),
        }
    }
}

impl Transition {
    fn new(code: &'static str) -> Self {
        let hash = Script::new(code).get_hash().to_owned();
        Self { code, hash }
    }

    /// By its hash: the server has seen it before.
    pub(super) fn known(&self, key: &str, arguments: &[&[u8]]) -> Cmd {
        command("EVALSHA", &self.hash, key, arguments)
    }

    /// In full: the server has not, or has been restarted since.
    pub(super) fn whole(&self, key: &str, arguments: &[&[u8]]) -> Cmd {
        command("EVAL", self.code, key, arguments)
    }
}

fn command(name: &str, script: &str, key: &str, arguments: &[&[u8]]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(1).arg(key);
    for argument in arguments {
        command.arg(argument);
    }
    command
}
