//! Several upstreams: routes, endpoints, and a configuration that changes while it runs.

use http::Request;
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    gateway::{Caller, Folder, Gateway, Reply, caller, reprise, run},
    shop::{Gets, Shop},
    support::database::eventually,
};

/// A policy that does not wait long.
const SOON: &str = "[policy.default]\nprofile = 'synchronous'\n\
    backoff = { base = '10ms', cap = '20ms' }\nbudget = { floor = 10 }\n";

fn upstream(name: &str, shops: &[&Shop]) -> String {
    let endpoints: Vec<_> = shops.iter().map(|shop| shop.url()).collect();
    format!("[upstreams.{name}]\nendpoints = {endpoints:?}\n")
}

async fn get(gateway: &Gateway, host: &str, path: &str) -> Reply {
    let request = Request::get(gateway.url(path)).header("host", host);
    gateway.send(request, "").await
}

/// by host and path, each with its own policy and its own name.
#[tokio::test]
async fn a_3_routes_lead_to_several_upstreams() {
    let (folder, shop, pay, rest) = (
        Folder::new(),
        Shop::open().await,
        Shop::open().await,
        Shop::open().await,
    );
    let config = [
        &upstream("shop", &[&shop]),
        "policy = { max_retries = 1 }\n",
        &upstream("pay", &[&pay]),
        "policy = { max_retries = 4 }\n",
        &upstream("rest", &[&rest]),
        "[[routes]]\nhost = 'api.example'\npath = '/orders/'\nupstream = 'shop'\n",
        "[[routes]]\nhost = 'api.example'\npath = '/orders/paid'\nupstream = 'pay'\n",
        "[[routes]]\nhost = '*.example'\nupstream = 'rest'\n",
        SOON,
    ];
    let config = folder.file("gateway.toml", &config.concat());
    let gateway = Gateway::start_from(&config, &[]).await;
    let came = || [&shop, &pay, &rest].map(|shop| shop.came().len());
    for (host, path, goes) in [
        ("api.example", "/orders", [1, 0, 0]),
        ("API.example:80", "/orders/7?paid", [2, 0, 0]),
        ("api.example.", "/orders/paid/7", [2, 1, 0]),
        ("api.example", "/orders/paidx", [3, 1, 0]),
        ("api.example", "/ordersx", [3, 1, 1]),
        ("a.b.example", "/orders", [3, 1, 2]),
    ] {
        let reply = get(&gateway, host, path).await;
        assert_eq!(reply.status, 200, "{host}{path}: {}", reply.text());
        assert_eq!(came(), goes, "{host}{path}");
    }
    for (host, path, status) in [
        ("example", "/orders", 404),
        ("other", "/orders", 404),
        ("api.example", "/orders/../admin", 400),
        ("api.example", "/orders/%2e%2e/admin", 400),
    ] {
        let reply = get(&gateway, host, path).await;
        assert_eq!(reply.status, status, "{host}{path}");
        assert_eq!(reply.json()["status"], status, "{host}{path}");
    }
    assert_eq!(came(), [3, 1, 2]);

    pay.does(|_| http::StatusCode::BAD_GATEWAY);
    shop.does(|_| http::StatusCode::BAD_GATEWAY);
    for (path, shop) in [("/orders", &shop), ("/orders/paid", &pay)] {
        let before = shop.came().len();
        assert_eq!(get(&gateway, "api.example", path).await.status, 502);
        let retries = if path == "/orders" { 1 } else { 4 };
        assert_eq!(shop.came().len() - before, 1 + retries, "{path}");
    }
    let known = gateway.look("/dependencies").await.json();
    let names = known["upstream"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["pay", "rest", "shop"]);
}

