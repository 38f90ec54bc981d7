//! Room on the disk that is kept for the outcomes of what runs (T-9).
//!
//! A file beside the database takes it up. When the disk is full the file is emptied, and the log of
//! SQLite can grow into its room. Nothing new begins until the file has its size again, so that the
//! room is not used up by operations whose outcome would not fit.

use std::{
    cell::Cell,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

/// The time between two attempts to fill it.
const REFILL_EVERY: Duration = Duration::from_secs(1);

/// The size of a write.
const BLOCK: usize = 64 << 10;

pub(super) struct Reserve {
    path: PathBuf,
    size: u64,
    next_refill: Cell<Option<Instant>>,
}

impl Reserve {
    /// Reserves room beside the database, if there is enough.
    pub(super) fn new(database: &Path, size: u64) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push("-reserve");
        Self {
            path: path.into(),
            size,
            next_refill: Cell::new(None),
        }
    }

    /// Returns whether there is no room for it. Tries to fill it up, once in a while.
    pub(super) fn is_missing(&self) -> bool {
        let is_there = |found: fs::Metadata| found.len() >= self.size;
        if self.size == 0 || fs::metadata(&self.path).is_ok_and(is_there) {
            return false;
        }
        let now = Instant::now();
        if self.next_refill.get().is_some_and(|next| now < next) {
            return true;
        }
        let filled = self.fill();
        if filled.is_err() {
            self.release();
        }
        // Any other trouble with the disk is met, and reported, by SQLite.
        filled.is_err_and(|error| {
            use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
            matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull)
        })
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    fn fill(&self) -> io::Result<()> {
        let mut file = private().truncate(true).open(&self.path)?;
        // Bytes that no file system compresses.
        let mut block = vec![0; BLOCK];
        rand::fill(&mut block[..]);
        let mut left = usize::try_from(self.size).unwrap_or(usize::MAX);
        while left > 0 {
            let length = left.min(BLOCK);
            file.write_all(&block[..length])?;
            left -= length;
        }
        Ok(())
    }

    /// Gives the room free. If that fails there is none.
    pub(super) fn release(&self) {
        let emptied = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&self.path);
        if emptied.is_ok() {
            self.next_refill.set(Some(Instant::now() + REFILL_EVERY));
        }
    }
}

/// Creates the file if it is not there, for its owner alone. SQLite gives the files that it makes
/// beside it the same permissions.
pub(super) fn create_private(path: &Path) {
    // A name that means no file to SQLite, and an error that it reports itself.
    if path != Path::new(":memory:") {
        let _ = private().open(path);
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
