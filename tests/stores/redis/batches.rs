//! Transitions that share a script.

use tokio::task::JoinSet;
use tower_reprise::store::{
    Claim, ClaimId, Claimed, CrashPolicy, Fingerprint, IdempotencyStore, Ownership, RedisStore,
    StoreError, StoreErrorKind, conformance::Backend,
};

use super::{Redis, lossy::Lossy};
use crate::support::{
    records::{RETENTION, claim, complete, own, reply},
    redis::Own,
};

/// Makes all claims at once. The first one is sent by itself, those behind it together.
async fn claim_all(store: &RedisStore, claims: Vec<Claim>) -> Vec<Result<Claimed, StoreError>> {
    let mut running = JoinSet::new();
    for (n, claim) in claims.into_iter().enumerate() {
        let store = store.clone();
        running.spawn(async move { (n, store.claim(claim).await) });
    }
    let mut answers = running.join_all().await;
    answers.sort_by_key(|(n, _)| *n);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

async fn scripts(redis: &Redis) -> u64 {
    let stats: String = redis.command(&["INFO", "commandstats"]).await;
    let calls = stats.split("cmdstat_evalsha:calls=").nth(1);
    let calls = calls.and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// T-8: claims and completions that come at once take few round trips, and each gets what is its own.
#[tokio::test]
async fn t_8_transitions_that_come_together_share_a_script() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let redis = Redis::at(&server.url()).await;
    let store = redis.open().await;
    // The scripts are known from then on.
    let token = own(&store, claim(1000)).await;
    complete(&store, 1000, token, reply("paid")).await;
    let before = scripts(&redis).await;
    let claimed = claim_all(&store, (0..100).map(claim).collect()).await;
    let mut completing = JoinSet::new();
    for (key, claimed) in (0..100).zip(claimed) {
        let Ok(Claimed::New(lease)) = claimed else {
            panic!("{claimed:?}");
        };
        let store = store.clone();
        completing.spawn(async move {
            complete(&store, key, lease.token, reply(&key.to_string())).await;
        });
    }
    completing.join_all().await;
    let scripts = scripts(&redis).await - before;
    assert!(scripts <= 8, "{scripts} scripts for 200 transitions");
    for key in 0..100 {
        let found = store.claim(claim(key)).await.unwrap();
        assert_eq!(found, Claimed::done(reply(&key.to_string())));
    }
}

/// T-2: a batch decides nothing: each transition gets what it would have got alone.
#[tokio::test]
async fn t_2_each_transition_of_a_batch_has_its_own_result() {
    let Some(redis) = Redis::new().await else {
        return;
    };
    let store = redis.open().await;
    let done = own(&store, claim(1)).await;
    complete(&store, 1, done, reply("paid")).await;
    let running = claim(2);
    let token = own(&store, running.clone()).await;
    own(&store, claim(3)).await;
    redis
        .command::<()>(&["SETRANGE", &redis.key(claim(3).key), "0", "2"])
        .await;
    redis
        .command::<()>(&["RPUSH", &redis.key(claim(4).key), "another application's"])
        .await;
    let other = Claim {
        fingerprint: Fingerprint::new([2; 32]),
        ..claim(1)
    };
    let [once, twice] = [claim(5), claim(5)];
    let claims = vec![
        claim(100),
        claim(1),
        other,
        running.clone(),
        claim(2),
        claim(3),
        once,
        twice,
        claim(6),
    ];
    let is_new = |claimed: &Result<Claimed, StoreError>| matches!(claimed, Ok(Claimed::New(_)));
    let results = claim_all(&store, claims).await;
    assert!(is_new(&results[0]), "{results:?}");
    assert_eq!(
        results[1].as_ref().ok(),
        Some(&Claimed::done(reply("paid")))
    );
    assert!(matches!(results[2], Ok(Claimed::Mismatch { .. })));
    let Ok(Claimed::New(again)) = &results[3] else {
        panic!("{results:?}");
    };
    assert_eq!(again.token, token);
    assert!(matches!(results[4], Ok(Claimed::InFlight { .. })));
    let newer = results[5].as_ref().unwrap_err();
    assert_eq!(newer.kind(), StoreErrorKind::NewerSchema);
    assert!(is_new(&results[6]) != is_new(&results[7]), "{results:?}");
    assert!(is_new(&results[8]), "{results:?}");

    // One that the server fails at takes no other with it.
    let results = claim_all(&store, [101, 7, 4, 8].map(claim).to_vec()).await;
    for n in [0, 1, 3] {
        assert!(is_new(&results[n]), "{results:?}");
    }
    let error = results[2].as_ref().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other, "{error}");
}

/// T-9: in a batch, too, a full server refuses what is new and answers and completes the rest.
#[tokio::test]
async fn t_9_a_full_server_refuses_only_what_is_new_of_a_batch() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let redis = Redis::at(&server.url()).await;
    let store = redis.open().await;
    let mut tokens = Vec::new();
    for key in 1..=4 {
        tokens.push(own(&store, claim(key)).await);
    }
    complete(&store, 1, tokens[0], reply("paid")).await;
    let vanished = Claim {
        lease: std::time::Duration::ZERO,
        crash_policy: CrashPolicy::Unknown,
        ..claim(5)
    };
    own(&store, vanished.clone()).await;
    redis
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    // The outcome of what vanished is written, and lets nothing else in.
    let after = Claim {
        id: ClaimId::random(),
        ..vanished
    };
    let claims = vec![claim(10), claim(11), after, claim(12), claim(1), claim(13)];
    let results = claim_all(&store, claims).await;
    for n in [0, 1, 3, 5] {
        let error = results[n].as_ref().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Full, "{n}: {error}");
        assert!(!error.may_have_happened());
    }
    let unknown = tower_reprise::store::Stored::Unknown;
    assert_eq!(results[2].as_ref().ok(), Some(&Claimed::done(unknown)));
    assert_eq!(
        results[4].as_ref().ok(),
        Some(&Claimed::done(reply("paid")))
    );
    for key in [10, 11, 12, 13] {
        let there: i64 = redis.command(&["EXISTS", &redis.key(claim(key).key)]).await;
        assert_eq!(there, 0, "{key}");
    }

    let mut completing = JoinSet::new();
    for key in 2..=4 {
        let (store, token) = (store.clone(), tokens[usize::try_from(key).unwrap() - 1]);
        completing.spawn(async move {
            let large = reply(&"x".repeat(10_000));
            store
                .complete(claim(key).key, token, large, RETENTION)
                .await
        });
    }
    for completed in completing.join_all().await {
        assert_eq!(completed.unwrap(), Ownership::Held);
    }
}

/// T-2: the answer to a batch is lost, and each of its transitions is repeated.
#[tokio::test]
async fn t_2_a_batch_whose_answer_was_lost_happened_once() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let lossy = Lossy::before(server.port).await;
    let store = RedisStore::connect(lossy.url()).await.unwrap();
    own(&store, claim(1000)).await;
    lossy.lose_an_answer();
    let claimed = claim_all(&store, (0..20).map(claim).collect()).await;
    assert_eq!(lossy.lost(), 1);
    for claimed in claimed {
        let Ok(Claimed::New(lease)) = claimed else {
            panic!("{claimed:?}");
        };
        assert!(!lease.orphaned);
    }
}
