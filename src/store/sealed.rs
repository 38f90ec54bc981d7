//! Encryption of stored replies and entries.
//!
//! Replies and queued requests contain names, balances, tokens, and stay in the store, its backups
//! and its disk for as long as they are kept. [`Sealed`] wraps any store, encrypts them on their way
//! in, and detects one that was changed or moved to another record.
//!
//! ```
//! use tower_reprise::store::{MemoryStore, SealKeys, Sealed};
//!
//! # fn main() -> Result<(), tower_reprise::error::ConfigError> {
//! # let (this_year, last_year) = ([1; 32], [2; 32]);
//! let keys = SealKeys::try_new("2026", &this_year)?.try_opening("2025", &last_year)?;
//! let store = Sealed::new(MemoryStore::new(), keys);
//! # let _ = store;
//! # Ok(())
//! # }
//! ```
//!
//! # What is encrypted
//!
//! The reply's status, headers, body and trailers, and the payloads and results of entries, with
//! XChaCha20-Poly1305 and a random nonce. Not encrypted: a record's key and fingerprint, which are
//! hashes; its note, state and times; an entry's queue, lane, owner, label, version and history; which
//! entries share the [end of their payloads](crate::store::journal::SharedPayload), which is encrypted
//! once for those of a call; the length of the encrypted data. An attacker that can write to the store can still remove records, or restore
//! an older reply of the same record.
//!
//! # Rotation
//!
//! Each sealed reply names its key. Add the new key to all servers with
//! [`try_opening`](SealKeys::try_opening), then make it the one that seals, and keep the old one for
//! as long as replies and entries are kept. Data that was stored before a store was wrapped can't be
//! opened.
//!
//! An entry that can't be opened is not leased, since another worker may have its key: it waits for
//! five minutes with a note of the reason, until it expires.

mod journal;

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Generate, Payload},
};

use super::{
    Claim, ClaimId, Claimed, FencingToken, IdempotencyStore, OutcomeCursor, OutcomePage, Ownership,
    RecordKey, Resolution, Resolved, StoreError, StoreErrorKind, Stored, UnknownOutcome,
    verbs::verbs,
};
use crate::error::ConfigError;

/// The first byte of what is sealed this way: version, length of the id, id, nonce, ciphertext.
const VERSION: u8 = 1;
const NONCE: usize = 24;
const MAX_ID: usize = 64;

/// A store whose replies, payloads and results are encrypted. The [module](self) states the limits.
#[derive(Debug, Clone)]
pub struct Sealed<S> {
    store: S,
    keys: SealKeys,
}

impl<S> Sealed<S> {
    /// Wraps a store.
    pub fn new(store: S, keys: SealKeys) -> Self {
        Self { store, keys }
    }

    fn sealed(&self, key: RecordKey, stored: Stored) -> Result<Stored, StoreError> {
        Ok(match stored {
            Stored::Reply(reply) => Stored::Reply(self.keys.seal(&Place::reply(&key), &reply)?),
            other => other,
        })
    }
}

/// The key that seals, and those that only open. The last clone wipes them from memory.
#[derive(Clone)]
#[must_use]
pub struct SealKeys {
    keys: Arc<Vec<SealKey>>,
}

#[derive(Clone)]
struct SealKey {
    id: Box<str>,
    cipher: XChaCha20Poly1305,
}

impl SealKeys {
    /// Creates the set with the key that seals: 32 bytes from a cryptographic source of randomness.
    /// Its id is stored unencrypted with each reply, and appears in errors.
    ///
    /// # Errors
    ///
    /// The id is not 1 to 64 letters, digits or punctuation of ASCII.
    pub fn try_new(id: &str, key: &[u8; 32]) -> Result<Self, ConfigError> {
        let keys = Self {
            keys: Arc::default(),
        };
        keys.try_opening(id, key)
    }

    /// Adds a key that only opens.
    ///
    /// # Errors
    ///
    /// As for [`try_new`](Self::try_new), or a key has that id already.
    pub fn try_opening(mut self, id: &str, key: &[u8; 32]) -> Result<Self, ConfigError> {
        let wrong = |allowed| Err(ConfigError::new(None, "seal.key_id", id, allowed));
        if !is_id(id.as_bytes()) {
            return wrong("1 to 64 letters, digits or punctuation of ASCII");
        }
        if self.find(id.as_bytes()).is_some() {
            return wrong("another id than those there are");
        }
        Arc::make_mut(&mut self.keys).push(SealKey {
            id: id.into(),
            cipher: XChaCha20Poly1305::new(key.into()),
        });
        Ok(self)
    }

    fn find(&self, id: &[u8]) -> Option<&SealKey> {
        self.keys.iter().find(|key| key.id.as_bytes() == id)
    }

