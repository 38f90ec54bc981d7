//! Records and a [journal](super::journal) in Redis (or Valkey), shared by many machines.
//!
//! Each verb is one Lua script: atomic, one round trip, on the server's clock. A record is one key,
//! which the server removes when it expires. The durability of an acknowledged transition is a
//! setting of the server, see [below](#what-it-can-lose).
//!
//! All tasks share one connection and pipeline their commands on it. When it is lost, the next verb
//! opens a new one and the failed verb is repeated; its error says if the outcome stays unknown.
//! Claims that come while others are under way share the next script, and so do completions: the server
//! runs one script and writes to its disk once for all of them. One that comes alone is sent at once.
//! A cluster, whose records are on several servers, gets each by itself.
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
//! Where [sentinels](RedisStoreBuilder::sentinels) watch the servers, each connection begins with the
//! question which one is the primary.
//!
//! An address that starts with `rediss:` needs one of the `redis` crate's TLS features.
//!
//! # What it needs
//!
//! - Redis 6 or newer with `maxmemory-policy noeviction`, which is checked when connecting: any other
//!   policy drops live records when memory is full, and their operations are executed again.
//! - Memory above `maxmemory` for the replies of what runs, see [below](#a-full-server).
//! - For a journal `appendonly yes`, without which its verbs fail unless
//!   [told otherwise](RedisStoreBuilder::assume_durable), and `appendfsync always`: an entry that is
//!   lost was accepted and is never executed. For records alone `appendfsync everysec` is a reasonable choice: an operation
//!   whose record is lost is executed again when it is repeated.
//!
//! # A full server
//!
//! A server at `maxmemory` rejects what is new ([`StoreErrorKind::Full`]): operations, entries, and dead
//! letters that were no entries before. Nothing of it is done. It still takes what ends or goes on: operations that run are renewed,
//! suspended, completed with their reply, released and resolved; entries that are queued are leased,
//! extended, settled, cancelled and redriven, with the entries that a settlement enqueues. All that was
//! completed is still found. A replica, or a server whose disk failed (`stop-writes-on-bgsave-error`) or
//! that misses replicas (`min-replicas-to-write`), takes nothing ([`StoreErrorKind::Unavailable`]); what
//! ended meanwhile is completed when it does again.
//!
//! # What it can lose
//!
//! | the server has | its process dies | its machine dies | a replica takes over |
//! | --- | --- | --- | --- |
//! | no `appendonly` | all since the last snapshot | the same | the last moments |
//! | `appendfsync no` | nothing | unflushed writes, up to 30 s | the last moments |
//! | `appendfsync everysec` | nothing; up to 2 s if its disk is slow | up to 2 s | the last moments |
//! | `appendfsync always` | nothing | nothing | the last moments |
//! | `appendfsync everysec`, the store [`fsync`](RedisStoreBuilder::fsync) | nothing | nothing | the last moments |
//!
//! Acknowledged transitions are meant. One that failed with a timeout or a lost connection
//! ([`may_have_happened`](StoreError::may_have_happened)) may be there or not.
//!
//! Replication is asynchronous: a replica that takes over may lack transitions acknowledged just
//! before, whatever `appendfsync` says, and a primary that was cut off may acknowledge transitions
//! that are discarded later. `min-replicas-to-write` and `min-replicas-max-lag` bound that time, and
//! [`replicas`](RedisStoreBuilder::replicas) acknowledges a transition only once so many replicas have
//! it, with `fsync` on disk; nothing rules it out, since another replica may take over. Where a second
//! execution is not an option, use [PostgreSQL](super::postgres), or guard the handler's writes with the
//! [`FencingToken`]: tokens grow over a failover too, as far as the servers' clocks agree.
//!
//! For a journal, transitions acknowledged in those last moments are undone: an enqueued entry is
//! gone; a settled entry is attempted again when its lease has run out, and the entries that its
//! settlement enqueued are gone until then; a cancelled entry runs; a leased entry is leased again,
//! with the same token and attempt count, while its first worker is at it. Where an accepted request
//! must not vanish, keep the journal in [PostgreSQL](super::postgres).
//!
//! # Unknown outcomes
//!
//! Claims with [`CrashPolicy::Unknown`] are also members of one sorted set, `{prefix:watched}`, by the
//! end of their lease, until they are settled. It can be on another server of a cluster, so it is
//! written by a command of its own, at the same time as the claim; a list looks at the record of each
//! member, and drops those that were settled or expired. A store in use does the same from time to time.
//! Claims with the other policy pay nothing.
//!
//! # The journal
//!
//! A journal is a set of keys that begin with `{prefix:journal}`. An entry is a hash; sorted sets
//! index the next entries of a lane, the leases that run out and the entries that expire, so a verb
//! takes no longer in a long queue. A list reads a thousand entries in a round trip, or those of one
//! owner if it asks for one. Expired entries are hidden, and later verbs remove a few at a time.
//!
//! All of it is in the server's memory, payloads included; an end that payloads
//! [share](super::journal::SharedPayload) is there once.
//!
//! A lease whose response was lost is repeated like any other verb: it carries a ticket, by which
//! the server finds for a minute what it leased. A lease takes a thousand entries at most.
//!
//! # Cluster
//!
//! [`RedisStore::cluster`] connects to a Redis Cluster. A record is one key and moves with its slot.
//! A journal is in one slot as a whole, since a settlement and the entries that follow from it are
//! one transaction. Queues that have nothing to do with each other are spread over slots by
//! [`RedisStore::queue_family`]: each family is a journal of its own, on the same connections. Queues
//! that enqueue into each other, such as a queue and that of its callbacks and dead letters, belong in
//! one family.
//!
//! A script of the journal is passed the first key and derives the names of the others, all in the
//! same slot. Redis and Valkey allow that, with access lists `~prefix:*`, `~{prefix:journal}*`, for
//! families `~{prefix:*`, and `~{prefix:watched}`.
//! Servers that insist on every key being declared can't run it. While the slot is moved to another
//! server, every verb of the journal fails with [`StoreErrorKind::Unavailable`] and changes nothing.

