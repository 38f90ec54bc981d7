//! A store that is full, read-only or restarted while requests come in and replays run: what was
//! asked for is done, once, and what was accepted ends.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::sleep};
use tower_reprise::{
    delivery::replay::ReplayId,
    store::{
        IdempotencyStore,
        journal::{Journal, Status},
    },
};

use crate::{
    backend::{Backend, Site},
    ledger::Ledger,
    receiver::Receiver,
    shop::{Shop, start},
    support::database::eventually,
};

const CALLERS: u64 = 8;
/// Longer than any of the disturbances: a lease that runs out meanwhile is another matter.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// Between two requests of a caller, so that replays, which are one after the other, keep up.
const PAUSE: Duration = Duration::from_millis(50);

/// The final answers to the callers.
#[derive(Default)]
pub(crate) struct Ends {
    served: HashMap<String, String>,
    accepted: HashMap<String, ReplayId>,
}

/// Callers that ask until they get an answer, each for one thing after the other, while the store is
/// disturbed. Every other request is asked for during maintenance, so that it is journaled.
async fn callers<J>(shop: Arc<Shop<J>>, enough: Arc<AtomicBool>, asked: Arc<AtomicU64>) -> Ends
where
    J: IdempotencyStore + Journal + Clone,
{
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (shop, enough) = (Arc::clone(&shop), Arc::clone(&enough));
        let asked = Arc::clone(&asked);
        callers.spawn(async move {
            let mut ends = Ends::default();
            for n in 0.. {
                if enough.load(Ordering::SeqCst) {
                    break;
                }
                let key = format!("{caller}-{n}");
                loop {
                    let answer = shop.send(&key, "order", None).await;
                    match (answer.status, answer.execution(), answer.id()) {
                        (200, Some(execution), _) => {
                            ends.served.insert(key, execution.to_owned());
                            break;
                        }
                        (202 | 200, _, Some(id)) => {
                            ends.accepted.insert(key, id);
                            break;
                        }
                        // Its first request is at it, or the reply did not fit.
                        (409, ..) | (503, ..) => sleep(PAUSE).await,
                        _ => panic!("{key}: {answer:?}"),
                    }
                }
                asked.fetch_add(1, Ordering::SeqCst);
                sleep(PAUSE).await;
            }
            ends
        });
    }
    let mut all = Ends::default();
    for ends in callers.join_all().await {
        all.served.extend(ends.served);
        all.accepted.extend(ends.accepted);
    }
    all
}

/// Disturbs a store under load. Afterwards every request was executed once, and had that execution's
/// reply, and every replay that was accepted is completed, or a dead letter that was never executed.
pub(crate) async fn disturbed<B: Backend>(address: &str, disturb: impl AsyncFnOnce()) {
    let receiver = Receiver::start().await;
    let site = Site::new(address, &receiver.url, LEASE);
    let shop = Arc::new(Shop::new(B::open(address).await, &site, "parent", true));
    let working = start(&shop, LEASE);
    let (enough, asked) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let calling = callers(Arc::clone(&shop), Arc::clone(&enough), Arc::clone(&asked));
    let calling = tokio::spawn(calling);
    let more = async |count: u64| {
        let before = asked.load(Ordering::SeqCst);
        eventually("requests are answered", async || {
            asked.load(Ordering::SeqCst) >= before + count
        })
        .await;
    };
    more(50).await;
    disturb().await;
    more(50).await;
    enough.store(true, Ordering::SeqCst);
    let ends = calling.await.expect("no caller panics");
    let accepted = ends.accepted.len() as u64;
    assert!(accepted > 10 && ends.served.len() > 10, "{accepted}");
    eventually("every replay ended", async || {
        let counts = shop.store.counts("replay").await;
        counts.is_ok_and(|counts| counts.of(Status::Queued) + counts.of(Status::Processing) == 0)
    })
    .await;
    let mut executions: HashMap<String, Vec<String>> = HashMap::new();
    for line in Ledger::read(&site.ledger) {
        let (key, execution) = (line[0].clone(), line[1..].join(" "));
        executions.entry(key).or_default().push(execution);
    }
    for (key, execution) in &ends.served {
        assert_eq!(executions[key], [execution.as_str()], "{key}");
    }
    let mut completed = 0;
    for (key, id) in &ends.accepted {
        let executed = executions.get(key).map_or(0, Vec::len);
        match shop.entry(*id).await.status {
            Status::Completed => completed += 1,
            // Three attempts met a store that refused them: a dead letter, to be redriven.
            Status::Failed if executed == 0 => continue,
            other => panic!("{key} is {other:?}, executed {executed} times"),
        }
        assert_eq!(executed, 1, "{key}");
    }
    assert!(completed > 10, "{completed} of {accepted}");
    drop(working);
}

/// A server that crashes and comes back, several times.
pub(crate) async fn restarted<B: Backend>(
    address: &str,
    server: &mut impl crate::support::database::Restart,
) {
    disturbed::<B>(address, async || {
        for _ in 0..3 {
            server.stop().await;
            server.start().await;
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}
