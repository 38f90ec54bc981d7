//! Claims and completions as rows of a batch: each is a key of one script, and its arguments.

use std::{slice, time::Duration};

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::{
    RedisStore, micros, millis, number, read_claimed, read_owned,
    script::{RecordScripts, StoreScript},
    unreadable,
};
use crate::store::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Ownership, RecordKey, StoreError, Stored,
    batcher::{BatchRow, Batched, Batcher, batched},
    remote,
};

/// A transition of a record by a script that takes several.
pub(in crate::store) trait RecordRow: Clone + Send + Sync + 'static {
    type Made: Send + 'static;

    fn script(scripts: &RecordScripts) -> &StoreScript;

    fn batcher(store: &RedisStore) -> &Batcher<Self>
    where
        Self: BatchRow;

    fn key(&self) -> RecordKey;

    /// Returns the bytes that it carries.
    fn bytes(&self) -> usize;

    /// Adds the arguments.
    fn write(&self, command: &mut Cmd);

    /// Reads the answer.
    fn read(answer: Value) -> Result<Self::Made, StoreError>;
}

#[derive(Clone)]
pub(in crate::store) struct ClaimRow(pub(super) Claim);

#[derive(Clone)]
pub(in crate::store) struct CompleteRow {
    pub(super) key: RecordKey,
    pub(super) token: FencingToken,
    pub(super) stored: Stored,
    pub(super) retention: Duration,
}

impl RecordRow for ClaimRow {
    /// With the claim id of the owner, if the outcome is unknown.
    type Made = (Claimed, Option<ClaimId>);

    fn script(scripts: &RecordScripts) -> &StoreScript {
        &scripts.claim
    }

    fn batcher(store: &RedisStore) -> &Batcher<Self> {
        &store.inner.claims
    }

    fn key(&self) -> RecordKey {
        self.0.key
    }

    fn bytes(&self) -> usize {
        self.0.note.as_bytes().len()
    }

    fn write(&self, command: &mut Cmd) {
        let claim = &self.0;
        let unknown = match claim.crash_policy {
            CrashPolicy::Reexecute => "0",
            CrashPolicy::Unknown => "1",
        };
        let resumes: &[u8] = claim.resumes.as_ref().map_or(&[], |id| id.as_bytes());
        command
            .arg(claim.fingerprint.as_bytes())
            .arg(claim.id.as_bytes())
            .arg(micros(claim.lease))
            .arg(millis(claim.lease.saturating_add(claim.retention)))
            .arg(millis(claim.retention))
            .arg(unknown)
            .arg(claim.note.as_bytes())
            .arg(resumes);
    }

    fn read(answer: Value) -> Result<Self::Made, StoreError> {
        read_claimed(answer)
    }
}

impl RecordRow for CompleteRow {
    /// With the claim's id, if people watch it.
    type Made = (Ownership, Option<ClaimId>);

    fn script(scripts: &RecordScripts) -> &StoreScript {
        &scripts.complete
    }

    fn batcher(store: &RedisStore) -> &Batcher<Self> {
        &store.inner.completions
    }

    fn key(&self) -> RecordKey {
        self.key
    }

    fn bytes(&self) -> usize {
        self.stored.len()
    }

    fn write(&self, command: &mut Cmd) {
        let (state, reply): (_, &[u8]) = match &self.stored {
            Stored::Reply(bytes) => ("1", bytes),
            Stored::NotRetained => ("2", b""),
            Stored::Unknown => ("3", b""),
        };
        command
            .arg(number(self.token))
            .arg(state)
            .arg(reply)
            .arg(millis(self.retention));
    }

    fn read(answer: Value) -> Result<Self::Made, StoreError> {
        read_owned(answer)
    }
}

impl<R: RecordRow> BatchRow for R {
    type Store = RedisStore;
    type Answer = R::Made;

    fn batcher(store: &RedisStore) -> &Batcher<Self> {
        <R as RecordRow>::batcher(store)
    }

    fn bytes(&self) -> usize {
        RecordRow::bytes(self)
    }

    async fn send(
        store: &RedisStore,
        deadline: Instant,
        rows: &[Self],
    ) -> Result<Vec<Option<R::Made>>, StoreError> {
        let answers = store.send_rows(deadline, rows).await?;
        // One that can't be read has its error when it is made by itself.
        Ok(answers
            .into_iter()
            .map(|answer| R::read(answer).ok())
            .collect())
    }
}

impl RedisStore {
    /// Makes a transition, along with others if there are any.
    pub(super) async fn make<R: RecordRow>(&self, row: R) -> Result<R::Made, StoreError> {
        let (mut left, mut in_doubt) = (self.inner.timeout, false);
        // The records of a cluster are on many servers.
        if !self.inner.connection.is_cluster() {
            match batched(self, row.clone()).await? {
                Batched::Made(made) => return Ok(made),
                Batched::Alone {
                    left: time,
                    in_doubt: doubt,
                } => (left, in_doubt) = (time, doubt),
            }
        }
        let made = remote::with_retries(left, async |deadline| {
            let mut answers = self.send_rows(deadline, slice::from_ref(&row)).await?;
            R::read(answers.pop().ok_or_else(unreadable)?)
        });
        made.await.map_err(|error| error.in_doubt_if(in_doubt))
    }

    /// Makes transitions by one script. Each answer is that of the row in its place.
    async fn send_rows<R: RecordRow>(
        &self,
        deadline: Instant,
        rows: &[R],
    ) -> Result<Vec<Value>, StoreError> {
        let script = R::script(&self.inner.scripts);
        let answers = self.attempt(script, rows.len(), deadline, |command| {
            for row in rows {
                command.arg(self.record(row.key()));
            }
            for row in rows {
                row.write(command);
            }
        });
        match answers.await? {
            Value::Array(answers) if answers.len() == rows.len() => Ok(answers),
            _ => Err(unreadable()),
        }
    }
}
