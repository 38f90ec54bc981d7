//! T-9: a file or a disk without room takes no new operations, and the outcomes of those that run.

use std::{fs, io::Write, time::Duration};

use tower_reprise::store::{
    Claimed, FencingToken, IdempotencyStore, Ownership, SqliteStore, StoreErrorKind, Stored,
    journal::{Journal, LeaseRequest, NewEntry, Settlement, Status},
};

use super::{Folder, Sqlite, reply};
use crate::support::{
    database,
    process::{self, Process, say},
    records::{LEASE, RETENTION, claim, complete, own},
};

const RUNNING: u64 = 20;
const KEEP: Duration = Duration::from_secs(3600);

/// Operations that run, an entry that is leased, and then no room for anything else.
async fn running(store: &SqliteStore) -> (Vec<FencingToken>, tower_reprise::store::journal::Entry) {
    let mut tokens = Vec::new();
    for key in 0..RUNNING {
        tokens.push(own(store, claim(key)).await);
    }
    store
        .enqueue(NewEntry::new("mails", "hello"))
        .await
        .unwrap();
    let request = LeaseRequest::new("mails", "", 1, LEASE);
    let leased = store.lease(request).await.unwrap().remove(0);
    (tokens, leased)
}

/// Nothing new is taken, and everything that runs comes to its end.
async fn comes_to_its_end(
    store: &SqliteStore,
    tokens: &[FencingToken],
    leased: &tower_reprise::store::journal::Entry,
) {
    let error = store.claim(claim(7777)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    for (key, token) in (0..).zip(tokens) {
        let renewed = store.renew(claim(key).key, *token, LEASE, RETENTION).await;
        assert_eq!(renewed.unwrap(), Ownership::Held, "{key}");
    }
    for (key, token) in (0..).zip(tokens) {
        let stored = match key % 4 {
            0 => Stored::NotRetained,
            1 => Stored::Unknown,
            _ => reply(5_000),
        };
        complete(store, key, *token, stored.clone()).await;
        let replayed = store.claim(claim(key)).await.unwrap();
        assert_eq!(replayed, Claimed::done(stored), "{key}");
    }
    let done = Settlement::completed("sent", KEEP).followed_by([NewEntry::new("hooks", "done")]);
    let settled = store.settle(leased.id, leased.lease_token, done).await;
    assert_eq!(settled.unwrap(), Ownership::Held);
    let found = store.find(leased.id).await.unwrap().unwrap();
    assert_eq!(found.status, Status::Completed);
}

#[tokio::test]
async fn t_9_a_full_file_takes_the_outcomes_of_what_runs() {
    let sqlite = Sqlite::new();
    let store = sqlite.time.store().max_bytes(1 << 20);
    let store = store.open(sqlite.folder.file()).unwrap();
    let (tokens, leased) = running(&store).await;
    // Others come to their end until nothing new is taken.
    for key in 1000.. {
        let Ok(Claimed::New(lease)) = store.claim(claim(key)).await else {
            break;
        };
        complete(&store, key, lease.token, reply(10_000)).await;
    }
    comes_to_its_end(&store, &tokens, &leased).await;
}

/// A reply for which even the reserve is too small is not retained: its operation is not executed
/// again for that.
#[tokio::test]
async fn t_9_i_18_a_reply_that_does_not_fit_is_not_retained() {
    let sqlite = Sqlite::new();
    let store = sqlite.time.store().max_bytes(1 << 20);
    let store = store.open(sqlite.folder.file()).unwrap();
    let token = own(&store, claim(1)).await;
    complete(&store, 1, token, reply(2 << 20)).await;
    let replayed = store.claim(claim(1)).await.unwrap();
    assert_eq!(replayed, Claimed::done(Stored::NotRetained));
}

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn child() {
    process::child(async |_, words| fills(words[0]).await);
}

/// A disk that is really full.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn t_9_a_full_disk_takes_the_outcomes_of_what_runs() {
    use crate::support::disk;

    let folder = database::Folder::new();
    let path = folder.path().to_str().unwrap();
    let child = disk::with_disk("a full disk", &disk::in_memory(16), &folder, |command| {
        Process::run(command, "sqlite::full::child", "full", &[path])
    });
    if let Some(mut child) = child {
        assert_eq!(child.expect("and").await, "all came to its end");
    }
}

/// The process on that disk.
async fn fills(disk: &str) {
    let file = format!("{disk}/idempotency.db");
    let store = SqliteStore::open(&file).unwrap();
    let (tokens, leased) = running(&store).await;
    let ballast = format!("{disk}/ballast");
    let mut filling = fs::File::create(&ballast).unwrap();
    while filling.write_all(&[7; 512]).is_ok() {}
    drop(filling);
    // The log has room left in its file, perhaps: claims use it up.
    for key in 1000.. {
        if store.claim(claim(key)).await.is_err() {
            break;
        }
    }
    comes_to_its_end(&store, &tokens, &leased).await;
    // Still nothing new, until there is room again for the reserve.
    let error = store.claim(claim(7777)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    assert!(error.to_string().contains("reserve"), "{error}");
    fs::remove_file(ballast).unwrap();
    database::eventually("it takes new ones", async || {
        store.claim(claim(7777)).await.is_ok()
    })
    .await;
    say("and all came to its end");
}

/// Files that nobody else can read.
#[cfg(unix)]
#[tokio::test]
async fn s_2_files_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new();
    let store = SqliteStore::open(folder.file()).unwrap();
    own(&store, claim(1)).await;
    let mut files = 0;
    for file in fs::read_dir(&folder.0).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.path().display());
        files += 1;
    }
    assert!(files >= 3, "{files}");
}

/// A file that can only be read, in a folder in which others can be made.
#[cfg(unix)]
#[tokio::test]
async fn t_4_a_read_only_file_is_refused() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};

    let folder = database::Folder::new();
    let file = folder.path().join("idempotency.db");
    drop(SqliteStore::open(&file).unwrap());
    let mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(folder.path(), 0o777);
    for entry in fs::read_dir(folder.path()).unwrap() {
        mode(&entry.unwrap().path(), 0o444);
    }
    // Permissions mean nothing to root.
    let binary = folder.path().join("binary");
    fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    mode(&binary, 0o755);
    let mut command = std::process::Command::new(binary);
    command
        .args([
            "sqlite::full::child_that_may_only_read",
            "--exact",
            "--ignored",
        ])
        .env("REPRISE_READ_ONLY", &file);
    if crate::support::postgres::is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn child_that_may_only_read() {
    let Some(path) = std::env::var_os("REPRISE_READ_ONLY") else {
        return;
    };
    let error = SqliteStore::open(path).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("can only be read"), "{error}");
}
