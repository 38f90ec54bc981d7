use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    SqliteStoreBuilder, records,
    worker::{self, Batch, Job, Work, Worker},
};
use crate::store::{
    Claim, Claimed, FencingToken, IdempotencyStore, Ownership, RecordKey, StoreError, Stored,
};

/// Records in a SQLite file. The [module](super) says what it keeps, and what it needs.
///
/// # Clone
///
/// Clones share the connections. When the last one is dropped, what is queued is still done and
/// answered.
#[derive(Clone)]
pub struct SqliteStore {
    pub(super) reader: Worker,
    pub(super) writer: Worker,
    pub(super) path: Arc<Path>,
}

impl SqliteStore {
    /// Opens the file, and creates it if need be.
    ///
    /// # Errors
    ///
    /// The file can't be created, read or written, is another application's, or was written by a
    /// newer release.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::builder().open(path)
    }

    /// Opens a file in the way that you say.
    pub fn builder() -> SqliteStoreBuilder {
        SqliteStoreBuilder::new()
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl IdempotencyStore for SqliteStore {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.reader.submit(Box::new(Look {
            claim,
            found: None,
            reply,
            writer: self.writer.clone(),
        }));
        worker::wait(answer).await
    }

    async fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        self.writer
            .call(0, move |batch| {
                records::renew(batch, &key, token, lease, retention)
            })
            .await
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let bytes = match &stored {
            Stored::Reply(bytes) => bytes.len(),
            Stored::NotRetained | Stored::Unknown => 0,
        };
        self.writer
            .call(bytes, move |batch| {
                records::complete(batch, &key, token, &stored, retention)
            })
            .await
    }

    async fn release(&self, key: RecordKey, token: FencingToken) -> Result<Ownership, StoreError> {
        self.writer
            .call(0, move |batch| records::release(batch, &key, token))
            .await
    }
}

/// A claim, as the reader sees it: what changes nothing is answered, since it is what a claim at
/// this moment gets; all else the writer decides anew.
struct Look {
    claim: Claim,
    found: Option<Claimed>,
    reply: oneshot::Sender<Result<Claimed, StoreError>>,
    writer: Worker,
}

impl Work for Look {
    fn run(&mut self, batch: &Batch<'_>) -> rusqlite::Result<()> {
        self.found = records::look(batch, &self.claim)?;
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self {
            claim,
            found,
            reply,
            writer,
        } = *self;
        match found {
            Some(claimed) if outcome.is_ok() => drop(reply.send(Ok(claimed))),
            _ => writer.submit(Box::new(Job {
                run: move |batch: &Batch<'_>| records::claim(batch, &claim),
                result: None,
                bytes: 0,
                reply,
            })),
        }
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}
