//! The gateway in production: configuration, reload, systemd, containers.
//!
//! `reprise gateway` puts the layers of this crate in front of services in any language. `reprise
//! gateway --help` lists the flags; this page covers what a command line does not show.
//!
//! # One file
//!
//! `--config` reads a TOML file: every flag by its name, and three tables that have no flag.
//! `examples/gateway.toml` shows them with comments.
//!
//! | table | says |
//! | --- | --- |
//! | `[upstreams.NAME]` | a service behind: its `endpoints`, and `policy`, `http2`, `ca`, `connect-timeout`, `preserve-host`, `replay-authorization-file` |
//! | `[[routes]]` | `host`, `path` and `upstream`: the most exact host wins, then the longest path; whole segments count |
//! | `[policy]` | the content of a policy file; without it the standard's defaults |
//!
//! A request that no route is for gets 404, and a path that leaves its route by `..` gets 400. The
//! name of an upstream is the name of its dependency in metrics, logs, `/dependencies` and the
//! console. Without tables, `--upstream` is the only service, and its name is its host and port.
//!
//! An idempotency key is unique for the `host` of its route and the path. So a route can be moved to
//! another upstream: what was executed at the old one is not executed at the new one.
//!
//! # Endpoints
//!
//! Calls take turns at the endpoints of an upstream. Each endpoint has a breaker and a gate of its
//! own, named `NAME/HOST:PORT`; the retry budget is the upstream's.
//!
//! | situation | what happens |
//! | --- | --- |
//! | an attempt fails and may be repeated | the retry goes to an endpoint that the call has not tried |
//! | a breaker is open | the endpoint gets probes and no other calls |
//! | all breakers are open | the call is refused with 503; a request with `replay: true` is journaled |
//! | an endpoint refuses connections | its calls were never sent, so any method goes to another one |
//!
//! # Threads
//!
//! There is a thread for each core. A connection of a caller stays on the one that has the fewest, with
//! its requests on their way to the upstream and back, and each thread keeps connections to upstreams of
//! its own. So an upstream sees up to that many times more idle connections, and one connection with many
//! HTTP/2 streams uses one core.
//!
//! # Check and reload
//!
//! `reprise gateway --config gateway.toml --check` reads everything that the gateway would read, prints
//! the routes and ends with 0, or with 2 and an error that names the field, its value and what is
//! allowed. SIGHUP reads the same again in a running gateway: upstreams, routes, policies, the
//! certificate. Connections of callers, calls under way, budgets and breakers stay; an upstream that
//! did not change keeps its connections, and one that is gone closes them when its last call has ended.
//! A configuration that can't be used changes nothing, and the
//! log says why. Other flags take a restart, which the log says too.
//!
//! # systemd
//!
//! ```ini
//! # /etc/systemd/system/reprise.service
//! [Unit]
//! Wants=network-online.target
//! After=network-online.target
//!
//! [Service]
//! Type=notify
//! ExecStartPre=/usr/local/bin/reprise gateway --config /etc/reprise/gateway.toml --check
//! ExecStart=/usr/local/bin/reprise gateway --config /etc/reprise/gateway.toml
//! ExecReload=/bin/kill -HUP $MAINPID
//! DynamicUser=yes
//! StateDirectory=reprise
//! WorkingDirectory=/var/lib/reprise
//! LimitNOFILE=65536
//! # Longer than --grace.
//! TimeoutStopSec=45s
//! Restart=always
//!
//! [Install]
//! WantedBy=multi-user.target
//! ```
//!
//! ```ini
//! # /etc/systemd/system/reprise.socket: callers wait through a restart instead of being refused
//! [Socket]
//! ListenStream=8080
//!
//! [Install]
//! WantedBy=sockets.target
//! ```
//!
//! With a socket unit there need be no `listen`; one socket is taken.
//!
//! # Containers
//!
//! `Dockerfile` builds the program from Debian's packages. The process is no root, SQLite's file is in
//! the volume `/var/lib/reprise`, and SIGTERM ends it in order: give the container longer than
//! `grace`. Probes ask the admin port: `/healthz` for liveness, `/readyz` for readiness, which is 503
//! while the store takes no writes, no upstream can be reached, or the gateway stops.
//!
//! # A policy before it is deployed
//!
//! `reprise audit` says which rules a policy breaks. `reprise simulate policy.toml --dependency NAME`
//! says what it is worth: success with and without retries, and requests a call, at each failure rate;
//! the load in an outage, and how soon calls succeed after it. It runs the layers in virtual time, takes
//! seconds, and gives the same figures for the same `--seed`.
//!
//! ```text
//! reprise simulate policy.toml --failing 10,50,100 --clients 20 --calls 10 --format json
//! ```
//!
//! # Exit status
//!
//! | command | 0 | 1 | 2 |
//! | --- | --- | --- | --- |
//! | `gateway` | stopped in order | trouble: a port that is taken, a store that can't be opened | a flag or a file that can't be used |
//! | `audit` | nothing that the gate stops | a broken rule | a file that can't be read |
//! | `simulate` | simulated | – | a flag or a file that can't be used |
//! | `letters`, `replays`, `erase`, `keys`, `maintenance` | done | not done: refused, not found, not reached, still processed | a flag that can't be used, a purge without `--yes` |
