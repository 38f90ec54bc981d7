//! The program's other commands, each as a process.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tower_reprise::store::{
    SqliteStore,
    journal::{Journal, LeaseRequest, NewEntry, Query, Settlement},
};

use crate::{
    gateway::{Folder, Gateway, bury, policy, reprise, reprise_with},
    shop::Shop,
    support::database::eventually,
};

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn a_1_version_help_and_completions() {
    let version = concat!("reprise ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(reprise(&["--version"]).1, version);
    let (code, said, _) = reprise(&["--help"]);
    assert_eq!(code, Some(0));
    let about = "Calls that are safe to repeat, for services in any language";
    assert!(said.starts_with(about), "{said}");
    for command in [
        "gateway",
        "audit",
        "letters",
        "replays",
        "erase",
        "keys",
        "maintenance",
        "simulate",
        "completions",
        "Exit status",
    ] {
        assert!(said.contains(command), "{command}: {said}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let (code, said, _) = reprise(&["completions", shell]);
        assert!(code == Some(0) && said.contains("letters"), "{shell}");
    }
    for wrong in [
        &["nonsense"][..],
        &["letters", "list", "--format", "xml"],
        &["letters", "redrive"],
        &["letters", "purge", "--yes"],
        &["letters", "purge", "--all"],
        &["erase", "--yes"],
        &["erase", "--owner", "ada"],
        &["letters", "list", "--store", "memory"],
        &["letters", "list", "--store", "mysql://me:hunter2@h/d"],
        &["maintenance", "on", "--store", "sqlite:x"],
        &["audit"],
        &["simulate", "--failing", "1,200"],
        &["simulate", "--clients", "0"],
        &["simulate", "--clients", "1000", "--calls", "10000"],
        &["simulate", "--calls", "0"],
        &["simulate", "--time", "forever"],
        &["simulate", "none.toml"],
        &["simulate", "--dependency", "stock.example"],
        &["simulate", "examples/policy.toml", "--dependency", "nobody"],
    ] {
        let (code, _, said) = reprise(wrong);
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
        assert!(!said.is_empty() && !said.contains("hunter2"), "{said}");
    }
    // Nothing listens there.
    let (code, _, said) = reprise(&["letters", "list", "--admin", "127.0.0.1:1"]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("no gateway answers at http://127.0.0.1:1"),
        "{said}"
    );
}

/// the environment says what the command line does not.
#[test]
fn a_1_flags_from_the_environment() {
    let environment = [
        ("REPRISE_LISTEN", "127.0.0.1:0"),
        ("REPRISE_UPSTREAM", "http://127.0.0.1:1"),
        ("REPRISE_MAX_CONNECTIONS", "0"),
    ];
    let (code, _, said) = reprise_with(&["gateway"], &environment);
    assert_eq!(
        said,
        "reprise: max-connections is 0, allowed: 1 to 1000000\n"
    );
    assert_eq!(code, Some(2));
    let flags = ["gateway", "--max-connections", "many"];
    let (_, _, said) = reprise_with(&flags, &environment);
    assert_eq!(
        said,
        "reprise: max-connections is many, allowed: 1 to 1000000\n"
    );
    // Help does not show values from the environment.
    let secret = [("REPRISE_STORE", "postgres://me:hunter2@h/d")];
    assert!(
        !reprise_with(&["gateway", "--help"], &secret)
            .1
            .contains("hunter2")
    );
    assert!(
        !reprise_with(&["letters", "--help"], &secret)
            .1
            .contains("hunter2")
    );
}

#[tokio::test]
async fn a_1_letters_of_a_store_and_of_a_gateway() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let store = format!("sqlite:{}", folder.path("gateway.db"));
    bury(&folder, ["for a", "for b", "\u{1b}[2Jfor c"]).await;
    let gateway = Gateway::start(&shop.url(), &["--store", &store]).await;
    let admin = gateway.admin("");
    let mut ids = Vec::new();
    for at in [["--store", &store], ["--admin", &admin]] {
        let ask =
            |words: &[&str]| reprise(&[&["letters"], words, &["--queue", "mails"], &at].concat());
        let (code, said, error) = ask(&["list", "--format", "json", "--cause", "no_account"]);
        assert_eq!(code, Some(0), "{error}");
        let letters = parsed(&said)["letters"].as_array().unwrap().clone();
        assert_eq!(letters.len(), 3, "{said}");
        let id = |letter: &Value| letter["id"].as_str().unwrap().to_owned();
        ids = letters.iter().map(id).collect();
        let (_, said, _) = ask(&["list"]);
        assert!(
            said.starts_with("ID ") && said.lines().count() == 4,
            "{said}"
        );
        let (_, said, _) = ask(&["list", "--cause", "other", "--format", "json"]);
        assert_eq!(parsed(&said)["letters"], Value::Array(Vec::new()));
        let (_, said, _) = reprise(&[&["letters", "show", &ids[2]][..], &at].concat());
        assert!(
            said.contains("no_account") && said.contains("for c"),
            "{said}"
        );
        assert!(!said.contains('\u{1b}'), "a terminal would obey it");
        let (_, said, _) = ask(&["redrive", "--all", "--dry-run", "--format", "json"]);
        assert_eq!(parsed(&said)["matched"], 3);
        let (code, _, said) = ask(&["redrive", "--all", "--per-second", "0"]);
        assert_eq!(code, Some(1));
        assert!(said.contains("per_second is 0, allowed: 1 to "), "{said}");
        let (code, _, said) = reprise(&[&["letters", "show", "nonsense"][..], &at].concat());
        assert!(code == Some(1) && said.contains("404"), "{said}");
    }
    // One by its id, through the store; the others by a filter, through the gateway.
    let (code, said, _) = reprise(&["letters", "redrive", &ids[0], "--store", &store]);
    assert!(code == Some(0) && said.contains("queued"), "{said}");
    let words = [
        "letters", "redrive", "--queue", "mails", "--admin", &admin, "--cause",
    ];
    let (code, _, said) = reprise(&[&words[..], &["none"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let (code, said, error) = reprise(&[&words[..], &["no_account"]].concat());
    assert_eq!(
        (code, &*said),
        (Some(0), "done: 2 of 2 redriven\n"),
        "{error}"
    );
    let listed = gateway.look("/redrives").await.json();
    assert_eq!(listed["redrives"][1]["state"], "done", "{listed}");
    let left = gateway.look("/dead-letters?queue=mails").await.json();
    assert_eq!(left["letters"], Value::Array(Vec::new()));
}

#[tokio::test]
async fn q_7_letters_are_purged_by_id_or_filter_once_confirmed() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let store = format!("sqlite:{}", folder.path("gateway.db"));
    bury(&folder, ["for a", "for b", "for c", "for d"]).await;
    let gateway = Gateway::start(&shop.url(), &["--store", &store]).await;
    let admin = gateway.admin("");
    let listed = async || {
        let listed = gateway.look("/dead-letters?queue=mails").await.json();
        let letters = listed["letters"].as_array().unwrap().iter();
        letters
            .map(|letter| letter["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let ids = listed().await;
    for (at, mine) in [
        (["--store", &store], &ids[0]),
        (["--admin", &admin], &ids[1]),
    ] {
        let purge = |words: &[&str]| reprise(&[&["letters", "purge"], words, &at].concat());
        let all = ["--queue", "mails", "--all"];
        let (code, _, said) = purge(&all);
        assert!(code == Some(2) && said.contains("--yes"), "{said}");
        let (_, said, error) = purge(&[&all[..], &["--dry-run"]].concat());
        assert!(said.ends_with(" would be purged\n"), "{said}{error}");
        assert!(listed().await.contains(mine), "only counted");
        let (code, said, error) = purge(&[mine, "--yes"]);
        assert!(code == Some(0) && said.contains("purged"), "{said}{error}");
        assert!(!listed().await.contains(mine));
        let (code, _, said) = purge(&[mine, "--yes"]);
        assert!(code == Some(1) && said.contains("404"), "{said}");
    }
    let words = [
        "letters", "purge", "--yes", "--queue", "mails", "--admin", &admin, "--cause",
    ];
    let (_, said, error) = reprise(&[&words[..], &["none"]].concat());
    assert_eq!(said, "done: 0 of 0 purged\n", "{error}");
    let (code, said, error) = reprise(&[&words[..], &["no_account"]].concat());
    assert_eq!(
        (code, &*said),
        (Some(0), "done: 2 of 2 purged\n"),
        "{error}"
    );
    assert_eq!(listed().await, [""; 0]);
    let acts = gateway.look("/redrives").await.json();
    assert_eq!(acts["redrives"][1]["purged"], 2, "{acts}");
}

#[tokio::test]
async fn q_8_an_owner_is_erased_from_the_queues_once_confirmed() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let path = folder.path("gateway.db");
    let store = format!("sqlite:{path}");
    let gateway = Gateway::start(&shop.url(), &["--store", &store]).await;
    let admin = gateway.admin("");
    let journal = SqliteStore::open(&path).unwrap();
    let put = async |queue: &'static str, owner: &str| {
        let new = NewEntry {
            owner: owner.to_owned(),
            ..NewEntry::new(queue, "secret")
        };
        assert!(journal.enqueue(new).await.is_ok());
    };
    let left = async |owner: &str| {
        let query = Query {
            owner: Some(owner.to_owned()),
            ..Query::new("mails", 9)
        };
        journal.list(query).await.unwrap().len()
    };
    for at in [["--store", &store], ["--admin", &admin]] {
        for owner in ["ada", "ada", "bob"] {
            put("mails", owner).await;
        }
        put("bills", "ada").await;
        let erase = |words: &[&str]| {
            let of = [
                "erase", "--owner", "ada", "--queue", "mails", "--queue", "bills",
            ];
            reprise(&[&of, words, &at].concat())
        };
        let (code, said, error) = erase(&["--dry-run", "--format", "json"]);
        assert_eq!(code, Some(0), "{error}");
        let matched =
            json!([{ "queue": "mails", "matched": 2 }, { "queue": "bills", "matched": 1 }]);
        assert_eq!(parsed(&said)["queues"], matched);
        assert_eq!(left("ada").await, 2, "only counted");
        let request = LeaseRequest::new("bills", "", 1, Duration::from_secs(600));
        let leased = journal.lease(request).await.unwrap();
        for (processing, status) in [(1, 1), (0, 0)] {
            let (code, said, error) = erase(&["--yes", "--format", "json"]);
            let bills = &parsed(&said)["queues"][1];
            assert_eq!(code, Some(status), "{error}");
            assert_eq!(bills["processing"], processing, "{bills}");
            assert_eq!(left("ada").await, 0);
            let done = Settlement::completed("sent", Duration::from_secs(600));
            let settled = journal
                .settle(leased[0].id, leased[0].lease_token, done)
                .await;
            assert!(settled.is_ok());
        }
        assert!(journal.find(leased[0].id).await.unwrap().is_none());
    }
    assert_eq!(left("bob").await, 2);
}

/// an owner is named as lists show it, and what nobody owns is not erased.
#[tokio::test]
async fn q_8_a_caller_is_erased_by_the_name_that_lists_show() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let store = format!("sqlite:{}", folder.path("gateway.db"));
    let gateway = Gateway::start(&shop.url(), &["--store", &store, "--maintenance"]).await;
    let admin = gateway.admin("");
    for at in [["--store", &store], ["--admin", &admin]] {
        let request = gateway.order(at[0]).header("replay", "true");
        assert_eq!(gateway.send(request, "x").await.status, 202);
        let (_, listed, _) = reprise(&[&["replays", "list", "--format", "json"], &at[..]].concat());
        let listed = parsed(&listed);
        let owner = listed["replays"][0]["owner"].as_str().unwrap();
        assert_eq!(owner, "x-tenant:ada");
        let erase = |owner: &str, how: &str| {
            reprise(&[&["erase", "--owner", owner, how], &at[..]].concat())
        };
        for (owner, how, status) in [
            ("ada", "--dry-run", 1),
            ("ada", "--yes", 1),
            (owner, "--dry-run", 0),
            (owner, "--yes", 0),
            (owner, "--yes", 1),
        ] {
            let (code, said, error) = erase(owner, how);
            assert_eq!(code, Some(status), "{owner} {how}: {said}{error}");
            assert_eq!(
                error.contains("no entry of this owner"),
                status == 1,
                "{error}"
            );
            for queue in [
                "replay",
                "webhooks.disabled",
                "webhooks.failing",
                "reprise.alerts",
            ] {
                assert!(said.contains(queue), "{queue}: {said}");
            }
        }
    }
}

/// Q-8, I-12: a replay that is erased between two attempts leaves its key to the crash policy.
#[tokio::test]
async fn q_8_the_key_of_an_erased_replay_is_free() {
    let shop = Shop::open().await;
    let flags = ["--orphans", "reexecute"];
    let gateway = Gateway::start(&shop.url(), &flags).await;
    shop.does(|_| StatusCode::SERVICE_UNAVAILABLE);
    let request = gateway.order("held").header("replay", "true");
    assert_eq!(gateway.send(request, "x").await.status, 202);
    let held = gateway.send(gateway.order("held"), "x").await;
    assert_eq!(held.status, 409, "{}", held.text());
    let admin = gateway.admin("");
    eventually("it is erased", async || {
        let words = [
            "erase",
            "--owner",
            "x-tenant:ada",
            "--yes",
            "--admin",
            &admin,
        ];
        reprise(&words).0 == Some(0)
    })
    .await;
    shop.does(|_| StatusCode::OK);
    eventually("the upstream is asked", async || {
        let reply = gateway.send(gateway.order("held"), "x").await;
        assert_ne!(reply.status, 409, "{}", reply.text());
        reply.status == 200
    })
    .await;
}

#[tokio::test]
async fn a_1_replays_and_maintenance() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let store = format!("sqlite:{}", folder.path("gateway.db"));
    let gateway = Gateway::start(&shop.url(), &["--store", &store]).await;
    let admin = gateway.admin("");
    let maintenance = |word: &str| reprise(&["maintenance", word, "--admin", &admin]);
    assert_eq!(maintenance("on").1, "maintenance is on\n");
    assert_eq!(maintenance("status").1, "maintenance is on\n");
    for key in ["a", "b", "c"] {
        let request = gateway.order(key).header("replay", "true");
        assert_eq!(gateway.send(request, "x").await.status, 202);
    }
    let at = ["--store", &store];
    let ask = |words: &[&str]| reprise(&[&["replays"], words, &at].concat());
    let (_, said, error) = ask(&["list", "--status", "queued", "--format", "json"]);
    assert!(error.is_empty(), "{error}");
    let replays = parsed(&said)["replays"].as_array().unwrap().clone();
    let id = |number: usize| replays[number]["id"].as_str().unwrap();
    assert_eq!(replays.len(), 3);
    assert!(ask(&["show", id(0)]).1.contains("queued"));
    assert!(ask(&["cancel", id(0)]).1.contains("cancelled"));
    assert_eq!(
        ask(&["cancel", id(0)]).0,
        Some(1),
        "it is cancelled already"
    );
    let at = ["--admin", &admin];
    let (code, said, error) = reprise(&[&["replays", "trigger", id(1)][..], &at].concat());
    assert_eq!(code, Some(0), "{said}{error}");
    eventually("it is replayed", async || {
        gateway.replays("completed").await == 1
    })
    .await;
    assert_eq!(maintenance("off").1, "maintenance is off\n");
    eventually("all are", async || gateway.replays("completed").await == 2).await;
}

/// the gates of the standard's enforcement table, over files and a running gateway.
#[tokio::test]
async fn a_2_audit_has_gates_and_formats() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let approved = policy(2)
        + "approvals = [{ rule = 'R-7', reason = 'load test' }]\nbudget = { ratio = 0.5 }\n";
    let deploy = folder.file("deploy.toml", &(policy(2) + "budget = { off = true }\n"));
    let merge = policy(2) + "rules = { retry_without_key = true }\n";
    let merge = folder.file("merge.toml", &merge);
    let good = folder.file("good.toml", &policy(2));
    let code = |file: &str, gate: &[&str]| reprise(&[&["audit", file], gate].concat()).0;
    for (file, none, at_merge, at_deploy) in
        [(&good, 0, 0, 0), (&deploy, 1, 0, 1), (&merge, 1, 1, 1)]
    {
        assert_eq!(code(file, &[]), Some(none), "{file}");
        assert_eq!(code(file, &["--gate", "merge"]), Some(at_merge), "{file}");
        assert_eq!(code(file, &["--gate", "deploy"]), Some(at_deploy), "{file}");
    }
    assert_eq!(code("/none.toml", &[]), Some(2));
    assert_eq!(code(&good, &["--gate", "night"]), Some(2));

    let (_, said, _) = reprise(&["audit", &good, &merge, "--format", "json"]);
    let audit = parsed(&said);
    assert_eq!(audit["passed"], false);
    assert_eq!(audit["audits"][0]["passed"], true);
    assert_eq!(audit["audits"][1]["findings"][0]["rule"], "R-6", "{said}");
    assert_eq!(audit["audits"][1]["findings"][0]["gate"], "merge");

    let (_, said, _) = reprise(&["audit", &merge, "--format", "sarif"]);
    let sarif = parsed(&said);
    assert_eq!(sarif["version"], "2.1.0");
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(
        (&result["ruleId"], &result["level"]),
        (&"R-6".into(), &"error".into())
    );
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], *merge);
    assert_eq!(place["region"]["startLine"], 6, "{said}");

    // The audit is of the running policy, not of a file.
    let path = folder.file("approved.toml", &approved);
    let gateway = Gateway::start(&shop.url(), &["--policy", &path]).await;
    let admin = gateway.admin("");
    let (code, said, error) = reprise(&["audit", "--admin", &admin, "--gate", "deploy"]);
    assert_eq!(code, Some(1), "{said}{error}");
    assert!(said.contains("R-7") && said.contains("load test"), "{said}");
    assert_eq!(
        reprise(&["audit", "--admin", &admin, "--gate", "merge"]).0,
        Some(0)
    );
}