mod builder;
mod connection;
mod durability;
mod durable_connection;
mod error;
mod journal;
mod record_rows;
mod script;
mod sentinel;
mod unknown;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use redis::{Cmd, Value};
use tokio::time::Instant;

pub use self::builder::RedisStoreBuilder;
use self::{
    connection::{CommandReply, Connection},
    record_rows::{ClaimRow, CompleteRow},
    script::{JournalScripts, RecordScripts, StoreScript},
    unknown::WatchedSweep,
};
use super::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Fingerprint, IdempotencyStore, Lease, Note,
    OutcomeCursor, OutcomePage, Ownership, RecordKey, Resolution, Resolved, StoreError,
    StoreErrorKind, Stored, UnknownOutcome, batcher::Batcher, remote, verbs::verbs,
};
use crate::error::ConfigError;

/// Records and a journal in a Redis server or cluster. The [module](self) states its promises and
/// needs.
///
/// # Clone
///
/// Clones share the connection.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
    /// The key of the journal. The part in braces places all its keys on one server of a cluster.
    journal_key: Arc<str>,
}

struct Inner {
    connection: Connection,
    scripts: RecordScripts,
    claims: Batcher<ClaimRow>,
    completions: Batcher<CompleteRow>,
    journal: JournalScripts,
    /// Why there is no journal on this server.
    no_journal: Option<&'static str>,
    prefix: String,
    timeout: Duration,
    watched_sweep: WatchedSweep,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.inner.prefix)
            .field("journal", &self.journal_key)
            .field("timeout", &self.inner.timeout)
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects to a server like `redis://user:password@host:6379/0` with the default settings.
    ///
    /// # Errors
    ///
    /// As for [`RedisStoreBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, StoreError> {
        Self::builder(url).connect().await
    }

    /// Connects to a server with other settings.
    pub fn builder(url: impl Into<String>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(vec![url.into()], false)
    }

    /// Connects to a cluster; the addresses are those of some of its servers.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> RedisStoreBuilder {
        RedisStoreBuilder::new(urls.into_iter().map(Into::into).collect(), true)
    }

    fn new(
        connection: Connection,
        prefix: String,
        timeout: Duration,
        no_journal: Option<&'static str>,
    ) -> Self {
        Self {
            journal_key: journal_key(&prefix),
            inner: Arc::new(Inner {
                connection,
                scripts: RecordScripts::new(),
                claims: Batcher::new(timeout),
                completions: Batcher::new(timeout),
                journal: JournalScripts::new(),
                no_journal,
                prefix,
                timeout,
                watched_sweep: WatchedSweep::new(),
            }),
        }
    }

    /// Returns a store with the same records and connection and a journal of its own: a family of queues,
    /// which a cluster keeps apart from other families, on a server of its own where there are several.
    ///
    /// Nothing is shared between families: an entry is found, leased and counted by stores of its family
    /// alone, and what a settlement enqueues belongs to the family of the settled entry. A family needs
    /// workers of its own. It is the journal of a store whose prefix is the prefix of this one, `:` and
    /// the name.
    ///
    /// ```no_run
    /// use tower_reprise::store::{RedisStore, StoreError};
    ///
    /// # async fn run() -> Result<(), StoreError> {
    /// let store = RedisStore::cluster(["redis://c1.internal", "redis://c2.internal"]).connect().await?;
    /// let (mails, invoices) = (store.queue_family("mails")?, store.queue_family("invoices")?);
    /// # let _ = (mails, invoices);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The name is not one to 64 visible ASCII characters other than braces.
    pub fn queue_family(&self, name: &str) -> Result<Self, ConfigError> {
        builder::check_name("redis.queue_family", name)?;
        Ok(Self {
            inner: Arc::clone(&self.inner),
            journal_key: journal_key(&format!("{}:{name}", self.inner.prefix)),
        })
    }

    async fn run(
        &self,
        script: &StoreScript,
        key: RecordKey,
        arguments: &[&[u8]],
    ) -> Result<Value, StoreError> {
        self.run_on(script, &self.record(key), arguments).await
    }

    /// Returns the name of a record. The part between the braces decides on the slot in a cluster.
    fn record(&self, key: RecordKey) -> String {
        format!("{}:{{{key}}}", self.inner.prefix)
    }

    async fn run_on(
        &self,
        script: &StoreScript,
        key: &str,
        arguments: &[&[u8]],
    ) -> Result<Value, StoreError> {
        remote::with_retries(self.inner.timeout, |deadline| {
            self.attempt_on(script, key, arguments, deadline)
        })
        .await
    }

    async fn attempt_on(
        &self,
        script: &StoreScript,
        key: &str,
        arguments: &[&[u8]],
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let write = |command: &mut Cmd| {
            command.arg(key).arg(arguments);
        };
        self.attempt(script, 1, deadline, write).await
    }

    /// Runs a script with so many keys. `write` adds them and the arguments to the command.
    async fn attempt(
        &self,
        script: &StoreScript,
        keys: usize,
        deadline: Instant,
        write: impl Fn(&mut Cmd),
    ) -> Result<Value, StoreError> {
        let connection = &self.inner.connection;
        let mut cached = script.evalsha(keys);
        write(&mut cached);
        if let CommandReply::Value(value) = connection.send(&cached, deadline).await? {
            return Ok(value);
        }
        let mut whole = script.eval(keys);
        write(&mut whole);
        match connection.send(&whole, deadline).await? {
            CommandReply::Value(value) => Ok(value),
            CommandReply::NoScript => Err(unreadable()),
        }
    }

    /// Restarts a lease, and hands the record over to another claim if one is given.
    async fn restart(
        &self,
        key: RecordKey,
        token: FencingToken,
        resumed_by: Option<ClaimId>,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let kept = millis(lease.saturating_add(retention));
        let id: &[u8] = resumed_by.as_ref().map_or(&[], |id| id.as_bytes());
        let arguments = [&*number(token), &micros(lease), &kept, id];
        let renew = &self.inner.scripts.renew;
        let (renewed, watched) = self.owned(renew, key, &arguments).await?;
        if let (Some(before), Some(by)) = (watched, resumed_by) {
            self.watch(key, by, lease).await?;
            // The same one if its suspension is repeated.
            if before != by {
                self.unwatch(key, before);
            }
        }
        Ok(renewed)
    }

    /// Returns also the claim's id, if people watch it.
    async fn owned(
        &self,
        script: &StoreScript,
        key: RecordKey,
        arguments: &[&[u8]],
    ) -> Result<(Ownership, Option<ClaimId>), StoreError> {
        read_owned(self.run(script, key, arguments).await?)
    }
}

