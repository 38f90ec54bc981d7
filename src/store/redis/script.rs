use redis::{Cmd, Script};

/// A transition that runs inside the server: atomically, in one round trip, on one key.
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
