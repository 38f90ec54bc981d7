use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

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
pub struct LeaseToken(u64);

impl LeaseToken {
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
