use std::fmt;

use bytes::Bytes;

use super::NewEntry;

/// The end that the payloads of several entries have in common: an event for thousands of endpoints, say.
/// The stores of this crate keep it once, for as long as one of the entries needs it; to readers
/// and workers each payload is whole. In PostgreSQL, workers of the version before this type can't read such
/// an entry and use up its attempts: update all workers first.
///
/// ```
/// use tower_reprise::store::{
///     MemoryStore,
///     journal::{Journal, NewEntry, SharedPayload},
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_reprise::store::StoreError> {
/// let journal = MemoryStore::new();
/// let news = SharedPayload::new("the shop is open");
/// let entries = ["Ada: ", "Ben: "].map(|to| NewEntry::new("mails", to).ending_in(&news));
/// let id = entries[0].id;
/// journal.enqueue_many(entries.into()).await?;
/// let found = journal.find(id).await?;
/// assert_eq!(found.map(|entry| entry.payload), Some("Ada: the shop is open".into()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct SharedPayload {
    id: [u8; 16],
    bytes: Bytes,
}

impl SharedPayload {
    /// Gives these bytes an id of their own.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self {
            id: rand::random(),
            bytes: bytes.into(),
        }
    }

    /// The bytes as a store is to keep them, for the entries with this id.
    #[cfg(feature = "seal")]
    pub(crate) fn with_id(id: [u8; 16], bytes: Bytes) -> Self {
        Self { id, bytes }
    }

    /// Returns the random id under which a store keeps the bytes. The bytes of an id are always the same,
    /// but in a [`Sealed`](crate::store::Sealed) store, which has another id for each key and may seal them
    /// more than once: a store keeps the first.
    #[must_use]
    pub fn id(&self) -> &[u8; 16] {
        &self.id
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Shows the length, never the bytes.
impl fmt::Debug for SharedPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedPayload")
            .field(&self.bytes.len())
            .finish()
    }
}

impl NewEntry {
    /// Appends these bytes to the payload, and lets a store keep them once for all entries that end in
    /// them.
    pub fn ending_in(mut self, shared: &SharedPayload) -> Self {
        self.payload = [&*self.payload, &shared.bytes].concat().into();
        self.shared = Some(shared.clone());
        self
    }

    /// Returns the payload in two parts: the bytes of its own, and the shared end. A payload that was
    /// changed since it got that end is all its own.
    #[must_use]
    pub fn parts(&self) -> (&[u8], Option<&SharedPayload>) {
        let shared = self.shared.as_ref();
        let shared = shared.filter(|shared| !shared.bytes.is_empty());
        let parts =
            shared.and_then(|shared| Some((self.payload.strip_suffix(&*shared.bytes)?, shared)));
        match parts {
            Some((own, shared)) => (own, Some(shared)),
            None => (&self.payload, None),
        }
    }
}

/// Returns how many bytes the payloads of these entries take where shared ends are kept once. Entries
/// with the same one are expected to follow each other.
#[cfg(feature = "sqlite")]
pub(crate) fn stored_bytes<'a>(entries: impl IntoIterator<Item = &'a NewEntry>) -> usize {
    let mut last = None;
    let mut bytes = 0;
    for entry in entries {
        let (own, shared) = entry.parts();
        bytes += own.len();
        let id = shared.map(SharedPayload::id);
        if id != last {
            bytes += shared.map_or(0, |shared| shared.bytes.len());
            last = id;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_was_changed_shares_nothing() {
        let shared = SharedPayload::new("the end");
        let mut entry = NewEntry::new("q", "its own, ").ending_in(&shared);
        assert_eq!(entry.payload, "its own, the end");
        assert_eq!(entry.parts(), (&b"its own, "[..], Some(&shared)));
        entry.payload = Bytes::from_static(b"sealed by a wrapper that knows of nothing");
        assert_eq!(entry.parts(), (&*entry.payload, None));
        let nothing = NewEntry::new("q", "all").ending_in(&SharedPayload::new(""));
        assert_eq!(nothing.parts(), (&b"all"[..], None));
    }
}
