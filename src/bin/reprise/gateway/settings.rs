//! The settings, read from the flags and checked one by one.

use std::{net::SocketAddr, time::Duration};

use http::HeaderName;
use tower_reprise::{
    delivery::{guard::Guard, webhooks::Signer},
    error::BoxError,
    policy::Policies,
    server::idempotency::ServerErrors,
    store::CrashPolicy,
};
use tracing_subscriber::filter::LevelFilter;

use super::{
    file::{Fields, Tables},
    flags::Values,
    policy,
    reader::{DAY, Reader},
    routes::Hosts,
    tls::Tls,
    upstream::{MOST_ENDPOINTS, UpstreamSettings},
    upstreams::RouteSettings,
};
use crate::{store::StoreAt, usage_error::UsageError};

const SECOND: Duration = Duration::from_secs(1);
const MOST_BYTES: usize = 1 << 30;

pub(crate) struct Settings {
    /// None if systemd gives the socket.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) upstreams: Vec<UpstreamSettings>,
    pub(crate) routes: Vec<RouteSettings>,
    pub(crate) store: StoreAt,
    pub(crate) trust_forwarded: bool,
    pub(crate) max_connections: usize,
    pub(crate) head_timeout: Duration,
    pub(crate) tls: Option<Tls>,
    /// A file, or `-`.
    pub(crate) access_log: Option<String>,

    pub(crate) trust_callers: bool,
    pub(crate) policies: Policies,
    pub(crate) resend: Resend,

    pub(crate) scope_header: HeaderName,
    pub(crate) anonymous: Option<String>,
    pub(crate) require_key: bool,
    pub(crate) wait: Duration,
    pub(crate) retention: Duration,
    pub(crate) orphans: CrashPolicy,
    pub(crate) server_errors: ServerErrors,
    pub(crate) fail_open: bool,
    pub(crate) request_limit: usize,
    pub(crate) response_limit: usize,
    pub(crate) lease: Duration,

    pub(crate) replay_all: bool,
    pub(crate) replay_path: Option<String>,
    pub(crate) replay_ttl: Duration,
    pub(crate) replay_concurrency: usize,
    pub(crate) callbacks: Option<(Signer, Guard)>,

    pub(crate) admin: Option<SocketAddr>,
    pub(crate) admin_token: Option<String>,
    pub(crate) maintenance: bool,
    pub(crate) grace: Duration,
    pub(crate) log: LevelFilter,
    pub(crate) bare: bool,
    /// Warnings about settings that are valid, but not advisable.
    pub(crate) warnings: Vec<String>,
}

/// Which POST and PATCH may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resend {
    /// Those that surely never arrived.
    Unsent,
    /// And those with a key, which the upstream honours.
    Keyed,
    /// And all others, which get a key.
    Stamped,
}

impl Resend {
    const CHOICES: [(&str, Self); 3] = [
        ("unsent", Self::Unsent),
        ("keyed", Self::Keyed),
        ("stamped", Self::Stamped),
    ];

