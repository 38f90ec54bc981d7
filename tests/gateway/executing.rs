//! The work that a gateway waits for before it exits.

use std::time::Duration;

use http::StatusCode;
use tower_reprise::store::{
    Claim, ClaimId, Claimed, CrashPolicy, Fingerprint, IdempotencyStore, Note, Ownership, RecordKey,
};

use crate::{
    gateway::{Folder, Gateway, policy},
    shop::{Gets, Shop},
};

#[path = "../../src/bin/reprise/store.rs"]
#[allow(dead_code, reason = "the gateway's own")]
mod store;

/// I-14: a call that broke off or took too long is over. Whether it took effect nobody knows, and
/// that is settled at once: there is nothing left to wait for.
#[tokio::test]
async fn i_14_calls_that_broke_off_are_not_waited_for() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    // Long enough for all but the call that is to take longer.
    let policy = folder.file("policy.toml", &(policy(1) + "total_timeout = '3s'\n"));
    for (flags, again) in [
        // Nobody knows: who asks again is told so.
        (&["--resend", "unsent"][..], 409),
        // The upstream knows, and is asked again.
        (&["--resend", "keyed"], 200),
    ] {
        let lasting = ["--policy", &policy, "--grace", "1h", "--lease", "10min"];
        let mut gateway = Gateway::start(&shop.url(), &[&lasting[..], flags].concat()).await;
        shop.does(|_| Gets::Nothing);
        assert_eq!(gateway.send(gateway.order("reset"), "").await.status, 502);
        shop.answers(shop.came().len());
        assert_eq!(gateway.send(gateway.order("late"), "").await.status, 504);
        shop.answers(usize::MAX);
        shop.does(|_| StatusCode::OK);
        let reply = gateway.send(gateway.order("reset"), "").await;
        assert_eq!(reply.status, again, "{}", reply.text());
        assert_eq!(reply.text().contains("outcome-unknown"), again == 409);

        gateway.signal("TERM");
        assert!(gateway.ended().await.success());
        assert!(!gateway.said().contains("broken off"));
    }
}

/// I-14: what nobody settles (a panic, a store that is gone for long) is an orphan when its lease
/// is over, and no longer this process's.
#[tokio::test(start_paused = true)]
async fn i_14_what_is_left_to_its_lease_is_forgotten_with_it() {
    const LEASE: Duration = Duration::from_secs(30);
    let store = store::StoreAt::Memory.open().await.unwrap();
    let (key, retention) = (RecordKey::new([7; 32]), 3600 * 24 * Duration::from_secs(1));
    let claim = Claim {
        key,
        fingerprint: Fingerprint::new([7; 32]),
        id: ClaimId::random(),
        lease: LEASE,
        retention,
        crash_policy: CrashPolicy::Unknown,
        note: Note::NONE,
        resumes: None,
    };
    let Claimed::New(lease) = store.claim(claim).await.unwrap() else {
        panic!("it is new");
    };
    tokio::time::advance(LEASE * 2 / 3).await;
    let renewed = store.renew(key, lease.token, LEASE, retention).await;
    assert_eq!(renewed.unwrap(), Ownership::Held);
    tokio::time::advance(LEASE * 2 / 3).await;
    assert_eq!(store.executing(), 1);
    tokio::time::advance(LEASE).await;
    assert_eq!(store.executing(), 0);
}
