use std::{fs, time::Duration};

use tokio::process::Command;
use tower_reprise::store::{SqliteStore, StoreErrorKind};

use crate::{
    backend::{self, Backend, Site},
    disturbed, killed, order, outage, poison,
    shop::Shop,
    stopped,
    support::{
        database::{Folder, eventually},
        disk,
        process::{self, Process, say},
    },
};

struct Sqlite;

impl Backend for Sqlite {
    type Store = SqliteStore;

    const CHILD: &'static str = "on_sqlite::child";

    async fn open(address: &str) -> SqliteStore {
        SqliteStore::open(address).unwrap()
    }
}

/// A file that is removed with its folder.
struct File(Folder);

impl File {
    fn new() -> Self {
        Self(Folder::new())
    }

    fn address(&self) -> String {
        self.0
            .path()
            .join("journal.db")
            .to_str()
            .unwrap()
            .to_owned()
    }
}

#[test]
#[ignore = "the others run it, in processes of their own"]
fn child() {
    process::child(async |role, words| {
        let (site, _, more) = Site::of(words);
        match role {
            "full disk" => fills(&site, more).await,
            "read-only disk" => reads(&site, more).await,
            "breaking disk" => breaks(&site).await,
            "filling disk" => fills_under_load(&site, more).await,
            _ => backend::live::<Sqlite>(role, words).await,
        }
    });
}

#[tokio::test]
async fn j_14_w_8_t_4_every_202_ends_once_whoever_is_killed() {
    let file = File::new();
    killed::killed::<Sqlite>(&file.address(), 50).await;
}

#[tokio::test]
async fn j_5_j_7_two_processes_work_in_order() {
    let file = File::new();
    order::in_order::<Sqlite>(&file.address(), 2).await;
}

#[tokio::test]
async fn j_5_j_7_four_processes_work_in_order() {
    let file = File::new();
    order::in_order::<Sqlite>(&file.address(), 4).await;
}

#[tokio::test]
async fn j_11_j_12_what_kills_its_worker_is_given_up() {
    let file = File::new();
    poison::poison::<Sqlite>(&file.address()).await;
}

#[tokio::test]
async fn j_14_w_8_who_was_stopped_is_too_late() {
    let file = File::new();
    stopped::too_late::<Sqlite>(&file.address()).await;
}

#[tokio::test]
async fn j_14_w_8_a_worker_that_was_stopped_is_too_late() {
    let file = File::new();
    stopped::taken_over::<Sqlite>(&file.address()).await;
}

// --- disks --------------------------------------------------------------------------------------

const SECOND: Duration = Duration::from_secs(1);
/// Nobody is there, and nobody is called.
const HOOK: &str = "http://127.0.0.1:65535/";

#[tokio::test]
async fn j_2_t_4_a_full_file_is_a_503() {
    let file = File::new();
    let site = Site::new(&file.address(), HOOK, SECOND);
    let open = || {
        let store = SqliteStore::builder().max_bytes(1 << 20);
        let store = store.open(file.address()).unwrap();
        Shop::new(store, &site, "parent", false)
    };
    let shop = open();
    let accepted = outage::fill_up(&shop, "a").await;
    assert!(accepted.len() > 10, "{}", accepted.len());
    outage::assert_queued(&shop, &accepted).await;
    drop(shop);
    outage::assert_queued(&open(), &accepted).await;
}

#[tokio::test]
async fn j_2_t_4_a_file_that_is_gone_is_a_503() {
    let file = File::new();
    let site = Site::new(&file.address(), HOOK, SECOND);
    let shop = Shop::new(Sqlite::open(&file.address()).await, &site, "parent", true);
    shop.queue("1", "order").await;
    for entry in fs::read_dir(file.0.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    outage::refuses(&shop).await;
    // Nor if there is another one in its place.
    let other = Shop::new(Sqlite::open(&file.address()).await, &site, "parent", true);
    outage::refuses(&shop).await;
    other.queue("1", "order").await;
}

/// A disk in a file, that can be broken: the kernel takes it for damaged then, and from that moment
/// on nothing can be written to it, not even to files that are open.
#[cfg(target_os = "linux")]
const BREAKABLE: &str = "PATH=$PATH:/usr/sbin:/sbin && truncate -s 32m \"$0/disk\" \
    && mkfs.ext4 -q \"$0/disk\" && mount -o loop,errors=remount-ro \"$0/disk\" \"$0\" \
    && cd \"/sys/fs/ext4/$(basename \"$(findmnt -no SOURCE \"$0\")\")\" \
    && test -w trigger_fs_error";

/// A process with a small disk of its own, which is gone with it; `None` if that is not allowed.
#[cfg(target_os = "linux")]
fn with_a_disk(role: &str, mount: &str) -> Option<(Site, Folder, Process)> {
    let folder = Folder::new();
    let path = folder.path().to_str().unwrap();
    let site = Site::new(&format!("{path}/journal.db"), HOOK, SECOND);
    let process = disk::with_disk(role, mount, &folder, |command| {
        site.start_by::<Sqlite>(command, role, role, path)
    })?;
    Some((site, folder, process))
}

/// A disk that is really full.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn j_2_t_4_a_full_disk_is_a_503() {
    if let Some((_site, _folder, mut child)) = with_a_disk("full disk", &disk::in_memory(24)) {
        let accepted: usize = child.expect("accepted").await.parse().unwrap();
        assert!(accepted > 10, "{accepted}");
    }
}

