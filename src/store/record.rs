use crate::http::digest::Digest;
use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

/// The name of a record: a SHA-256 over everything that makes an operation the same operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey([u8; 32]);

impl RecordKey {
    /// A key of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<Digest> for RecordKey {
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

/// What was asked for: a SHA-256 over the request, so that a key can't be used for another one.
/// It is not shown in logs, since the hash of a short body can be guessed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// A fingerprint of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The fingerprint's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<Digest> for Fingerprint {
    fn from(digest: Digest) -> Self {
        Self(digest.finish())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(..)")
    }
}

/// Who claims: drawn at random for each execution, the same when a claim is repeated because its
/// answer got lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// An id of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// A random id.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random::<u128>().to_le_bytes())
    }

    /// The id's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// A few bytes that a claim leaves on its record, for who finds the key taken: what the request that
/// took it is called, for one. They are stored in the clear.
///
/// ```
/// use tower_reprise::store::Note;
///
/// let note = Note::new("req_001").unwrap();
/// assert_eq!(note.as_bytes(), b"req_001");
/// assert_eq!(Note::new([0; 256]), None); // too long
/// assert_eq!(Note::new(""), Some(Note::NONE));
/// ```
// Thin, and nothing at all for most, so that records and claims without one are no larger.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Note(Option<Arc<Box<[u8]>>>);

impl Note {
    /// Nothing.
    pub const NONE: Self = Self(None);

    /// The longest, in bytes.
    pub const LONGEST: usize = 255;

    /// These bytes; `None` if there are too many.
    #[must_use]
    pub fn new(bytes: impl AsRef<[u8]>) -> Option<Self> {
        match bytes.as_ref() {
            [] => Some(Self::NONE),
            bytes if bytes.len() <= Self::LONGEST => Some(Self(Some(Arc::new(bytes.into())))),
            _ => None,
        }
    }

    /// The note's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_deref().map_or(&[], |bytes| bytes)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// Shows how long it is, never what is in it.
impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Note({} bytes)", self.as_bytes().len())
    }
}

/// Tells an owner from those before it: each new owner of a key gets a greater one. What a
/// handler writes elsewhere can be guarded with it: refuse what comes with a smaller token than
/// the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token with that number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The token's number: at most 2⁵³, so that databases and scripting languages can hold it.
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

/// What to do with an operation whose owner vanished before it said how the operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CrashPolicy {
    /// Execute it again: right where doing it twice is harmless, or where the handler guards what
    /// it writes with the [`FencingToken`].
    Reexecute,
    /// Answer that the outcome is unknown, until a person has looked at it or the record is past
    /// its time: right where doing it twice is worse than not at all.
    Unknown,
}

/// The wish to be the one that executes an operation.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Which operation.
    pub key: RecordKey,
    /// What was asked for.
    pub fingerprint: Fingerprint,
    /// Who asks.
    pub id: ClaimId,
    /// How long the claim holds unless it is renewed.
    pub lease: Duration,
    /// How long the record is kept after that, if nobody says how the operation ended.
    pub retention: Duration,
    /// What to do if the last owner vanished.
    pub orphans: CrashPolicy,
    /// What others are told who find the key taken.
    pub note: Note,
}

/// What became of a [`Claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The operation is yours to execute.
    New(Lease),
    /// Somebody else executes it.
    InFlight {
        /// How long their lease holds unless they renew it.
        remaining: Duration,
        /// What they left.
        note: Note,
    },
    /// It is over.
    Done {
        /// What is kept of it.
        stored: Stored,
        /// What its last owner left.
        note: Note,
    },
    /// The key was used for something else.
    Mismatch {
        /// What was asked for then.
        fingerprint: Fingerprint,
        /// What its last owner left.
        note: Note,
    },
}

impl Claimed {
    /// It is over, and nobody left a note.
    #[must_use]
    pub fn done(stored: Stored) -> Self {
        let note = Note::NONE;
        Self::Done { stored, note }
    }
}

/// The right to execute an operation, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Shows that the lease is yours.
    pub token: FencingToken,
    /// Whether an owner before you vanished, so that the operation may have been executed already.
    pub orphaned: bool,
}

/// What is kept of an operation that is over.
#[derive(Clone, PartialEq, Eq)]
pub enum Stored {
    /// Its reply, as bytes that mean nothing to a store.
    Reply(Bytes),
    /// That it was executed. The reply was too large to keep.
    NotRetained,
    /// That nobody knows how it ended.
    Unknown,
}

/// Shows how long a reply is, never what is in it.
impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply(bytes) => write!(f, "Reply({} bytes)", bytes.len()),
            Self::NotRetained => f.write_str("NotRetained"),
            Self::Unknown => f.write_str("Unknown"),
        }
    }
}

/// What became of a renewal, a completion or a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub enum Ownership {
    /// You were the owner, and the transition was made.
    Held,
    /// You are not the owner, or no more: nothing was changed.
    Lost,
}
