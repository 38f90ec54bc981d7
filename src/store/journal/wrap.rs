use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::{
    CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, Erased, Journal,
    LeaseRequest, LeaseToken, NewEntry, Query, Settlement,
};
use crate::store::{Ownership, RecordKey, StoreError, verbs::verbs};

/// Declares each verb as one that passes on to the journal inside.
macro_rules! passes_on {
    ($($verb:ident($($name:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        #[doc = concat!("See [`Journal::", stringify!($verb), "`].")]
        fn $verb<J: Journal>(
            &self,
            journal: &J,
            $($name: $type),*
        ) -> impl Future<Output = Result<$answer, StoreError>> + Send {
            journal.$verb($($name),*)
        }
    )*};
}

/// The verbs of a journal that a [`WrappedJournal`] has of its own; the others pass on to the journal
/// inside.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tower_reprise::store::{
///     MemoryStore, StoreError,
///     journal::{Enqueued, Journal, NewEntry, WrapJournal, WrappedJournal},
/// };
///
/// /// Counts what is queued.
/// #[derive(Default)]
/// struct Counting(AtomicU64);
///
/// impl WrapJournal for Counting {
///     async fn enqueue<J: Journal>(
///         &self,
///         journal: &J,
///         entry: NewEntry,
///     ) -> Result<Enqueued, StoreError> {
///         self.0.fetch_add(1, Ordering::Relaxed);
///         journal.enqueue(entry).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), StoreError> {
/// let journal = WrappedJournal::new(MemoryStore::new(), Counting::default());
/// journal.enqueue(NewEntry::new("mails", "to Ada")).await?;
/// assert_eq!(journal.counts("mails").await?.by_status[0], 1);
/// assert_eq!(journal.wrapper().0.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
pub trait WrapJournal: Send + Sync + 'static {
    passes_on! {
        enqueue(entry: NewEntry) -> Enqueued;
        lanes(queue: &str, after: Option<&str>, limit: u32) -> Vec<String>;
        lease(request: LeaseRequest) -> Vec<Entry>;
        extend(id: EntryId, lease_token: LeaseToken, lease: Duration) -> Ownership;
        settle(id: EntryId, lease_token: LeaseToken, settlement: Settlement) -> Ownership;
        bury(entry: NewEntry, attempts: u32, settlement: Settlement) -> Enqueued;
        command(id: EntryId, command: EntryCommand) -> Option<CommandResult>;
        erase(queue: &str, owner: &str, limit: u32) -> Erased;
        find(id: EntryId) -> Option<Entry>;
        find_duplicate(queue: &str, key: RecordKey) -> Option<Duplicate>;
        list(query: Query) -> Vec<Entry>;
        count(query: Query) -> u32;
        counts(queue: &str) -> Counts;
        position(id: EntryId, limit: u32) -> Option<u32>;
        secret() -> [u8; 32];
    }

    /// See [`Journal::enqueue_many`]. Passes on one entry after the other to
    /// [`enqueue`](Self::enqueue), so that a wrapper that has that one sees each; an end that they
    /// [share](super::SharedPayload) is stored once all the same. A wrapper that has this one passes on all at
    /// once.
    fn enqueue_many<J: Journal>(
        &self,
        journal: &J,
        entries: Vec<NewEntry>,
    ) -> impl Future<Output = Result<Vec<Enqueued>, StoreError>> + Send {
        async move {
            let mut enqueued = Vec::with_capacity(entries.len());
            for entry in entries {
                enqueued.push(self.enqueue(journal, entry).await?);
            }
            Ok(enqueued)
        }
    }

    /// See [`Journal::is_sealed`].
    fn is_sealed<J: Journal>(&self, journal: &J) -> bool {
        journal.is_sealed()
    }
}

/// A journal of which some verbs are those of a [`WrapJournal`].
#[derive(Debug, Clone)]
pub struct WrappedJournal<J, W> {
    journal: J,
    wrapper: W,
}

impl<J, W> WrappedJournal<J, W> {
    /// Wraps a journal.
    pub fn new(journal: J, wrapper: W) -> Self {
        Self { journal, wrapper }
    }

    /// Returns what it is wrapped in.
    pub fn wrapper(&self) -> &W {
        &self.wrapper
    }
}

impl<J: Journal, W: WrapJournal> Journal for WrappedJournal<J, W> {
    verbs! { self;
        enqueue(entry: NewEntry) -> Enqueued = self.wrapper.enqueue(&self.journal, entry);
        enqueue_many(entries: Vec<NewEntry>) -> Vec<Enqueued>
            = self.wrapper.enqueue_many(&self.journal, entries);
        lanes(queue: &str, after: Option<&str>, limit: u32) -> Vec<String>
            = self.wrapper.lanes(&self.journal, queue, after, limit);
        lease(request: LeaseRequest) -> Vec<Entry> = self.wrapper.lease(&self.journal, request);
        extend(id: EntryId, lease_token: LeaseToken, lease: Duration) -> Ownership
            = self.wrapper.extend(&self.journal, id, lease_token, lease);
        settle(id: EntryId, lease_token: LeaseToken, settlement: Settlement) -> Ownership
            = self.wrapper.settle(&self.journal, id, lease_token, settlement);
        bury(entry: NewEntry, attempts: u32, settlement: Settlement) -> Enqueued
            = self.wrapper.bury(&self.journal, entry, attempts, settlement);
        command(id: EntryId, command: EntryCommand) -> Option<CommandResult>
            = self.wrapper.command(&self.journal, id, command);
        erase(queue: &str, owner: &str, limit: u32) -> Erased
            = self.wrapper.erase(&self.journal, queue, owner, limit);
        find(id: EntryId) -> Option<Entry> = self.wrapper.find(&self.journal, id);
        find_duplicate(queue: &str, key: RecordKey) -> Option<Duplicate>
            = self.wrapper.find_duplicate(&self.journal, queue, key);
        list(query: Query) -> Vec<Entry> = self.wrapper.list(&self.journal, query);
        count(query: Query) -> u32 = self.wrapper.count(&self.journal, query);
        counts(queue: &str) -> Counts = self.wrapper.counts(&self.journal, queue);
        position(id: EntryId, limit: u32) -> Option<u32>
            = self.wrapper.position(&self.journal, id, limit);
        secret() -> [u8; 32] = self.wrapper.secret(&self.journal);
    }

    fn watch(&self, queue: &str, wake: &Arc<Notify>) {
        self.journal.watch(queue, wake);
    }

    fn is_sealed(&self) -> bool {
        self.wrapper.is_sealed(&self.journal)
    }
}