/// a policy is simulated: never worse than no retries, by figures that a seed repeats.
#[test]
fn a_1_a_policy_is_simulated() {
    let folder = Folder::new();
    let policies = format!("{}[dependencies.strict]\nmax_retries = 1\n", policy(3));
    let file = folder.file("policy.toml", &policies);
    let size = [
        "simulate",
        &file,
        "--failing",
        "50,100",
        "--clients",
        "5",
        "--time",
        "20s",
    ];
    let simulate = |more: &[&str]| {
        let (code, said, error) = reprise(&[&size[..], more].concat());
        assert_eq!((code, &*error), (Some(0), ""), "{said}");
        said
    };
    let said = simulate(&["--format", "json"]);
    assert_eq!(said, simulate(&["--format", "json"]), "the same seed");
    assert_ne!(said, simulate(&["--format", "json", "--seed", "2"]));
    let strict = simulate(&["--format", "json", "--dependency", "strict"]);
    assert_ne!(said, strict);

    let figures = parsed(&said);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{figures}"));
    let [half, all] = [0, 1].map(|rate| &figures["rates"][rate]);
    assert_eq!(number(&half["failing"]), 0.5);
    assert!(number(&half["success"]) > number(&half["success_without_retries"]));
    assert!((1.0..1.3).contains(&number(&half["load"])), "{figures}");
    assert_eq!(number(&all["success"]), 0.0);
    assert!(number(&all["load"]) < 0.5, "{figures}");
    let outage = &figures["outage"];
    assert!(number(&outage["load"]) < 0.3, "{figures}");
    assert!(number(&outage["back_after_seconds"]) <= 1.0, "{figures}");

    let text = simulate(&[]);
    assert!(
        text.starts_with("FAILING  SUCCESS  WITHOUT RETRIES  LOAD\n50.0 %"),
        "{text}"
    );
    assert!(text.contains("An outage of 30 s: 0."), "{text}");
}
