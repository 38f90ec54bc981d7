//! The gateway's flags, and the values that it refuses.

use crate::{
    gateway::{Folder, Gateway, policy, reprise, run},
    shop::Shop,
};

const RIGHT: [&str; 4] = [
    "--listen",
    "127.0.0.1:0",
    "--upstream",
    "http://127.0.0.1:1",
];

/// Each wrong value is refused by its name, with what is allowed.
#[test]
fn p_2_wrong_values_are_refused() {
    for (flags, field, value, allowed) in [
        (
            &["--listen", "8080"][..],
            "listen",
            "8080",
            "an address and a port",
        ),
        (
            &["--admin", "localhost"],
            "admin",
            "localhost",
            "an address and a port",
        ),
        (
            &["--upstream", "127.0.0.1:9000"],
            "upstream",
            "127.0.0.1:9000",
            "http://HOST:PORT",
        ),
        (
            &["--upstream", "ftp://h"],
            "upstream",
            "ftp://h/",
            "https://HOST",
        ),
        (
            &["--upstream", "http://me:secret@h"],
            "upstream",
            "http:…",
            "without a user",
        ),
        (
            &["--store", "mysql://me:secret@h/d"],
            "store",
            "mysql:…",
            "sqlite:PATH",
        ),
        (&["--store", "sqlite:"], "store", "sqlite:…", "sqlite:PATH"),
        (
            &["--max-connections", "0"],
            "max-connections",
            "0",
            "1 to 1000000",
        ),
        (
            &["--max-connections", "many"],
            "max-connections",
            "many",
            "1 to 1000000",
        ),
        (
            &["--resend", "all"],
            "resend",
            "all",
            "unsent or keyed or stamped",
        ),
        (
            &["--connect-timeout", "5"],
            "connect-timeout",
            "5",
            "10ms to 1m",
        ),
        (
            &["--connect-timeout", "1ms"],
            "connect-timeout",
            "1ms",
            "10ms to 1m",
        ),
        (
            &["--preserve-host", "--upstream-http2"],
            "preserve-host",
            "true",
            "false beside upstream-http2",
        ),
        (
            &["--scope-header", "a b"],
            "scope-header",
            "a b",
            "a header's name",
        ),
        (
            &["--anonymous", "a b"],
            "anonymous",
            "a b",
            "1 to 64 visible",
        ),
        (
            &["--require-key", "yes"],
            "require-key",
            "yes",
            "true or false",
        ),
        (&["--wait", "2min"], "wait", "2m", "0s to 1m"),
        (&["--retention", "1h"], "retention", "1h", "24h to 365days"),
        (
            &["--orphans", "forget"],
            "orphans",
            "forget",
            "unknown or reexecute",
        ),
        (
            &["--server-errors", "drop"],
            "server-errors",
            "drop",
            "keep or release",
        ),
        (
            &["--request-limit", "0"],
            "request-limit",
            "0",
            "1 to 1073741824",
        ),
        (
            &["--response-limit", "1MB"],
            "response-limit",
            "1MB",
            "1 to 1073741824",
        ),
        (&["--lease", "100ms"], "lease", "100ms", "1s to 10m"),
        (
            &["--replay-path", "replays"],
            "replay-path",
            "replays",
            "a path",
        ),
        (
            &["--replay-ttl", "30days"],
            "replay-ttl",
            "30days",
            "1m to 7days",
        ),
        (
            &["--replay-concurrency", "0"],
            "replay-concurrency",
            "0",
            "1 to 10000",
        ),
        (
            &["--replay-authorization-file", "/none"],
            "replay-authorization-file",
            "/none",
            "a file",
        ),
        (
            &["--callback-secret-file", "/none"],
            "callback-secret-file",
            "/none",
            "a file",
        ),
        (
            &["--callback-allow", "10/8"],
            "callback-allow",
            "10/8",
            "10.0.0.0/8",
        ),
        (&["--grace", "2h"], "grace", "2h", "0s to 1h"),
        (&["--log", "loud"], "log", "loud", "warn"),
        (&["--config", "/none"], "config", "/none", "a file"),
    ] {
        let (code, _, said) = run(&[&RIGHT, flags].concat());
        let start = format!("reprise: {field} is {value}, allowed: ");
        assert!(
            said.starts_with(&start) && said.contains(allowed),
            "{flags:?}: {said}"
        );
        assert!(!said.contains("secret@"), "{said}");
        assert_eq!(code, Some(2), "{flags:?}");
    }
    let (code, _, said) = run(&RIGHT[..2]);
    assert!(
        said.starts_with("reprise: upstream is missing, allowed: http://"),
        "{said}"
    );
    assert_eq!(code, Some(2));
    let (code, _, said) = run(&["--listen-to", "x"]);
    assert!(
        said.contains("--listen-to") && said.contains("--listen"),
        "{said}"
    );
    assert_eq!(code, Some(2));
    // Only the system can tell that this address can't be bound.
    let (code, _, said) = run(&[
        "--listen",
        "192.0.2.1:1",
        "--upstream",
        "http://127.0.0.1:1",
    ]);
    assert!(
        said.starts_with("reprise: listen is 192.0.2.1:1, allowed: "),
        "{said}"
    );
    assert_eq!(code, Some(1));
}

