//! The header changes of a proxy: removes hop-by-hop headers, and tells the next hop the caller's
//! address, the host and the scheme.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Request,
    header::{self, Entry},
    uri::Authority,
};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Fields of one connection, by RFC 9110 and by custom. `Proxy-*` credentials are the gateway's.
const OF_A_CONNECTION: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Takes away what is meant for one connection only: known fields, and those that `Connection`
/// names.
pub(crate) fn strip(headers: &mut HeaderMap) {
    // One look at each name: to search for each of these takes 500 instructions more (callgrind).
    let of_a_connection = |name: &&HeaderName| OF_A_CONNECTION.contains(&name.as_str());
    let found: Vec<_> = headers.keys().filter(of_a_connection).cloned().collect();
    if found.contains(&header::CONNECTION) {
        let connection = headers.get_all(header::CONNECTION).iter();
        let options = connection.filter_map(|value| value.to_str().ok());
        let names = options.flat_map(|value| value.split(',')).map(str::trim);
        let names = names.filter(|name| !name.eq_ignore_ascii_case("keep-alive"));
        let named: Vec<HeaderName> = names.filter_map(|name| name.parse().ok()).collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in found {
        headers.remove(name);
    }
}

/// Whether there is such a field. A message has few: to compare their names costs less than to hash
/// one that is hardly ever there.
fn has(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.keys().any(|known| known == name)
}

fn remove(headers: &mut HeaderMap, name: &HeaderName) {
    if has(headers, name) {
        headers.remove(name);
    }
}

/// A caller's connection, as the upstream is told of it.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) remote: IpAddr,
    address: HeaderValue,
    trusted: bool,
    scheme: HeaderValue,
}

impl Peer {
    /// With what a trusted peer said before, what is told is added to that.
    pub(crate) fn new(address: IpAddr, trusted: bool, tls: bool) -> Self {
        let remote = address.to_canonical();
        let address = remote.to_string();
        Self {
            remote,
            scheme: HeaderValue::from_static(if tls { "https" } else { "http" }),
            address: HeaderValue::try_from(address).unwrap_or(HeaderValue::from_static("unknown")),
            trusted,
        }
    }

    /// Makes an inbound request one that can be passed on: the host that it asked for is in its
    /// `Host` alone, without a user, as the upstream's may be another.
    pub(crate) fn pass<B>(&self, request: &mut Request<B>) {
        // Trailers are passed on, so `TE: trailers` is kept.
        let headers = request.headers();
        let te = has(headers, &header::TE).then(|| headers.get(header::TE));
        let trailers = te
            .flatten()
            .is_some_and(|te| te.as_bytes().starts_with(b"trailers"));
        let host = request.uri().authority().map(host_of);
        if let Some(path) = request.uri().path_and_query().filter(|_| host.is_some()) {
            *request.uri_mut() = path.clone().into();
        }
        let headers = request.headers_mut();
        strip(headers);
        if trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        // It was answered already.
        remove(headers, &header::EXPECT);
        if let Some(host) = host.flatten() {
            headers.insert(header::HOST, host);
        }
        self.tell(headers);
        headers.append(header::VIA, HeaderValue::from_static("1.1 gateway"));
        request.extensions_mut().clear();
    }

    fn tell(&self, headers: &mut HeaderMap) {
        if !self.trusted {
            remove(headers, &header::FORWARDED);
            headers.insert(FORWARDED_FOR, self.address.clone());
        } else if let Some(chain) = joined(headers, &FORWARDED_FOR, &self.address) {
            headers.insert(FORWARDED_FOR, chain);
        }
        let host = headers.get(header::HOST).cloned();
        for (name, value) in [
            (FORWARDED_HOST, host),
            (FORWARDED_PROTO, Some(self.scheme.clone())),
        ] {
            match (headers.entry(name), value) {
                (Entry::Occupied(_), _) if self.trusted => {}
                (Entry::Occupied(entry), None) => _ = entry.remove(),
                (Entry::Occupied(mut entry), Some(value)) => _ = entry.insert(value),
                (Entry::Vacant(entry), Some(value)) => _ = entry.insert(value),
                (Entry::Vacant(_), None) => {}
            }
        }
    }
}

/// Without a user and a password.
fn host_of(authority: &Authority) -> Option<HeaderValue> {
    let host = authority.as_str();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    HeaderValue::try_from(host).ok()
}

/// All values of a field as one, and this one at its end.
fn joined(headers: &HeaderMap, name: &HeaderName, last: &HeaderValue) -> Option<HeaderValue> {
    let before = headers.get_all(name).iter().chain([last]);
    let parts: Vec<_> = before.map(HeaderValue::as_bytes).collect();
    HeaderValue::from_bytes(&parts.join(&b", "[..])).ok()
}
