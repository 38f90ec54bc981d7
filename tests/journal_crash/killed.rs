//! J-14: processes that accept and processes that replay are killed, again and again.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
use tower_reprise::{delivery::replay::ReplayId, store::journal::Status};

use crate::{
    audit,
    backend::{Backend, Site},
    receiver::Receiver,
    shop::Shop,
    support::{
        database::eventually,
        number,
        process::{Process, say},
    },
};

/// The number of requests that a process sends at a time.
pub(crate) const SENDERS: usize = 4;
/// The number of requests that a process sends in all.
const REQUESTS: u64 = 40;
/// The number of requests that the process before it may have sent, and that are sent again.
const OVERLAP: u64 = 10;
/// Rarely runs out while its owner lives.
const LEASE: Duration = Duration::from_secs(2);

/// Returns the body of the request of that number.
pub(crate) fn body(number: u64) -> &'static str {
    match number {
        n if n % 11 == 4 => "refuse",
        n if n % 13 == 5 => "flaky",
        _ => "order",
    }
}

/// Those that may be too late. The same key is queued anew after that, and so is sent only once.
pub(crate) fn ttl(number: u64) -> Option<u64> {
    (number % 19 == 7).then_some(1)
}

/// Those that are called off as soon as they are queued.
fn is_cancelled(number: u64) -> bool {
    number % 17 == 3
}

/// The process that accepts: sends so many requests through the layers, and tells what it was told.
pub(crate) async fn accept<B: Backend>(site: &Site, life: &str, more: &str) {
    let start: u64 = more.parse().unwrap();
    let store = B::open(&site.address).await;
    let maintenance = start.is_multiple_of(2);
    let shop = Arc::new(Shop::new(store, site, life, !maintenance));
    if maintenance {
        shop.replay.maintenance().on(None);
    }
    let next = Arc::new(AtomicU64::new(start.saturating_sub(OVERLAP)));
    let mut senders = JoinSet::new();
    for _ in 0..SENDERS {
        let (shop, next) = (Arc::clone(&shop), Arc::clone(&next));
        senders.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= start + REQUESTS {
                    return;
                }
                let once = ttl(number).is_some() || is_cancelled(number);
                if number >= start || !once {
                    one(&shop, number).await;
                }
                if number % 5 == 2 && !once {
                    one(&shop, number).await;
                }
            }
        });
    }
    senders.join_all().await;
    say("idle");
    std::future::pending::<()>().await;
}

async fn one<J>(shop: &Shop<J>, number: u64)
where
    J: tower_reprise::store::IdempotencyStore + tower_reprise::store::journal::Journal + Clone,
{
    let answer = shop
        .send(&number.to_string(), body(number), ttl(number))
        .await;
    match (answer.status, answer.id(), answer.execution()) {
        (202 | 200, Some(id), _) => {
            say(&format!("accepted {number} {id}"));
            if is_cancelled(number) {
                match shop.replay.cancel("ada", id).await {
                    Ok(_) => say(&format!("cancelled {number} {id}")),
                    Err(error) => say(&format!("kept {number} {id} {error}")),
                }
            }
        }
        (200, None, Some(execution)) => say(&format!("served {number} {execution}")),
        // Refused by the handler; somebody else is at it; or the store did not answer in time.
        (422 | 409 | 503, None, None) => say(&format!("other {number}")),
        _ => panic!("{answer:?}"),
    }
}

/// The lines that killed processes wrote.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) last: u64,
    pub(crate) replays: HashMap<u64, HashSet<ReplayId>>,
    pub(crate) executions: HashMap<u64, HashSet<String>>,
    pub(crate) cancelled: HashSet<ReplayId>,
    pub(crate) kept: HashSet<ReplayId>,
}

impl Told {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        if !matches!(
            words[0],
            "accepted" | "cancelled" | "kept" | "served" | "other"
        ) {
            return;
        }
        let number: u64 = words[1].parse().unwrap();
        self.last = self.last.max(number);
        let id = || words[2].parse::<ReplayId>().unwrap();
        match words[0] {
            "accepted" => _ = self.replays.entry(number).or_default().insert(id()),
            "cancelled" => assert!(self.cancelled.insert(id()), "twice: {line}"),
            "kept" => _ = self.kept.insert(id()),
            "served" => {
                let executions = self.executions.entry(number).or_default();
                executions.insert(words[2..].join(" "));
            }
            _ => {}
        }
    }
}

