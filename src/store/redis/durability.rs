//! Replicas and disks that a transition reaches before it is acknowledged.

use std::time::Duration;

use redis::{Cmd, RedisError, Value};

use super::error;
use crate::store::{StoreError, StoreErrorKind};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Durability {
    /// So many replicas have to have it.
    pub(super) replicas: u32,
    /// On disk: that of the server, and those of the replicas.
    pub(super) fsync: bool,
}

impl Durability {
    /// Whether the server has to be asked: by itself it acknowledges what it has in memory, and has
    /// written as `appendfsync` says.
    pub(super) fn has_to_wait(self) -> bool {
        self.fsync || self.replicas > 0
    }

    /// Returns the command that is answered once all that was written on its connection got there, or
    /// when the time is up.
    pub(super) fn wait(self, patience: Duration) -> Cmd {
        let mut wait = match self.fsync {
            true => redis::cmd("WAITAOF").arg(1).to_owned(),
            false => redis::cmd("WAIT"),
        };
        // 0 would be for ever.
        let patience = patience.as_millis().max(1).to_string();
        wait.arg(self.replicas).arg(patience);
        wait
    }

    /// Returns whether the answer to that says so.
    pub(super) fn is_reached(self, waited: &Value) -> bool {
        let replicas = i64::from(self.replicas);
        match waited {
            Value::Int(reached) => !self.fsync && *reached >= replicas,
            Value::Array(reached) => match **reached {
                [Value::Int(own), Value::Int(others)] => {
                    self.fsync && own >= 1 && others >= replicas
                }
                _ => false,
            },
            _ => false,
        }
    }
}

/// Maps the error of a server that refuses to wait for disks.
pub(super) fn of_fsync(error: RedisError) -> StoreError {
    if error::is_of_connection(&error) {
        return error::of_connect(error);
    }
    let message = match error.detail() {
        Some(detail) if detail.contains("unknown command") => {
            "redis.fsync needs the command WAITAOF, which this server does not have: servers have it \
             since Redis 7.2 and Valkey 7.2"
                .to_owned()
        }
        detail => format!(
            "redis.fsync needs the command WAITAOF, which the server refuses: {}",
            detail.unwrap_or_default()
        ),
    };
    StoreError::new(StoreErrorKind::Other, message).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(durability: Durability, patience: Duration) -> String {
        let packed = durability.wait(patience).get_packed_command();
        let packed = String::from_utf8(packed).unwrap();
        let words = packed
            .split("\r\n")
            .skip(1)
            .filter(|word| !word.starts_with('$'));
        words.collect::<Vec<_>>().join(" ").trim().to_owned()
    }

    /// T-6: an acknowledged transition is where it has to be.
    #[test]
    fn t_6_an_answer_says_how_far_a_transition_got() {
        let (int, pair) = (Value::Int, |own, others| {
            Value::Array(vec![Value::Int(own), Value::Int(others)])
        });
        let [fsync, both, replicas] = [(true, 0), (true, 2), (false, 2)]
            .map(|(fsync, replicas)| Durability { replicas, fsync });
        let reached = [
            (fsync, pair(1, 0), true),
            (fsync, pair(1, 3), true),
            (fsync, pair(0, 0), false),
            (fsync, int(1), false),
            (both, pair(1, 2), true),
            (both, pair(1, 1), false),
            (both, pair(0, 2), false),
            (replicas, int(2), true),
            (replicas, int(1), false),
            (replicas, pair(1, 2), false),
            (both, Value::Array(vec![int(1)]), false),
            (both, Value::Nil, false),
        ];
        for (durability, answer, expected) in reached {
            let got = durability.is_reached(&answer);
            assert_eq!(got, expected, "{durability:?} {answer:?}");
        }
        assert!(
            [fsync, both, replicas]
                .iter()
                .all(|asked| asked.has_to_wait())
        );
        assert!(!Durability::default().has_to_wait());
    }

    #[test]
    fn the_wait_has_an_end() {
        let second = Duration::from_secs(1);
        let replicas = 2;
        let words = |fsync, patience| words(Durability { replicas, fsync }, patience);
        assert_eq!(words(true, second), "WAITAOF 1 2 1000");
        assert_eq!(words(false, second), "WAIT 2 1000");
        assert_eq!(words(true, Duration::ZERO), "WAITAOF 1 2 1");
    }
}
