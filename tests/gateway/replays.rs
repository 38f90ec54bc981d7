//! Requests that can't be served now are executed later, once.

use std::collections::BTreeSet;

use axum::body::Body;
use http::{Request, StatusCode};

use crate::{
    gateway::{Folder, Gateway, Reply, caller, policy},
    shop::Shop,
    support::{database::eventually, ports::deaf},
};

/// An order that is to be replayed if need be.
async fn order(gateway: &Gateway, key: &str) -> Reply {
    let request = gateway.order(key).header("replay", "true");
    gateway.send(request, format!("order {key}")).await
}

/// J-5: what waits for an upstream that a reload renames waits for the one that is there.
#[tokio::test]
async fn j_5_replays_do_not_wait_for_a_removed_upstream() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let config = |name: &str| {
        let text = format!(
            "[upstreams.{name}]\nendpoints = ['{}']\n[[routes]]\nupstream = '{name}'\n",
            shop.url()
        );
        folder.file("gateway.toml", &text)
    };
    let gateway = Gateway::start_from(&config("old"), &["--maintenance"]).await;
    assert_eq!(order(&gateway, "moved").await.status, 202);
    gateway.look("/dependencies").await;
    let force = "/dependencies/upstream/open?name=old";
    assert_eq!(gateway.do_(force).await.status, 200);
    config("new");
    gateway.signal("HUP");
    gateway.says("the configuration was read again").await;
    gateway.do_("/maintenance/off").await;
    eventually("it is replayed", async || {
        gateway.replays("completed").await == 1
    })
    .await;
    assert_eq!(shop.effects().len(), 1);
}

#[tokio::test]
async fn j_1_maintenance_on_and_off() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(&shop.url(), &[]).await;
    assert_eq!(order(&gateway, "before").await.status, 200);
    assert_eq!(
        gateway.do_("/maintenance/on?for=10min").await.json()["on"],
        true
    );

    let accepted = order(&gateway, "during").await;
    assert_eq!(accepted.status, 202);
    assert_eq!(accepted.json()["reason"], "SERVER_MAINTENANCE");
    let again = order(&gateway, "during").await;
    assert_eq!(
        again.json()["replay_id"],
        accepted.json()["replay_id"],
        "J-3"
    );
    // Nothing gets through, whoever asks. It is said when to come back, or guessed.
    let refused = gateway.get("/").await;
    assert_eq!(refused.status, 503);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((31..=600).contains(&wait), "{wait}");
    gateway.do_("/maintenance/on").await;
    let refused = gateway.get("/").await;
    assert_eq!(refused.header("retry-after"), Some("60"));
    let location = accepted.header("location").unwrap().to_owned();
    assert_eq!(gateway.get(&location).await.status, 403, "whose is it?");
    let follow = async |path: String| {
        let request = Request::get(gateway.url(&path)).header("x-tenant", "ada");
        gateway.send(request, Body::empty()).await
    };
    assert_eq!(follow(location.clone()).await.json()["status"], "queued");
    let stranger = Request::get(gateway.url(&location)).header("x-tenant", "bob");
    assert_eq!(gateway.send(stranger, Body::empty()).await.status, 404);
    assert_eq!(shop.came().len(), 1);

    assert_eq!(gateway.do_("/maintenance/off").await.json()["on"], false);
    eventually("it is replayed", async || {
        gateway.replays("completed").await == 1
    })
    .await;
    assert_eq!(follow(format!("{location}/reply")).await.text(), "2");
    let came = &shop.came()[1];
    assert_eq!((&*came.path, &*came.body), ("/orders", "order during"));
    assert_eq!(came.header("x-tenant"), Some("ada"));
    // J-3, J-4: who asks once more is told of the replay, or gets what it got.
    let told = order(&gateway, "during").await.json();
    assert_eq!(told["status"], "completed");
    let request = gateway.order("during");
    let reply = gateway.send(request, "order during").await;
    assert_eq!(
        (reply.text(), reply.header("idempotent-replayed")),
        ("2", Some("true"))
    );
    assert_eq!(shop.came().len(), 2);
}

