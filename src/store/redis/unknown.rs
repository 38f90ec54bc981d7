//! Unknown outcomes, for the people who resolve them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use redis::Value;
use tokio::task::JoinSet;

use super::{RedisStore, micros, millis, newer, number, unreadable};
use crate::{
    store::{
        ClaimId, FencingToken, Note, OutcomeCursor, OutcomePage, RecordKey, Resolution, Resolved,
        StoreError, StoreErrorKind, Stored, UnknownOutcome,
        remote::{self, Recurring},
    },
    sync::{Mutex, lock},
};

/// The members of the set that are looked at together, and the most that a page looks at.
const CHUNK: usize = 100;
const CHUNKS: usize = 20;

/// The time after the end of a lease at which a member without a record is dropped. A claim and its
/// member are written at the same time; longer than either is repeated.
const GRACE: u64 = 60_000_000;

/// The time between two looks at a page of the set of a store in use.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// Looks at the set page by page, so that members that lead nowhere are dropped also if nobody lists it:
/// their record expired, or their process ended before it dropped them.
pub(super) struct WatchedSweep {
    recurring: Recurring,
    /// Where the next look begins.
    next: Mutex<Option<OutcomeCursor>>,
}

impl WatchedSweep {
    pub(super) fn new() -> Self {
        Self {
            recurring: Recurring::new(SWEEP_EVERY),
            next: Mutex::default(),
        }
    }
}

/// A member of the set: a claim of a record.
#[derive(Clone, Copy)]
struct Watched {
    key: RecordKey,
    id: ClaimId,
    /// When its lease ended.
    ended: u64,
}

impl Watched {
    fn read(member: &[u8], ended: &[u8]) -> Option<Self> {
        let (key, id) = member.split_first_chunk()?;
        let ended = str::from_utf8(ended).ok()?.parse::<f64>().ok()?;
        Some(Self {
            key: RecordKey::new(*key),
            id: ClaimId::new(id.try_into().ok()?),
            // Below 2^53, where floating point is exact.
            ended: ended as u64,
        })
    }

    fn member(&self) -> Vec<u8> {
        member(self.key, self.id)
    }
}

fn member(key: RecordKey, id: ClaimId) -> Vec<u8> {
    [&key.as_bytes()[..], id.as_bytes()].concat()
}

/// The state of a record.
enum State {
    Settled,
    Running,
    Unknown(UnknownOutcome),
}

impl RedisStore {
    fn watched_key(&self) -> String {
        format!("{{{}:watched}}", self.inner.prefix)
    }

    /// Takes a claim into the set.
    pub(super) async fn watch(
        &self,
        key: RecordKey,
        id: ClaimId,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let watch = &self.inner.scripts.watch;
        let arguments = [&*member(key, id), &micros(lease), b"0"];
        let set = self.watched_key();
        self.run_on(watch, &set, &arguments).await.map(drop)
    }

    /// Takes a claim of unknown outcome into the set, where most are already. A server without memory
    /// may not take it: it took the outcome, which must not fail for this.
    pub(super) async fn watch_unknown(
        &self,
        key: RecordKey,
        id: ClaimId,
    ) -> Result<(), StoreError> {
        let watch = &self.inner.scripts.watch;
        let arguments = [&*member(key, id), b"0", b"1"];
        match self.run_on(watch, &self.watched_key(), &arguments).await {
            Err(error) if error.kind() != StoreErrorKind::Full => Err(error),
            _ => Ok(()),
        }
    }

    /// Looks at the next page of the set, on a task of its own, if it is time.
    pub(super) fn sweep_watched_if_due(&self) {
        if self.inner.watched_sweep.recurring.is_due() {
            let store = self.clone();
            tokio::spawn(async move { store.sweep_watched().await });
        }
    }

    async fn sweep_watched(&self) -> Result<(), StoreError> {
        let next = &self.inner.watched_sweep.next;
        let from = lock(next).take();
        let page = self.list_unknown(from, CHUNK as u32).await?;
        *lock(next) = page.next;
        Ok(())
    }

