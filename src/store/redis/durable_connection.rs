use std::{
    mem,
    sync::{Arc, Weak},
};

use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::durability::Durability;
use crate::sync::{Mutex, lock};

/// A connection whose transitions are acknowledged once they got to where they have to.
///
/// The server answers nothing on a connection that waits for replicas or disks, with `appendfsync everysec`
/// for up to a second. Commands that come meanwhile are sent together afterwards, with one wait for all of
/// them: were there one for each, a second would be the time of each.
#[derive(Clone)]
pub(super) struct DurableConnection {
    pub(super) multiplexed: MultiplexedConnection,
    pending: Arc<Mutex<Pending>>,
}

#[derive(Default)]
struct Pending {
    waiting: Vec<Waiting>,
    /// Alive while a task sends. Not a flag: the task may be ended with its runtime.
    sender: Weak<()>,
}

struct Waiting {
    command: Cmd,
    deadline: Instant,
    reply: oneshot::Sender<RedisResult<Option<Value>>>,
}

impl DurableConnection {
    pub(super) fn new(multiplexed: MultiplexedConnection) -> Self {
        Self {
            multiplexed,
            pending: Arc::default(),
        }
    }

    /// Sends a command, and behind it the one that is answered when it got to where it has to, or when
    /// half of the time is up. Returns `None` if it did not.
    pub(super) async fn send(
        &self,
        command: &Cmd,
        needed: Durability,
        deadline: Instant,
    ) -> RedisResult<Option<Value>> {
        let (reply, replied) = oneshot::channel();
        {
            let mut pending = lock(&self.pending);
            pending.waiting.push(Waiting {
                command: command.clone(),
                deadline,
                reply,
            });
            if pending.sender.strong_count() == 0 {
                let alive = Arc::new(());
                pending.sender = Arc::downgrade(&alive);
                tokio::spawn(self.clone().send_waiting(needed, alive));
            }
        }
        let ended = |_| Err(RedisError::from((ErrorKind::Io, "its sender was ended")));
        replied.await.unwrap_or_else(ended)
    }

    /// Sends all that waits, until nothing does. `_alive` says that there is a sender.
    async fn send_waiting(mut self, needed: Durability, _alive: Arc<()>) {
        loop {
            let mut batch = {
                let mut pending = lock(&self.pending);
                if pending.waiting.is_empty() {
                    // Under the lock: a command that finds a sender alive is sent by it.
                    pending.sender = Weak::new();
                    return;
                }
                mem::take(&mut pending.waiting)
            };
            batch.retain(|waiting| !waiting.reply.is_closed());
            self.send_together(batch, needed).await;
        }
    }

    async fn send_together(&mut self, batch: Vec<Waiting>, needed: Durability) {
        let Some(deadline) = batch.iter().map(|waiting| waiting.deadline).max() else {
            return;
        };
        let patience = deadline.saturating_duration_since(Instant::now()) / 2;
        let mut together = redis::pipe();
        together.ignore_errors();
        for waiting in &batch {
            together.add_command(waiting.command.clone());
        }
        together.add_command(needed.wait(patience));
        let replies = together.query_async::<Vec<RedisResult<Value>>>(&mut self.multiplexed);
        // Those that wait have left when that time is up.
        let Ok(replies) = timeout_at(deadline, replies).await else {
            return;
        };
        let replies = replies.and_then(|mut replies| match replies.pop() {
            Some(waited) if replies.len() == batch.len() => Ok((replies, waited)),
            _ => Err(RedisError::from((ErrorKind::Parse, "not a reply for each"))),
        });
        match replies {
            Ok((replies, waited)) => {
                // An error of the wait says nothing against the commands before it, which were made.
                let reached = waited.is_ok_and(|waited| needed.is_reached(&waited));
                for (waiting, reply) in batch.into_iter().zip(replies) {
                    let reply = reply.map(|reply| reached.then_some(reply));
                    let _ = waiting.reply.send(reply);
                }
            }
            Err(error) => {
                for waiting in batch {
                    let _ = waiting.reply.send(Err(error.clone()));
                }
            }
        }
    }
}