/// I-19: one key at two upstreams is two operations, also where the paths are the same.
#[tokio::test]
async fn i_19_upstreams_do_not_share_keys() {
    let (folder, shop, pay) = (Folder::new(), Shop::open().await, Shop::open().await);
    let config = [
        &upstream("shop", &[&shop]),
        &*upstream("pay", &[&pay]),
        "[[routes]]\nhost = 'shop.example'\nupstream = 'shop'\n",
        "[[routes]]\nhost = 'pay.example'\nupstream = 'pay'\n",
    ];
    let config = folder.file("gateway.toml", &config.concat());
    let gateway = Gateway::start_from(&config, &[]).await;
    for _ in 0..2 {
        for host in ["shop.example", "pay.example"] {
            let order = gateway.order("k-1").header("host", host);
            assert_eq!(gateway.send(order, "an order").await.status, 200);
        }
    }
    for shop in [&shop, &pay] {
        assert_eq!(shop.effects(), ["an order"]);
    }
    // S-3: one may go by the first host and another one by the last.
    let hosts = "host: shop.example\r\nhost: pay.example\r\nconnection: close";
    let heard = gateway
        .raw(&format!("GET / HTTP/1.1\r\n{hosts}\r\n\r\n"))
        .await;
    assert!(heard.starts_with("HTTP/1.1 400"), "{heard}");
    // A replay finds its upstream again.
    gateway.do_("/maintenance/on").await;
    let order = gateway.order("k-2").header("host", "pay.example");
    let reply = gateway.send(order.header("replay", "true"), "later").await;
    assert_eq!(reply.status, 202);
    gateway.do_("/maintenance/off").await;
    pay.has(2).await;
    assert_eq!(pay.came()[1].body, "later");
    assert_eq!(shop.came().len(), 1);
}

/// a retry goes to another endpoint; one whose breaker is open gets no calls but probes.
#[tokio::test]
async fn a_3_a_retry_goes_to_another_endpoint() {
    let (folder, good, bad) = (Folder::new(), Shop::open().await, Shop::open().await);
    bad.does(|_| Gets::Status(http::StatusCode::SERVICE_UNAVAILABLE));
    // It stays open once it is.
    let breaker = "policy = { breaker = { consecutive_failures = 3, cooldown = '1h', max_cooldown = '1h' } }\n";
    let config = [&upstream("shop", &[&bad, &good]), breaker, SOON];
    let config = folder.file("gateway.toml", &config.concat());
    let gateway = Gateway::start_from(&config, &[]).await;
    let name = |shop: &Shop| format!("shop/{}", shop.address);
    let state = async |shop: &Shop| {
        let known = gateway.look("/dependencies").await.json();
        let all = known["upstream"].as_array().unwrap().clone();
        let found = all.into_iter().find(|it| it["name"] == name(shop)).unwrap();
        found["breaker"]["state"].as_str().unwrap().to_owned()
    };
    // The first call waits at the first endpoint while another one takes its turn.
    bad.answers(0);
    let (client, url): (Caller, _) = (caller(), gateway.url("/"));
    let held = tokio::spawn(async move { client.get(url.parse().unwrap()).await.unwrap() });
    bad.has(1).await;
    assert_eq!(gateway.get("/").await.status, 200);
    bad.answers(usize::MAX);
    assert_eq!(held.await.unwrap().status(), 200);
    assert_eq!((bad.came().len(), good.came().len()), (1, 2));

    while bad.came().len() < 3 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    assert_eq!(state(&bad).await, "open");
    assert_eq!(state(&good).await, "closed");
    let before = good.came().len();
    for number in 0..10 {
        // Not even what must not be sent twice.
        let order = gateway.order(&format!("k-{number}"));
        assert_eq!(gateway.send(order, "x").await.status, 200);
    }
    assert_eq!((bad.came().len(), good.came().len()), (3, before + 10));
    let metrics = gateway.look("/metrics").await;
    assert!(
        !metrics.text().contains("\ncalls_refused_total"),
        "none had to be refused first"
    );

    // With no endpoint left, calls are refused.
    let force = format!("/dependencies/upstream/open?name={}", name(&good));
    assert_eq!(gateway.do_(&force).await.status, 200);
    assert_eq!(gateway.get("/").await.status, 503);
    assert_eq!(good.came().len(), before + 10);
}

