//! The settings, read from the flags and checked one by one.

use std::{
    fs, net::SocketAddr, ops::RangeInclusive, os::unix::fs::PermissionsExt, str::FromStr,
    time::Duration,
};

use http::{HeaderName, HeaderValue, Uri};
use tower_reprise::{
    delivery::{guard::Guard, webhooks::Signer},
    error::BoxError,
    policy::Policies,
    server::idempotency::ServerErrors,
    store::CrashPolicy,
};
use tracing_subscriber::filter::LevelFilter;

use super::{access::AccessLog, flags::Values, policy, tls::Tls};
use crate::{store::StoreAt, usage_error::UsageError};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MOST_BYTES: usize = 1 << 30;

pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    pub(crate) upstream: Uri,
    pub(crate) store: StoreAt,
    pub(crate) preserve_host: bool,
    pub(crate) trust_forwarded: bool,
    pub(crate) max_connections: usize,
    pub(crate) head_timeout: Duration,
    pub(crate) tls: Option<Tls>,
    pub(crate) access_log: Option<AccessLog>,

    pub(crate) policy_file: Option<String>,
    pub(crate) policies: Policies,
    pub(crate) resend: Resend,
    pub(crate) upstream_http2: bool,
    pub(crate) upstream_ca: Option<String>,
    pub(crate) connect_timeout: Duration,

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
    pub(crate) replay_authorization: Option<HeaderValue>,
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
    pub(crate) fn read(values: &Values) -> Result<Self, BoxError> {
        let read = Reader(values);
        let policy_file = values.get("policy").map(str::to_owned);
        let resend = read.one_of("resend", &Resend::CHOICES)?;
        let admin_token = read.token("admin-token-file")?;
        Ok(Self {
            listen: read.required("listen", ADDRESS)?,
            upstream: read.upstream()?,
            store: read.or("store", "memory", StoreAt::ALLOWED)?,
            preserve_host: read.bool("preserve-host")?,
            trust_forwarded: read.bool("trust-forwarded")?,
            max_connections: read.number("max-connections", 10_000, 1..=1_000_000)?,
            head_timeout: read.time(
                "head-timeout",
                30 * SECOND,
                Duration::from_millis(100)..=300 * SECOND,
            )?,

            tls: read.tls()?,
            access_log: read.access_log()?,

            policies: policy::open(policy_file.as_deref())?,
            policy_file,
            resend,
            upstream_http2: read.bool("upstream-http2")?,
            upstream_ca: values.get("upstream-ca").map(str::to_owned),
            connect_timeout: read.time(
                "connect-timeout",
                5 * SECOND,
                Duration::from_millis(10)..=60 * SECOND,
            )?,

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
            replay_authorization: read.credential("replay-authorization-file")?,
            callbacks: read.callbacks()?,

            admin: read.admin(admin_token.is_some())?,
            admin_token,
            maintenance: read.bool("maintenance")?,
            grace: read.time("grace", 30 * SECOND, Duration::ZERO..=3600 * SECOND)?,
            log: read.or("log", "info", "off, error, warn, info, debug or trace")?,
            bare: read.bool("bare")?,
            warnings: read.exposed(),
        })
    }
}

const ADDRESS: &str = "an address and a port, such as 127.0.0.1:8080";
const UPSTREAM: &str = "http://HOST:PORT or https://HOST, without a user or a query";

/// Flags that name a file with a secret.
const SECRETS: [&str; 4] = [
    "tls-key",
    "admin-token-file",
    "callback-secret-file",
    "replay-authorization-file",
];

struct Reader<'a>(&'a Values);

