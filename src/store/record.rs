use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::http::digest::Digest;

/// Gives a type of so many bytes its constructor and its accessor.
macro_rules! of_bytes {
    ($name:ident, $length:literal, $noun:literal) => {
        impl $name {
            #[doc = concat!("Creates ", $noun, " of these bytes.")]
            #[must_use]
            pub fn new(bytes: [u8; $length]) -> Self {
                Self(bytes)
            }

            /// Returns the bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; $length] {
                &self.0
            }
        }
    };
}
pub(super) use of_bytes;

/// The name of a record: a SHA-256 over everything that identifies an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey([u8; 32]);
of_bytes!(RecordKey, 32, "a key");

/// A SHA-256 over the request, which tells a repeated request from another one with the same key.
/// Never shown in logs, since the hash of a short body can be guessed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);
of_bytes!(Fingerprint, 32, "a fingerprint");

/// The identity of a claimant: drawn at random for each execution, and the same when a claim is
/// repeated because its response was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimId([u8; 16]);
of_bytes!(ClaimId, 16, "an id");

impl ClaimId {
    /// Draws a random id.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random::<u128>().to_le_bytes())
    }
}

impl From<Digest> for RecordKey {
    fn from(digest: Digest) -> Self {
        Self(digest.finish())
    }
}

impl From<Digest> for Fingerprint {
    fn from(digest: Digest) -> Self {
        Self(digest.finish())
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordKey({self})")
    }
}

/// Sixty-four hexadecimal digits.
impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(..)")
    }
}

/// A few bytes that a claim leaves on its record for callers that find the key taken: the id of the
/// request that took it, for example. Stored unencrypted.
///
/// ```
/// use tower_reprise::store::Note;
///
/// let note = Note::new("req_001").unwrap();
/// assert_eq!(note.as_bytes(), b"req_001");
/// assert_eq!(Note::new([0; 256]), None); // too long
/// assert_eq!(Note::new(""), Some(Note::NONE));
/// ```
// A thin pointer, `None` for most: a record without a note pays eight bytes.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Note(Option<Arc<Box<[u8]>>>);

impl Note {
    /// No note.
    pub const NONE: Self = Self(None);

    /// The maximum length in bytes.
    pub const MAX_LEN: usize = 255;

    /// Creates a note of these bytes; `None` if there are more than [`MAX_LEN`](Self::MAX_LEN).
    #[must_use]
    pub fn new(bytes: impl AsRef<[u8]>) -> Option<Self> {
        match bytes.as_ref() {
            [] => Some(Self::NONE),
            bytes if bytes.len() <= Self::MAX_LEN => Some(Self(Some(Arc::new(bytes.into())))),
            _ => None,
        }
    }

    /// Returns the note's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_deref().map_or(&[], |bytes| bytes)
    }

    /// Whether the note has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// Shows the length, never the content.
impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Note({} bytes)", self.as_bytes().len())
    }
}

/// A number that grows with each new owner of a key. A handler can guard its own writes with it:
/// reject a write whose token is smaller than the last one seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Creates the token with that number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number: at most 2⁵³, which databases and scripting languages can represent.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The policy for an operation whose owner vanished before it completed or released the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CrashPolicy {
    /// Execute it again: right where a second execution is harmless, or where the handler guards its
    /// writes with the [`FencingToken`].
    Reexecute,
    /// Report the outcome as unknown until the record expires: right where a second execution is
    /// worse than none, and a person has to look.
    Unknown,
}

/// A request for the right to execute an operation.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The operation.
    pub key: RecordKey,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The claimant.
    pub id: ClaimId,
    /// The time for which the claim holds unless it is renewed.
    pub lease: Duration,
    /// The time for which the record is kept after the lease if the operation is never completed.
    pub retention: Duration,
    /// The policy if the last owner vanished.
    pub crash_policy: CrashPolicy,
    /// The note for callers that find the key taken.
    pub note: Note,
    /// The id under which an earlier execution was
    /// [suspended](super::IdempotencyStore::suspend), if this claim goes on with it.
    pub resumes: Option<ClaimId>,
}

/// The result of a [`Claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The claimant executes the operation.
    New(Lease),
    /// Another owner executes it.
    InFlight {
        /// The rest of the owner's lease.
        remaining: Duration,
        /// The owner's note.
        note: Note,
    },
    /// The operation is over.
    Done {
        /// Its stored outcome.
        stored: Stored,
        /// The last owner's note.
        note: Note,
    },
    /// The key was used for another request.
    Mismatch {
        /// The fingerprint of that request.
        fingerprint: Fingerprint,
        /// The last owner's note.
        note: Note,
    },
}

impl Claimed {
    /// Creates a [`Done`](Self::Done) without a note.
    #[must_use]
    pub fn done(stored: Stored) -> Self {
        let note = Note::NONE;
        Self::Done { stored, note }
    }
}

/// The right to execute an operation, for a limited time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Proves ownership to the store, and to other systems.
    pub token: FencingToken,
    /// Whether an earlier owner vanished, so that the operation may have been executed already.
    pub orphaned: bool,
}

/// The stored outcome of an operation that is over.
#[derive(Clone, PartialEq, Eq)]
pub enum Stored {
    /// Its reply, opaque to the store.
    Reply(Bytes),
    /// It was executed; the reply was too large to keep.
    NotRetained,
    /// Its outcome is unknown.
    Unknown,
}

impl Stored {
    /// Returns the size of the reply.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Reply(bytes) => bytes.len(),
            Self::NotRetained | Self::Unknown => 0,
        }
    }
}

/// Shows the length of a reply, never its content.
impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply(bytes) => write!(f, "Reply({} bytes)", bytes.len()),
            Self::NotRetained => f.write_str("NotRetained"),
            Self::Unknown => f.write_str("Unknown"),
        }
    }
}

/// The result of a renewal, a completion or a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub enum Ownership {
    /// The caller owns the record, and the transition was made.
    Held,
    /// The caller does not own the record (any more); nothing changed.
    Lost,
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl Ownership {
    pub(crate) fn held_if(held: bool) -> Self {
        match held {
            true => Self::Held,
            false => Self::Lost,
        }
    }
}