/// between two probes of an endpoint that is down, however far they are apart, no call goes there
/// to be refused.
#[tokio::test]
async fn a_3_an_endpoint_that_is_down_gets_probes_and_no_other_calls() {
    let (folder, good, bad) = (Folder::new(), Shop::open().await, Shop::open().await);
    bad.does(|_| Gets::Status(http::StatusCode::SERVICE_UNAVAILABLE));
    let breaker = "policy = { breaker = { consecutive_failures = 3, cooldown = '100ms', max_cooldown = '1h' } }\n";
    let config = [&upstream("shop", &[&bad, &good]), breaker, SOON];
    let config = folder.file("gateway.toml", &config.concat());
    let gateway = Gateway::start_from(&config, &[]).await;
    // Until it opens, and three probes.
    eventually("it was probed", async || {
        assert_eq!(gateway.get("/").await.status, 200);
        bad.came().len() >= 6
    })
    .await;
    let metrics = gateway.look("/metrics").await;
    assert!(
        !metrics.text().contains("\ncalls_refused_total"),
        "{}",
        metrics.text()
    );
}

/// an endpoint that nothing listens at fails over, whatever the method.
#[tokio::test]
async fn a_3_an_endpoint_that_is_gone_fails_over() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let config = format!(
        "[upstreams.shop]\nendpoints = ['http://127.0.0.1:1', '{}']\n{SOON}",
        shop.url()
    );
    let config = folder.file("gateway.toml", &config);
    let gateway = Gateway::start_from(&config, &[]).await;
    for number in 0..4 {
        let order = gateway.order(&format!("k-{number}"));
        assert_eq!(gateway.send(order, "x").await.status, 200);
    }
    assert_eq!(shop.effects().len(), 4);
    let ready = gateway.look("/readyz").await;
    assert_eq!(
        (ready.status.as_u16(), &ready.json()["upstreams"]["shop"]),
        (200, &true.into())
    );
}

/// Sends a GET on a connection that is kept.
async fn ask(stream: &mut TcpStream) -> String {
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut heard = vec![0; 4096];
    let read = stream.read(&mut heard).await.unwrap();
    String::from_utf8_lossy(&heard[..read]).into_owned()
}

/// a reload keeps connections, calls that are under way, and what is known of dependencies.
#[tokio::test]
async fn a_3_a_reload_keeps_what_is_there() {
    let (folder, old, new) = (Folder::new(), Shop::open().await, Shop::open().await);
    let route = "[[routes]]\nupstream = 'shop'\n";
    let config = |shop: &Shop, more: &str| {
        let text = [&upstream("shop", &[shop]), route, more].concat();
        folder.file("gateway.toml", &text)
    };
    let gateway = Gateway::start_from(&config(&old, ""), &[]).await;
    let address = gateway.url("").replace("http://", "");
    let mut kept = TcpStream::connect(address).await.unwrap();
    assert!(ask(&mut kept).await.starts_with("HTTP/1.1 200"));
    gateway.do_("/dependencies/upstream/close?name=shop").await;

    old.answers(1);
    let (client, url): (Caller, _) = (caller(), gateway.url("/"));
    let held = tokio::spawn(async move { client.get(url.parse().unwrap()).await.unwrap() });
    old.has(2).await;

    let reload = async |text: &str| {
        gateway.signal("HUP");
        gateway.says(text).await;
    };
    // What can't be used changes nothing, and says why.
    folder.file(
        "gateway.toml",
        "[upstreams.shop]\nendpoints = ['nowhere']\n",
    );
    reload("upstreams.shop.endpoints is nowhere").await;
    let many = format!("log = 'warn'\n{}", upstream("pay", &[&new]));
    let many = many + "[[routes]]\npath = '/pay'\nupstream = 'pay'\n";
    let text = std::fs::read_to_string(config(&new, "")).unwrap();
    folder.file("gateway.toml", &(many + &text));
    reload("log has changed, which takes a restart").await;
    reload("the configuration was read again").await;

    assert!(
        ask(&mut kept).await.starts_with("HTTP/1.1 200"),
        "the connection"
    );
    assert_eq!(gateway.get("/pay").await.status, 200);
    assert_eq!((old.came().len(), new.came().len()), (2, 2));
    old.answers(2);
    assert_eq!(held.await.unwrap().status(), 200, "the call");
    let known = gateway.look("/dependencies").await.json();
    let all = known["upstream"].as_array().unwrap().iter();
    let shop = all.clone().find(|it| it["name"] == "shop").unwrap();
    assert_eq!(shop["breaker"]["reason"], "by_hand", "the state: {known}");
}

