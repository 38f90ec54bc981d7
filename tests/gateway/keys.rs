//! I-27: unknown outcomes, by the program, the admin port and the console.

use std::time::Duration;

use serde_json::Value;
use tower_reprise::store::{
    Claim, Claimed, CrashPolicy, IdempotencyStore, Note, SqliteStore, Stored,
};

use crate::{
    browser::Browser,
    gateway::{Folder, Gateway, reprise},
    shop::Shop,
    support::records::{claim, own},
};

const HOSTILE: &str = "\u{1f}payments.create\u{1f}1\u{1f}<img src=x onerror='window.hacked = 1'>";

fn store(folder: &Folder) -> String {
    format!("sqlite:{}", folder.path("gateway.db"))
}

/// A claim that asks whether it was resolved.
fn again(key: u64) -> Claim {
    Claim {
        crash_policy: CrashPolicy::Unknown,
        ..claim(key)
    }
}

/// Leaves operations of unknown outcome.
async fn vanish(folder: &Folder, keys: impl IntoIterator<Item = u64>) -> SqliteStore {
    let store = SqliteStore::open(folder.0.join("gateway.db")).unwrap();
    for key in keys {
        let claim = Claim {
            lease: Duration::ZERO,
            note: Note::new(HOSTILE).unwrap(),
            ..again(key)
        };
        own(&store, claim).await;
    }
    store
}

fn json(words: &[&str]) -> Value {
    let (code, said, error) = reprise(&[words, &["--format", "json"]].concat());
    assert_eq!(code, Some(0), "{words:?}: {error}");
    serde_json::from_str(&said).unwrap()
}

async fn outcome(store: &SqliteStore, key: u64) -> Claimed {
    store.claim(again(key)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn i_27_a_1_keys_are_listed_resolved_and_released() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let known = vanish(&folder, 1..=5).await;
    let at = store(&folder);
    let gateway = Gateway::start(&shop.url(), &["--store", &at]).await;
    let admin = gateway.admin("");
    let body = folder.file("body", "{\"paid\":true}");
    let key = |number: u64| claim(number).key.to_string();

    // The same against the store and against a gateway.
    for (place, first) in [(["--store", &at], 1), (["--admin", &admin], 3)] {
        let run = |words: &[&str]| reprise(&[words, &place].concat());
        let listed = json(&[&["keys", "list", "--limit", "1"], &place[..]].concat());
        assert_eq!(listed["keys"].as_array().unwrap().len(), 1, "{listed}");
        let next = listed["next"].as_str().unwrap();
        let rest = json(&[&["keys", "list", "--after", next], &place[..]].concat());
        assert_eq!(
            rest["keys"].as_array().unwrap().len() as u64,
            5 - first,
            "{rest}"
        );
        let (code, said, _) = run(&["keys", "list"]);
        assert!(code == Some(0) && said.contains(&key(first)), "{said}");
        assert!(said.contains("payments.create 1 <img"), "{said}");

        let shown = json(&[&["keys", "show", &key(first)], &place[..]].concat());
        let token = shown["token"].as_u64().unwrap();
        let stale = (token - 1).to_string();
        let paid = [
            "keys",
            "resolve",
            &key(first),
            "--reply",
            "201",
            "--body",
            &body,
        ];
        let (code, _, said) = run(&[&paid[..], &["--token", &stale]].concat());
        assert!(code == Some(1) && said.contains("look again"), "{said}");
        let (code, said, error) = run(&paid);
        assert_eq!(
            (code, said),
            (Some(0), format!("{} resolved\n", key(first))),
            "{error}"
        );
        let Claimed::Done {
            stored: Stored::Reply(reply),
            ..
        } = outcome(&known, first).await
        else {
            panic!("resolved with a reply");
        };
        assert!(reply.ends_with(b"{\"paid\":true}"));

        let (code, said, _) = run(&["keys", "release", &key(first + 1)]);
        assert_eq!(
            (code, said),
            (Some(0), format!("{} released\n", key(first + 1)))
        );
        let (code, _, said) = run(&["keys", "show", &key(first + 1)]);
        assert!(
            code == Some(1) && said.contains("no operation of unknown outcome"),
            "{said}"
        );
    }
    for wrong in [
        &["keys", "resolve", &key(5)][..],
        &["keys", "resolve", &key(5), "--no-effect", "--no-reply"],
        &["keys", "resolve", &key(5), "--no-effect", "--body", &body],
        &[
            "keys",
            "resolve",
            &key(5),
            "--reply",
            "200",
            "--body",
            "/nowhere",
            "--store",
            &at,
        ],
    ] {
        assert_eq!(reprise(wrong).0, Some(2), "{wrong:?}");
    }
    for wrong in [
        &["keys", "show", "abc"][..],
        &["keys", "list", "--limit", "0"],
        &["keys", "list", "--after", "xyz"],
        &["keys", "resolve", &key(5), "--no-effect", "--keep", "1h"],
        &["keys", "resolve", &key(5), "--reply", "99"],
    ] {
        let (code, _, said) = reprise(&[wrong, &["--store", &at]].concat());
        assert!(
            code == Some(1) && said.contains("allowed: "),
            "{wrong:?}: {said}"
        );
    }
    let (code, _, error) = reprise(&["keys", "resolve", &key(5), "--no-reply", "--store", &at]);
    assert_eq!(code, Some(0), "{error}");
    let Claimed::Done { stored, .. } = outcome(&known, 5).await else {
        panic!("resolved");
    };
    assert_eq!(stored, Stored::NotRetained);
}

#[tokio::test(flavor = "multi_thread")]
async fn i_27_a_4_the_console_resolves_unknown_outcomes() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let known = vanish(&folder, 1..=3).await;
    let gateway = Gateway::start(&shop.url(), &["--store", &store(&folder)]).await;
    let Some(mut page) = Browser::open(&gateway.admin("/")).await else {
        return;
    };
    page.until("document.querySelectorAll('#keys tr').length === 3")
        .await;
    assert!(page.value("window.hacked").await.is_null());
    page.picture("keys.png").await;

    page.click("#keys tr:nth-child(1) button:nth-of-type(1)")
        .await;
    page.until("document.getElementById('finding').open").await;
    page.value("document.querySelector('#finding form').elements.body.value = 'paid by hand'")
        .await;
    page.click("#finding button[value=resolve]").await;
    page.until("document.querySelectorAll('#keys tr').length === 2")
        .await;
    let Claimed::Done {
        stored: Stored::Reply(reply),
        ..
    } = outcome(&known, 1).await
    else {
        panic!("resolved with a reply");
    };
    assert!(reply.ends_with(b"paid by hand"));

    page.click("#keys tr:nth-child(1) button:nth-of-type(2)")
        .await;
    page.until("document.getElementById('question').open").await;
    page.click("#question-yes").await;
    page.until("document.querySelectorAll('#keys tr').length === 1")
        .await;
    let lease = own(&known, again(2)).await;
    assert!(lease.get() > 0);

    page.click("#keys tr:nth-child(1) button:nth-of-type(1)")
        .await;
    page.value("const it = document.querySelector('#finding form').elements.effect; it.value = 'none'; it.onchange()")
        .await;
    page.click("#finding button[value=resolve]").await;
    page.until("document.getElementById('keys').textContent === 'none'")
        .await;
    own(&known, again(3)).await;
    assert_eq!(page.complaints, Vec::<String>::new());
}
