//! Disks that are full, gone, broken or read-only.

use std::{fs, path::Path, time::Duration};

use tokio::task::JoinSet;
use tower_reprise::{
    error::ConfigError,
    store::{Claimed, IdempotencyStore, Ownership, SqliteStore, StoreErrorKind},
};

use super::{Folder, Sqlite, reply, schema::until_rows_are};
use crate::support::records::{LEASE, RETENTION, claim, complete, own};

#[tokio::test]
async fn t_4_a_full_file_refuses_and_still_answers() {
    let sqlite = Sqlite::new();
    let store = sqlite.time.store().max_bytes(1 << 20);
    let store = store.open(sqlite.folder.file()).unwrap();
    let mut last = 0;
    let error = loop {
        let token = match store.claim(claim(last)).await {
            Ok(Claimed::New(lease)) => lease.token,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        };
        let completed = store.complete(claim(last).key, token, reply(10_000), RETENTION);
        match completed.await {
            Ok(ownership) => assert_eq!(ownership, Ownership::Held),
            Err(error) => break error,
        }
        last += 1;
    };
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert!(last > 50);
    for key in 0..last {
        let claimed = store.claim(claim(key)).await.unwrap();
        assert_eq!(claimed, Claimed::done(reply(10_000)), "{key}");
    }
    // Expired records make room again.
    sqlite.time.pass(RETENTION + LEASE);
    drop(store);
    let store = sqlite.time.store().max_bytes(1 << 20);
    let store = store.open(sqlite.folder.file()).unwrap();
    until_rows_are(0, &sqlite.folder).await;
    let token = own(&store, claim(1)).await;
    complete(&store, 1, token, reply(10_000)).await;
}

#[tokio::test]
async fn t_4_a_file_that_is_gone_refuses() {
    for replaced in [false, true] {
        let sqlite = Sqlite::new();
        let store = sqlite.open();
        let token = own(&store, claim(1)).await;
        fs::remove_dir_all(&sqlite.folder.0).unwrap();
        fs::create_dir(&sqlite.folder.0).unwrap();
        if replaced {
            drop(sqlite.open());
        }
        for error in [
            store.claim(claim(1)).await.unwrap_err(),
            store.claim(claim(2)).await.unwrap_err(),
            store.release(claim(1).key, token).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
            assert!(!error.may_have_happened());
            let message = error.to_string();
            assert!(message.contains("moved or deleted"), "{message}");
        }
        own(&sqlite.open(), claim(1)).await;
    }
}

#[test]
fn t_4_a_file_that_is_none_is_refused() {
    let folder = Folder::new();
    fs::write(folder.file(), vec![b'x'; 10_000]).unwrap();
    let error = SqliteStore::open(folder.file()).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.to_string().contains("idempotency.db"), "{error}");
}

#[test]
fn t_4_a_file_that_can_t_be_made_is_refused() {
    let folder = Folder::new();
    // Not even root can create files there.
    for path in [
        Path::new("/proc/idempotency.db"),
        &folder.0,
        &folder.0.join("no/such.db"),
    ] {
        let error = SqliteStore::open(path).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        let message = error.to_string();
        assert!(message.contains(path.to_str().unwrap()), "{message}");
    }
    let error = SqliteStore::open(":memory:").unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("journal mode is memory, allowed: wal"),
        "{message}"
    );
}

#[cfg(unix)]
#[test]
fn t_4_a_file_that_can_only_be_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new();
    drop(SqliteStore::open(folder.file()).unwrap());
    let permit = |mode| {
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o111 | mode)).unwrap();
        let files = fs::read_dir(&folder.0).into_iter().flatten().flatten();
        files.for_each(|file| {
            let _ = fs::set_permissions(file.path(), fs::Permissions::from_mode(mode));
        });
    };
    permit(0o444);
    // To some users permissions mean nothing.
    if fs::write(folder.0.join("new"), "").is_err() {
        let error = SqliteStore::open(folder.file()).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    }
    permit(0o644);
}

/// In a process that may write no file beyond a size, so that a commit fails halfway.
#[cfg(unix)]
#[test]
fn t_4_a_commit_that_fails_on_disk_is_in_doubt() {
    let folder = Folder::new();
    let output = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 4000; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args([
            "sqlite::disks::child_with_little_room",
            "--exact",
            "--ignored",
        ])
        .env("REPRISE_LITTLE_ROOM", folder.file())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    // An acknowledged record is there for other processes too, and the other keys are free to be
    // claimed.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(folder.file()).unwrap();
        let claimed = store.claim(claim(0)).await.unwrap();
        assert_eq!(claimed, Claimed::done(reply(100_000)));
        own(&store, claim(u64::MAX)).await;
    });
}

#[tokio::test]
#[ignore = "another test runs it, in a process of its own"]
async fn child_with_little_room() {
    let Some(path) = std::env::var_os("REPRISE_LITTLE_ROOM") else {
        return;
    };
    let store = SqliteStore::builder().reserve(0);
    let store = store.open(path).unwrap();
    // Claimed together while there is room, so that it is a completion that fails.
    let mut claims = JoinSet::new();
    for key in 0..50 {
        let store = store.clone();
        claims.spawn(async move { (key, own(&store, claim(key)).await) });
    }
    let mut owned = claims.join_all().await;
    owned.sort();
    let mut key = 0;
    let error = loop {
        let token = owned[usize::try_from(key).unwrap()].1;
        let completed = store.complete(claim(key).key, token, reply(100_000), RETENTION);
        match completed.await {
            Ok(ownership) => assert_eq!(ownership, Ownership::Held),
            Err(error) => break error,
        }
        key += 1;
    };
    assert!(key > 2);
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.may_have_happened(), "{error}");
    for key in 0..key {
        let claimed = store.claim(claim(key)).await.unwrap();
        assert_eq!(claimed, Claimed::done(reply(100_000)), "{key}");
    }
    let claimed = store.claim(claim(key)).await.unwrap();
    assert!(matches!(claimed, Claimed::InFlight { .. }), "{claimed:?}");
}

#[test]
fn settings_out_of_range_are_named() {
    let minute = Duration::from_secs(61);
    let builder = SqliteStore::builder;
    for (builder, message) in [
        (
            builder().busy_timeout(minute),
            "sqlite.busy_timeout is 61s, allowed: at most 60s",
        ),
        (
            builder().queue(0),
            "sqlite.queue is 0, allowed: 1 to 1000000",
        ),
        (
            builder().batch(20_000),
            "sqlite.batch is 20000, allowed: 1 to 10000",
        ),
        (
            builder().max_bytes(9),
            "sqlite.max_bytes is 9, allowed: at least 1048576",
        ),
    ] {
        let error = builder.open("never-opened.db").unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(
            source.downcast_ref::<ConfigError>().unwrap().to_string(),
            message
        );
        assert!(error.to_string().contains(message), "{error}");
    }
}