/// S-2: a password is said to nobody, wherever it was put.
#[test]
fn s_2_credentials_are_never_shown() {
    let folder = Folder::new();
    let mut at = 0;
    let mut config = |text: &str| {
        at += 1;
        folder.file(&format!("{at}.toml"), text)
    };
    let (cut, table) = (
        config("log = 'info'\nstore = 'postgres://me:hunter2@h/d\n"),
        config("[store]\npassword = 'hunter2'\n"),
    );
    for flags in [
        &["--store", "host=db password=hunter2"][..],
        &["--store", "hunter2"],
        &["--store", "mysql://me:hunter2@h/d"],
        &["--store", "mysql://h/d?password=hunter2"],
        &["--store", "me:hunter2@h"],
        &["--store", "postgres://me:hunter2@h:99999/d"],
        &[
            "--store",
            "postgres://me:hunter2@127.0.0.1:1/d?nonsense=hunter2",
        ],
        &["--store", "redis://me:hunter2@h:99999"],
        &["--store", "redis://me:hunter2@127.0.0.1:1"],
        &["--store", "memory", "postgres://me:hunter2@h/d"],
        &["--stor", "postgres://me:hunter2@h/d"],
        &["--stor=postgres://me:hunter2@h/d"],
        &["--maintenance", "postgres://me:hunter2@h/d"],
        &["--upstream", "http://me:hunter2@h"],
        &["--upstream", "me:hunter2@h"],
        &["--upstream", "http://h/?token=hunter2"],
        &["--upstream", "http://h/?token=a@hunter2"],
        &["--callback-secret-file", "whsec_hunter2"],
        &["--replay-authorization-file", "Bearer hunter2"],
        &["--config", &cut],
        &["--config", &table],
    ] {
        let (code, _, said) = run(&[&RIGHT, flags].concat());
        assert!(matches!(code, Some(1 | 2)), "{flags:?}: {code:?}");
        assert!(
            said.len() > 20 && !said.contains("hunter2"),
            "{flags:?}: {said}"
        );
    }
    let (_, _, said) = run(&[&RIGHT[..], &["--config", &cut]].concat());
    assert!(said.contains("TOML (line 2: "), "{said}");
}

#[test]
fn help_is_complete() {
    let (code, said, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    for word in [
        "--config",
        "--listen",
        "--upstream",
        "--store",
        "--policy",
        "--admin",
        "--scope-header",
        "--anonymous",
        "--maintenance",
        "memory",
        "sqlite:PATH",
        "postgres://",
        "redis://",
        "SIGHUP",
        "Exit status",
        "/dependencies",
    ] {
        assert!(said.contains(word), "{word}");
    }
    assert!(!said.contains("--bare"), "nobody should use it");
}

/// P-3: for CI, with rule ids and a status.
#[test]
fn p_3_audit_is_a_gate() {
    let folder = Folder::new();
    let good = folder.file("good.toml", &policy(2));
    let (code, said, _) = reprise(&["audit", &good]);
    assert_eq!(
        (code, said.lines().last()),
        (Some(0), Some(&*format!("{good}: in order")))
    );

    let bad =
        policy(50) + "budget = { off = true }\n[dependencies.mail]\nprofile = 'asynchronous'\n";
    let bad = folder.file("bad.toml", &bad);
    let (code, said, _) = reprise(&["audit", &bad]);
    for rule in ["R-2", "R-7", "R-8"] {
        assert!(said.contains(rule), "{rule}: {said}");
    }
    assert_eq!(code, Some(1));
    // And nobody gets to serve by it.
    let (code, _, said) = run(&[&RIGHT[..], &["--policy", &bad]].concat());
    assert!(said.contains("R-"), "{said}");
    assert_eq!(code, Some(2));

    let shown = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/policy.toml");
    let (code, said, _) = reprise(&["audit", shown]);
    assert_eq!(code, Some(0), "{said}");

    let unread = folder.file("unread.toml", "retries = 3");
    let (code, _, said) = reprise(&["audit", &unread]);
    assert!(said.contains("retries"), "{said}");
    assert_eq!(code, Some(2));
    assert_eq!(reprise(&["audit", "/none.toml"]).0, Some(2));
}

/// R-8 is a violation that only the audit knows.
#[test]
fn p_3_a_policy_that_the_audit_rejects_is_refused() {
    let folder = Folder::new();
    let path = folder.file("policy.toml", "[default]\nprofile = 'asynchronous'\n");
    let (code, _, said) = run(&[&RIGHT[..], &["--policy", &path]].concat());
    assert!(
        said.contains("policy is ") && said.contains("R-8"),
        "{said}"
    );
    assert_eq!(code, Some(2));
}

/// All of them can be in a file; the command line has the last word.
#[tokio::test]
async fn p_4_flags_from_a_file() {
    let (folder, shop) = (Folder::new(), Shop::open().await);
    let file = format!(
        "upstream = '{}'\nstore = 'sqlite:{}'\nrequire-key = true\nmax-connections = 7\n\
         anonymous = 'all'\nlog = 'warn'\ncallback-allow = ['10.0.0.0/8', '127.0.0.1']\n",
        shop.url(),
        folder.path("gateway.db"),
    );
    let path = folder.file("gateway.toml", &file);
    let gateway = Gateway::start(&shop.url(), &["--config", &path, "--log", "info"]).await;
    gateway.says("store=\"sqlite\"").await;
    gateway.says("anonymous=\"all\"").await;
    let keyless = http::Request::post(gateway.url("/orders"));
    assert_eq!(gateway.send(keyless, "").await.status, 400);

    for (text, field) in [
        (
            "listenn = 'x'",
            "config is listenn, allowed: one of listen, ",
        ),
        ("lease = 1.5", "lease is 1.5, allowed: "),
        ("lease = '1ms'", "lease is 1ms, allowed: "),
        ("lease", "config is "),
    ] {
        let path = folder.file("wrong.toml", text);
        let (code, _, said) = run(&[&RIGHT[..], &["--config", &path]].concat());
        assert!(said.contains(field), "{text}: {said}");
        assert_eq!(code, Some(2), "{text}");
    }
}
