use std::{
    future::pending,
    io,
    net::{IpAddr, TcpListener},
    time::Duration,
};

use http::Uri;
use proptest::prelude::*;
use tower::ServiceExt;
use tower_reprise::{
    call::Cause,
    delivery::{
        Outcome, Sender,
        guard::{Forbidden, Guard, GuardedConnector, Resolving, Target},
    },
    error::BoxError,
};

use super::{Answers, deliver, failure, only, target};
use crate::support::http1::{Server, reply};

/// Listens, and knows of each connection that was made, whether or not anybody took it.
pub(crate) struct Recorder(TcpListener);

impl Recorder {
    pub(crate) fn on(address: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    pub(crate) fn connections(&self) -> usize {
        std::iter::from_fn(|| self.0.accept().ok()).count()
    }
}

fn cause(error: &BoxError) -> Option<Forbidden> {
    error.downcast_ref::<Forbidden>().copied()
}

/// W-6: each of these is, to somebody, a way to say 127.0.0.1 or to hide it.
const DISGUISES: &[&str] = &[
    "http://127.0.0.1:{}/",
    "http://127.255.255.254:{}/",
    "http://0.0.0.0:{}/",
    "http://2130706433:{}/",
    "http://017700000001:{}/",
    "http://0x7f000001:{}/",
    "http://0X7F000001:{}/",
    "http://0177.0.0.1:{}/",
    "http://0177.0.0.01:{}/",
    "http://0x7f.1:{}/",
    "http://0x7f.0x0.0x0.0x1:{}/",
    "http://127.1:{}/",
    "http://127.0.1:{}/",
    "http://127.0.0.1.:{}/",
    "http://localhost:{}/",
    "http://LOCALHOST:{}/",
    "http://localhost.:{}/",
    "http://[::1]:{}/",
    "http://[0:0:0:0:0:0:0:1]:{}/",
    "http://[::]:{}/",
    "http://[::ffff:127.0.0.1]:{}/",
    "http://[::ffff:7f00:1]:{}/",
    "http://[::127.0.0.1]:{}/",
    "http://[::ffff:0:127.0.0.1]:{}/",
    "http://[64:ff9b::127.0.0.1]:{}/",
    "http://[64:ff9b:1::127.0.0.1]:{}/",
    "http://[2002:7f00:1::1]:{}/",
    "http://[2001:0:7f00:1::1]:{}/",
    "http://[fe80::1%25lo]:{}/",
    "http://example.com@127.0.0.1:{}/",
    "http://example.com:80@127.0.0.1:{}/",
    "http://127.0.0.1:{}#@example.com/",
    "http://127.0.0.1:{}?@example.com/",
    "http://example.com\\@127.0.0.1:{}/",
    "http://127.0.0.1\\@example.com:{}/",
    "http://127。0。0。1:{}/",
    "http://①②⑦.0.0.1:{}/",
    "http://127.0.0.1%2eexample.com:{}/",
    "http://127.0.0.1 .example.com:{}/",
    "http:127.0.0.1:{}/",
    "//127.0.0.1:{}/",
    "127.0.0.1:{}",
    "ftp://127.0.0.1:{}/",
    "file:///etc/passwd#{}",
    "gopher://127.0.0.1:{}/_x",
    "unix:///var/run/docker.sock?{}",
];

#[tokio::test]
async fn w_6_no_disguise_reaches_loopback() {
    let recorder = Recorder::on("127.0.0.1");
    let port = recorder.port().to_string();
    let guard = Guard::new().allow_http();
    let sender = Sender::builder(guard.clone()).build().unwrap();
    for disguise in DISGUISES {
        let url = disguise.replace("{}", &port);
        if let Ok(target) = Target::parse(&url, &guard) {
            let failure = failure(deliver(&sender, target).await);
            assert_eq!(failure.cause(), Cause::Other("forbidden_target"), "{url}");
            assert!(!failure.is_retryable(0) && failure.is_alarming());
        }
        // The connector does not rely on anybody having looked before.
        if let Ok(uri) = url.parse::<Uri>() {
            let connected = GuardedConnector::new(guard.clone()).oneshot(uri).await;
            let error = connected.map(|_| ()).unwrap_err();
            assert!(cause(&error).is_some(), "{url}: {error}");
        }
        assert_eq!(recorder.connections(), 0, "{url}");
    }

    // The recorder does hear what is allowed.
    let guard = guard.allow("127.0.0.0/8").unwrap();
    let uri: Uri = format!("http://127.0.0.1:{port}/").parse().unwrap();
    let connected = GuardedConnector::new(guard).oneshot(uri).await;
    assert!(connected.is_ok());
    assert_eq!(recorder.connections(), 1);
}

#[test]
fn w_6_what_can_be_told_by_the_url_is_told_at_once() {
    let guard = Guard::new();
    let long = format!("https://example.com/{}", "a".repeat(2029));
    for (url, expected) in [
        ("http://example.com/", Forbidden::Scheme),
        ("ws://example.com/", Forbidden::Scheme),
        ("example.com", Forbidden::Scheme),
        ("/hook", Forbidden::Scheme),
        ("https:///hook", Forbidden::Url),
        ("", Forbidden::Url),
        ("https://exa mple.com/", Forbidden::Url),
        ("https://example.com/\r\nx: y", Forbidden::Url),
        ("https://éxample.com/", Forbidden::Url),
        (&*long, Forbidden::Url),
        ("https://user:pass@example.com/", Forbidden::UserInfo),
        ("https://@example.com/", Forbidden::UserInfo),
        ("https://example.com/#top", Forbidden::Fragment),
        ("https://2130706433/", Forbidden::Host),
        ("https://example.com./", Forbidden::Host),
        ("https://example.com:0/", Forbidden::Port),
        ("https://example.com:22/", Forbidden::Port),
        ("https://example.com:6379/", Forbidden::Port),
        ("https://example.com:99999/", Forbidden::Port),
        ("https://example.com:/", Forbidden::Port),
        ("https://10.0.0.1/", Forbidden::Address),
        ("https://[fd00::1]/", Forbidden::Address),
        (
            "https://169.254.169.254/latest/meta-data",
            Forbidden::Address,
        ),
    ] {
        let parsed = Target::parse(url, &guard).map(|target| target.to_string());
        assert_eq!(parsed, Err(expected), "{url}");
    }
    for url in [
        "https://example.com",
        "HTTPS://Example.COM:8443/a/b?c=d",
        "https://xn--xample-9ua.com/",
        "https://1.1.1.1/",
        "https://[2606:4700::1111]:443/",
        "https://hooks/",
    ] {
        assert!(Target::parse(url, &guard).is_ok(), "{url}");
    }
    assert!(Target::parse(&long[..2048], &guard).is_ok());

    let ports = Guard::new().ports([443, 25]);
    assert!(Target::parse("https://example.com/", &ports).is_ok());
    assert!(Target::parse("https://example.com:25/", &ports).is_ok());
    let other = Target::parse("https://example.com:8443/", &ports);
    assert_eq!(other, Err(Forbidden::Port));
}

/// S-2.
#[test]
fn w_6_a_target_does_not_show_its_path_and_query() {
    let url = "https://hooks.example.com:8443/services/T0/s3cret?token=s3cret";
    let target = target(url, &Guard::new());
    assert_eq!(target.to_string(), "https://hooks.example.com:8443");
    assert!(!format!("{target:?}").contains("s3cret"));
    assert_eq!(target.uri(), url);
}

#[test]
fn w_6_addresses_that_are_not_public() {
    let guard = Guard::new();
    let refused = |address: &str| guard.check(address.parse().unwrap()).is_err();
    for address in [
        // Unspecified, this network, private, shared, loopback, link-local.
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.0",
        "10.255.255.255",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.1.2.3",
        "169.254.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "192.168.255.255",
        // Assignments, documentation, relays, benchmarks.
        "192.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        // Multicast, reserved, broadcast, the host agent.
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        // The same of IPv6.
        "::",
        "::1",
        "::2",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "100::1",
        "2001:db8::1",
        "3fff::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "5f00::1",
        "4000::1",
        "3ffe::1",
        // Those that hold an IPv4 address, a public one too.
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "::8.8.8.8",
        "::ffff:0:8.8.8.8",
        "2002:7f00:1::",
        "2002:808:808::1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::8.8.8.8",
        "64:ff9b:1::10.0.0.1",
        "64:ff9b:1:ffff::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    ] {
        assert!(refused(address), "{address}");
    }
    for address in [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.1",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "192.169.0.0",
        "192.0.1.1",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "168.63.129.15",
        "168.63.129.17",
        "2606:4700::1111",
        "2001:4860:4860::8888",
        "2001:200::1",
        "2003::1",
        "2a00::1",
        "2400::1",
        "3ffd::1",
    ] {
        assert!(!refused(address), "{address}");
    }
}

#[test]
fn w_6_networks_are_allowed_and_refused_by_name() {
    let guard = Guard::new();
    let guard = guard
        .allow("10.1.0.0/16")
        .unwrap()
        .allow("fd12::/16")
        .unwrap();
    let guard = guard.allow("::1").unwrap().allow("127.0.0.2").unwrap();
    let guard = guard
        .refuse("10.1.9.0/24")
        .unwrap()
        .refuse("8.8.0.0/16")
        .unwrap();
    let checked = |address: &str| guard.check(address.parse().unwrap()).is_ok();
    for allowed in [
        "10.1.0.1",
        "10.1.255.255",
        "fd12::1",
        "::1",
        "127.0.0.2",
        "8.9.0.1",
    ] {
        assert!(checked(allowed), "{allowed}");
    }
    for refused in [
        "10.0.255.255",
        "10.2.0.0",
        "10.1.9.9",
        "8.8.8.8",
        "fd13::1",
        "::2",
        "127.0.0.1",
        // An IPv4 network is not its IPv6 form.
        "::ffff:10.1.0.1",
        "::10.1.0.1",
    ] {
        assert!(!checked(refused), "{refused}");
    }
    let all = Guard::new().allow("0.0.0.0/0").unwrap();
    assert!(all.check("127.0.0.1".parse().unwrap()).is_ok());
    assert!(all.check("::1".parse().unwrap()).is_err());
    for bad in [
        "",
        "/",
        "10.0.0.0/",
        "10.0.0.0/33",
        "::/129",
        "10.0.0.1/8",
        "fd00::1/8",
        "10/8",
        "10.0.0.0/+8",
        "10.0.0.0/8/8",
        "localhost",
        "0x0a.0.0.0/8",
        "10.0.0.0/999",
        "[::1]",
    ] {
        let error = Guard::new().allow(bad).unwrap_err();
        assert_eq!(error.field(), "guard.allow", "{bad}");
        assert_eq!(error.value(), format!("{bad:?}"));
        assert_eq!(
            Guard::new().refuse(bad).unwrap_err().field(),
            "guard.refuse"
        );
    }
}

#[tokio::test]
async fn w_6_a_name_that_stands_for_something_inside_is_refused() {
    let recorder = Recorder::on("127.0.0.1");
    let guard = Guard::new().allow_http();
    let url = format!("http://hooks.example:{}/", recorder.port());
    for answer in [
        "127.0.0.1",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::127.0.0.1",
        "2002:7f00:1::",
        "0.0.0.0",
        "::1",
        "10.0.0.1",
        "169.254.169.254",
    ] {
        let answers = Answers::new(&[&[answer]]);
        let sender = Sender::builder(guard.clone()).resolver(answers.clone());
        let sender = sender.build().unwrap();
        let failure = failure(deliver(&sender, target(&url, &guard)).await);
        assert_eq!(
            failure.cause(),
            Cause::Other("forbidden_target"),
            "{answer}"
        );
        assert_eq!(answers.asked(), 1);
        assert_eq!(recorder.connections(), 0, "{answer}");
    }
}

/// W-6: the public address is played by 127.0.0.2, which is allowed; 127.0.0.1 is the inside.
#[tokio::test]
async fn w_6_a_name_that_changes_its_mind_gets_nowhere() {
    // The same port of both, which somebody else may hold of one.
    let pair = std::iter::repeat_with(|| {
        let outside = TcpListener::bind("127.0.0.2:0").unwrap();
        let port = outside.local_addr().unwrap().port();
        let inside = TcpListener::bind(("127.0.0.1", port)).ok()?;
        Some((outside, inside, port))
    });
    let (outside, inside, port) = pair.take(99).flatten().next().unwrap();
    for listener in [&outside, &inside] {
        listener.set_nonblocking(true).unwrap();
    }
    let outside = tokio::net::TcpListener::from_std(outside).unwrap();
    let outside = Server::on(outside, vec![reply(200, "")]);
    let guard = only("127.0.0.2:0".parse().unwrap());
    let answers = Answers::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let sender = Sender::builder(guard.clone()).resolver(answers.clone());
    let sender = sender.build().unwrap();
    let target = target(&format!("http://hooks.example:{port}/"), &guard);

    // Resolved once, and what was looked at is what was connected to.
    let outcome = deliver(&sender, target.clone()).await;
    assert!(matches!(outcome, Outcome::Delivered(_)), "{outcome:?}");
    assert_eq!((answers.asked(), outside.connections()), (1, 1));

    let failure = failure(deliver(&sender, target).await);
    assert_eq!(failure.cause(), Cause::Other("forbidden_target"));
    assert_eq!((answers.asked(), outside.connections()), (2, 1));
    assert_eq!(
        inside.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
}

#[tokio::test]
async fn w_6_one_bad_address_spoils_the_answer() {
    let recorder = Recorder::on("127.0.0.2");
    let guard = only("127.0.0.2:0".parse().unwrap());
    let uri: Uri = format!("http://hooks.example:{}/", recorder.port())
        .parse()
        .unwrap();
    let connect = async |answer: &[&str]| {
        let connector = GuardedConnector::new(guard.clone()).resolver(Answers::new(&[answer]));
        connector.oneshot(uri.clone()).await.map(|_| ())
    };
    let many = ["127.0.0.2"; 99];
    for mixed in [
        &["127.0.0.2", "127.0.0.1"][..],
        &["127.0.0.1", "127.0.0.2"],
        &["127.0.0.2", "::ffff:127.0.0.2"],
        // Beyond those that would be tried.
        &[&many[..], &["10.0.0.1"]].concat(),
    ] {
        let error = connect(mixed).await.unwrap_err();
        assert_eq!(cause(&error), Some(Forbidden::Address), "{mixed:?}");
        assert_eq!(recorder.connections(), 0);
    }
    connect(&many).await.unwrap();
    assert_eq!(recorder.connections(), 1);
}

/// S-3: four are tried.
#[tokio::test]
async fn w_6_few_addresses_of_an_answer_are_tried() {
    let recorder = Recorder::on("127.77.0.9");
    let guard = Guard::new().allow_http().allow("127.77.0.0/16").unwrap();
    let uri: Uri = format!("http://hooks.example:{}/", recorder.port())
        .parse()
        .unwrap();
    let deaf = ["127.77.0.1", "127.77.0.2", "127.77.0.3", "127.77.0.4"];
    for (before, connections) in [(3, 1), (4, 0)] {
        let answer = [&deaf[..before], &["127.77.0.9"]].concat();
        let connector = GuardedConnector::new(guard.clone()).resolver(Answers::new(&[&answer]));
        let connected = connector.oneshot(uri.clone()).await;
        assert_eq!(connected.is_ok(), connections == 1);
        assert_eq!(recorder.connections(), connections);
    }
}

#[tokio::test(start_paused = true)]
async fn w_6_a_resolver_that_never_answers_is_a_timeout() {
    let never = |_: &str| -> Resolving { Box::pin(pending()) };
    let guard = Guard::new();
    let sender = Sender::builder(guard.clone()).resolver(never);
    let sender = sender
        .connect_timeout(Duration::from_secs(3))
        .build()
        .unwrap();
    let begun = tokio::time::Instant::now();
    let target = target("https://hooks.example/", &guard);
    let failure = failure(deliver(&sender, target).await);
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    assert_eq!(failure.cause(), Cause::Timeout);
    assert!(failure.is_retryable(7));
}

#[tokio::test]
async fn c_3_a_name_without_addresses_is_asked_for_twice() {
    let guard = Guard::new();
    let nobody = |_: &str| -> Resolving {
        let error = io::Error::other("no such host: s3cret");
        Box::pin(std::future::ready(Err(error.into())))
    };
    let builder = || Sender::builder(guard.clone());
    for sender in [
        builder().resolver(nobody),
        builder().resolver(Answers::new(&[&[]])),
    ] {
        let sender = sender.build().unwrap();
        let failure = failure(deliver(&sender, target("https://hooks.example/", &guard)).await);
        assert_eq!(failure.cause(), Cause::Dns);
        assert!(failure.is_retryable(0) && !failure.is_retryable(1));
        assert!(!format!("{failure} {failure:?}").contains("s3cret"));
    }
}

proptest! {
    /// W-6: whatever form an address is given in, the guard says the same of it.
    #[test]
    fn w_6_an_address_is_judged_alike_in_a_url_and_by_itself(bits in any::<u128>(), four in any::<u32>(), v6 in any::<bool>()) {
        let address: IpAddr = match v6 {
            true => std::net::Ipv6Addr::from_bits(bits).into(),
            false => std::net::Ipv4Addr::from_bits(four).into(),
        };
        let host = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        let guard = Guard::new();
        let parsed = Target::parse(&format!("https://{host}/"), &guard).map(|_| ());
        prop_assert_eq!(parsed, guard.check(address));
    }

    /// S-3.
    #[test]
    fn w_6_no_network_panics(text in prop_oneof![any::<String>(), "[0-9a-f.:]{0,20}/[0-9]{0,4}"], address in any::<u128>()) {
        if let Ok(guard) = Guard::new().allow(&text) {
            let _ = guard.check(std::net::Ipv6Addr::from_bits(address).into());
            let _ = guard.check(std::net::Ipv4Addr::from_bits(address as u32).into());
        }
    }
}