/// Listens until so many lines were said, or there is nothing more to say.
async fn listen(process: &mut Process, lines: usize, told: &mut Vec<String>) {
    for _ in 0..lines {
        let line = process.line().await.expect("a child that works");
        if line == "idle" {
            return;
        }
        told.push(line);
    }
}

/// And what it had said before the end.
async fn kill(process: &mut Process, told: &mut Vec<String>) {
    process.kill().await;
    while let Some(line) = process.line().await {
        told.push(line);
    }
}

/// Kills one process that accepts and one that replays, each after a random number of lines, and
/// once in a while before the store is open: so many times, or `REPRISE_KILL_ROUNDS` times. When one survives, every replay that was acknowledged
/// ends, and all that is known of it fits together: see [`audit`].
pub(crate) async fn killed<B: Backend>(address: &str, rounds: u64) {
    let rounds = number("REPRISE_KILL_ROUNDS").unwrap_or(rounds);
    let receiver = Receiver::start().await;
    let site = Site::new(address, &receiver.url, LEASE);
    let mut told = Told::default();
    for round in 0..rounds {
        // Each sender may have begun one that it did not come to tell of.
        let start = (told.last + 1 + SENDERS as u64).to_string();
        let mut accepts = site.start::<B>("accept", &format!("accept{round}"), &start);
        let mut works = site.start::<B>("work", &format!("work{round}"), "");
        let at_once = |most: usize| match rand::random_ratio(1, 8) {
            true => 0,
            false => rand::random_range(0..most),
        };
        let (mut accepted, mut worked) = (Vec::new(), Vec::new());
        let (accepting, working) = (at_once(50), at_once(40));
        // One who has nothing to do has nothing to say.
        let patience = Duration::from_millis(rand::random_range(50..800));
        tokio::join!(
            async {
                let listening = listen(&mut accepts, accepting, &mut accepted);
                let listened = tokio::time::timeout(Duration::from_secs(60), listening).await;
                assert!(listened.is_ok(), "it does not go on");
                kill(&mut accepts, &mut accepted).await;
            },
            async {
                let listening = listen(&mut works, working, &mut worked);
                let _ = tokio::time::timeout(patience, listening).await;
                kill(&mut works, &mut worked).await;
            }
        );
        accepted.iter().for_each(|line| told.note(line));
    }
    let acknowledged = told.replays.len() as u64;
    assert!(acknowledged > rounds, "only {acknowledged} were accepted");

    let mut survivors = JoinSet::new();
    let mut survivor = site.start::<B>("work", "survivor", "");
    survivors.spawn(async move { while survivor.line().await.is_some() {} });
    let shop = Shop::new(B::open(address).await, &site, "audit", false);
    ended(&shop).await;
    survivors.shutdown().await;
    audit::audit(&shop, &site, &told, &receiver).await;
}

/// Waits until all replays ended, and all callbacks were delivered.
pub(crate) async fn ended<J>(shop: &Shop<J>)
where
    J: tower_reprise::store::IdempotencyStore + tower_reprise::store::journal::Journal + Clone,
{
    let counts = async |queue: &str| shop.store.counts(queue).await.expect("counts");
    let left = async |queue: &str| {
        let counts = counts(queue).await;
        counts.of(Status::Queued) + counts.of(Status::Processing)
    };
    eventually("every replay ended", async || left("replay").await == 0).await;
    // An entry past its time counts as expired before its callback is queued.
    eventually("every end has its callback", async || {
        let ended = counts("replay").await;
        let ended =
            ended.of(Status::Completed) + ended.of(Status::Failed) + ended.of(Status::Expired);
        counts("webhooks").await.by_status.iter().sum::<u64>() >= ended
    })
    .await;
    eventually("they were delivered", async || left("webhooks").await == 0).await;
}