    /// Drops a claim from the set, some time. If that fails, a sweep does it.
    pub(super) fn unwatch(&self, key: RecordKey, id: ClaimId) {
        let store = self.clone();
        tokio::spawn(async move { store.drop_watched(&[&member(key, id)]).await });
    }

    async fn drop_watched(&self, members: &[&[u8]]) -> Result<(), StoreError> {
        let unwatch = &self.inner.scripts.unwatch;
        self.run_on(unwatch, &self.watched_key(), members)
            .await
            .map(drop)
    }

    /// Returns the time, and members in the order of their leases' ends, then of their bytes.
    async fn watched(&self, from: u64, skip: usize) -> Result<(u64, Vec<Watched>), StoreError> {
        let [from, skip, count] = [from, skip as u64, CHUNK as u64].map(|n| n.to_string());
        let arguments = [from.as_bytes(), skip.as_bytes(), count.as_bytes()];
        let watched = &self.inner.scripts.watched;
        let key = self.watched_key();
        let Value::Array(answer) = self.run_on(watched, &key, &arguments).await? else {
            return Err(unreadable());
        };
        let [Value::BulkString(now), Value::Array(found)] = &*answer else {
            return Err(unreadable());
        };
        let now = str::from_utf8(now).ok().and_then(|now| now.parse().ok());
        let (pairs, _) = found.as_chunks::<2>();
        let found = pairs.iter().map(|pair| match pair {
            [Value::BulkString(member), Value::BulkString(ended)] => Watched::read(member, ended),
            _ => None,
        });
        let found = found.collect::<Option<_>>();
        now.zip(found).ok_or_else(unreadable)
    }

    async fn state(&self, key: RecordKey, owner: &[u8]) -> Result<State, StoreError> {
        let unknown = &self.inner.scripts.unknown;
        let Value::Array(fields) = self.run(unknown, key, &[owner]).await? else {
            return Err(unreadable());
        };
        let unsigned = |number: i64| u64::try_from(number).map_err(|_| unreadable());
        Ok(match &*fields {
            [Value::Int(0)] => State::Settled,
            [Value::Int(1)] => State::Running,
            [
                Value::Int(2),
                Value::Int(token),
                Value::BulkString(note),
                Value::Int(since),
                Value::Int(left),
            ] => State::Unknown(UnknownOutcome {
                key,
                token: FencingToken::new(unsigned(*token)?),
                note: Note::new(note).ok_or_else(unreadable)?,
                unknown_for: Duration::from_micros(unsigned(*since)?),
                expires_in: Duration::from_millis(unsigned((*left).max(0))?),
            }),
            [Value::Int(6)] => return Err(newer()),
            _ => return Err(unreadable()),
        })
    }

    /// Looks at the records of some claims at once, on one connection.
    async fn states(&self, watched: &[Watched]) -> Result<Vec<State>, StoreError> {
        let mut looks = JoinSet::new();
        for (n, watched) in watched.iter().copied().enumerate() {
            let store = self.clone();
            looks.spawn(async move {
                let state = store.state(watched.key, watched.id.as_bytes()).await;
                state.map(|state| (n, state))
            });
        }
        let states = looks.join_all().await.into_iter();
        let mut states = states.collect::<Result<Vec<_>, _>>()?;
        states.sort_by_key(|(n, _)| *n);
        Ok(states.into_iter().map(|(_, state)| state).collect())
    }

