use redis::{Cmd, Script};

/// A Lua script that makes one transition inside the server: atomically, in one round trip, on one
/// key and those whose names begin with it, or on several records.
#[derive(Debug)]
pub(in crate::store) struct StoreScript {
    source: &'static str,
    hash: String,
}

/// Defines a set of scripts, each of which is made of the files of a folder: shared functions first,
/// the verb last.
macro_rules! scripts {
    ($name:ident in $folder:literal: $($verb:ident = $($file:literal)+;)*) => {
        #[derive(Debug)]
        pub(in crate::store) struct $name {
            $(pub(super) $verb: StoreScript,)*
        }

        impl $name {
            pub(super) fn new() -> Self {
                Self {$(
                    $verb: StoreScript::new(
                        concat!($(include_str!(concat!($folder, $file, ".lua"))),+),
                    ),
                )*}
            }
        }
    };
}

scripts! { RecordScripts in "scripts/":
    claim = "claim";
    renew = "renew";
    complete = "complete";
    release = "release";
    watch = "watch";
    watched = "watched";
    unwatch = "unwatch";
    unknown = "unknown";
    resolve = "resolve";
}

scripts! { JournalScripts in "journal/":
    enqueue = "common" "insert" "enqueue";
    lanes = "common" "lanes";
    lease = "common" "lease";
    extend = "common" "extend";
    settle = "common" "insert" "settle";
    bury = "common" "insert" "bury";
    command = "common" "command";
    erase = "common" "erase";
    find = "common" "find";
    find_duplicate = "common" "find_duplicate";
    list = "common" "list";
    counts = "common" "counts";
    position = "common" "position";
    secret = "common" "secret";
}

impl StoreScript {
    fn new(source: &'static str) -> Self {
        let hash = Script::new(source).get_hash().to_owned();
        Self { source, hash }
    }

    /// Returns the command that runs the script by its hash, for a server that has cached it.
    /// So many keys have to follow, and then the arguments.
    pub(super) fn evalsha(&self, keys: usize) -> Cmd {
        command("EVALSHA", &self.hash, keys)
    }

    /// Returns the command that sends the whole script, which the server then caches.
    pub(super) fn eval(&self, keys: usize) -> Cmd {
        command("EVAL", self.source, keys)
    }
}

fn command(name: &str, script: &str, keys: usize) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(keys);
    command
}
