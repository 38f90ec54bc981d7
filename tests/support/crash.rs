//! Processes that share a store, and what becomes of it when they are killed or stopped.
//!
//! A test makes its own children (see `process`): an ignored test calls [`child`], and
//! [`Shared::CHILD`] names it. A child tells what it is about to do and what was acknowledged.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
use tower_reprise::store::{Claim, Claimed, FencingToken, IdempotencyStore, Ownership, Stored};

use super::{
    process::{self, Process, listen, say},
    records::{RETENTION, claim_of, reply},
};

/// A store that processes share.
pub(crate) trait Shared: 'static {
    type Store: IdempotencyStore;

    /// The path of the ignored test that calls [`child`].
    const CHILD: &'static str;

    /// Opens the store at that address, in a test or in one of its children.
    fn open(address: &str) -> impl Future<Output = Self::Store> + Send;
}

/// The whole life of a child. Nothing happens if the process is none.
pub(crate) fn child<B: Shared>() {
    process::child(async |role, words| {
        let [address, salt] = words else {
            panic!("not {words:?}");
        };
        let salt = salt.parse().expect("a number");
        say("opening");
        let store = Arc::new(B::open(address).await);
        match role {
            "load" => load(store, salt).await,
            "race" => {
                say("ready");
                listen();
                let won = race_all(store, salt).await;
                say(&format!("won {won:?}"));
            }
            "stall" => stall(store, salt).await,
            other => panic!("no role {other}"),
        }
    });
}

fn start<B: Shared>(role: &str, address: &str, salt: u64) -> Process {
    Process::start(B::CHILD, role, &[address, &salt.to_string()])
}

fn claim(salt: u64, number: u64, lease: Duration) -> Claim {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&salt.to_le_bytes());
    key[24..].copy_from_slice(&number.to_le_bytes());
    Claim {
        lease,
        ..claim_of(key)
    }
}

fn text(stored: &Stored) -> String {
    match stored {
        Stored::Reply(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("no child stored {other:?}"),
    }
}

// --- killed -------------------------------------------------------------------------------------

/// Long enough that it rarely runs out while its owner lives, short enough to wait for.
const LEASE: Duration = Duration::from_secs(2);
const TASKS: usize = 8;
const MAX_ACKNOWLEDGED: u64 = 120;

/// Executes one operation after the other until somebody stops it.
async fn load<S: IdempotencyStore>(store: Arc<S>, salt: u64) {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (store, next) = (Arc::clone(&store), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = execute(&*store, salt, number).await {
                    say(&format!("error {number} {error}"));
                }
            }
        });
    }
    tasks.join_all().await;
}

async fn execute<S: IdempotencyStore>(
    store: &S,
    salt: u64,
    number: u64,
) -> Result<(), tower_reprise::store::StoreError> {
    let claim = claim(salt, number, LEASE);
    say(&format!("claiming {number}"));
    let token = match store.claim(claim.clone()).await? {
        Claimed::New(lease) => lease.token,
        Claimed::Done { stored, .. } => {
            say(&format!("done {number} {}", text(&stored)));
            return Ok(());
        }
        Claimed::InFlight { .. } => return Ok(()),
        Claimed::Mismatch { .. } => panic!("everybody asks for the same"),
    };
    say(&format!("owns {number} {token}"));
    if number % 5 == 1 {
        let _ = store.renew(claim.key, token, LEASE, RETENTION).await?;
    }
    if number % 7 == 3 {
        say(&format!("releasing {number} {token}"));
        let _ = store.release(claim.key, token).await?;
        return Ok(());
    }
    let result = format!("{}:{token}", std::process::id());
    match store
        .complete(claim.key, token, reply(&result), RETENTION)
        .await?
    {
        Ownership::Held => say(&format!("done {number} {result}")),
        Ownership::Lost => say(&format!("lost {number}")),
    }
    Ok(())
}

/// The facts about one operation that killed processes reported.
#[derive(Default)]
struct Operation {
    tokens: HashSet<u64>,
    releasing: HashSet<u64>,
    results: HashSet<String>,
}

