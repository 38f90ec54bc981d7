//! SQLite files, as the store opens them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rusqlite::Connection;

/// An empty folder; another disk may be asked for.
pub(crate) fn folder(name: &str) -> PathBuf {
    let disk = std::env::var("STORES_FOLDER").unwrap_or(env!("CARGO_TARGET_TMPDIR").to_owned());
    let folder = Path::new(&disk).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// With the pragmas of the store.
pub(crate) fn connect(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("a connection");
    connection
        .execute_batch(
            "PRAGMA journal_mode = wal; PRAGMA synchronous = full; PRAGMA fullfsync = on;
             PRAGMA cell_size_check = on; PRAGMA trusted_schema = off;
             PRAGMA journal_size_limit = 67108864;",
        )
        .expect("pragmas");
    connection
}