/// I-8: a route that is moved to another upstream keeps its keys: what was executed is not executed
/// there again.
#[tokio::test]
async fn i_8_a_moved_route_keeps_its_keys() {
    let (folder, old, new) = (Folder::new(), Shop::open().await, Shop::open().await);
    let config = |name: &str| {
        let route = format!("[[routes]]\nhost = 'api.example'\nupstream = '{name}'\n");
        let text = [upstream("old", &[&old]), upstream("new", &[&new]), route];
        folder.file("gateway.toml", &text.concat())
    };
    let gateway = Gateway::start_from(&config("old"), &[]).await;
    let order = || gateway.order("k-1").header("host", "api.example");
    assert_eq!(gateway.send(order(), "an order").await.status, 200);
    config("new");
    gateway.signal("HUP");
    gateway.says("the configuration was read again").await;
    let again = gateway.send(order(), "an order").await;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!((old.came().len(), new.came().len()), (1, 0));
    let other = gateway.order("k-2").header("host", "api.example");
    assert_eq!(gateway.send(other, "an order").await.status, 200);
    assert_eq!((old.came().len(), new.came().len()), (1, 1));
}

/// J-5: an upstream that is down does not hold up replays of the same caller at another one.
#[tokio::test]
async fn j_5_an_upstream_that_is_down_holds_up_its_own_replays_only() {
    let (folder, shop, pay) = (Folder::new(), Shop::open().await, Shop::open().await);
    shop.does(|_| http::StatusCode::SERVICE_UNAVAILABLE);
    let config = [
        &*upstream("shop", &[&shop]),
        &upstream("pay", &[&pay]),
        "[[routes]]\nhost = 'shop.example'\nupstream = 'shop'\n",
        "[[routes]]\nhost = 'pay.example'\nupstream = 'pay'\n",
        SOON,
    ];
    let config = folder.file("gateway.toml", &config.concat());
    let gateway = Gateway::start_from(&config, &["--maintenance"]).await;
    for (host, keys) in [("shop.example", 0..2), ("pay.example", 2..5)] {
        for key in keys {
            let order = gateway.order(&format!("k-{key}")).header("host", host);
            let reply = gateway.send(order.header("replay", "true"), "later").await;
            assert_eq!(reply.status, 202);
        }
    }
    gateway.do_("/maintenance/off").await;
    eventually("the other's are done", async || {
        gateway.replays("completed").await == 3
    })
    .await;
    assert_eq!(pay.effects().len(), 3);
}

/// an upstream that a reload takes away is forgotten, with its connections.
#[tokio::test]
async fn a_3_a_removed_upstream_is_forgotten() {
    let (folder, old, new) = (Folder::new(), Shop::open().await, Shop::open().await);
    let route = "[[routes]]\npath = '/new'\nupstream = 'new'\n";
    let rest = [&*upstream("new", &[&new]), route].concat();
    let text = [
        &*upstream("old", &[&old]),
        "[[routes]]\nupstream = 'old'\n",
        &rest,
    ]
    .concat();
    let gateway = Gateway::start_from(&folder.file("gateway.toml", &text), &[]).await;
    for path in ["/", "/new"] {
        assert_eq!(gateway.get(path).await.status, 200);
    }
    assert_eq!((old.connections(), new.connections()), (1, 1));
    folder.file("gateway.toml", &rest);
    gateway.signal("HUP");
    gateway.says("the configuration was read again").await;
    assert_eq!(gateway.get("/").await.status, 404);
    // Not only when it has been idle for half a minute.
    for _ in 0..1000 {
        if old.connections() > 0 {
            assert_eq!(gateway.get("/new").await.status, 200);
        }
    }
    assert_eq!(old.connections(), 0);
    assert_eq!(new.connections(), 1, "the other's is kept");
}

