use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::Notify;

use super::{Place, Sealed};
use crate::store::{
    Ownership, RecordKey, StoreError,
    journal::{
        CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, Erased, Journal,
        LeaseRequest, LeaseToken, NewEntry, Query, Settlement,
    },
    verbs::verbs,
};

/// Delay of an entry that can't be opened here, until a process that has its key leases it.
const ASIDE: Duration = Duration::from_secs(5 * 60);
/// Retention of an expired entry.
const KEEP: Duration = Duration::from_secs(7 * 24 * 60 * 60);

impl Place {
    /// Binds a payload to its entry: it can't take the place of a result or of another payload.
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

    fn seal_settlement(
        &self,
        id: EntryId,
        mut settlement: Settlement,
    ) -> Result<Settlement, StoreError> {
        if let Some(result) = &settlement.result {
            settlement.result = Some(self.keys.seal(&Place::result(id), result)?);
        }
        if !settlement.remainder.is_empty() {
            settlement.remainder = self.keys.seal(&Place::payload(id), &settlement.remainder)?;
        }
        let outbox = std::mem::take(&mut settlement.outbox).into_iter();
        let outbox = outbox.map(|new| self.seal_new(new));
        settlement.outbox = outbox.collect::<Result<_, _>>()?;
        Ok(settlement)
    }

    fn opened(&self, entry: &Entry) -> Result<(Bytes, Option<Bytes>), StoreError> {
        // Only what can't be leased any more may be without one.
        let payload = match entry.payload.is_empty() && entry.status.drops_payload() {
            true => Bytes::new(),
            false => self.keys.open(&Place::payload(entry.id), &entry.payload)?,
        };
        let result = entry.result.as_ref();
        let result = result.map(|result| self.keys.open(&Place::result(entry.id), result));
        Ok((payload, result.transpose()?))
    }

    /// Releases an entry that can't be opened here, or expires it if it is past its time. If that
    /// fails, the lease runs out.
    async fn put_aside(&self, entry: &Entry, why: &StoreError) {
        let settlement = Settlement {
            note: why.to_string(),
            ..match entry.is_past() {
                true => Settlement::expired(KEEP),
                false => Settlement::release(ASIDE),
            }
        };
        let _ = self
            .store
            .settle(entry.id, entry.lease_token, settlement)
            .await;
    }
}

#[cfg(feature = "postgres")]
impl Sealed<crate::store::PostgresStore> {
    /// Queues an entry as part of your transaction, sealed: see
    /// [`PostgresStore::enqueue_in`](crate::store::PostgresStore::enqueue_in), which does not seal it.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn enqueue_in(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        entry: NewEntry,
    ) -> Result<Enqueued, StoreError> {
        let entry = self.seal_new(entry)?;
        self.store.enqueue_in(transaction, entry).await
    }

    /// Returns the statement that queues an entry, sealed, in a transaction of any driver: see
    /// [`PostgresStore::enqueue_statement`](crate::store::PostgresStore::enqueue_statement).
    ///
    /// # Errors
    ///
    /// The payload is too large to be sealed.
    pub fn enqueue_statement(
        &self,
        entry: NewEntry,
    ) -> Result<crate::store::SqlStatement, StoreError> {
        let entry = self.seal_new(entry)?;
        Ok(self.store.enqueue_statement(entry))
    }
}

/// Seals payloads and results, those of an outbox too. Lists have none.
impl<J: Journal> Journal for Sealed<J> {
    verbs! { self;
        enqueue(entry: NewEntry) -> Enqueued
            = async move { self.store.enqueue(self.seal_new(entry)?).await };
        enqueue_many(entries: Vec<NewEntry>) -> Vec<Enqueued> = async move {
            let sealed = entries.into_iter().map(|new| self.seal_new(new));
            self.store.enqueue_many(sealed.collect::<Result<_, _>>()?).await
        };
        lanes(queue: &str, after: Option<&str>, limit: u32) -> Vec<String>
            = self.store.lanes(queue, after, limit);
        extend(id: EntryId, lease_token: LeaseToken, lease: Duration) -> Ownership
            = self.store.extend(id, lease_token, lease);
        settle(id: EntryId, lease_token: LeaseToken, settlement: Settlement) -> Ownership
            = async move {
                let settlement = self.seal_settlement(id, settlement)?;
                self.store.settle(id, lease_token, settlement).await
            };
        bury(entry: NewEntry, attempts: u32, settlement: Settlement) -> Enqueued
            = async move {
                let settlement = self.seal_settlement(entry.id, settlement)?;
                self.store.bury(self.seal_new(entry)?, attempts, settlement).await
            };
        command(id: EntryId, command: EntryCommand) -> Option<CommandResult>
            = self.store.command(id, command);
        erase(queue: &str, owner: &str, limit: u32) -> Erased
            = self.store.erase(queue, owner, limit);
        find_duplicate(queue: &str, key: RecordKey) -> Option<Duplicate>
            = self.store.find_duplicate(queue, key);
        list(query: Query) -> Vec<Entry> = self.store.list(query);
        count(query: Query) -> u32 = self.store.count(query);
        counts(queue: &str) -> Counts = self.store.counts(queue);
        position(id: EntryId, limit: u32) -> Option<u32> = self.store.position(id, limit);
        secret() -> [u8; 32] = self.store.secret();
    }

    async fn lease(&self, request: LeaseRequest) -> Result<Vec<Entry>, StoreError> {
        let mut leased = Vec::new();
        for mut entry in self.store.lease(request).await? {
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

    async fn find(&self, id: EntryId) -> Result<Option<Entry>, StoreError> {
        let Some(mut entry) = self.store.find(id).await? else {
            return Ok(None);
        };
        (entry.payload, entry.result) = self.opened(&entry)?;
        Ok(Some(entry))
    }

    fn watch(&self, queue: &str, wake: &Arc<Notify>) {
        self.store.watch(queue, wake);
    }

    fn is_sealed(&self) -> bool {
        true
    }
}
