use std::time::{Duration, SystemTime};

/// A moment on a store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates a timestamp from microseconds since 1970.
    #[must_use]
    pub fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since 1970.
    #[must_use]
    pub fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the moment that much later, at most one in the year 2255 that every store can hold.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        const FOREVER: u64 = (1 << 53) - 1;
        let micros = u64::try_from(duration.as_micros()).unwrap_or(FOREVER);
        Self(self.0.saturating_add(micros).min(FOREVER))
    }

    /// Returns the time since `earlier`; zero if that is later.
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