/// The process on that disk. There is a file that can be removed.
async fn fills(site: &Site, disk: &str) {
    let ballast = format!("{disk}/ballast");
    fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let open = async || Shop::new(Sqlite::open(&site.address).await, site, "fills", false);
    let shop = open().await;
    let mut accepted = outage::fill_up(&shop, "a").await;
    outage::assert_queued(&shop, &accepted).await;
    fs::remove_file(ballast).unwrap();
    accepted.push(shop.queue("again", "order").await);
    // The entries are still there when the store is opened again.
    drop(shop);
    let shop = open().await;
    outage::assert_queued(&shop, &accepted).await;
    accepted.extend(outage::fill_up(&shop, "b").await);
    outage::assert_queued(&shop, &accepted).await;
    say(&format!("accepted {}", accepted.len()));
}

/// Nobody gets as far as accepting anything.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn j_2_t_4_a_disk_that_can_only_be_read_is_refused_at_once() {
    if let Some((_site, _folder, mut child)) = with_a_disk("read-only disk", &disk::in_memory(24)) {
        let error = child.expect("refused").await;
        assert!(error.contains("journal.db"), "{error}");
    }
}

/// The process on that disk.
async fn reads(site: &Site, disk: &str) {
    let shop = Shop::new(Sqlite::open(&site.address).await, site, "reads", false);
    shop.queue("1", "order").await;
    drop(shop);
    // As soon as the store has closed its files.
    eventually("the disk can only be read", async || {
        let remount = ["-o", "remount,ro", disk];
        let remounted = Command::new("mount").args(remount).output().await;
        remounted.unwrap().status.success()
    })
    .await;
    let error = SqliteStore::open(&site.address).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    say(&format!("refused {error}"));
}

/// J-2: nor does who is serving while it happens.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn j_2_t_4_a_disk_that_can_only_be_read_from_now_on_is_a_503() {
    if let Some((_site, _folder, mut child)) = with_a_disk("breaking disk", BREAKABLE) {
        assert_eq!(child.expect("refused").await, "and all is there");
    }
}

/// The process on that disk. It stands where the disk can be broken.
async fn breaks(site: &Site) {
    let shop = Shop::new(Sqlite::open(&site.address).await, site, "breaks", true);
    let mut accepted = Vec::new();
    for n in 0..5 {
        accepted.push(shop.queue(&format!("{n}"), "order").await);
    }
    fs::write("trigger_fs_error", "1").unwrap();
    outage::refuses(&shop).await;
    outage::assert_queued(&shop, &accepted).await;
    say("refused and all is there");
}

/// T-9: new requests are refused while the disk is full, and what runs comes to its end.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn j_14_t_9_nothing_is_lost_or_done_twice_by_a_full_disk() {
    if let Some((_site, _folder, mut child)) = with_a_disk("filling disk", &disk::in_memory(32)) {
        assert_eq!(child.expect("done").await, "once each");
    }
}

/// The process on that disk.
async fn fills_under_load(site: &Site, disk: &str) {
    let ballast = format!("{disk}/ballast");
    disturbed::disturbed::<Sqlite>(&site.address, async || {
        for _ in 0..3 {
            let mut file = fs::File::create(&ballast).unwrap();
            while std::io::Write::write_all(&mut file, &[7; 4096]).is_ok() {}
            tokio::time::sleep(SECOND / 2).await;
            fs::remove_file(&ballast).unwrap();
            tokio::time::sleep(SECOND / 2).await;
        }
    })
    .await;
    say("done once each");
}
