//! Records and a [journal](super::journal) in Redis (or Valkey), shared by as many machines as you
//! like.
//!
//! Redis answers in a fraction of a millisecond, and a script inside of it is atomic: each verb is
//! one script, in one round trip, on the server's clock. A record is one key, and the server
//! removes it when it is past its time; for a journal see [below](#the-journal). What the server
//! promises about something that it acknowledged is yours to choose, below as well.
//!
//! All tasks share one connection, on which their commands follow each other without waiting for
//! answers. When it is lost it is made anew by the next verb, and the verb is repeated; the error
//! says so if it stays open whether it happened.
//!
//! ```no_run
//! use std::time::Duration;
//! use tower_reprise::store::RedisStore;
//!
//! # async fn run() -> Result<(), tower_reprise::store::StoreError> {
//! let store = RedisStore::builder("redis://cache.internal")
//!     .prefix("shop")
//!     .timeout(Duration::from_secs(1))
//!     .connect()
//!     .await?;
//! # let _ = store;
//! # Ok(())
//! # }
//! ```
//!
//! An address that starts with `rediss:` needs one of the `redis` crate's TLS features.
//!
//! # What it needs
//!
//! Redis 6 or newer, with `maxmemory-policy noeviction`: any other policy drops live records when
//! memory is full, and what was executed is executed again. That is checked when connecting. With
//! `noeviction` a full server refuses new operations ([`StoreErrorKind::Full`]).
//!
//! # What it can lose
//!
//! A record that is lost is an operation that is executed again when it is repeated. An entry of
//! the journal that is lost is never executed at all, though somebody was told that it would be: a
//! journal needs `appendonly yes` and `appendfsync always`.
//!
//! | the server has | its process dies | its machine dies | a replica takes over |
//! | --- | --- | --- | --- |
//! | no `appendonly` | all since the last snapshot | the same | the last moments |
//! | `appendfsync no` | nothing | what the system had not written yet, up to 30 s | the last moments |
//! | `appendfsync everysec` | nothing | up to 2 s | the last moments |
//! | `appendfsync always` | nothing | nothing | the last moments |
//!
//! Replication is asynchronous: a replica that takes over may not have seen what was acknowledged
//! just before, whatever `appendfsync` says, and an old primary that was cut off may acknowledge
//! what is thrown away later. `min-replicas-to-write` and `min-replicas-max-lag` bound that time,
//! and nothing rules it out. Where doing something twice is not an option, use
//! [PostgreSQL](super::postgres), or guard what the handler writes with the
//! [`FencingToken`]: tokens grow over a failover too, as far as the
//! servers' clocks agree.
//!
//! What that means for a journal, for verbs that were answered in those last moments: what was
//! enqueued is gone; what was settled is attempted again when its lease has run out, and what
//! followed from it is gone until then; what was cancelled runs; what was leased is leased once
//! more, in the same turn and with the same count of attempts, while its first worker is at it.
//! Where an accepted request must not vanish, keep the journal in [PostgreSQL](super::postgres).
//!
//! # The journal
//!
//! A journal is a set of keys that begin with `{prefix:journal}`: an entry is a hash, and sorted
//! sets say what is next in a lane, what ran out and what is past its time, so that a verb does
//! not take longer in a long queue. A list looks at a thousand entries in a round trip, or at
//! those of one owner if it asks for one. Entries that were kept long enough are not seen any
//! more, and removed a few at a time by the verbs that come next.
//!
//! All of it is in the server's memory, payloads too. A server that is full refuses to enqueue
//! ([`StoreErrorKind::Full`]), and what is queued can still be leased, settled and cancelled.
//!
//! A lease whose answer got lost is repeated like any other verb: it carries a ticket, by which
//! the server finds for a minute what it took. A lease takes a thousand entries at most.
//!
//! # Cluster
//!
//! [`RedisStore::cluster`] speaks to a Redis Cluster. Each record is one key, so that it lives on
//! one shard, and moves with its slot. A journal lives on one shard as a whole, since what follows
//! from an outcome is committed with it: what is between the braces decides on which. Where that is
//! not enough, spread queues over stores with different prefixes.
//!
//! A script of the journal is told the first key, and makes the names of the others from it; all
//! are in the same slot. Redis and Valkey allow that, also by their access lists (`~prefix:*` and
//! `~{prefix:journal}*`). Others that insist on being told each key can't run it. While the slot is
//! moved to another server, every verb of the journal is an error
//! ([`StoreErrorKind::Unavailable`]), and nothing is done by halves.

mod builder;
mod error;
mod journal;
mod link;
mod script;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use redis::Value;
use tokio::time::Instant;

pub use self::builder::RedisStoreBuilder;
use self::{
    link::{Answer, Link},
    script::{JournalTransitions, Transition, Transitions},
};
use super::{
    Claim, Claimed, CrashPolicy, FencingToken, Fingerprint, IdempotencyStore, Lease, Note,
    Ownership, RecordKey, StoreError, StoreErrorKind, Stored, remote,
};