/// the console has figures of each upstream and each endpoint.
#[tokio::test]
async fn a_4_the_console_counts_for_each_upstream() {
    let (folder, one, two, pay) = (
        Folder::new(),
        Shop::open().await,
        Shop::open().await,
        Shop::open().await,
    );
    pay.does(|before| match before {
        0 => http::StatusCode::SERVICE_UNAVAILABLE,
        _ => http::StatusCode::OK,
    });
    let config = [
        &*upstream("shop", &[&one, &two]),
        &upstream("pay", &[&pay]),
        "[[routes]]\nupstream = 'shop'\n[[routes]]\npath = '/pay'\nupstream = 'pay'\n",
        SOON,
    ];
    let config = folder.file("gateway.toml", &config.concat());
    let gateway = Gateway::start_from(&config, &[]).await;
    for path in ["/", "/", "/pay"] {
        assert_eq!(gateway.get(path).await.status, 200);
    }
    let request = Request::get(gateway.admin("/events")).body("".into());
    let mut events = caller().request(request.unwrap()).await.unwrap();
    let event = events.body_mut().frame().await.unwrap().unwrap();
    let event = event.into_data().unwrap();
    let state: serde_json::Value =
        serde_json::from_slice(event.strip_prefix(b"data: ").unwrap()).unwrap();
    let all = state["dependencies"].as_array().unwrap();
    let of = |name: &str| {
        let known = all.iter().find(|it| it["name"] == name).unwrap();
        ["calls", "attempts"].map(|what| {
            let counts = &known[what];
            Some((counts["calls"].as_u64()?, counts["failed"].as_u64()?))
        })
    };
    assert_eq!(of("pay"), [Some((1, 0)), Some((2, 1))]);
    assert_eq!(of("shop"), [Some((2, 0)), None]);
    for shop in [&one, &two] {
        let name = format!("shop/{}", shop.address);
        assert_eq!(of(&name), [None, Some((1, 0))]);
    }
}

/// the policies that a gateway runs with are audited, each upstream's once.
#[tokio::test]
async fn a_2_a_running_gateway_is_audited() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let approval = "approvals = [{ rule = 'R-2', reason = 'until it is replaced' }]";
    let policy = format!("policy = {{ max_retries = 9, {approval} }}\n");
    let text = [&*upstream("shop", &[&shop, &shop]), &policy].concat();
    let gateway = Gateway::start_from(&folder.file("gateway.toml", &text), &[]).await;
    let address = gateway.admin("").replace("http://", "");
    let audit = |gate: &str| {
        let words = [
            "audit", "--admin", &address, "--format", "json", "--gate", gate,
        ];
        let (code, said, error) = reprise(&words);
        let json: serde_json::Value = serde_json::from_str(&said).expect(&error);
        (
            code,
            json["audits"][0]["findings"].as_array().unwrap().clone(),
        )
    };
    let (code, findings) = audit("deploy");
    assert_eq!((code, findings.len()), (Some(0), 1), "{findings:?}");
    assert_eq!(
        (&findings[0]["rule"], &findings[0]["dependency"]),
        (&"R-2".into(), &"shop".into())
    );
    assert_eq!(findings[0]["approval"], "until it is replaced");
    // By what it runs with now, not by what it was started with.
    folder.file("gateway.toml", &upstream("shop", &[&shop, &shop]));
    gateway.signal("HUP");
    gateway.says("the configuration was read again").await;
    assert_eq!(audit("deploy"), (Some(0), vec![]));
}