    /// Returns the policies for operations that may have taken effect, the default first. An
    /// upstream that recognizes keys does nothing twice, so re-execution is its default.
    fn orphans(self) -> [(&'static str, CrashPolicy); 2] {
        let unknown = ("unknown", CrashPolicy::Unknown);
        let reexecute = ("reexecute", CrashPolicy::Reexecute);
        match self {
            Self::Unsent => [unknown, reexecute],
            Self::Keyed | Self::Stamped => [reexecute, unknown],
        }
    }
}

impl Settings {
    /// Checks all values. With a socket that is open already, there need be no `listen`.
    pub(crate) fn read(values: &Values, socket: bool) -> Result<Self, BoxError> {
        let read = Reader::new(&values.fields, "");
        let (upstreams, routes) = upstreams(&read, &values.tables)?;
        let policies = policy::open(read.get("policy"), values.tables.policy.as_ref())?;
        let mut warnings = read.exposed();
        for (name, fields) in &values.tables.upstreams {
            warnings.extend(Reader::new(fields, &format!("upstreams.{name}.")).exposed());
        }
        let resend = read.one_of("resend", &Resend::CHOICES)?;
        let admin_token = read.token("admin-token-file")?;
        let store: StoreAt = read.or("store", "memory", StoreAt::ALLOWED)?;
        let given = read.get("store").unwrap_or_default();
        let store = store.built_in();
        let store = store.map_err(|allowed| read.wrong("store", given, allowed))?;
        Ok(Self {
            listen: match socket {
                true => read.optional("listen", ADDRESS)?,
                false => Some(read.required("listen", ADDRESS)?),
            },
            policies: policy::with_endpoints(policies, &upstreams),
            upstreams,
            routes,
            store,
            trust_forwarded: read.bool("trust-forwarded")?,
            max_connections: read.number("max-connections", 10_000, 1..=1_000_000)?,
            head_timeout: read.time(
                "head-timeout",
                30 * SECOND,
                Duration::from_millis(100)..=300 * SECOND,
            )?,

            tls: read.tls()?,
            access_log: read.get("access-log").map(str::to_owned),
            resend,

            trust_callers: read.bool("trust-callers")?,
            scope_header: read.or(
                "scope-header",
                "authorization",
                "a header's name, such as x-tenant",
            )?,
            anonymous: read.name("anonymous")?,
            require_key: read.bool("require-key")?,
            wait: read.time("wait", Duration::ZERO, Duration::ZERO..=60 * SECOND)?,
            retention: read.time("retention", DAY, DAY..=365 * DAY)?,
            orphans: read.one_of("orphans", &resend.orphans())?,
            server_errors: read.one_of(
                "server-errors",
                &[
                    ("keep", ServerErrors::Keep),
                    ("release", ServerErrors::ReleaseAll),
                ],
            )?,
            fail_open: read.bool("fail-open")?,
            request_limit: read.number("request-limit", 1 << 20, 1..=MOST_BYTES)?,
            response_limit: read.number("response-limit", 1 << 20, 1..=MOST_BYTES)?,
            lease: read.time("lease", 30 * SECOND, SECOND..=600 * SECOND)?,

            replay_all: read.bool("replay-all")?,
            replay_path: read.path("replay-path", "/.replays")?,
            replay_ttl: read.time("replay-ttl", DAY, 60 * SECOND..=7 * DAY)?,
            replay_concurrency: read.number("replay-concurrency", 8, 1..=10_000)?,
            callbacks: read.callbacks()?,

            admin: read.admin(admin_token.is_some())?,
            admin_token,
            maintenance: read.bool("maintenance")?,
            grace: read.time("grace", 30 * SECOND, Duration::ZERO..=3600 * SECOND)?,
            log: read.or("log", "info", "off, error, warn, info, debug or trace")?,
            bare: read.bool("bare")?,
            warnings,
        })
    }
}

impl Settings {
    /// The upstreams with their endpoints, for the log.
    pub(crate) fn upstream_names(&self) -> String {
        let all = self.upstreams.iter().map(|upstream| {
            let endpoints = upstream.endpoints.iter().map(ToString::to_string);
            let endpoints = endpoints.collect::<Vec<_>>().join(", ");
            match upstream.is_named {
                true => format!("{} ({endpoints})", upstream.name),
                false => endpoints,
            }
        });
        all.collect::<Vec<_>>().join("; ")
    }

