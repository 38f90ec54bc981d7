//! Checks values one by one: each error names the field, the value and what is allowed.

use std::{
    fs, net::SocketAddr, ops::RangeInclusive, os::unix::fs::PermissionsExt, str::FromStr,
    sync::Arc, time::Duration,
};

use http::{HeaderValue, Uri};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tower_reprise::{
    delivery::{guard::Guard, webhooks::Signer},
    error::BoxError,
};

use super::{file::Fields, tls::Tls, upstream::Roots};
use crate::usage_error::UsageError;

pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const ADDRESS: &str = "an address and a port, such as 127.0.0.1:8081";
const UPSTREAM: &str = "http://HOST:PORT or https://HOST, without a user or a query";

/// Flags that name a file with a secret.
const SECRETS: [&str; 4] = [
    "tls-key",
    "admin-token-file",
    "callback-secret-file",
    "replay-authorization-file",
];

/// Reads fields that are flags, or of a table with a place in the file.
pub(super) struct Reader<'a> {
    fields: &'a Fields,
    place: &'a str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(fields: &'a Fields, place: &'a str) -> Self {
        Self { fields, place }
    }

    /// The value of a field, the last one if there are several.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.all(name).last().map(String::as_str)
    }

    pub(super) fn all(&self, name: &str) -> &'a [String] {
        self.fields.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// An error of a field.
    pub(super) fn wrong(&self, name: &str, value: &str, allowed: impl Into<String>) -> UsageError {
        UsageError::new(&format!("{}{name}", self.place), value, allowed)
    }

    pub(super) fn missing(&self, name: &str, allowed: &str) -> UsageError {
        UsageError::missing(&format!("{}{name}", self.place), allowed)
    }

    pub(super) fn optional<T: FromStr>(
        &self,
        name: &str,
        allowed: &str,
    ) -> Result<Option<T>, UsageError> {
        let parse = |text: &str| text.parse().map_err(|_| self.wrong(name, text, allowed));
        self.get(name).map(parse).transpose()
    }

    pub(super) fn required<T: FromStr>(&self, name: &str, allowed: &str) -> Result<T, UsageError> {
        let value = self.optional(name, allowed)?;
        value.ok_or_else(|| self.missing(name, allowed))
    }

    pub(super) fn or<T: FromStr>(
        &self,
        name: &str,
        default: &str,
        allowed: &str,
    ) -> Result<T, UsageError> {
        let text = self.get(name).unwrap_or(default);
        text.parse().map_err(|_| self.wrong(name, text, allowed))
    }

    pub(super) fn bool(&self, name: &str) -> Result<bool, UsageError> {
        self.or(name, "false", "true or false")
    }

    pub(super) fn number(
        &self,
        name: &str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, UsageError> {
        let allowed = format!("{} to {}", range.start(), range.end());
        let number = self.optional(name, &allowed)?.unwrap_or(default);
        match range.contains(&number) {
            true => Ok(number),
            false => Err(self.wrong(name, &number.to_string(), allowed)),
        }
    }

    pub(super) fn time(
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
            false => Err(self.wrong(name, &human(time), allowed)),
        }
    }

    /// One of these; the first unless told otherwise.
    pub(super) fn one_of<T: Copy>(
        &self,
        name: &str,
        choices: &[(&str, T)],
    ) -> Result<T, UsageError> {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        let text = self.get(name).unwrap_or(names[0]);
        let chosen = choices.iter().find(|(name, _)| *name == text);
        let wrong = || self.wrong(name, text, names.join(" or "));
        chosen.map(|(_, value)| *value).ok_or_else(wrong)
    }

    /// The address of an endpoint.
    pub(super) fn upstream(&self, name: &str) -> Result<Uri, UsageError> {
        let text = self.get(name).ok_or_else(|| self.missing(name, UPSTREAM))?;
        self.endpoint(name, text)
    }

    pub(super) fn upstreams(&self, name: &str) -> Result<Vec<Uri>, UsageError> {
        let all = self.all(name).iter();
        all.map(|text| self.endpoint(name, text)).collect()
    }

    fn endpoint(&self, name: &str, text: &str) -> Result<Uri, UsageError> {
        let uri: Uri = text.parse().map_err(|_| self.wrong(name, text, UPSTREAM))?;
        let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        let authority = uri.authority().map_or("@", |authority| authority.as_str());
        if !scheme || authority.contains('@') || uri.query().is_some() {
            return Err(self.wrong(name, &uri.to_string(), UPSTREAM));
        }
        Ok(uri)
    }

    pub(super) fn connect_timeout(&self) -> Result<Duration, UsageError> {
        let (least, most) = (Duration::from_millis(10), Duration::from_secs(60));
        self.time("connect-timeout", Duration::from_secs(5), least..=most)
    }

    /// The certificates of a PEM file.
    pub(super) fn authorities(&self, name: &str) -> Result<Option<Roots>, UsageError> {
        let Some(path) = self.get(name) else {
            return Ok(None);
        };
        let wrong = |why: String| self.wrong(name, path, format!("a PEM file ({why})"));
        let pem = fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| wrong(error.to_string()))?;
        }
        match roots.is_empty() {
            false => Ok(Some(Roots(Arc::new(roots)))),
            true => Err(wrong("it holds no certificate".to_owned())),
        }
    }

    pub(super) fn name(&self, name: &str) -> Result<Option<String>, UsageError> {
        let allowed = "1 to 64 visible ASCII characters";
        let check = |text: &str| {
            let valid =
                (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
            match valid {
                true => Ok(text.to_owned()),
                false => Err(self.wrong(name, text, allowed)),
            }
        };
        self.get(name).map(check).transpose()
    }

    pub(super) fn path(&self, name: &str, default: &str) -> Result<Option<String>, UsageError> {
        let text = self.get(name).unwrap_or(default);
        match text {
            "off" => Ok(None),
            text => self
                .valid_path(name, text, "a path such as /.replays, or off")
                .map(Some),
        }
    }

    /// A path without a slash at its end; nothing is all paths.
    pub(super) fn prefix(&self, name: &str) -> Result<String, UsageError> {
        match self.get(name) {
            None | Some("/") => Ok(String::new()),
            Some(text) => self.valid_path(name, text, "a path such as /orders"),
        }
    }

    fn valid_path(&self, name: &str, text: &str, allowed: &str) -> Result<String, UsageError> {
        let path = text.trim_end_matches('/');
        let valid =
            path.starts_with('/') && path.parse::<Uri>().is_ok_and(|uri| uri.path() == path);
        match valid {
            true => Ok(path.to_owned()),
            false => Err(self.wrong(name, text, allowed)),
        }
    }

    /// Returns the content of the file that a flag names, without the end of its line.
    pub(super) fn file(&self, name: &str) -> Result<Option<String>, UsageError> {
        let Some(path) = self.get(name) else {
            return Ok(None);
        };
        let text = fs::read_to_string(path);
        let text =
            text.map_err(|e| self.wrong(name, path, format!("a file that can be read ({e})")))?;
        Ok(Some(text.trim().to_owned()))
    }

    pub(super) fn tls(&self) -> Result<Option<Tls>, UsageError> {
        match (self.get("tls-certificate"), self.get("tls-key")) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Tls::open(certificate, key).map(Some),
            (None, Some(_)) => Err(self.missing("tls-certificate", "a PEM file, beside tls-key")),
            (Some(_), None) => Err(self.missing("tls-key", "a PEM file, beside tls-certificate")),
        }
    }

    /// Files with secrets that every user of the machine may read.
    pub(super) fn exposed(&self) -> Vec<String> {
        let exposed = |name: &&str| {
            let file = self.get(name).and_then(|path| fs::metadata(path).ok());
            file.is_some_and(|file| file.permissions().mode() & 0o007 != 0)
        };
        let warning = |name| {
            format!(
                "{}{name} names a secret, and others may read it: chmod 600",
                self.place
            )
        };
        SECRETS
            .iter()
            .copied()
            .filter(exposed)
            .map(warning)
            .collect()
    }

    /// A token that takes long to guess.
    pub(super) fn token(&self, name: &str) -> Result<Option<String>, UsageError> {
        let text = self.file(name)?;
        let strong = |text: &String| text.len() >= 16 && text.bytes().all(|b| b.is_ascii_graphic());
        match text {
            Some(text) if !strong(&text) => {
                let allowed = "a token of at least 16 visible ASCII characters";
                Err(self.wrong(name, "something else", allowed))
            }
            text => Ok(text),
        }
    }

    /// Others than this machine need a token.
    pub(super) fn admin(&self, token: bool) -> Result<Option<SocketAddr>, UsageError> {
        let admin: Option<SocketAddr> = self.optional("admin", ADDRESS)?;
        match admin {
            Some(address) if !token && !address.ip().is_loopback() => {
                let allowed = "an address of loopback, or any with --admin-token-file";
                Err(self.wrong("admin", &address.to_string(), allowed))
            }
            admin => Ok(admin),
        }
    }

    pub(super) fn credential(&self, name: &str) -> Result<Option<HeaderValue>, UsageError> {
        let Some(text) = self.file(name)? else {
            return Ok(None);
        };
        let allowed = "the value of an Authorization header";
        let value = HeaderValue::try_from(text);
        let mut value = value.map_err(|_| self.wrong(name, "something else", allowed))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    pub(super) fn callbacks(&self) -> Result<Option<(Signer, Guard)>, BoxError> {
        let mut guard = Guard::new();
        for network in self.all("callback-allow") {
            let allowed = "an address or a network, such as 10.0.0.0/8";
            let wrong = |_| self.wrong("callback-allow", network, allowed);
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
        let wrong = |_| self.wrong("callback-secret-file", "something else", allowed);
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