    /// Goes on behind a member of the set.
    pub(super) async fn list_unknown(
        &self,
        after: Option<OutcomeCursor>,
        limit: u32,
    ) -> Result<OutcomePage, StoreError> {
        let after = after.map(|after| after.split_claim()).transpose()?;
        let (mut from, mut last) = match after {
            Some((ended, key, id)) => (ended, Some(member(key, id))),
            None => (0, None),
        };
        let mut outcomes = Vec::new();
        let mut skip = 0;
        for _ in 0..CHUNKS {
            let (now, watched) = self.watched(from, skip).await?;
            // Members of the same moment that an earlier page had.
            let seen = |next: &&Watched| {
                let before = last.as_deref().is_some_and(|last| *next.member() <= *last);
                next.ended == from && before
            };
            let is_end = watched.len() < CHUNK;
            let seen = watched.iter().take_while(seen).count();
            let fresh = &watched[seen..];
            let mut settled = Vec::new();
            for (state, watched) in self.states(fresh).await?.into_iter().zip(fresh) {
                if outcomes.len() == limit as usize {
                    self.drop_settled(&settled).await?;
                    let next = last.map(|last| OutcomeCursor::of_claim(from, &last));
                    return Ok(OutcomePage { outcomes, next });
                }
                match state {
                    State::Unknown(unknown) => outcomes.push(unknown),
                    State::Settled if watched.ended.saturating_add(GRACE) < now => {
                        settled.push(*watched);
                    }
                    State::Settled | State::Running => {}
                }
                (from, last) = (watched.ended, Some(watched.member()));
            }
            self.drop_settled(&settled).await?;
            if is_end {
                return Ok(OutcomePage {
                    outcomes,
                    next: None,
                });
            }
            // A whole chunk of one moment: behind it.
            skip = if fresh.is_empty() { skip + CHUNK } else { 0 };
        }
        let next = last.map(|last| OutcomeCursor::of_claim(from, &last));
        Ok(OutcomePage { outcomes, next })
    }

    async fn drop_settled(&self, settled: &[Watched]) -> Result<(), StoreError> {
        if settled.is_empty() {
            return Ok(());
        }
        let members: Vec<_> = settled.iter().map(Watched::member).collect();
        let members: Vec<_> = members.iter().map(|member| &**member).collect();
        self.drop_watched(&members).await
    }

    pub(super) async fn find_unknown(
        &self,
        key: RecordKey,
    ) -> Result<Option<UnknownOutcome>, StoreError> {
        Ok(match self.state(key, &[]).await? {
            State::Unknown(unknown) => Some(unknown),
            State::Settled | State::Running => None,
        })
    }

    pub(super) async fn resolve_unknown(
        &self,
        key: RecordKey,
        token: FencingToken,
        resolution: Resolution,
    ) -> Result<Resolved, StoreError> {
        let (state, reply, retention): (&[u8], &[u8], _) = match &resolution {
            Resolution::NoEffect => (b"", b"", Duration::ZERO),
            Resolution::Executed(Stored::Reply(reply), kept) => (b"1", reply, *kept),
            Resolution::Executed(Stored::NotRetained, kept) => (b"2", b"", *kept),
            Resolution::Executed(Stored::Unknown, kept) => (b"3", b"", *kept),
        };
        let (number, retention) = (number(token), millis(retention));
        let (resolve, record) = (&self.inner.scripts.resolve, self.record(key));
        // A key that an earlier attempt has freed is absent, as one that never was.
        let repeats = AtomicBool::new(false);
        let attempt = async |deadline| {
            let again: &[u8] = match repeats.load(Ordering::Relaxed) {
                true => b"1",
                false => b"0",
            };
            let arguments = [&*number, state, reply, &retention, again];
            let answer = self
                .attempt_on(resolve, &record, &arguments, deadline)
                .await;
            let in_doubt = answer.as_ref().is_err_and(StoreError::may_have_happened);
            repeats.fetch_or(in_doubt, Ordering::Relaxed);
            answer
        };
        let answer = remote::with_retries(self.inner.timeout, attempt).await?;
        let Value::Array(answer) = answer else {
            return Err(unreadable());
        };
        match &*answer {
            [Value::Int(0)] => Ok(Resolved::Conflict),
            [Value::Int(1)] => Ok(Resolved::Made),
            [Value::Int(1), Value::BulkString(id)] => {
                let id = id[..].try_into().map_err(|_| unreadable())?;
                if state != b"3" {
                    self.unwatch(key, ClaimId::new(id));
                }
                Ok(Resolved::Made)
            }
            [Value::Int(6)] => Err(newer()),
            _ => Err(unreadable()),
        }
    }
}