impl IdempotencyStore for RedisStore {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let claimed = self.make(ClaimRow(claim.clone()));
        let (claimed, owner) = match claim.crash_policy {
            CrashPolicy::Reexecute => claimed.await?,
            CrashPolicy::Unknown => {
                // Both on their way at once. What comes of the claim is seen later: members of the set
                // that lead nowhere are dropped.
                self.sweep_watched_if_due();
                let (store, key, id, lease) = (self.clone(), claim.key, claim.id, claim.lease);
                let watching = tokio::spawn(async move { store.watch(key, id, lease).await });
                let claimed = claimed.await;
                let watched = watching.await.unwrap_or_else(|_| Err(unreadable()));
                let claimed = claimed?;
                match claimed.0 {
                    Claimed::New(_) => watched.map_err(StoreError::in_doubt)?,
                    _ => self.unwatch(claim.key, claim.id),
                }
                claimed
            }
        };
        if let Some(owner) = owner {
            self.watch_unknown(claim.key, owner).await?;
        }
        Ok(claimed)
    }

    verbs! { self;
        renew(key: RecordKey, token: FencingToken, lease: Duration, retention: Duration) -> Ownership
            = self.restart(key, token, None, lease, retention);
        suspend(
            key: RecordKey, token: FencingToken, by: ClaimId, lease: Duration, retention: Duration
        ) -> Ownership = self.restart(key, token, Some(by), lease, retention);
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let is_unknown = stored == Stored::Unknown;
        let row = CompleteRow {
            key,
            token,
            stored,
            retention,
        };
        let (completed, watched) = self.make(row).await?;
        match watched {
            None => {}
            Some(id) if is_unknown => self.watch_unknown(key, id).await?,
            Some(id) => self.unwatch(key, id),
        }
        Ok(completed)
    }

    async fn release(&self, key: RecordKey, token: FencingToken) -> Result<Ownership, StoreError> {
        let script = &self.inner.scripts.release;
        let (released, watched) = self.owned(script, key, &[&number(token)]).await?;
        if let Some(id) = watched {
            self.unwatch(key, id);
        }
        Ok(released)
    }

    verbs! { self;
        unknown_outcomes(after: Option<OutcomeCursor>, limit: u32) -> OutcomePage
            = self.list_unknown(after, limit);
        unknown_outcome(key: RecordKey) -> Option<UnknownOutcome> = self.find_unknown(key);
        resolve(key: RecordKey, token: FencingToken, resolution: Resolution) -> Resolved
            = self.resolve_unknown(key, token, resolution);
    }
}

