//! The flags. One table says all there is: `--help` is made of it, the command line is read by it,
//! and so is a file of `--config`, which has a line `name = value` for each.

use clap::{Arg, ArgAction, ArgMatches, Command};
use tower_reprise::error::BoxError;

use super::file::{self, Fields, Tables};

/// A flag: its name, what its value is called, what it is for. Under a heading.
struct Flag {
    name: &'static str,
    value: &'static str,
    help: &'static str,
    heading: &'static str,
}

/// Makes flags. A value called `BOOL` may be left out on the command line, and then is `true`; a
/// flag whose value's name ends with `…` may be given more than once.
macro_rules! flags {
    ($($heading:literal { $($name:literal $value:literal $help:literal;)* })*) => {
        &[$($(Flag { name: $name, value: $value, help: $help, heading: $heading },)*)*]
    };
}

const FLAGS: &[Flag] = flags! {
    "Traffic" {
        "listen" "ADDRESS"
            "Where callers connect to, such as 127.0.0.1:8080; with port 0 the system chooses one. Required, unless systemd gives the socket";
        "upstream" "URL"
            "The service behind: http://HOST:PORT or https://HOST, with a path if all paths are below it. Required, unless a file has [upstreams]";
        "store" "STORE"
            "Where replies and requests are kept: memory (gone on restart), sqlite:PATH; in a program with the feature postgres, postgres://USER:PASSWORD@HOST/DATABASE (with ?transaction_pooling=true behind a pooler in that mode); with redis, redis://HOST [default: memory]";
        "trust-callers" "BOOL"
            "Believes the deadlines and attempt numbers that requests name (grpc-timeout, x-envoy-expected-rq-timeout-ms, x-envoy-attempt-count), up to 60s and 10, and keeps calls within them; otherwise removes the latter two [default: false]";
        "preserve-host" "BOOL"
            "Sends the caller's Host on, instead of the upstream's own, in HTTP/1.1 [default: false]";
        "trust-forwarded" "BOOL"
            "Adds to the X-Forwarded headers of callers, instead of replacing them: only behind a proxy of your own [default: false]";
        "max-connections" "NUMBER"
            "The most callers connected at a time, 1 to 1000000; others wait [default: 10000]";
        "head-timeout" "TIME"
            "How long a caller may take to send the head of a request, from when it connects or after its last one, to go on with its body as long as there is no reply, and to answer a ping over HTTP/2, 100ms to 5min [default: 30s]";
        "tls-certificate" "FILE"
            "Serves https://, HTTP/1.1 and HTTP/2: the chain of certificates as PEM. It is read again on SIGHUP";
        "tls-key" "FILE"
            "The key of that certificate, as PEM";
    }
    "Calls to the upstream" {
        "policy" "FILE"
            "Retries, time, budget, breaker: a policy in TOML, see examples/policy.toml. It is read again on SIGHUP. Its `total_timeout` bounds a call up to the head of the reply, uploads included. Without it, the standard's defaults for synchronous calls";
        "resend" "WHICH"
            "Which POST and PATCH are sent to the upstream again when they fail: `unsent` those that surely never arrived, and nothing else. Only for an upstream that honours Idempotency-Key itself, so that it does nothing twice: `keyed` those that came with a key too; `stamped` all, with a key of the gateway's own if they have none [default: unsent]";
        "upstream-http2" "BOOL"
            "Speaks HTTP/2 to an upstream at http:// too, as gRPC needs it; with https:// it is negotiated [default: false]";
        "upstream-ca" "FILE"
            "Trusts the authorities of this PEM file at https://, instead of Mozilla's, which are compiled in";
        "connect-timeout" "TIME"
            "How long connecting may take, 10ms to 1min [default: 5s]";
    }
    "Idempotency, for POST and PATCH" {
        "scope-header" "NAME"
            "The header that tells callers apart: two callers with the same key have nothing to do with each other. Best one that your authentication sets; a credential is only kept as a hash, and not sent with replays, but who renews it is somebody else [default: authorization]";
        "anonymous" "NAME"
            "One scope for all callers without that header. Unless one is named here, a request with a key and without that header is refused";
        "require-key" "BOOL"
            "Refuses POST and PATCH without a key, instead of passing them on [default: false]";
        "wait" "TIME"
            "How long a repeat waits for the first one's reply before it is told 409, up to 1min [default: 0s]";
        "retention" "TIME"
            "How long replies are kept, from 24h (R-6) to 365days [default: 24h]";
        "orphans" "WHICH"
            "What happens to an operation of which nobody knows whether it took effect, since its gateway died, or its connection broke or took too long: `unknown` it is never sent again, repeats are told so, and a replay ends as a dead letter; `reexecute` a repeat or a replay sends it again, with the same key, for an upstream that honours keys [default: unknown; with --resend keyed or stamped: reexecute]";
        "server-errors" "WHICH"
            "What happens to 5xx replies: `keep` repeats get them too (but for 503), or `release` repeats are executed [default: keep]";
        "fail-open" "BOOL"
            "Executes without protection while the store is down, instead of answering 503 [default: false]";
        "request-limit" "BYTES"
            "The largest body of a request with a key or to be replayed, which is read into memory, 1 to 1073741824 [default: 1048576]";
        "response-limit" "BYTES"
            "The largest reply that is kept, 1 to 1073741824 [default: 1048576]";
        "lease" "TIME"
            "How long a gateway may be gone before others take over what it was doing, 1s to 10min [default: 30s]";
    }
    "Replay, for requests with the header `replay: true`" {
        "replay-all" "BOOL"
            "Replays also requests that do not ask for it, unless they say `replay: false` [default: false]";
        "replay-path" "PATH"
            "Under which path callers follow their replays, or `off` [default: /.replays]";
        "replay-ttl" "TIME"
            "How long a request may wait unless it says so itself, 1min to 7days [default: 24h]";
        "replay-concurrency" "NUMBER"
            "How many are replayed at a time, 1 to 10000 [default: 8]";
        "replay-authorization-file" "FILE"
            "The Authorization of replayed requests, since those of callers are not written down";
        "callback-secret-file" "FILE"
            "The secret (whsec_…) that callbacks are signed with; without it, requests with a `replay-callback` are refused";
        "callback-allow" "NETWORK…"
            "Allows callbacks into this network, such as 10.0.0.0/8; by default they only go to public addresses";
        "callback-http" "BOOL"
            "Allows callbacks by http://, not only https:// [default: false]";
    }
    "Operation" {
        "admin" "ADDRESS"
            "Where operators connect to: the console at /, /metrics, /healthz, /readyz, /dependencies, /replays, /dead-letters, /maintenance. Without a token it has to be an address of this machine alone. Without it there is none";
        "admin-token-file" "FILE"
            "The token that operators show as `Authorization: Bearer`, at least 16 characters. Without it, only this machine is served";
        "access-log" "FILE"
            "A line of JSON for each request, appended to this file, or to stdout for `-`: time, request_id, remote, method, path without its query, status, bytes, seconds";
        "maintenance" "BOOL"
            "Starts in maintenance: nothing is sent to the upstream until POST /maintenance/off [default: false]";
        "grace" "TIME"
            "How long what is under way may take after SIGTERM or SIGINT, 0s to 1h [default: 30s]";
        "log" "LEVEL"
            "What is written to stderr: off, error, warn, info, debug or trace [default: info]";
    }
};

