use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use http::{Uri, uri::Scheme};

use super::{Forbidden, Guard};

const MAX_URL_LEN: usize = 2048;
const MAX_NAME_LEN: usize = 253;
const MAX_LABEL_LEN: usize = 63;

/// A URL that a [`Guard`] allows, checked as far as possible without resolving its name.
///
/// `Display` and `Debug` show scheme, host and port only: paths and queries of webhooks often are
/// secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    uri: Uri,
}

impl Target {
    /// Reads and checks a URL. An address is checked now; the addresses of a name are checked
    /// whenever a connection is made.
    ///
    /// # Errors
    ///
    /// Returns the reason why the guard refuses it.
    pub fn parse(url: &str, guard: &Guard) -> Result<Self, Forbidden> {
        if url.len() > MAX_URL_LEN || !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Forbidden::Url);
        }
        if url.contains('#') {
            return Err(Forbidden::Fragment);
        }
        let uri: Uri = url.parse().map_err(|_| Forbidden::Url)?;
        if let (Host::Address(address), _) = endpoint(&uri, guard)? {
            guard.check(address)?;
        }
        Ok(Self { uri })
    }

    /// Returns the whole URL.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let authority = self.uri.authority().map_or("", |a| a.as_str());
        write!(f, "{scheme}://{authority}")
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

/// The host of a URL.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Host<'a> {
    Name(&'a str),
    Address(IpAddr),
}

/// Reads the host and port of a URI, both when a target is parsed and when it is connected to: two
/// readers that disagree would let a target evade the guard.
pub(super) fn endpoint<'a>(uri: &'a Uri, guard: &Guard) -> Result<(Host<'a>, u16), Forbidden> {
    let default = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTPS => 443,
        Some(scheme) if *scheme == Scheme::HTTP && guard.http => 80,
        _ => return Err(Forbidden::Scheme),
    };
    let authority = uri.authority().ok_or(Forbidden::Host)?;
    if authority.as_str().contains('@') {
        return Err(Forbidden::UserInfo);
    }
    let host = authority.host();
    // Only a port may follow the host, and one that is no number is not the default port.
    let port = match authority.as_str().strip_prefix(host) {
        Some("") => default,
        Some(port) => port
            .strip_prefix(':')
            .filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|port| port.parse().ok())
            .ok_or(Forbidden::Port)?,
        None => return Err(Forbidden::Host),
    };
    guard.check_port(port)?;
    Ok((plain(host)?, port))
}

/// Reads a host that all resolvers read alike.
fn plain(host: &str) -> Result<Host<'_>, Forbidden> {
    if let Some(literal) = host.strip_prefix('[') {
        let literal = literal.strip_suffix(']').ok_or(Forbidden::Host)?;
        let address: Ipv6Addr = literal.parse().map_err(|_| Forbidden::Host)?;
        return Ok(Host::Address(address.into()));
    }
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok(Host::Address(address.into()));
    }
    let named = |label: &str| {
        (1..=MAX_LABEL_LEN).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    if host.len() > MAX_NAME_LEN || !host.split('.').all(named) || is_number(last) {
        return Err(Forbidden::Host);
    }
    Ok(Host::Name(host))
}

/// Whether some resolver reads a label as a number: decimal, octal or hexadecimal. No name ends in
/// one, so a host that does is an address in disguise.
fn is_number(label: &str) -> bool {
    let hex = label
        .strip_prefix("0x")
        .or_else(|| label.strip_prefix("0X"));
    match hex {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn w_6_hosts_that_resolvers_read_each_in_its_own_way_are_none() {
        let hosts = "2130706433 017700000001 0x7f000001 0X7F.1 0x 127.1 127.0.1 0177.0.0.1 127.0.0.01 \
             1.2.3.4.5 256.0.0.1 example.1 example.0x7f 127.0.0.1. example.com. . a..b .a [::1 \
             [::1%25lo] [127.0.0.1] [::ffff:127.1] a%00b a%2eb -é-";
        for host in hosts.split(' ').chain(["", "ex ample"]) {
            assert_eq!(plain(host), Err(Forbidden::Host), "{host}");
        }
        assert_eq!(plain("a-b_c.example"), Ok(Host::Name("a-b_c.example")));
        assert_eq!(plain("1.example"), Ok(Host::Name("1.example")));
        assert_eq!(plain("0xyz"), Ok(Host::Name("0xyz")));
        let loopback = Ipv6Addr::LOCALHOST.into();
        assert_eq!(plain("[::1]"), Ok(Host::Address(loopback)));
    }

    proptest! {
        /// S-3.
        #[test]
        fn w_6_no_url_panics_and_none_is_read_in_two_ways(
            url in prop_oneof![
                any::<String>(),
                "https?://[a-z0-9.:@\\[\\]%#?/x_-]{0,40}",
                "[hH][tT]{2}[pP][sS]://([a-z]{1,5}@)?[0-9x.]{1,20}(:[0-9]{0,6})?(/.{0,10})?",
            ],
        ) {
            let guard = Guard::new().allow_http();
            if let Ok(target) = Target::parse(&url, &guard) {
                // The connector reads the same host and port as `Uri` does.
                let (host, port) = endpoint(target.uri(), &guard).unwrap();
                let default = if target.uri().scheme_str() == Some("https") { 443 } else { 80 };
                prop_assert_eq!(target.uri().port_u16().unwrap_or(default), port);
                match host {
                    Host::Name(name) => prop_assert_eq!(target.uri().host(), Some(name)),
                    Host::Address(address) => prop_assert!(guard.check(address).is_ok()),
                }
            }
        }
    }
}
