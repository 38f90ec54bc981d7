use std::{
    borrow::Cow,
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use bytes::Bytes;

use crate::store::{Fingerprint, RecordKey};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A moment on a store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// That many microseconds after the start of 1970.
    #[must_use]
    pub fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the start of 1970.
    #[must_use]
    pub fn as_micros(self) -> u64 {
        self.0
    }

    /// That much later. What is too far to be represented is as good as forever.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        /// The year 2255, which every store can hold.
        const FOREVER: u64 = (1 << 53) - 1;
        let micros = u64::try_from(duration.as_micros()).unwrap_or(FOREVER);
        Self(self.0.saturating_add(micros).min(FOREVER))
    }

    /// How much later than `earlier` this is; zero if it is not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        Self(0).after(since.unwrap_or_default())
    }
}

/// The name of an entry: sixteen random bytes, that nobody can guess.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId([u8; 16]);

impl EntryId {
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

/// Thirty-two hexadecimal digits.
impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntryId({self})")
    }
}

/// An id was not thirty-two hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidEntryId;

impl fmt::Display for InvalidEntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry's id is 32 lower-case hexadecimal digits")
    }
}

impl std::error::Error for InvalidEntryId {}

impl FromStr for EntryId {
    type Err = InvalidEntryId;

    fn from_str(text: &str) -> Result<Self, InvalidEntryId> {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match u128::from_str_radix(text, 16) {
            Ok(number) if digits && text.len() == 32 => Ok(Self(number.to_be_bytes())),
            _ => Err(InvalidEntryId),
        }
    }
}

/// Tells a lease of an entry from those before it. At most 2⁵³.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Turn(u64);

impl Turn {
    /// The turn with that number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The turn's number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// What goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Priority {
    /// What a person triggered, even while a worker holds back all else.
    Urgent,
    /// Before what is normal.
    High,
    /// Unless something else is said.
    #[default]
    Normal,
    /// After all else.
    Low,
}

impl Priority {
    /// All of them, the most urgent first.
    pub const ALL: [Self; 4] = [Self::Urgent, Self::High, Self::Normal, Self::Low];

    /// A stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// Where an entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// It waits for a worker, or for its time.
    Queued,
    /// A worker has it, or had it and vanished.
    Processing,
    /// It was done.
    Completed,
    /// It could not be done: a dead letter.
    Failed,
    /// It was not done in time.
    Expired,
    /// Somebody called it off before it was started.
    Cancelled,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Queued,
        Self::Processing,
        Self::Completed,
        Self::Failed,
        Self::Expired,
        Self::Cancelled,
    ];

    /// A stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more will happen by itself.
    #[must_use]
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::Processing)
    }

    /// As stores keep it.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }
}

/// What makes an entry the same as another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dedup {
    /// Which operation it is.
    pub key: RecordKey,
    /// What was asked for.
    pub fingerprint: Fingerprint,
}

/// Something to be done.
#[derive(Clone)]
#[must_use]
pub struct NewEntry {
    /// Its name, drawn by who enqueues it so that enqueuing can be repeated.
    pub id: EntryId,
    /// Which queue.
    pub queue: Cow<'static, str>,
    /// Which part of the queue: one that is slow does not keep the others waiting.
    pub lane: String,
    /// Whose it is.
    pub owner: String,
    /// What it is, for lists.
    pub label: String,
    /// What makes it the same as another one, if it can be.
    pub dedup: Option<Dedup>,
    /// What goes first.
    pub priority: Priority,
    /// How long to wait before the first attempt; at most the time until it is past its time.
    pub delay: Duration,
    /// How long it may wait in all.
    pub ttl: Duration,
    /// What to do, as bytes that mean nothing to a store.
    pub payload: Bytes,
}