const ABOUT: &str = "Stands in front of a service that you already have: retries, budgets, \
    a circuit breaker, idempotency keys and replay, without writing code.";

const MORE: &str = "Flags in a file: the same names, `listen = \"127.0.0.1:8080\"`, `require-key = true`; \
    or in the environment, `REPRISE_REQUIRE_KEY=true`. The command line has the last word, then the \
    environment. Times are written 500ms, 30s, 5min, 24h, 7days.\n\n\
    Signals: SIGTERM and SIGINT finish what is under way and stop; SIGHUP reads the configuration again: upstreams, routes, policies \
    and the certificate; connections, calls under way and breakers stay as they are.\n\n\
    Exit status: 0 stopped in order; 1 trouble; 2 a flag or a file that can't be used.";

/// The values that were given: of flags, on the command line, in the environment or in a file, and
/// of the file's tables.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub(crate) fields: Fields,
    pub(crate) tables: Tables,
}

/// Reads the flags: the command line, then the environment, then a file.
pub(crate) fn read(matches: &ArgMatches) -> Result<Values, BoxError> {
    let names: Vec<_> = FLAGS.iter().map(|flag| flag.name).collect();
    let mut values = match matches.get_one::<String>("config") {
        Some(path) => file::read(path, &names)?,
        None => Values::default(),
    };
    for name in names.into_iter().chain(["bare"]) {
        if let Some(given) = matches.get_many::<String>(name) {
            values
                .fields
                .insert(name.to_owned(), given.cloned().collect());
        }
    }
    Ok(values)
}

/// The name of a flag in the environment.
fn variable(name: &str) -> String {
    format!("REPRISE_{}", name.to_ascii_uppercase().replace('-', "_"))
}

pub(crate) fn command() -> Command {
    let arg = |flag: &Flag| {
        let arg = Arg::new(flag.name)
            .long(flag.name)
            .value_name(flag.value)
            .help(flag.help)
            .help_heading(flag.heading)
            .env(variable(flag.name))
            // They may hold a password.
            .hide_env_values(true)
            .hide_env(true);
        match flag.value {
            "BOOL" => arg.num_args(0..=1).default_missing_value("true"),
            many if many.ends_with('…') => arg.action(ArgAction::Append),
            _ => arg,
        }
    };
    let command = Command::new("gateway")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        // The last one wins.
        .args_override_self(true)
        .after_help(MORE)
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .env("REPRISE_CONFIG")
                .hide_env(true)
                .help("Reads all of these from a TOML file too, and what only it can say: [upstreams], [[routes]] and [policy], see examples/gateway.toml"),
        )
        .arg(
            Arg::new("check")
                .long("check")
                .action(ArgAction::SetTrue)
                .help("Checks the configuration, says what it comes to, and ends"),
        )
        // The same proxy without a single layer, to be measured against.
        .arg(
            Arg::new("bare")
                .long("bare")
                .hide(true)
                .num_args(0..=1)
                .default_missing_value("true"),
        );
    FLAGS.iter().map(arg).fold(command, Command::arg)
}
