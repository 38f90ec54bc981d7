use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    SqliteStoreBuilder, records, unknown,
    worker::{self, Batch, Job, Work, Worker},
};
use crate::store::{
    Claim, ClaimId, Claimed, FencingToken, IdempotencyStore, OutcomeCursor, OutcomePage, Ownership,
    RecordKey, Resolution, Resolved, StoreError, Stored, UnknownOutcome, verbs::verbs,
};

/// Records and a queue in a SQLite file. The [module](super) states its promises and limits.
///
/// # Clone
///
/// Clones share the connections. After the last one is dropped, queued transitions are still made
/// and acknowledged.
#[derive(Clone)]
pub struct SqliteStore {
    /// Answers claims alone: what takes longer to read does not hold them up.
    claims: Worker,
    /// Answers everything else that only reads.
    pub(super) reader: Worker,
    pub(super) writer: Worker,
    path: Arc<Path>,
}

impl SqliteStore {
    /// Opens the file with the default settings, or creates it.
    ///
    /// # Errors
    ///
    /// As for [`SqliteStoreBuilder::open`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::builder().open(path)
    }

    pub(super) fn new(path: &Path, writer: Worker, [claims, reader]: [Worker; 2]) -> Self {
        Self {
            claims,
            reader,
            writer,
            path: path.into(),
        }
    }

    /// Opens a file with other settings.
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
        let (reply, result) = oneshot::channel();
        self.claims.submit(Box::new(ReadClaim {
            claim,
            found: None,
            reply,
            writer: self.writer.clone(),
        }));
        worker::wait(result).await
    }

    verbs! { self;
        renew(key: RecordKey, token: FencingToken, lease: Duration, retention: Duration) -> Ownership
            = self.writer.call(0, move |batch| {
                records::renew(batch, &key, token, None, lease, retention)
            });
        suspend(
            key: RecordKey, token: FencingToken, by: ClaimId, lease: Duration, retention: Duration
        ) -> Ownership = self.writer.call(0, move |batch| {
            records::renew(batch, &key, token, Some(by), lease, retention)
        });
        complete(key: RecordKey, token: FencingToken, stored: Stored, retention: Duration)
            -> Ownership = self.writer.call(stored.len(), move |batch| {
                records::complete(batch, &key, token, &stored, retention)
            });
        release(key: RecordKey, token: FencingToken) -> Ownership
            = self.writer.call(0, move |batch| records::release(batch, &key, token));
        unknown_outcomes(after: Option<OutcomeCursor>, limit: u32) -> OutcomePage = async move {
            let after = after.map(|after| after.number()).transpose()?;
            let after = after.unwrap_or_default();
            self.reader.call(0, move |batch| unknown::list(batch, after, limit)).await
        };
        unknown_outcome(key: RecordKey) -> Option<UnknownOutcome>
            = self.reader.call(0, move |batch| unknown::find(batch, &key));
        resolve(key: RecordKey, token: FencingToken, resolution: Resolution) -> Resolved
            = self.writer.call(0, move |batch| unknown::resolve(batch, &key, token, &resolution));
    }
}

/// A claim on its reader. A result that changes nothing is final: the snapshot was current during
/// the claim, so the writer could have given the same. Anything else goes to the writer, which looks
/// again inside its transaction.
struct ReadClaim {
    claim: Claim,
    found: Option<Claimed>,
    reply: oneshot::Sender<Result<Claimed, StoreError>>,
    writer: Worker,
}

impl Work for ReadClaim {
    fn run(&mut self, batch: &Batch<'_>) -> rusqlite::Result<()> {
        self.found = records::read_claim(batch, &self.claim)?;
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<(), StoreError>) {
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
                is_new: true,
                reply,
            })),
        }
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::store::{Fingerprint, Note};

    /// T-8: a list or a count that takes long is read beside claims.
    #[tokio::test]
    async fn t_8_a_slow_read_stalls_no_claim() {
        let name = format!("reprise-{:016x}.db", rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        let store = SqliteStore::open(&path).unwrap();
        let (begun, begins) = oneshot::channel();
        let (end, ends) = mpsc::channel::<()>();
        let slow = tokio::spawn({
            let (store, mut begun) = (store.clone(), Some(begun));
            async move {
                let read = store.reader.call(0, move |_| {
                    begun.take().map(|begun| begun.send(()));
                    ends.recv().unwrap_or_default();
                    Ok(())
                });
                read.await
            }
        });
        begins.await.unwrap();
        for expected in [true, false] {
            let claim = Claim {
                key: RecordKey::new([1; 32]),
                fingerprint: Fingerprint::new([1; 32]),
                id: ClaimId::random(),
                lease: Duration::from_secs(30),
                retention: Duration::from_secs(30),
                crash_policy: crate::store::CrashPolicy::Reexecute,
                note: Note::NONE,
                resumes: None,
            };
            let claimed = store.claim(claim).await.unwrap();
            assert_eq!(matches!(claimed, Claimed::New(_)), expected);
        }
        assert!(!slow.is_finished());
        drop(end);
        slow.await.unwrap().unwrap();
        drop(store);
        for suffix in ["", "-wal", "-shm", "-reserve"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
        }
    }
}