/// P-4: a configuration is checked without being used.
#[tokio::test]
async fn p_4_check_reads_a_configuration() {
    let folder = Folder::new();
    let shown = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/gateway.toml");
    let (code, said, error) = run(&["--config", shown, "--check"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(
        said.contains("api.example/ledger/ -> https://ledger.example/v1"),
        "{said}"
    );
    assert!(
        said.contains("*/ -> http://10.0.0.1:9000/, http://10.0.0.2:9000/"),
        "{said}"
    );
    assert!(said.ends_with("the configuration is in order\n"), "{said}");

    let shop = "[upstreams.shop]\nendpoints = ['http://127.0.0.1:1']\n";
    for (text, wrong) in [
        ("upstreams = 1", "upstreams is integer, allowed: a table"),
        (
            "[upstreams.shop]\n",
            "upstreams.shop.endpoints is missing, allowed: a list of 1 to 64",
        ),
        (
            "[upstreams.shop]\nendpoints = []\n",
            "upstreams.shop.endpoints is missing",
        ),
        (
            "[upstreams.Shop]\nendpoints = ['http://a']\n",
            "upstreams is Shop, allowed: names of",
        ),
        (
            "[upstreams.shop]\nendpoints = ['http://me:hunter2@a']\n",
            "upstreams.shop.endpoints is http:…, allowed: http://HOST:PORT",
        ),
        (
            "[upstreams.shop]\nendpoint = 'http://a'\n",
            "upstreams.shop is endpoint, allowed: one of endpoints, http2, ca, ",
        ),
        (
            &format!("{shop}connect-timeout = '1h'"),
            "upstreams.shop.connect-timeout is 1h, allowed: 10ms to 1m",
        ),
        (
            &format!("{shop}ca = '/none'"),
            "upstreams.shop.ca is /none, allowed: a PEM file",
        ),
        (
            &format!("{shop}replay-authorization-file = 'Bearer hunter2'"),
            "upstreams.shop.replay-authorization-file is something else, allowed: a file",
        ),
        (
            &format!("{shop}policy = {{ max_retries = 50 }}"),
            "R-2: upstreams.shop.policy.max_retries is 50, allowed: ",
        ),
        (
            &format!("{shop}policy = {{ retries = 5 }}"),
            "upstreams.shop.policy.retries: unknown field `retries`",
        ),
        (
            &format!("{shop}[policy]\n[policy.default]\nprofile = 'asynchronous'"),
            "policy is [policy], allowed: a policy that keeps the standard",
        ),
        (
            &format!("policy = 'x.toml'\n{shop}policy = {{ max_retries = 1 }}"),
            "policy is a file, allowed: a table [policy]",
        ),
        (
            &format!("upstream = 'http://a'\n{shop}"),
            "upstream is http://a, allowed: in a file without",
        ),
        (
            &format!("{shop}[upstreams.pay]\nendpoints = ['http://a']"),
            "routes is missing, allowed: a [[routes]]",
        ),
        (
            &format!("{shop}[[routes]]\nupstream = 'pay'"),
            "routes[0].upstream is pay, allowed: shop",
        ),
        (
            &format!("{shop}[[routes]]\npath = '/'"),
            "routes[0].upstream is missing, allowed: shop",
        ),
        (
            &format!("{shop}[[routes]]\nhosts = 'a'\nupstream = 'shop'"),
            "routes[0] is hosts, allowed: one of host, path",
        ),
        (
            &format!("{shop}[[routes]]\nhost = 'a:80'\nupstream = 'shop'"),
            "routes[0].host is a:80, allowed: a name such",
        ),
        (
            &format!("{shop}[[routes]]\nhost = 'a.*'\nupstream = 'shop'"),
            "routes[0].host is a.*, allowed: a name such",
        ),
        (
            &format!("{shop}[[routes]]\npath = 'a'\nupstream = 'shop'"),
            "routes[0].path is a, allowed: a path such",
        ),
        (
            &format!(
                "{shop}[[routes]]\nupstream = 'shop'\n[[routes]]\npath = '/'\nupstream = 'shop'"
            ),
            "routes[1] is there twice, allowed: one route",
        ),
        ("routes = 'all'", "routes is string, allowed: a [[routes]]"),
    ] {
        let config = folder.file("gateway.toml", text);
        let flags = ["--listen", "127.0.0.1:0", "--config", &config, "--check"];
        let (code, _, said) = run(&flags);
        assert!(said.contains(wrong), "{text}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
        assert_eq!(code, Some(2), "{text}");
    }
    eventually("nothing was left behind", async || {
        std::fs::read_dir(&folder.0).unwrap().count() == 1
    })
    .await;
}
