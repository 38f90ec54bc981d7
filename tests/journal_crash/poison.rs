//! J-11, J-12: a request that kills whoever replays it.

use std::time::Duration;

use tower_reprise::store::journal::Status;

use crate::{
    backend::{Backend, Site},
    killed,
    ledger::Ledger,
    receiver::Receiver,
    shop::Shop,
};

/// It is begun three times, by three processes that die of it, and never again.
pub(crate) async fn poison<B: Backend>(address: &str) {
    let receiver = Receiver::start().await;
    let site = Site::new(address, &receiver.url, Duration::from_secs(1));
    let shop = Shop::new(B::open(address).await, &site, "parent", false);
    let id = shop.queue("1", "poison").await;
    let healthy = shop.queue("2", "order").await;
    for n in 0..3 {
        let mut worker = site.start::<B>("work", &format!("dies{n}"), "");
        worker.ended().await;
        let begun = Ledger::read(&site.ledger);
        let begun = begun.iter().filter(|words| words[0] == "1").count();
        assert_eq!(begun, n + 1);
        // Counted before it was begun.
        assert_eq!(shop.entry(id).await.attempts as usize, n + 1);
    }
    let mut survivor = site.start::<B>("work", "survivor", "");
    let surviving = async { while survivor.line().await.is_some() {} };
    tokio::select! {
        () = surviving => panic!("it was begun a fourth time"),
        () = killed::ended(&shop) => {}
    }
    let entry = shop.entry(id).await;
    assert_eq!(entry.status, Status::Failed);
    assert_eq!(entry.history.last().unwrap().note, "its workers died of it");
    assert_eq!(shop.entry(healthy).await.status, Status::Completed);
    let ledger = Ledger::read(&site.ledger);
    let begun = |key: &str| ledger.iter().filter(|words| words[0] == key).count();
    assert_eq!((begun("1"), begun("2")), (3, 1));
    let mut events: Vec<_> = receiver
        .messages()
        .into_values()
        .map(|deliveries| deliveries[0]["event"].as_str().unwrap().to_owned())
        .collect();
    events.sort();
    assert_eq!(events, ["replay.completed", "replay.failed"]);
    assert_eq!(shop.all("reprise.alerts").await.len(), 1);
}