fn journal_key(prefix: &str) -> Arc<str> {
    format!("{{{prefix}:journal}}").into()
}

/// Reads the reply of `claim.lua`; of an unknown outcome with the claim id of its owner.
fn read_claimed(reply: Value) -> Result<(Claimed, Option<ClaimId>), StoreError> {
    let owner = match &reply {
        Value::Array(fields) => match &**fields {
            [Value::Int(5), _, Value::BulkString(id)] => {
                let id = id[..].try_into().map_err(|_| unreadable())?;
                Some(ClaimId::new(id))
            }
            _ => None,
        },
        _ => None,
    };
    Ok((claimed(reply)?, owner))
}

/// Reads the reply of a script that only an owner's token makes change something; held with the claim's
/// id, if people watch it.
fn read_owned(reply: Value) -> Result<(Ownership, Option<ClaimId>), StoreError> {
    match reply {
        Value::Int(0) => Ok((Ownership::Lost, None)),
        Value::Int(1) => Ok((Ownership::Held, None)),
        Value::Int(2) => Err(newer()),
        Value::BulkString(id) => {
            let id = id.try_into().map_err(|_| unreadable())?;
            Ok((Ownership::Held, Some(ClaimId::new(id))))
        }
        _ => Err(unreadable()),
    }
}

fn claimed(reply: Value) -> Result<Claimed, StoreError> {
    let Value::Array(mut fields) = reply else {
        return Err(unreadable());
    };
    let unsigned = |number: i64| u64::try_from(number).map_err(|_| unreadable());
    let note = |note: &[u8]| Note::new(note).ok_or_else(unreadable);
    Ok(match &mut *fields {
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
        [Value::Int(state @ (4 | 5)), Value::BulkString(left), _] => Claimed::Done {
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
    StoreError::new(StoreErrorKind::Corrupt, "a reply could not be read")
}

fn newer() -> StoreError {
    StoreError::new(
        StoreErrorKind::NewerSchema,
        "a record was written by a newer version of this crate: update it, or use another prefix",
    )
}

/// Writes a token as records do.
fn number(token: FencingToken) -> Vec<u8> {
    format!("{:016}", token.get()).into_bytes()
}

/// Writes at most 142 years: added to the current time it stays below 2⁵³.
fn micros(duration: Duration) -> Vec<u8> {
    const FOREVER: u128 = 1 << 52;
    duration.as_micros().min(FOREVER).to_string().into_bytes()
}

/// Rounds up to a whole millisecond, at least one: Redis accepts no expiry of zero.
fn millis(duration: Duration) -> Vec<u8> {
    const FOREVER: u128 = 1 << 53;
    let millis = duration.as_micros().div_ceil(1000).clamp(1, FOREVER);
    millis.to_string().into_bytes()
}