    /// The routes and what is not advisable, for people.
    pub(crate) fn summary(&self) -> String {
        let mut lines = Vec::new();
        for RouteSettings {
            hosts,
            path,
            upstream,
        } in &self.routes
        {
            let known = self.upstreams.iter().find(|it| it.name == *upstream);
            let endpoints = known.map_or(&[][..], |it| &it.endpoints).iter();
            let endpoints: Vec<_> = endpoints.map(ToString::to_string).collect();
            lines.push(format!("{hosts}{path}/ -> {}", endpoints.join(", ")));
        }
        let warnings = self.warnings.iter();
        lines.extend(warnings.map(|warning| format!("warning: {warning}")));
        lines.push("the configuration is in order".to_owned());
        lines.join("\n")
    }
}

const ADDRESS: &str = "an address and a port, such as 127.0.0.1:8080";

/// The upstreams and the routes to them: those of the file, or the one of `--upstream`.
fn upstreams(
    flags: &Reader<'_>,
    tables: &Tables,
) -> Result<(Vec<UpstreamSettings>, Vec<RouteSettings>), UsageError> {
    let mut all = Vec::new();
    if tables.upstreams.is_empty() {
        let endpoint = flags.upstream("upstream")?;
        let name = endpoint.authority().map(ToString::to_string);
        all.push(UpstreamSettings {
            name: name.unwrap_or_default().to_ascii_lowercase().into(),
            is_named: false,
            endpoints: vec![endpoint],
            http2: flags.bool("upstream-http2")?,
            roots: flags.authorities("upstream-ca")?,
            connect_timeout: flags.connect_timeout()?,
            preserve_host: flags.bool("preserve-host")?,
            replay_authorization: flags.credential("replay-authorization-file")?,
        });
        check_host(flags, "upstream-http2", &all[0])?;
    }
    for of_one in ["upstream", "replay-authorization-file", "upstream-ca"] {
        if let Some(value) = flags.get(of_one).filter(|_| !tables.upstreams.is_empty()) {
            let allowed = "in a file without [upstreams]; each of those says it for itself";
            return Err(flags.wrong(of_one, value, allowed));
        }
    }
    for (name, fields) in &tables.upstreams {
        all.push(upstream(flags, name, fields)?);
    }
    let mut routes = Vec::new();
    for (index, fields) in tables.routes.iter().enumerate() {
        let route = route(&format!("routes[{index}]."), fields, &all)?;
        let same =
            |other: &RouteSettings| (&other.hosts, &other.path) == (&route.hosts, &route.path);
        if routes.iter().any(same) {
            let allowed = "one route for each host and path";
            let field = format!("routes[{index}]");
            return Err(UsageError::new(&field, "there twice", allowed));
        }
        routes.push(route);
    }
    match (&all[..], routes.is_empty()) {
        ([only], true) => routes.push(RouteSettings {
            hosts: Hosts::Any,
            path: "".into(),
            upstream: only.name.clone(),
        }),
        (_, true) => {
            let allowed = "a [[routes]] table with host, path and upstream for each route";
            return Err(UsageError::missing("routes", allowed));
        }
        _ => {}
    }
    Ok((all, routes))
}

/// An upstream of the file. What it does not say, the flags say for all.
fn upstream(
    flags: &Reader<'_>,
    name: &str,
    fields: &Fields,
) -> Result<UpstreamSettings, UsageError> {
    let place = format!("upstreams.{name}.");
    let read = Reader::new(fields, &place);
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let plain = |byte: u8| letter(byte) || b"-_.".contains(&byte);
    if name.len() > 64 || !name.bytes().all(plain) || !name.bytes().next().is_some_and(letter) {
        let allowed = "names of 1 to 64 lower-case letters, digits, - _ and .";
        return Err(UsageError::new("upstreams", name, allowed));
    }
    let endpoints = read.upstreams("endpoints")?;
    if !(1..=MOST_ENDPOINTS).contains(&endpoints.len()) {
        let allowed = format!("a list of 1 to {MOST_ENDPOINTS} addresses such as http://HOST:PORT");
        let count = endpoints.len().to_string();
        return Err(match read.all("endpoints") {
            [] => read.missing("endpoints", &allowed),
            _ => read.wrong("endpoints", &count, allowed),
        });
    }
    let own = |name: &str, flag: &str| match read.get(name) {
        None => flags.bool(flag),
        Some(_) => read.bool(name),
    };
    let upstream = UpstreamSettings {
        name: name.into(),
        is_named: true,
        endpoints,
        http2: own("http2", "upstream-http2")?,
        roots: read.authorities("ca")?,
        connect_timeout: match read.get("connect-timeout") {
            None => flags.connect_timeout()?,
            Some(_) => read.connect_timeout()?,
        },
        preserve_host: own("preserve-host", "preserve-host")?,
        replay_authorization: read.credential("replay-authorization-file")?,
    };
    check_host(&read, "http2", &upstream)?;
    Ok(upstream)
}

/// Refuses to preserve the host in HTTP/2, where the authority says which connection it is.
fn check_host(
    read: &Reader<'_>,
    http2: &str,
    upstream: &UpstreamSettings,
) -> Result<(), UsageError> {
    match upstream.preserve_host && upstream.http2 {
        true => {
            let allowed = format!("false beside {http2}, or {http2} = false");
            Err(read.wrong("preserve-host", "true", allowed))
        }
        false => Ok(()),
    }
}

fn route(
    place: &str,
    fields: &Fields,
    upstreams: &[UpstreamSettings],
) -> Result<RouteSettings, UsageError> {
    let read = Reader::new(fields, place);
    let hosts = match read.get("host") {
        None => Hosts::Any,
        Some(text) => Hosts::parse(text).ok_or_else(|| read.wrong("host", text, Hosts::ALLOWED))?,
    };
    let path = read.prefix("path")?;
    let names: Vec<_> = upstreams.iter().map(|it| &*it.name).collect();
    let names = names.join(" or ");
    let Some(name) = read.get("upstream") else {
        return Err(read.missing("upstream", &names));
    };
    let known = upstreams.iter().find(|it| &*it.name == name);
    let known = known.ok_or_else(|| read.wrong("upstream", name, names))?;
    Ok(RouteSettings {
        hosts,
        path: path.into(),
        upstream: known.name.clone(),
    })
}