/// Kills one child, or two of them, again and again, after a random number of acknowledgements,
/// and once in a while before the store is open. Then:
///
/// - what was acknowledged is there, as it was;
/// - no operation has two results, whoever was told;
/// - an operation without a result can be had once the lease is over, and the store knows that
///   somebody had it before.
pub(crate) async fn killed<B: Shared>(address: &str, rounds: u64) {
    let run = rand::random::<u32>();
    let mut operations = HashMap::new();
    let mut acknowledged = 0;
    for round in 0..rounds {
        let salt = u64::from(run) << 32 | round;
        let mut processes: Vec<_> = (0..=round % 2)
            .map(|_| start::<B>("load", address, salt))
            .collect();
        let mut results = HashMap::new();
        for process in &mut processes {
            let wanted = rand::random_range(0..MAX_ACKNOWLEDGED);
            let mut seen = 0;
            while seen < wanted {
                let line = process.line().await.expect("a child that works");
                seen += u64::from(line.starts_with("done") || line.starts_with("owns"));
                note(&line, salt, &mut operations, &mut results);
            }
            process.kill().await;
        }
        // Also what they had said before the end, and what the first said while the second lived.
        for mut process in processes {
            while let Some(line) = process.line().await {
                note(&line, salt, &mut operations, &mut results);
            }
        }
        acknowledged += results.len();
        let store = B::open(address).await;
        for (number, result) in results {
            let claimed = store.claim(claim(salt, number, LEASE)).await;
            let expected = Claimed::done(reply(&result));
            assert_eq!(claimed.expect("claim"), expected, "{number} of {salt}");
        }
    }
    assert!(acknowledged > 0, "nobody did anything");
    settle::<B>(address, operations).await;
}

fn note(
    line: &str,
    salt: u64,
    operations: &mut HashMap<(u64, u64), Operation>,
    results: &mut HashMap<u64, String>,
) {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |n: usize| words[n].parse::<u64>().expect("a number");
    if words[0] == "opening" {
        return;
    }
    let operation = operations.entry((salt, number(1))).or_default();
    match words[0] {
        "claiming" | "lost" => {}
        "owns" => assert!(operation.tokens.insert(number(2)), "twice: {line}"),
        "releasing" => assert!(operation.releasing.insert(number(2)), "twice: {line}"),
        "done" => {
            operation.results.insert(words[2].to_owned());
            assert_eq!(operation.results.len(), 1, "two results: {line}");
            results.insert(number(1), words[2].to_owned());
        }
        other => panic!("{other}: {line}"),
    }
}

/// Finishes what the dead left.
async fn settle<B: Shared>(address: &str, operations: HashMap<(u64, u64), Operation>) {
    let store = Arc::new(B::open(address).await);
    let mut tasks = JoinSet::new();
    let (mut crash_policy, mut free) = (0, 0);
    for ((salt, number), operation) in operations {
        let store = Arc::clone(&store);
        tasks.spawn(async move { finish(&*store, salt, number, &operation).await });
        if tasks.len() >= 200 {
            let orphaned = tasks.join_next().await.expect("a task").expect("no panic");
            crash_policy += u64::from(orphaned == Some(true));
            free += u64::from(orphaned == Some(false));
        }
    }
    for orphaned in tasks.join_all().await {
        crash_policy += u64::from(orphaned == Some(true));
        free += u64::from(orphaned == Some(false));
    }
    assert!(
        crash_policy > 0,
        "nobody was killed while it owned something"
    );
    assert!(free > 0, "nothing was released");
}

/// Whether it had been orphaned, if it had to be executed.
async fn finish<S: IdempotencyStore>(
    store: &S,
    salt: u64,
    number: u64,
    operation: &Operation,
) -> Option<bool> {
    let ask = || async {
        let claimed = store.claim(claim(salt, number, LEASE)).await;
        claimed.expect("claim")
    };
    let mut claimed = ask().await;
    if let Claimed::InFlight { remaining, .. } = claimed {
        assert!(remaining <= LEASE, "{remaining:?} of {LEASE:?}");
        tokio::time::sleep(remaining + Duration::from_millis(1)).await;
        claimed = ask().await;
    }
    let Operation {
        tokens,
        releasing,
        results,
    } = operation;
    let lease = match claimed {
        Claimed::New(lease) => lease,
        Claimed::Done { stored, .. } => {
            let result = text(&stored);
            assert!(
                results.iter().all(|known| *known == result),
                "{result}, not {results:?}"
            );
            return None;
        }
        other => panic!("wedged: {number} of {salt} is {other:?}"),
    };
    assert!(results.is_empty(), "{results:?} was lost");
    let last = tokens.iter().max().copied().unwrap_or(0);
    assert!(lease.token.get() > last, "{} after {last}", lease.token);
    // A release that was sent may have happened or not.
    if !releasing.contains(&last) && last > 0 {
        assert!(lease.orphaned, "the claim with {last} was lost");
    }
    let key = claim(salt, number, LEASE).key;
    let completed = store
        .complete(key, lease.token, reply("late"), RETENTION)
        .await;
    assert_eq!(completed.expect("complete"), Ownership::Held);
    assert_eq!(ask().await, Claimed::done(reply("late")));
    Some(lease.orphaned)
}