    fn sealing(&self) -> Result<&SealKey, StoreError> {
        let none = || StoreError::new(StoreErrorKind::Other, "no key to seal");
        self.keys.first().ok_or_else(none)
    }

    fn seal(&self, place: &Place, bytes: &[u8]) -> Result<Bytes, StoreError> {
        let failed = |what| StoreError::new(StoreErrorKind::Other, what);
        let key = self.sealing()?;
        let nonce = XNonce::try_generate()
            .map_err(|error| failed("no randomness to seal with").because(error))?;
        let id = key.id.as_bytes();
        let payload = Payload {
            msg: bytes,
            aad: &place.bound_to,
        };
        let sealed = key
            .cipher
            .encrypt(&nonce, payload)
            .map_err(|_| failed("it is too large to seal"))?;
        // An id is at most 64 bytes long.
        let length = u8::try_from(id.len()).unwrap_or(u8::MAX);
        Ok([&[VERSION, length], id, &*nonce, &sealed].concat().into())
    }

    fn open(&self, place: &Place, sealed: &[u8]) -> Result<Bytes, StoreError> {
        let what = place.what;
        let (id, nonce, sealed) =
            parts(sealed).ok_or_else(|| corrupt(format!("{what} is not sealed, or was cut")))?;
        let name = String::from_utf8_lossy(id);
        let key = self.find(id).ok_or_else(|| {
            corrupt(format!(
                "{what} is sealed with key '{name}', which is not among the keys"
            ))
        })?;
        let payload = Payload {
            msg: sealed,
            aad: &place.bound_to,
        };
        let opened = key.cipher.decrypt(nonce.into(), payload).map_err(|_| {
            corrupt(format!(
                "{what} can't be opened with key '{name}': it was changed or moved, or another key \
                 has that id"
            ))
        })?;
        Ok(opened.into())
    }
}

/// The place that sealed data is bound to: it can't be opened anywhere else.
struct Place {
    what: &'static str,
    bound_to: Vec<u8>,
}

impl Place {
    fn reply(record: &RecordKey) -> Self {
        Self {
            what: "a stored reply",
            bound_to: record.as_bytes().to_vec(),
        }
    }
}

/// Shows the keys' ids, never the keys.
impl fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.keys.iter().map(|key| &key.id);
        f.write_str("SealKeys")?;
        f.debug_list().entries(ids).finish()
    }
}

fn is_id(id: &[u8]) -> bool {
    (1..=MAX_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

fn parts(sealed: &[u8]) -> Option<(&[u8], &[u8; NONCE], &[u8])> {
    let (&[version, length], rest) = sealed.split_first_chunk()?;
    let (id, rest) = rest.split_at_checked(length.into())?;
    let (nonce, sealed) = rest.split_first_chunk()?;
    (version == VERSION && is_id(id)).then_some((id, nonce, sealed))
}

fn corrupt(message: impl Into<Cow<'static, str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, message)
}

impl<S: IdempotencyStore> IdempotencyStore for Sealed<S> {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let key = claim.key;
        Ok(match self.store.claim(claim).await? {
            Claimed::Done {
                stored: Stored::Reply(sealed),
                note,
            } => Claimed::Done {
                stored: Stored::Reply(self.keys.open(&Place::reply(&key), &sealed)?),
                note,
            },
            other => other,
        })
    }

    verbs! { self;
        renew(key: RecordKey, token: FencingToken, lease: Duration, retention: Duration) -> Ownership
            = self.store.renew(key, token, lease, retention);
        suspend(
            key: RecordKey, token: FencingToken, by: ClaimId, lease: Duration, retention: Duration
        ) -> Ownership = self.store.suspend(key, token, by, lease, retention);
        complete(key: RecordKey, token: FencingToken, stored: Stored, retention: Duration)
            -> Ownership = async move {
                let stored = self.sealed(key, stored)?;
                self.store.complete(key, token, stored, retention).await
            };
        release(key: RecordKey, token: FencingToken) -> Ownership = self.store.release(key, token);
        unknown_outcomes(after: Option<OutcomeCursor>, limit: u32) -> OutcomePage
            = self.store.unknown_outcomes(after, limit);
        unknown_outcome(key: RecordKey) -> Option<UnknownOutcome>
            = self.store.unknown_outcome(key);
        resolve(key: RecordKey, token: FencingToken, resolution: Resolution) -> Resolved
            = async move {
                let resolution = match resolution {
                    Resolution::Executed(stored, retention) => {
                        Resolution::Executed(self.sealed(key, stored)?, retention)
                    }
                    Resolution::NoEffect => Resolution::NoEffect,
                };
                self.store.resolve(key, token, resolution).await
            };
    }

    fn as_stored(&self, key: RecordKey, stored: Stored) -> Result<Stored, StoreError> {
        self.store.as_stored(key, self.sealed(key, stored)?)
    }
}
