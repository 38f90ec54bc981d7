//! the console, in a real browser.

use bytes::Bytes;
use tower_reprise::store::{
    SqliteStore,
    journal::{Journal, Query, Status},
};

use crate::{
    browser::Browser,
    gateway::{Folder, Gateway, bury, reprise},
    shop::Shop,
    support::database::eventually,
};

/// Does what a page should not do, wherever it is put into one.
const HOSTILE: &str =
    "</pre><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>";

fn store(folder: &Folder) -> String {
    format!("sqlite:{}", folder.path("gateway.db"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_4_the_console_shows_and_does() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let binary: Vec<u8> = (0..1 << 20).map(|at: u32| (at * 7) as u8 | 0x80).collect();
    let hostile = [Bytes::from(HOSTILE), Bytes::from(binary)];
    bury(&folder, hostile).await;
    bury(&folder, (0..200).map(|number| format!("mail {number}"))).await;
    let gateway = Gateway::start(&shop.url(), &["--store", &store(&folder)]).await;
    for _ in 0..20 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    let Some(mut page) = Browser::open(&gateway.admin("/")).await else {
        return;
    };
    page.until("document.querySelectorAll('.card .chart').length >= 4")
        .await;
    page.until("document.getElementById('live').textContent === 'live'")
        .await;

    // Letters: listed, searched, and shown as what they are.
    page.value("document.forms['letter-filter'].elements.queue.value = 'mails'")
        .await;
    page.click("#letter-filter button").await;
    page.until("document.querySelectorAll('#letters tr').length === 200")
        .await;
    page.click("#letters tr:nth-child(1) button").await;
    page.until("document.getElementById('detail').open").await;
    let shown = page
        .value("document.getElementById('payload').textContent")
        .await;
    assert_eq!(shown, HOSTILE);
    page.click("#detail-close").await;
    page.click("#letters tr:nth-child(2) button").await;
    page.until("document.getElementById('payload').textContent.startsWith('00000000  80 87 8e')")
        .await;
    page.until("document.getElementById('payload').textContent.endsWith('bytes more')")
        .await;
    page.click("#detail-close").await;
    assert!(page.value("window.hacked").await.is_null());
    page.key("/").await;
    page.until("document.activeElement.id === 'letter-search'")
        .await;

    // All of them again, with a count first and progress after.
    page.value("document.getElementById('letter-search').value = ''")
        .await;
    page.click("#redrive").await;
    page.until("document.getElementById('question-text').textContent.startsWith('202 letters')")
        .await;
    page.click("#question-yes").await;
    page.until("document.getElementById('redrives').textContent.includes('202 of 202 done')")
        .await;
    page.picture("wide-light.png").await;

    // The breaker, by hand.
    page.click("button[data-verb=open]").await;
    page.click("#question-yes").await;
    page.until("document.querySelector('.card .badge').textContent.startsWith('open')")
        .await;
    assert_eq!(gateway.get("/").await.status, 503);
    page.click("button[data-verb=reset]").await;
    page.until("document.querySelector('.card .badge').textContent === 'closed'")
        .await;
    assert_eq!(gateway.get("/").await.status, 200);

    page.click("#maintenance").await;
    page.click("#question-yes").await;
    page.until("document.getElementById('maintenance').ariaChecked === 'true'")
        .await;
    assert_eq!(gateway.look("/maintenance").await.json()["on"], true);

    // A change without the page's own token is none, whoever sends it.
    let status = page
        .value("fetch('/maintenance/off', { method: 'POST' }).then((r) => r.status)")
        .await;
    assert_eq!(status, 403);

    // A phone, in the dark.
    page.scheme("dark").await;
    page.size(390, 800).await;
    let fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    assert_eq!(page.value(fits).await, true, "nothing sticks out");
    page.picture("narrow-dark.png").await;
    assert_eq!(page.complaints, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_4_the_console_asks_for_the_token() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let token = folder.file("token", "0123456789abcdef");
    let gateway = Gateway::start(&shop.url(), &["--admin-token-file", &token]).await;
    let Some(mut page) = Browser::open(&gateway.admin("/")).await else {
        return;
    };
    page.until("document.getElementById('login').open").await;
    // A request without the token, whose reply comes after the token did.
    let late = "const real = fetch; \
                window.fetch = async (...all) => { \
                  window.fetch = real; const reply = await real(...all); \
                  await new Promise((come) => { window.come = come; }); return reply; \
                }; \
                ask('/dependencies').then((reply) => { window.late = reply.status; }); 0";
    page.value(late).await;
    page.until("window.come").await;
    page.value("document.getElementById('token').value = '0123456789abcdef'")
        .await;
    page.click("#login button").await;
    page.until("document.getElementById('live').textContent === 'live'")
        .await;
    page.value("window.come()").await;
    page.until("window.late === 200").await;
    let asks = page.value("document.getElementById('login').open").await;
    assert_eq!(asks, false, "once is enough");
    assert_eq!(page.complaints, Vec::<String>::new());
}

/// a redrive of ten thousand, killed in the middle: none lost, none twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_4_a_redrive_survives_a_kill() {
    const LETTERS: u64 = 10_000;
    let (folder, shop) = (Folder::new(), Shop::open().await);
    bury(&folder, (0..LETTERS).map(|number| format!("mail {number}"))).await;
    let mut gateway = Gateway::start(&shop.url(), &["--store", &store(&folder)]).await;
    let all = "/dead-letters/redrive?queue=mails&per_second=100000&background=true";
    assert_eq!(gateway.do_(all).await.json()["total"], LETTERS);
    eventually("some are redriven", async || {
        let redrive = gateway.look("/redrives/1").await.json();
        redrive["redriven"].as_u64().unwrap() > 100
    })
    .await;
    gateway.kill();
    let gateway = Gateway::start(&shop.url(), &["--store", &store(&folder)]).await;
    let left = gateway
        .do_("/dead-letters/redrive?queue=mails&dry_run=true")
        .await
        .json();
    assert!(
        (1..LETTERS).contains(&left["matched"].as_u64().unwrap()),
        "{left}"
    );
    let words = [
        "letters",
        "redrive",
        "--queue",
        "mails",
        "--all",
        "--per-second",
        "100000",
    ];
    let admin = gateway.admin("");
    let (code, said, error) = reprise(&[&words[..], &["--admin", &admin]].concat());
    assert_eq!(code, Some(0), "{said}{error}");

    let journal = SqliteStore::open(folder.0.join("gateway.db")).unwrap();
    let counts = journal.counts("mails").await.unwrap();
    assert_eq!(
        (counts.of(Status::Queued), counts.of(Status::Failed)),
        (LETTERS, 0)
    );
    let listed = journal
        .list(Query::new("mails", LETTERS as u32))
        .await
        .unwrap();
    assert_eq!(
        listed.iter().filter(|entry| entry.redrives == 1).count() as u64,
        LETTERS
    );
}
