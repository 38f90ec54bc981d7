use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::Notify;

use super::{Place, SealKeys, Sealed, corrupt};
use crate::http::digest::Digest;
use crate::store::{
    Ownership, RecordKey, StoreError, StoreErrorKind,
    journal::{
        CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, Erased, Journal,
        LeaseRequest, LeaseToken, NewEntry, Query, Settlement, SharedPayload,
    },
    verbs::verbs,
};

/// Delay of an entry that can't be opened here, until a process that has its key leases it.
const ASIDE: Duration = Duration::from_secs(5 * 60);
/// The first byte of a payload that is sealed in two parts: this, the id of the shared end, the length of
/// the entry's own part, that part, and the end. Each is sealed by itself.
const IN_PARTS: u8 = 2;
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

    /// Binds an entry's part of a payload to the entry and to the end that belongs to it.
    fn own(id: EntryId, end: &[u8; 16]) -> Self {
        Self {
            what: "an entry's payload",
            bound_to: [b"own ", &id.as_bytes()[..], end].concat(),
        }
    }

    /// Binds the end of payloads to its id: it fits each entry whose part names that id.
    fn end(id: &[u8; 16]) -> Self {
        Self {
            what: "the shared end of an entry's payload",
            bound_to: [b"shared ", &id[..]].concat(),
        }
    }

    fn result(id: EntryId) -> Self {
        Self {
            what: "an entry's result",
            bound_to: [b"result ", &id.as_bytes()[..]].concat(),
        }
    }
}

/// The ends of payloads that were sealed already, by the ids that they have in the store.
type SealedEnds = HashMap<[u8; 16], SharedPayload>;

impl SealKeys {
    /// Returns the id under which the store keeps an end. It is another one for each key: a store keeps
    /// the first bytes of an id, which would be those of a key that is gone for as long as the end is used.
    fn id_of_end(&self, shared: &SharedPayload) -> Result<[u8; 16], StoreError> {
        let mut digest = Digest::new("sealed end");
        digest.part(shared.id());
        digest.part(self.sealing()?.id.as_bytes());
        let digest = digest.finish();
        Ok(std::array::from_fn(|n| digest[n]))
    }
}

impl<J: Journal> Sealed<J> {
    fn seal_new(&self, new: NewEntry) -> Result<NewEntry, StoreError> {
        self.seal_with(&mut SealedEnds::new(), new)
    }

    fn seal_all(
        &self,
        entries: impl IntoIterator<Item = NewEntry>,
    ) -> Result<Vec<NewEntry>, StoreError> {
        let mut ends = SealedEnds::new();
        let sealed = entries
            .into_iter()
            .map(|new| self.seal_with(&mut ends, new));
        sealed.collect()
    }

    fn seal_with(&self, ends: &mut SealedEnds, mut new: NewEntry) -> Result<NewEntry, StoreError> {
        let (own, shared) = new.parts();
        let Some(shared) = shared else {
            new.payload = self.keys.seal(&Place::payload(new.id), own)?;
            new.shared = None;
            return Ok(new);
        };
        let id = self.keys.id_of_end(shared)?;
        let end = match ends.get(&id) {
            Some(end) => end.clone(),
            None => {
                let end = self.keys.seal(&Place::end(&id), shared.bytes())?;
                let end = SharedPayload::with_id(id, end);
                ends.insert(id, end.clone());
                end
            }
        };
        let own = self.keys.seal(&Place::own(new.id, &id), own)?;
        let length = u32::try_from(own.len())
            .map_err(|_| StoreError::new(StoreErrorKind::Other, "it is too large to seal"))?;
        new.payload = [&[IN_PARTS], &id[..], &length.to_be_bytes(), &own]
            .concat()
            .into();
        Ok(new.ending_in(&end))
    }

    fn open_payload(&self, id: EntryId, sealed: &[u8]) -> Result<Bytes, StoreError> {
        let [IN_PARTS, rest @ ..] = sealed else {
            return self.keys.open(&Place::payload(id), sealed);
        };
        let (end_id, own, end) =
            parts(rest).ok_or_else(|| corrupt("an entry's payload is not sealed, or was cut"))?;
        let own = self.keys.open(&Place::own(id, end_id), own)?;
        let end = self.keys.open(&Place::end(end_id), end)?;
        Ok([own, end].concat().into())
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
        settlement.outbox = self.seal_all(settlement.outbox)?;
        Ok(settlement)
    }

    fn opened(&self, entry: &Entry) -> Result<(Bytes, Option<Bytes>), StoreError> {
        // Only what can't be leased any more may be without one.
        let payload = match entry.payload.is_empty() && entry.status.drops_payload() {
            true => Bytes::new(),
            false => self.open_payload(entry.id, &entry.payload)?,
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

/// Splits a payload into the id of its end, the entry's part, and the end.
fn parts(sealed: &[u8]) -> Option<(&[u8; 16], &[u8], &[u8])> {
    let (id, rest) = sealed.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (own, end) = rest.split_at_checked(length)?;
    Some((id, own, end))
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
        enqueue_many(entries: Vec<NewEntry>) -> Vec<Enqueued>
            = async move { self.store.enqueue_many(self.seal_all(entries)?).await };
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