impl NewEntry {
    /// An entry with a random id, in the one lane that has no name, due now and for a day.
    pub fn new(queue: impl Into<Cow<'static, str>>, payload: impl Into<Bytes>) -> Self {
        Self {
            id: EntryId::random(),
            queue: queue.into(),
            lane: String::new(),
            owner: String::new(),
            label: String::new(),
            dedup: None,
            priority: Priority::Normal,
            delay: Duration::ZERO,
            ttl: DAY,
            payload: payload.into(),
        }
    }
}

/// Shows how long the payload is, never what is in it.
impl fmt::Debug for NewEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewEntry")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("lane", &self.lane)
            .field("label", &self.label)
            .field("priority", &self.priority)
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// What became of a [`NewEntry`]. The entries are without payload, result and history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueued {
    /// It is queued, durably.
    New(Entry),
    /// It, or the same under another id, was there before.
    Existing(Entry),
    /// Its key was used for something else.
    Mismatch,
}

/// An entry as it stands.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub id: EntryId,
    /// Which queue.
    pub queue: String,
    /// Which part of it.
    pub lane: String,
    /// Whose it is.
    pub owner: String,
    /// What it is.
    pub label: String,
    /// What goes first.
    pub priority: Priority,
    /// Where it stands.
    pub status: Status,
    /// In which sequence entries came; it grows within a journal.
    pub sequence: u64,
    /// Its latest lease; zero if there was none.
    pub turn: Turn,
    /// How often it was attempted, since it was queued or redriven.
    pub attempts: u32,
    /// When it was enqueued.
    pub queued_at: Timestamp,
    /// When it may be leased.
    pub due_at: Timestamp,
    /// From when on it must not be started.
    pub expires_at: Timestamp,
    /// When it came to where it stands: for an entry that was just leased, the time of the lease.
    pub changed_at: Timestamp,
    /// What to do.
    pub payload: Bytes,
    /// What came of it, as bytes that mean nothing to a store.
    pub result: Option<Bytes>,
    /// What happened to it so far.
    pub history: Vec<Attempted>,
}

impl Entry {
    /// Whether an entry that was just leased is past its time: it was leased to be told so.
    #[must_use]
    pub fn is_past(&self) -> bool {
        self.expires_at <= self.changed_at
    }
}

/// Shows how long payload and result are, never what is in them.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("lane", &self.lane)
            .field("label", &self.label)
            .field("priority", &self.priority)
            .field("status", &self.status)
            .field("sequence", &self.sequence)
            .field("turn", &self.turn)
            .field("attempts", &self.attempts)
            .field("payload", &self.payload.len())
            .field("result", &self.result.as_ref().map(Bytes::len))
            .field("history", &self.history)
            .finish_non_exhaustive()
    }
}

/// What is known of one attempt, or of one intervention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempted {
    /// When it ended, on the store's clock.
    pub at: Timestamp,
    /// How it ended.
    pub note: String,
}

impl Attempted {
    /// The longest note that is kept, in bytes.
    const MAX_NOTE: usize = 512;

    /// As much of a note as is kept.
    pub(crate) fn cut(note: &str) -> &str {
        let mut end = note.len().min(Self::MAX_NOTE);
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        &note[..end]
    }
}

/// The wish to work on something.
#[derive(Debug, Clone)]
#[must_use]
pub struct Want {
    /// Of which queue.
    pub queue: Cow<'static, str>,
    /// Of which lane.
    pub lane: String,
    /// At most so many.
    pub limit: u32,
    /// Only what is at least this urgent.
    pub through: Priority,
    /// How long the lease holds unless it is extended.
    pub lease: Duration,
}

impl Want {
    /// Entries of every priority.
    pub fn new(
        queue: impl Into<Cow<'static, str>>,
        lane: impl Into<String>,
        limit: u32,
        lease: Duration,
    ) -> Self {
        Self {
            queue: queue.into(),
            lane: lane.into(),
            limit,
            through: Priority::Low,
            lease,
        }
    }
}