/// Records in a Redis server or cluster.
///
/// # Clone
///
/// Clones share the connection.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    link: Link,
    transitions: Transitions,
    journal: JournalTransitions,
    prefix: String,
    timeout: Duration,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.inner.prefix)
            .field("timeout", &self.inner.timeout)
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects to a server like `redis://user:password@host:6379/0`.
    ///
    /// # Errors
    ///
    /// The server can't be reached or refuses, or it may evict live records.
    pub async fn connect(url: impl Into<String>) -> Result<Self, StoreError> {
        Self::builder(url).connect().await
    }

    /// Connects to a server as you say.
    pub fn builder(url: impl Into<String>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(vec![url.into()], false)
    }

    /// Connects to a cluster, of which these are some of the servers.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(urls.into_iter().map(Into::into).collect(), true)
    }

    fn new(link: Link, prefix: String, timeout: Duration) -> Self {
        Self {
            inner: Arc::new(Inner {
                link,
                transitions: Transitions::new(),
                journal: JournalTransitions::new(),
                prefix,
                timeout,
            }),
        }
    }

    async fn run(
        &self,
        transition: &Transition,
        key: RecordKey,
        arguments: &[&[u8]],
    ) -> Result<Value, StoreError> {
        // What is between the braces decides which server of a cluster has it.
        let key = format!("{}:{{{key}}}", self.inner.prefix);
        remote::patiently(self.inner.timeout, |deadline| {
            self.attempt(transition, &key, arguments, deadline)
        })
        .await
    }

    async fn attempt(
        &self,
        transition: &Transition,
        key: &str,
        arguments: &[&[u8]],
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let link = &self.inner.link;
        let known = transition.known(key, arguments);
        if let Answer::Value(value) = link.send(&known, deadline).await? {
            return Ok(value);
        }
        let whole = transition.whole(key, arguments);
        match link.send(&whole, deadline).await? {
            Answer::Value(value) => Ok(value),
            Answer::NoScript => Err(unreadable()),
        }
    }

    async fn owned(
        &self,
        transition: &Transition,
        key: RecordKey,
        arguments: &[&[u8]],
    ) -> Result<Ownership, StoreError> {
        match self.run(transition, key, arguments).await? {
            Value::Int(0) => Ok(Ownership::Lost),
            Value::Int(1) => Ok(Ownership::Held),
            Value::Int(2) => Err(newer()),
            _ => Err(unreadable()),
        }
    }
}

impl IdempotencyStore for RedisStore {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let unknown: &[u8] = match claim.orphans {
            CrashPolicy::Reexecute => b"0",
            CrashPolicy::Unknown => b"1",
        };
        let arguments = [
            claim.fingerprint.as_bytes().as_slice(),
            claim.id.as_bytes(),
            &micros(claim.lease),
            &millis(claim.lease.saturating_add(claim.retention)),
            &millis(claim.retention),
            unknown,
            claim.note.as_bytes(),
        ];
        let transition = &self.inner.transitions.claim;
        claimed(self.run(transition, claim.key, &arguments).await?)
    }

    async fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let kept = millis(lease.saturating_add(retention));
        let arguments = [&*number(token), &micros(lease), &kept];
        let transition = &self.inner.transitions.renew;
        self.owned(transition, key, &arguments).await
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let (state, reply): (&[u8], &[u8]) = match &stored {
            Stored::Reply(bytes) => (b"1", bytes),
            Stored::NotRetained => (b"2", b""),
            Stored::Unknown => (b"3", b""),
        };
        let arguments = [&*number(token), state, reply, &millis(retention)];
        let transition = &self.inner.transitions.complete;
        self.owned(transition, key, &arguments).await
    }

    async fn release(&self, key: RecordKey, token: FencingToken) -> Result<Ownership, StoreError> {
        let transition = &self.inner.transitions.release;
        self.owned(transition, key, &[&number(token)]).await
    }
}

fn claimed(answer: Value) -> Result<Claimed, StoreError> {
    let Value::Array(mut answer) = answer else {
        return Err(unreadable());
    };
    let unsigned = |number: i64| u64::try_from(number).map_err(|_| unreadable());
    let note = |note: &[u8]| Note::new(note).ok_or_else(unreadable);
    Ok(match &mut *answer {
        [Value::Int(0), Value::Int(token), Value::Int(orphaned)] => Claimed::New(Lease {
            token: FencingToken::new(unsigned(*token)?),
            orphaned: *orphaned == 1,
        }),
        [Value::Int(1), Value::BulkString(left), Value::Int(micros)] => Claimed::InFlight {
            remaining: Duration::from_micros(unsigned(*micros)?),
            note: note(left)?,
        },
        [
            Value::Int(2),
            Value::BulkString(left),
            Value::BulkString(other),
        ] => Claimed::Mismatch {
            fingerprint: Fingerprint::new(other[..].try_into().map_err(|_| unreadable())?),
            note: note(left)?,
        },
        [
            Value::Int(3),
            Value::BulkString(left),
            Value::BulkString(reply),
        ] => Claimed::Done {
            stored: Stored::Reply(Bytes::from(std::mem::take(reply))),
            note: note(left)?,
        },
        [Value::Int(state @ (4 | 5)), Value::BulkString(left)] => Claimed::Done {
            stored: match state {
                4 => Stored::NotRetained,
                _ => Stored::Unknown,
            },
            note: note(left)?,
        },
        [Value::Int(6)] => return Err(newer()),
        _ => return Err(unreadable()),
    })
}

fn unreadable() -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, "an answer could not be read")
}

fn newer() -> StoreError {
    StoreError::new(
        StoreErrorKind::NewerSchema,
        "a record was written by a newer version of this crate: update it, or use another prefix",
    )
}

/// As a record has it.
fn number(token: FencingToken) -> Vec<u8> {
    format!("{:016}", token.get()).into_bytes()
}

/// At most 142 years, so that it can be added to the time it is now, and stays below 2⁵³.
fn micros(duration: Duration) -> Vec<u8> {
    const FOREVER: u128 = 1 << 52;
    duration.as_micros().min(FOREVER).to_string().into_bytes()
}

/// Rounded up, and something.
fn millis(duration: Duration) -> Vec<u8> {
    const FOREVER: u128 = 1 << 53;
    let millis = duration.as_micros().div_ceil(1000).clamp(1, FOREVER);
    millis.to_string().into_bytes()
}