impl Reader<'_> {
    fn optional<T: FromStr>(&self, name: &str, allowed: &str) -> Result<Option<T>, UsageError> {
        let parse = |text: &str| {
            text.parse()
                .map_err(|_| UsageError::new(name, text, allowed))
        };
        self.0.get(name).map(parse).transpose()
    }

    fn required<T: FromStr>(&self, name: &str, allowed: &str) -> Result<T, UsageError> {
        let value = self.optional(name, allowed)?;
        value.ok_or_else(|| UsageError::missing(name, allowed))
    }

    fn or<T: FromStr>(&self, name: &str, default: &str, allowed: &str) -> Result<T, UsageError> {
        let text = self.0.get(name).unwrap_or(default);
        text.parse()
            .map_err(|_| UsageError::new(name, text, allowed))
    }

    fn bool(&self, name: &str) -> Result<bool, UsageError> {
        self.or(name, "false", "true or false")
    }

    fn number(
        &self,
        name: &str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, UsageError> {
        let allowed = format!("{} to {}", range.start(), range.end());
        let number = self.optional(name, &allowed)?.unwrap_or(default);
        match range.contains(&number) {
            true => Ok(number),
            false => Err(UsageError::new(name, &number.to_string(), allowed)),
        }
    }

    fn time(
        &self,
        name: &str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Result<Duration, UsageError> {
        let allowed = format!("{} to {}", human(*range.start()), human(*range.end()));
        let time = self.optional::<humantime::Duration>(name, &allowed)?;
        let time = time.map_or(default, Into::into);
        match range.contains(&time) {
            true => Ok(time),
            false => Err(UsageError::new(name, &human(time), allowed)),
        }
    }

    /// One of these; the first unless told otherwise.
    fn one_of<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<T, UsageError> {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        let text = self.0.get(name).unwrap_or(names[0]);
        let chosen = choices.iter().find(|(name, _)| *name == text);
        let wrong = || UsageError::new(name, text, names.join(" or "));
        chosen.map(|(_, value)| *value).ok_or_else(wrong)
    }

    fn upstream(&self) -> Result<Uri, UsageError> {
        let uri: Uri = self.required("upstream", UPSTREAM)?;
        let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        let authority = uri.authority().map_or("@", |authority| authority.as_str());
        if !scheme || authority.contains('@') || uri.query().is_some() {
            return Err(UsageError::new("upstream", &uri.to_string(), UPSTREAM));
        }
        Ok(uri)
    }

    fn name(&self, name: &str) -> Result<Option<String>, UsageError> {
        let allowed = "1 to 64 visible ASCII characters";
        let check = |text: &str| {
            let valid =
                (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
            match valid {
                true => Ok(text.to_owned()),
                false => Err(UsageError::new(name, text, allowed)),
            }
        };
        self.0.get(name).map(check).transpose()
    }

    fn path(&self, name: &str, default: &str) -> Result<Option<String>, UsageError> {
        let text = self.0.get(name).unwrap_or(default);
        if text == "off" {
            return Ok(None);
        }
        let path = text.trim_end_matches('/');
        let valid =
            path.starts_with('/') && path.parse::<Uri>().is_ok_and(|uri| uri.path() == path);
        match valid {
            true => Ok(Some(path.to_owned())),
            false => Err(UsageError::new(
                name,
                text,
                "a path such as /.replays, or off",
            )),
        }
    }

    /// Returns the content of the file that a flag names, without the end of its line.
    fn file(&self, name: &str) -> Result<Option<String>, UsageError> {
        let Some(path) = self.0.get(name) else {
            return Ok(None);
        };
        let text = fs::read_to_string(path);
        let text = text
            .map_err(|e| UsageError::new(name, path, format!("a file that can be read ({e})")))?;
        Ok(Some(text.trim().to_owned()))
    }

    fn tls(&self) -> Result<Option<Tls>, UsageError> {
        match (self.0.get("tls-certificate"), self.0.get("tls-key")) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Tls::open(certificate, key).map(Some),
            (None, Some(_)) => Err(UsageError::missing(
                "tls-certificate",
                "a PEM file, beside tls-key",
            )),
            (Some(_), None) => Err(UsageError::missing(
                "tls-key",
                "a PEM file, beside tls-certificate",
            )),
        }
    }

    fn access_log(&self) -> Result<Option<AccessLog>, UsageError> {
        let open = |path: &str| {
            let allowed = |error| format!("a file that can be written to, or - ({error})");
            AccessLog::open(path)
                .map_err(|error| UsageError::new("access-log", path, allowed(error)))
        };
        self.0.get("access-log").map(open).transpose()
    }

    /// Files with secrets that every user of the machine may read.
    fn exposed(&self) -> Vec<String> {
        let exposed = |name: &&str| {
            let file = self.0.get(name).and_then(|path| fs::metadata(path).ok());
            file.is_some_and(|file| file.permissions().mode() & 0o007 != 0)
        };
        let warning = |name| format!("{name} names a secret, and others may read it: chmod 600");
        SECRETS
            .iter()
            .copied()
            .filter(exposed)
            .map(warning)
            .collect()
    }

    /// A token that takes long to guess.
    fn token(&self, name: &str) -> Result<Option<String>, UsageError> {
        let text = self.file(name)?;
        let strong = |text: &String| text.len() >= 16 && text.bytes().all(|b| b.is_ascii_graphic());
        match text {
            Some(text) if !strong(&text) => {
                let allowed = "a token of at least 16 visible ASCII characters";
                Err(UsageError::new(name, "something else", allowed))
            }
            text => Ok(text),
        }
    }

    /// Others than this machine need a token.
    fn admin(&self, token: bool) -> Result<Option<SocketAddr>, UsageError> {
        let admin: Option<SocketAddr> = self.optional("admin", ADDRESS)?;
        match admin {
            Some(address) if !token && !address.ip().is_loopback() => {
                let allowed = "an address of loopback, or any with --admin-token-file";
                Err(UsageError::new("admin", &address.to_string(), allowed))
            }
            admin => Ok(admin),
        }
    }

    fn credential(&self, name: &str) -> Result<Option<HeaderValue>, UsageError> {
        let Some(text) = self.file(name)? else {
            return Ok(None);
        };
        let allowed = "the value of an Authorization header";
        let value = HeaderValue::try_from(text);
        let mut value = value.map_err(|_| UsageError::new(name, "something else", allowed))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    fn callbacks(&self) -> Result<Option<(Signer, Guard)>, BoxError> {
        let mut guard = Guard::new();
        for network in self.0.all("callback-allow") {
            let allowed = "an address or a network, such as 10.0.0.0/8";
            let wrong = |_| UsageError::new("callback-allow", network, allowed);
            guard = guard.allow(network).map_err(wrong)?;
        }
        if self.bool("callback-http")? {
            guard = guard.allow_http();
        }
        let Some(secret) = self.file("callback-secret-file")? else {
            return Ok(None);
        };
        // Without the secret.
        let allowed = "a secret of 24 to 64 bytes as whsec_ and Base64";
        let wrong = |_| UsageError::new("callback-secret-file", "something else", allowed);
        let signer = Signer::new(secret).map_err(wrong)?;
        Ok(Some((signer, guard)))
    }
}

/// A time as a person writes it; humantime has months.
fn human(time: Duration) -> String {
    let days = time.as_secs() / DAY.as_secs();
    match time {
        DAY => "24h".to_owned(),
        time if time > DAY && time == DAY * u32::try_from(days).unwrap_or(0) => {
            format!("{days}days")
        }
        time => humantime::format_duration(time).to_string(),
    }
}