/// How a turn ended.
#[derive(Debug, Clone)]
#[must_use]
pub struct Settle {
    /// How.
    pub outcome: Outcome,
    /// What to add to the history; nothing if empty. At most 512 bytes are kept.
    pub note: String,
    /// What came of it, if that is known.
    pub result: Option<Bytes>,
    /// What follows from it: queued together with the outcome, or not at all.
    pub outbox: Vec<NewEntry>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// [`Status::Completed`], kept for that long.
    Completed(Duration),
    /// [`Status::Failed`], kept for that long.
    Failed(Duration),
    /// [`Status::Expired`], kept for that long.
    Expired(Duration),
    /// [`Status::Queued`] again, due after that long, at most until it is past its time.
    Retry(Duration),
    /// The same, without having been started: the attempt does not count.
    Release(Duration),
}

impl Settle {
    fn with(outcome: Outcome, note: impl Into<String>) -> Self {
        Self {
            outcome,
            note: note.into(),
            result: None,
            outbox: Vec::new(),
        }
    }

    /// It was done, and what came of it is kept for a while.
    pub fn completed(result: impl Into<Bytes>, keep: Duration) -> Self {
        Self {
            result: Some(result.into()),
            ..Self::with(Outcome::Completed(keep), "completed")
        }
    }

    /// It can't be done: it is a dead letter, to be kept for a while.
    pub fn failed(reason: impl Into<String>, keep: Duration) -> Self {
        Self::with(Outcome::Failed(keep), reason)
    }

    /// It was not done in time.
    pub fn expired(keep: Duration) -> Self {
        Self::with(Outcome::Expired(keep), "expired")
    }

    /// It failed, and is to be attempted again after a while.
    pub fn retry(reason: impl Into<String>, delay: Duration) -> Self {
        Self::with(Outcome::Retry(delay), reason)
    }

    /// It was not started, and somebody else may.
    pub fn release(delay: Duration) -> Self {
        Self::with(Outcome::Release(delay), "")
    }

    /// With what is to be done next, committed together with the outcome.
    pub fn followed_by(mut self, outbox: impl IntoIterator<Item = NewEntry>) -> Self {
        self.outbox.extend(outbox);
        self
    }
}

/// What people do to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steer {
    /// Calls off what is [`Status::Queued`], to be kept for that long.
    Cancel(Duration),
    /// Makes what is [`Status::Queued`] due now, and [`Priority::Urgent`].
    Trigger,
    /// Queues what is [`Status::Failed`] anew, with no attempts made and that long to live.
    Redrive(Duration),
}

/// What became of a [`Steer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steered {
    /// Whether it changed anything: the entry was in a state for that.
    pub applied: bool,
    /// The entry as it stands now, without payload, result and history.
    pub entry: Entry,
}

/// Which entries to list.
#[derive(Debug, Clone)]
#[must_use]
pub struct Query {
    /// Of which queue.
    pub queue: Cow<'static, str>,
    /// Only of this owner.
    pub owner: Option<String>,
    /// Only in this state.
    pub status: Option<Status>,
    /// Only of this label.
    pub label: Option<String>,
    /// Only those that came after the one of this sequence.
    pub after: u64,
    /// At most so many.
    pub limit: u32,
}

impl Query {
    /// The first entries of a queue.
    pub fn new(queue: impl Into<Cow<'static, str>>, limit: u32) -> Self {
        Self {
            queue: queue.into(),
            owner: None,
            status: None,
            label: None,
            after: 0,
            limit,
        }
    }
}

/// How many entries of a queue there are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// By [`Status::ALL`].
    pub by_status: [u64; 6],
    /// How long the oldest that is queued has been there.
    pub oldest: Option<Duration>,
}

impl Counts {
    /// How many there are in that state.
    #[must_use]
    pub fn of(&self, status: Status) -> u64 {
        self.by_status[usize::from(status.number())]
    }
}