/// J-1, J-11: the upstream is gone, and comes back.
#[tokio::test]
async fn j_1_an_upstream_that_is_gone_gets_it_when_it_is_back() {
    let folder = Folder::new();
    let (socket, address) = deaf();
    let policy = policy(1) + "breaker = { consecutive_failures = 5 }\n";
    let policy = folder.file("policy.toml", &policy);
    let gateway = Gateway::start(&format!("http://{address}"), &["--policy", &policy]).await;
    for number in 0..8 {
        let reply = order(&gateway, &number.to_string()).await;
        assert_eq!(reply.status, 202, "{}", reply.text());
        assert_eq!(reply.json()["reason"], "DEPENDENCY_UNAVAILABLE");
    }
    let known = gateway.look("/dependencies").await.json();
    assert_eq!(known["upstream"][0]["name"], address.to_string());
    assert_ne!(
        known["upstream"][0]["breaker"]["state"], "closed",
        "{known}"
    );
    // A request that does not ask for replay gets the failure.
    let status = gateway.send(gateway.order("impatient"), "").await.status;
    assert!(status == 503 || status == 502, "{status}");

    let shop = Shop::on(socket.listen(64).unwrap());
    eventually("all are replayed", async || {
        gateway.replays("completed").await == 8
    })
    .await;
    let keys = shop.keys();
    assert_eq!(keys.len(), 8);
    assert!(keys.values().all(|times| *times == 1), "{keys:?}");
}

/// A gateway that was killed while it accepted orders, and again while it replayed them.
struct Killed {
    _folder: Folder,
    /// It runs again, and has nothing left to do.
    gateway: Gateway,
    shop: Shop,
    /// The orders that got a 202.
    accepted: BTreeSet<String>,
    /// The orders that the shop had executed and not answered when the gateway was killed.
    hung: BTreeSet<String>,
}

impl Killed {
    async fn with(flags: &[&str]) -> Self {
        const ORDERS: usize = 30;
        const TENANTS: [&str; 4] = ["ada", "bob", "eve", "zoe"];
        let (folder, shop) = (Folder::new(), Shop::open().await);
        shop.honours_keys();
        let store = format!("sqlite:{}", folder.path("gateway.db"));
        let own = ["--store", &store, "--lease", "1s"];
        let flags = [&own[..], &["--replay-concurrency", "4"], flags].concat();
        let closed = [&flags[..], &["--maintenance"]].concat();
        let mut gateway = Gateway::start(&shop.url(), &closed).await;
        let mut accepted = BTreeSet::new();
        for number in 0..ORDERS {
            // Every other one has no key but what the gateway gives it.
            let request = Request::post(gateway.url("/orders"));
            let request = match number % 2 {
                0 => request.header("idempotency-key", format!("k{number}")),
                _ => request,
            };
            // Those of one tenant are replayed one after the other.
            let tenant = TENANTS[number / 2 % TENANTS.len()];
            let request = request.header("x-tenant", tenant).header("replay", "true");
            let reply = gateway.send(request, format!("order {number:02}")).await;
            assert_eq!(reply.status, 202);
            accepted.insert(format!("order {number:02}"));
            if number == ORDERS / 2 {
                // In the middle of another.
                let request = gateway.order("torn").header("replay", "true");
                let request = request.body(Body::from("torn")).unwrap();
                let torn = tokio::spawn(async move { caller().request(request).await });
                gateway.kill();
                if torn.await.unwrap().is_ok_and(|reply| reply.status() == 202) {
                    accepted.insert("torn".to_owned());
                }
                gateway = Gateway::start(&shop.url(), &closed).await;
            }
        }
        assert!(shop.came().is_empty());

        // Ten are answered, and their answers kept, or there were no room for the four after them.
        // Those hang, and the gateway with them.
        shop.answers(10);
        gateway.do_("/maintenance/off").await;
        shop.has(14).await;
        gateway.kill();
        shop.answers(usize::MAX);
        let came = shop.came();
        assert_eq!(came.len(), 14, "{came:?}");
        let hung = came[10..].iter().map(|came| came.body.clone()).collect();

        let gateway = Gateway::start(&shop.url(), &flags).await;
        eventually("nothing is left to do", async || {
            gateway.replays("queued").await + gateway.replays("processing").await == 0
        })
        .await;
        Self {
            _folder: folder,
            gateway,
            shop,
            accepted,
            hung,
        }
    }

