//! Keys: who sends a request twice has it executed once.

use axum::body::Body;
use http::{Request, StatusCode};
use tokio::task::JoinSet;

use crate::{
    gateway::{Folder, Gateway, caller, policy},
    shop::{Gets, Shop},
    support::ports::deaf,
};

#[tokio::test]
async fn i_6_duplicates_at_once_are_executed_once() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    shop.answers(0);
    let store = format!("sqlite:{}", folder.path("gateway.db"));
    let gateway = Gateway::start(&shop.url(), &["--store", &store, "--wait", "30s"]).await;
    let mut senders = JoinSet::new();
    for _ in 0..20 {
        let (caller, request) = (caller(), gateway.order("k").body(Body::from("one")));
        senders.spawn(async move { caller.request(request.unwrap()).await.unwrap() });
    }
    shop.has(1).await;
    shop.answers(usize::MAX);
    let replies = senders.join_all().await;
    assert!(replies.iter().all(|reply| reply.status() == StatusCode::OK));
    let replayed = |name: &str| {
        replies
            .iter()
            .filter(|reply| reply.headers().contains_key(name))
            .count()
    };
    assert_eq!(replayed("idempotent-replayed"), 19);
    assert_eq!(shop.came().len(), 1);

    // I-7: another request; I-19: another caller; I-1: none.
    assert_eq!(gateway.send(gateway.order("k"), "two").await.status, 422);
    let other = Request::post(gateway.url("/orders"))
        .header("x-tenant", "bob")
        .header("idempotency-key", "k");
    assert_eq!(gateway.send(other, "one").await.text(), "2");
    let keyless = Request::post(gateway.url("/orders"));
    assert_eq!(gateway.send(keyless, "one").await.text(), "3");
    let metrics = gateway.look("/metrics").await;
    let executed = "idempotency_requests_total{outcome=\"executed\"} 2";
    assert!(metrics.text().contains(executed), "{}", metrics.text());
}

/// I-6: some clients ask in each HTTP/1.1 request whether to go on in HTTP/2, and a tunnel passes the
/// layers by.
#[tokio::test]
async fn i_6_a_request_that_offers_an_upgrade_is_executed_once() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &[]).await;
    for (key, protocol) in [("k", "h2c"), ("l", "websocket")] {
        let before = shop.came().len();
        for _ in 0..2 {
            let order = gateway.order(key).header("http2-settings", "AAMAAABk");
            let order = order.header("connection", "Upgrade, HTTP2-Settings");
            let reply = gateway.send(order.header("upgrade", protocol), "one").await;
            assert_eq!(reply.status, 200);
        }
        let came = &shop.came()[before..];
        assert_eq!(came.len(), 1, "{protocol}");
        for name in ["connection", "upgrade", "http2-settings"] {
            assert_eq!(came[0].header(name), None);
        }
    }
}

/// I-20: who is not known is refused, unless there is a name for all of them, which is nobody
/// else's.
#[tokio::test]
async fn i_20_strangers_have_no_keys_unless_they_are_named() {
    let shop = Shop::open().await;
    let strict = Gateway::start(&shop.url(), &["--require-key"]).await;
    let stranger =
        |gateway: &Gateway| Request::post(gateway.url("/orders")).header("idempotency-key", "k");
    assert_eq!(strict.send(stranger(&strict), "").await.status, 403);
    let keyless = Request::post(strict.url("/orders")).header("x-tenant", "ada");
    assert_eq!(strict.send(keyless, "").await.status, 400);
    assert!(shop.came().is_empty());

    let open = Gateway::start(&shop.url(), &["--anonymous", "everybody"]).await;
    assert_eq!(open.send(stranger(&open), "").await.text(), "1");
    assert_eq!(open.send(stranger(&open), "").await.text(), "1");
    let namesake = stranger(&open).header("x-tenant", "everybody");
    assert_eq!(open.send(namesake, "").await.text(), "2");
}

