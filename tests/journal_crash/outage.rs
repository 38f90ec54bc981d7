//! J-2: without a journal there is a 503, never a 202.
#![allow(dead_code, reason = "files are not stopped, and servers not filled")]

use std::time::Duration;

use tower_reprise::{
    delivery::replay::ReplayId,
    store::{
        IdempotencyStore,
        journal::{Journal, Status},
    },
};

use crate::{
    backend::{Backend, Site},
    receiver::Receiver,
    shop::{Answer, Shop, start},
    support::database::{Restart, eventually},
};

const SECOND: Duration = Duration::from_secs(1);

/// Asserts that the answer says that the request could not be written down.
pub(crate) fn assert_refused(answer: &Answer) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.id(), None, "{answer:?}");
    let kind = answer.document["type"].as_str().unwrap_or_default();
    assert!(kind.ends_with("replay-unavailable"), "{answer:?}");
    let detail = answer.document["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("could not be written down"), "{answer:?}");
}

/// During maintenance, and when the service itself can't serve.
pub(crate) async fn refuses<J>(shop: &Shop<J>)
where
    J: IdempotencyStore + Journal + Clone,
{
    for n in 0..3 {
        shop.replay.maintenance().on(None);
        let key = format!("refused-{n}");
        assert_refused(&shop.send(&key, "order", None).await);
        shop.replay.maintenance().off();
        assert_refused(&shop.send(&key, "order", None).await);
    }
}

/// Sends until one is refused; what was accepted.
pub(crate) async fn fill_up<J>(shop: &Shop<J>, name: &str) -> Vec<ReplayId>
where
    J: IdempotencyStore + Journal + Clone,
{
    shop.replay.maintenance().on(None);
    let mut accepted = Vec::new();
    let large = "x".repeat(10_000);
    loop {
        let key = format!("{name}-{}", accepted.len());
        let answer = shop.send(&key, &large, None).await;
        match (answer.status, answer.id()) {
            (202, Some(id)) => accepted.push(id),
            _ => {
                assert_refused(&answer);
                break;
            }
        }
        assert!(accepted.len() < 10_000, "it is never full");
    }
    // And so is the next.
    assert_refused(&shop.send(name, &large, None).await);
    accepted
}

/// All are there, as they were accepted.
pub(crate) async fn assert_queued<J>(shop: &Shop<J>, accepted: &[ReplayId])
where
    J: IdempotencyStore + Journal + Clone,
{
    for id in accepted {
        assert_eq!(shop.entry(*id).await.status, Status::Queued);
    }
    let counts = shop.store.counts("replay").await.unwrap();
    assert_eq!(counts.of(Status::Queued), accepted.len() as u64);
}

/// The journal's server goes away and comes back. Who works does not mind.
pub(crate) async fn server_gone<B: Backend>(address: &str, server: &mut impl Restart) {
    let receiver = Receiver::start().await;
    let site = Site::new(address, &receiver.url, SECOND);
    let shop = Shop::new(B::open(address).await, &site, "parent", false);
    let mut accepted = Vec::new();
    for n in 0..20 {
        accepted.push(shop.queue(&format!("before-{n}"), "order").await);
    }
    let _working = start(&shop, SECOND);
    server.stop().await;
    refuses(&shop).await;
    shop.replay.maintenance().on(None);
    server.start().await;
    eventually("it accepts again", async || {
        let answer = shop.send("after", "order", None).await;
        match answer.id() {
            Some(id) => accepted.push(id),
            None => assert_refused(&answer),
        }
        answer.status == 202
    })
    .await;
    for id in &accepted {
        assert_eq!(shop.entry(*id).await.status, Status::Queued);
    }
    shop.replay.maintenance().off();
    eventually("all are replayed", async || {
        let counts = shop.store.counts("replay").await.unwrap();
        counts.of(Status::Completed) == accepted.len() as u64
    })
    .await;
}