// --- race ---------------------------------------------------------------------------------------

const RACES: u64 = 5;
const CLAIMS: u64 = 100;

/// A hundred claims of each key in this process and as many in another, all at once: one wins.
pub(crate) async fn race<B: Shared>(address: &str) {
    let salt = rand::random();
    let store = Arc::new(B::open(address).await);
    let mut other = start::<B>("race", address, salt);
    other.expect("ready").await;
    other.tell().await;
    let mut won = race_all(store, salt).await;
    let theirs = other.expect("won").await;
    for number in theirs.trim_matches(['[', ']']).split_terminator(", ") {
        won.push(number.parse().expect("a number"));
    }
    won.sort_unstable();
    assert_eq!(won, (0..RACES).collect::<Vec<_>>());
}

/// The keys that were won here.
async fn race_all<S: IdempotencyStore>(store: Arc<S>, salt: u64) -> Vec<u64> {
    let mut claims = JoinSet::new();
    for n in 0..RACES * CLAIMS {
        let (store, number) = (Arc::clone(&store), n % RACES);
        claims.spawn(async move {
            let claim = claim(salt, number, Duration::from_secs(600));
            match store.claim(claim.clone()).await.expect("claim") {
                Claimed::New(_) => Some(number),
                Claimed::InFlight { remaining, .. } if remaining <= claim.lease => None,
                other => panic!("{other:?}"),
            }
        });
    }
    claims.join_all().await.into_iter().flatten().collect()
}

// --- stopped ------------------------------------------------------------------------------------

const SHORT: Duration = Duration::from_millis(200);

async fn stall<S: IdempotencyStore>(store: Arc<S>, salt: u64) {
    let claim = claim(salt, 0, SHORT);
    let Claimed::New(lease) = store.claim(claim.clone()).await.expect("claim") else {
        panic!("the key is new");
    };
    say(&format!("owns {}", lease.token));
    listen();
    let stale = reply("stale");
    let completed = store
        .complete(claim.key, lease.token, stale, RETENTION)
        .await;
    let renewed = store.renew(claim.key, lease.token, SHORT, RETENTION).await;
    let released = store.release(claim.key, lease.token).await;
    say(&format!(
        "got {:?} {:?} {:?}",
        completed.expect("complete"),
        renewed.expect("renew"),
        released.expect("release")
    ));
}

/// An owner is stopped past its lease, and goes on when somebody else owns the key: it is too late.
pub(crate) async fn stopped<B: Shared>(address: &str) {
    let salt = rand::random();
    let store = B::open(address).await;
    let mut owner = start::<B>("stall", address, salt);
    let token: u64 = owner.expect("owns").await.parse().expect("a number");
    owner.signal("STOP").await;
    let mut claimed = store.claim(claim(salt, 0, SHORT)).await.expect("claim");
    if let Claimed::InFlight { remaining, .. } = claimed {
        assert!(remaining <= SHORT, "{remaining:?} of {SHORT:?}");
        tokio::time::sleep(remaining + Duration::from_millis(1)).await;
        claimed = store.claim(claim(salt, 0, SHORT)).await.expect("claim");
    }
    let Claimed::New(lease) = claimed else {
        panic!("the lease is over, but the key is {claimed:?}");
    };
    assert!(lease.orphaned && lease.token > FencingToken::new(token));
    owner.signal("CONT").await;
    owner.tell().await;
    assert_eq!(owner.expect("got").await, "Lost Lost Lost");
    let key = claim(salt, 0, SHORT).key;
    let completed = store
        .complete(key, lease.token, reply("mine"), RETENTION)
        .await;
    assert_eq!(completed.expect("complete"), Ownership::Held);
    let claimed = store.claim(claim(salt, 0, SHORT)).await.expect("claim");
    assert_eq!(claimed, Claimed::done(reply("mine")));
}