    /// Asserts that every accepted order took effect once. The torn one may have been accepted,
    /// too.
    fn all_took_effect_once(&self) -> usize {
        let effects = self.shop.effects();
        let once: BTreeSet<_> = effects.iter().cloned().collect();
        assert_eq!(once.len(), effects.len(), "{effects:?}");
        let mut torn = self.accepted.clone();
        torn.insert("torn".to_owned());
        assert!(once == self.accepted || once == torn, "{effects:?}");
        effects.len()
    }

    fn times_came(&self, body: &str) -> usize {
        let came = self.shop.came();
        came.iter().filter(|came| came.body == body).count()
    }

    async fn ended(&self, statuses: [(&str, usize); 4]) {
        for (status, many) in statuses {
            assert_eq!(self.gateway.replays(status).await, many as u64, "{status}");
        }
    }
}

/// J-14, with an upstream that honours keys: all that was accepted is done, and each took effect
/// once. What was under way is sent again, by the same key.
#[tokio::test]
async fn j_14_after_a_kill_all_that_was_accepted_is_done_once() {
    let killed = Killed::with(&["--resend", "keyed"]).await;
    let effects = killed.all_took_effect_once();
    killed
        .ended([
            ("completed", effects),
            ("failed", 0),
            ("expired", 0),
            ("cancelled", 0),
        ])
        .await;
    for body in killed.shop.effects() {
        let times = 1 + usize::from(killed.hung.contains(&body));
        assert_eq!(killed.times_came(&body), times, "{body}");
    }
}

/// J-14, with one that does not: nothing is sent twice. Of what was under way nobody knows how it
/// ended, and it is kept for somebody to look.
#[tokio::test]
async fn j_14_after_a_kill_nothing_is_sent_twice() {
    let killed = Killed::with(&[]).await;
    let effects = killed.all_took_effect_once();
    let hung = killed.hung.len();
    killed
        .ended([
            ("completed", effects - hung),
            ("failed", hung),
            ("expired", 0),
            ("cancelled", 0),
        ])
        .await;
    assert_eq!(killed.shop.came().len(), effects);
    let letters = killed.gateway.look("/dead-letters").await.json();
    let mut unknown = BTreeSet::new();
    for letter in letters["letters"].as_array().unwrap() {
        let id = letter["id"].as_str().unwrap();
        let letter = killed
            .gateway
            .look(&format!("/dead-letters/{id}"))
            .await
            .json();
        assert_eq!(letter["reason"], "replied 409", "{letter}");
        unknown.insert(letter["payload"].as_str().unwrap().to_owned());
    }
    assert_eq!(unknown, killed.hung);
}

