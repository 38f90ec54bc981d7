use redis::{Cmd, Script};

/// A Lua script that makes one transition inside the server: atomically, in one round trip, on one
/// key and those whose names begin with it.
#[derive(Debug)]
pub(super) struct StoreScript {
    source: &'static str,
    hash: String,
}

#[derive(Debug)]
pub(super) struct RecordScripts {
    pub(super) claim: StoreScript,
    pub(super) renew: StoreScript,
    pub(super) complete: StoreScript,
    pub(super) release: StoreScript,
}

#[derive(Debug)]
pub(super) struct JournalScripts {
    pub(super) enqueue: StoreScript,
    pub(super) lanes: StoreScript,
    pub(super) lease: StoreScript,
    pub(super) extend: StoreScript,
    pub(super) settle: StoreScript,
    pub(super) bury: StoreScript,
    pub(super) command: StoreScript,
    pub(super) find: StoreScript,
    pub(super) find_duplicate: StoreScript,
    pub(super) list: StoreScript,
    pub(super) counts: StoreScript,
    pub(super) position: StoreScript,
    pub(super) secret: StoreScript,
}

/// Concatenates files of the journal into one script: shared functions first, the verb last.
macro_rules! joined {
    ($($file:literal),*) => {
        StoreScript::new(concat!($(include_str!(concat!("journal/", $file, ".lua"))),*))
    };
}

impl JournalScripts {
    pub(super) fn new() -> Self {
        Self {
            enqueue: joined!("common", "insert", "enqueue"),
            lanes: joined!("common", "lanes"),
            lease: joined!("common", "lease"),
            extend: joined!("common", "extend"),
            settle: joined!("common", "insert", "settle"),
            bury: joined!("common", "insert", "bury"),
            command: joined!("common", "command"),
            find: joined!("common", "find"),
            find_duplicate: joined!("common", "find_duplicate"),
            list: joined!("common", "list"),
            counts: joined!("common", "counts"),
            position: joined!("common", "position"),
            secret: joined!("common", "secret"),
        }
    }
}

impl RecordScripts {
    pub(super) fn new() -> Self {
        Self {
            claim: StoreScript::new(include_str!("scripts/claim.lua")),
            renew: StoreScript::new(include_str!("scripts/renew.lua")),
            complete: StoreScript::new(include_str!("scripts/complete.lua")),
            release: StoreScript::new(include_str!("scripts/release.lua")),
        }
    }
}

impl StoreScript {
    fn new(source: &'static str) -> Self {
        let hash = Script::new(source).get_hash().to_owned();
        Self { source, hash }
    }

    /// Returns the command that runs the script by its hash, for a server that has cached it.
    pub(super) fn evalsha(&self, key: &str, arguments: &[&[u8]]) -> Cmd {
        command("EVALSHA", &self.hash, key, arguments)
    }

    /// Returns the command that sends the whole script, which the server then caches.
    pub(super) fn eval(&self, key: &str, arguments: &[&[u8]]) -> Cmd {
        command("EVAL", self.source, key, arguments)
    }
}

fn command(name: &str, script: &str, key: &str, arguments: &[&[u8]]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(1).arg(key).arg(arguments);
    command
}
