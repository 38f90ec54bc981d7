use std::{future::Future, time::Duration};

use bytes::Bytes;

use super::{Place, Sealed};
use crate::store::{
    Ownership, StoreError,
    journal::{
        CommandResult, Counts, Enqueued, Entry, EntryCommand, EntryId, Journal, LeaseRequest,
        LeaseToken, NewEntry, Query, Settlement,
    },
};

/// How long an entry that can't be opened waits for somebody who has its key.
const ASIDE: Duration = Duration::from_secs(5 * 60);
/// How long one is kept whose time is over.
const KEEP: Duration = Duration::from_secs(7 * 24 * 60 * 60);

impl Place {
    /// A payload can't take the place of a result, nor one entry's that of another.
    fn payload(id: EntryId) -> Self {
        Self {
            what: "an entry's payload",
            bound_to: [b"payload ", &id.as_bytes()[..]].concat(),
        }
    }

    fn result(id: EntryId) -> Self {
        Self {
            what: "an entry's result",
            bound_to: [b"result ", &id.as_bytes()[..]].concat(),
        }
    }
}

impl<J: Journal> Sealed<J> {
    fn seal_new(&self, mut new: NewEntry) -> Result<NewEntry, StoreError> {
        new.payload = self.keys.seal(&Place::payload(new.id), &new.payload)?;
        Ok(new)
    }

    fn opened(&self, entry: &Entry) -> Result<(Bytes, Option<Bytes>), StoreError> {
        let payload = self.keys.open(&Place::payload(entry.id), &entry.payload)?;
        let result = entry.result.as_ref();
        let result = result.map(|result| self.keys.open(&Place::result(entry.id), result));
        Ok((payload, result.transpose()?))
    }

    /// Gives back what can't be opened here, or ends it if its time is over. If that fails, the
    /// lease runs out.
    async fn put_aside(&self, entry: &Entry, why: &StoreError) {
        let settle = Settlement {
            note: why.to_string(),
            ..match entry.is_past() {
                true => Settlement::expired(KEEP),
                false => Settlement::release(ASIDE),
            }
        };
        let _ = self.store.settle(entry.id, entry.turn, settle).await;
    }
}

/// Payloads and results are sealed, those of an outbox too. Lists have none.
impl<J: Journal> Journal for Sealed<J> {
    async fn enqueue(&self, entry: NewEntry) -> Result<Enqueued, StoreError> {
        self.store.enqueue(self.seal_new(entry)?).await
    }

    fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send {
        self.store.lanes(queue, after, limit)
    }

    async fn lease(&self, want: LeaseRequest) -> Result<Vec<Entry>, StoreError> {
        let mut leased = Vec::new();
        for mut entry in self.store.lease(want).await? {
            match self.opened(&entry) {
                Ok((payload, result)) => {
                    (entry.payload, entry.result) = (payload, result);
                    leased.push(entry);
                }
                Err(error) => self.put_aside(&entry, &error).await,
            }
        }
        Ok(leased)
    }

    fn extend(
        &self,
        id: EntryId,
        turn: LeaseToken,
        lease: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        self.store.extend(id, turn, lease)
    }

    async fn settle(
        &self,
        id: EntryId,
        turn: LeaseToken,
        mut settle: Settlement,
    ) -> Result<Ownership, StoreError> {
        if let Some(result) = &settle.result {
            settle.result = Some(self.keys.seal(&Place::result(id), result)?);
        }
        let outbox = settle.outbox.into_iter().map(|new| self.seal_new(new));
        settle.outbox = outbox.collect::<Result<_, _>>()?;
        self.store.settle(id, turn, settle).await
    }

    fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> impl Future<Output = Result<Option<CommandResult>, StoreError>> + Send {
        self.store.command(id, command)
    }

    async fn find(&self, id: EntryId) -> Result<Option<Entry>, StoreError> {
        let Some(mut entry) = self.store.find(id).await? else {
            return Ok(None);
        };
        (entry.payload, entry.result) = self.opened(&entry)?;
        Ok(Some(entry))
    }

    fn list(&self, query: Query) -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send {
        self.store.list(query)
    }

    fn count(&self, query: Query) -> impl Future<Output = Result<u32, StoreError>> + Send {
        self.store.count(query)
    }

    fn counts(&self, queue: &str) -> impl Future<Output = Result<Counts, StoreError>> + Send {
        self.store.counts(queue)
    }

    fn position(
        &self,
        id: EntryId,
        limit: u32,
    ) -> impl Future<Output = Result<Option<u32>, StoreError>> + Send {
        self.store.position(id, limit)
    }

    fn secret(&self) -> impl Future<Output = Result<[u8; 32], StoreError>> + Send {
        self.store.secret()
    }

    fn is_sealed(&self) -> bool {
        true
    }
}