/// what can't be done is kept, shown, and done when it can.
#[tokio::test]
async fn q_3_dead_letters_are_shown_and_redriven() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let store = format!("sqlite:{}", folder.path("gateway.db"));
    let gateway = Gateway::start(&shop.url(), &["--store", &store, "--maintenance"]).await;
    // Credentials are not written down, and this shop asks for some.
    shop.does(|_| StatusCode::UNAUTHORIZED);
    let id = order(&gateway, "k").await.json()["replay_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let cancelled = order(&gateway, "never").await.json()["replay_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let reply = gateway.do_(&format!("/replays/{cancelled}/cancel")).await;
    assert_eq!(reply.json()["status"], "cancelled", "{reply:?}");
    // J-9: even in maintenance.
    gateway.do_(&format!("/replays/{id}/trigger")).await;
    eventually("it fails", async || gateway.replays("failed").await == 1).await;

    let letters = gateway.look("/dead-letters").await.json();
    assert_eq!(letters["letters"][0]["id"], *id);
    let letter = gateway.look(&format!("/dead-letters/{id}")).await.json();
    assert_eq!(letter["reason"], "http_401");
    assert_eq!(letter["payload"], "order k");
    gateway.says("dead letter").await;

    let dry = gateway
        .do_("/dead-letters/redrive?queue=replay&dry_run=true")
        .await
        .json();
    assert_eq!((&dry["matched"], &dry["redriven"]), (&1.into(), &0.into()));
    gateway.do_("/maintenance/off").await;
    shop.does(|_| StatusCode::OK);
    let redriven = gateway.do_(&format!("/dead-letters/{id}/redrive")).await;
    assert_eq!(redriven.json()["status"], "queued");
    eventually("it is done", async || {
        gateway.replays("completed").await == 1
    })
    .await;
    let again = gateway.do_(&format!("/dead-letters/{id}/redrive")).await;
    assert_eq!(again.status, 409, "{again:?}");
    assert_eq!(shop.keys()["k"], 4, "three attempts, and then one");
    assert_eq!(
        gateway.do_("/dead-letters/nonsense/redrive").await.status,
        404
    );
    assert_eq!(gateway.look("/dead-letters?limit=0").await.status, 400);
}

/// J-13: a header that tells callers apart and is a credential is known again, and written down
/// nowhere.
#[tokio::test]
async fn j_13_whose_replay_it_is_is_no_secret_and_their_credentials_are() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    for name in ["x-access-key", "x-api-key", "x-tenant"] {
        let store = format!("sqlite:{}", folder.path(&format!("{name}.db")));
        let flags = ["--store", &store, "--scope-header", name, "--maintenance"];
        let gateway = Gateway::start(&shop.url(), &flags).await;
        let value = format!("hunter2-{name}");
        let request = Request::post(gateway.url("/orders")).header("replay", "true");
        let reply = gateway.send(request.header(name, &value), "x").await;
        assert_eq!(reply.status, 202, "{}", reply.text());
        let follow = async |value: &str| {
            let request = Request::get(gateway.url(reply.header("location").unwrap()));
            let reply = gateway.send(request.header(name, value), Body::empty());
            reply.await.status
        };
        assert_eq!(follow(&value).await, 200);
        assert_eq!(follow("another").await, 404);
        let is_name = name == "x-tenant";
        assert_eq!(folder.holds(&value), is_name, "{name}");
        let came = shop.came().len();
        gateway.do_("/maintenance/off").await;
        shop.has(came + 1).await;
        let sent = shop.came()[came].header(name).map(str::to_owned);
        assert_eq!(sent, is_name.then_some(value));
    }
}

/// W-8, J-13: a caller's webhook is told, and its credentials are nobody's.
#[tokio::test]
async fn w_8_callers_are_told_and_replays_have_credentials_of_their_own() {
    let (folder, shop, hook) = (Folder::new(), Shop::open().await, Shop::open().await);
    let secret = folder.file("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n");
    let credentials = folder.file("credentials", "Bearer of-the-gateway\n");
    let flags = [
        "--maintenance",
        "--callback-secret-file",
        &secret,
        "--callback-allow",
        "127.0.0.1",
        "--callback-http",
        "--replay-authorization-file",
        &credentials,
    ];
    let gateway = Gateway::start(&shop.url(), &flags).await;
    let plain = Gateway::start(&shop.url(), &["--maintenance"]).await;
    for (gateway, status) in [(&plain, 400), (&gateway, 202)] {
        let request = gateway
            .order("k")
            .header("authorization", "Bearer of-ada")
            .header("replay-callback", format!("{}/hook", hook.url()));
        let reply = gateway.send(request, "x").await;
        assert_eq!(reply.status, status, "{}", reply.text());
    }
    gateway.do_("/maintenance/off").await;
    hook.has(1).await;
    let told = &hook.came()[0];
    assert!(told.body.contains("replay.completed"), "{told:?}");
    assert!(told.header("webhook-signature").is_some());
    let came = &shop.came()[0];
    assert_eq!(came.header("authorization"), Some("Bearer of-the-gateway"));
    assert_eq!(came.header("replay-callback"), None);
}