/// I-12: a key is not kept for what never got there, and I-11: it is for what did.
#[tokio::test]
async fn i_12_an_upstream_that_is_not_there_keeps_no_key() {
    let (socket, address) = deaf();
    let folder = Folder::new();
    let policy = folder.file("policy.toml", &policy(1));
    let gateway = Gateway::start(&format!("http://{address}"), &["--policy", &policy]).await;
    assert_eq!(gateway.send(gateway.order("k"), "").await.status, 502);

    let shop = Shop::on(socket.listen(64).unwrap());
    shop.does(|_| StatusCode::INTERNAL_SERVER_ERROR);
    let reply = gateway.send(gateway.order("k"), "").await;
    assert_eq!(reply.status, 500);
    assert_eq!(shop.came().len(), 1, "it may have taken effect");
    shop.does(|_| StatusCode::OK);
    let reply = gateway.send(gateway.order("k"), "").await;
    assert_eq!(reply.status, 500, "that was the answer");
    assert_eq!(shop.came().len(), 1);
}

/// C-4, I-11: an upstream that fails after it did what it was asked for, and that knows nothing of
/// keys. It is asked once for each key, and once for each request without, whoever asks again.
#[tokio::test]
async fn c_5_a_flaky_upstream_executes_each_key_once() {
    const KEYS: usize = 40;
    let (folder, shop) = (Folder::new(), Shop::open().await);
    shop.does(|before| match before % 4 {
        0 => Gets::Nothing,
        1 => StatusCode::INTERNAL_SERVER_ERROR.into(),
        2 => StatusCode::GATEWAY_TIMEOUT.into(),
        _ => StatusCode::OK.into(),
    });
    // No breaker is to stand before what is asked here.
    let policy = policy(3) + "breaker = { consecutive_failures = 1000, minimum_calls = 1000 }\n";
    let policy = folder.file("policy.toml", &policy);
    let store = format!("sqlite:{}", folder.path("gateway.db"));
    let flags = ["--policy", &policy, "--store", &store, "--wait", "30s"];
    let gateway = Gateway::start(&shop.url(), &flags).await;
    let mut senders = JoinSet::new();
    let mut unkeyed = 0;
    for number in 0..KEYS {
        // Three at once, and a fourth that has seen how they ended; one in five may be replayed.
        let requests = [(); 4].map(|()| {
            let order = gateway.order(&format!("k{number}"));
            let order = match number % 5 {
                0 => order.header("replay", "true"),
                _ => order,
            };
            order.body(Body::from(format!("order {number}"))).unwrap()
        });
        senders.spawn(async move {
            let [first, second, third, last] = requests;
            let caller = caller();
            let ask = async |request| caller.request(request).await.unwrap().status().as_u16();
            tokio::join!(ask(first), ask(second), ask(third));
            ask(last).await
        });
        if number % 4 == 0 {
            let request = Request::post(gateway.url("/orders")).body(Body::from("unkeyed"));
            let status = caller().request(request.unwrap()).await.unwrap().status();
            assert_ne!(status, 409);
            unkeyed += 1;
        }
    }
    let last = senders.join_all().await;
    let mut keys = shop.keys();
    assert_eq!(keys.remove("none"), Some(unkeyed));
    assert_eq!(keys.len(), KEYS);
    assert!(keys.values().all(|times| *times == 1), "{keys:?}");

    // Of what was cut off nobody knows how it ended, and they are told so.
    let cut = shop.came().into_iter().step_by(4);
    let cut = cut.filter(|came| came.key() != "none").count();
    let told = |status| last.iter().filter(|last| **last == status).count();
    assert_eq!(told(409), cut, "{last:?}");
    assert_eq!(told(200) + told(500) + told(504) + cut, KEYS, "{last:?}");
}

/// I-16: a caller that hangs up leaves nothing undone, not even when the gateway is told to stop.
#[tokio::test]
async fn i_16_what_was_begun_is_ended_before_the_gateway_is() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    shop.answers(0);
    let store = format!("sqlite:{}", folder.path("gateway.db"));
    let mut gateway = Gateway::start(&shop.url(), &["--store", &store]).await;
    let request = gateway.order("k").body(Body::from("one")).unwrap();
    let impatient = tokio::spawn(async move { caller().request(request).await });
    shop.has(1).await;
    impatient.abort();
    let _ = impatient.await;
    gateway.signal("TERM");
    gateway.says("finishing what is under way").await;
    shop.answers(usize::MAX);
    assert!(gateway.ended().await.success());

    let gateway = Gateway::start(&shop.url(), &["--store", &store]).await;
    let reply = gateway.send(gateway.order("k"), "one").await;
    assert_eq!(
        (reply.text(), reply.header("idempotent-replayed")),
        ("1", Some("true"))
    );
    assert_eq!(shop.came().len(), 1);
}
