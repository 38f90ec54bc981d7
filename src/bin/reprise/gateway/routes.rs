//! The choice of an upstream by host and path.

use std::{cell::LazyCell, error::Error, fmt, sync::Arc};

use http::{HeaderMap, StatusCode, Uri, header::HOST, uri::Authority};

use super::upstream::Upstream;

/// The hosts of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hosts {
    Any,
    /// One, in lower case.
    One(Box<str>),
    /// All names that end with this, a dot first.
    Below(Box<str>),
}

impl Hosts {
    pub(crate) const ALLOWED: &str = "a name such as api.example, or *.example for all names below";

    /// Reads a pattern: a name, or `*.` and a name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let host = text.strip_prefix("*.").unwrap_or(text);
        let authority: Authority = host.parse().ok()?;
        let plain = authority.as_str() == authority.host() && !host.contains('*');
        let host = host.to_ascii_lowercase();
        plain.then(|| match text.starts_with("*.") {
            true => Self::Below(format!(".{host}").into()),
            false => Self::One(host.into()),
        })
    }

    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::One(one) => host.eq_ignore_ascii_case(one),
            Self::Below(end) => {
                let start = host.len().checked_sub(end.len()).filter(|start| *start > 0);
                let tail = start.and_then(|start| host.get(start..));
                tail.is_some_and(|tail| tail.eq_ignore_ascii_case(end))
            }
        }
    }

    /// Names before patterns, long patterns before short ones.
    fn specificity(&self) -> (u8, usize) {
        match self {
            Self::Any => (0, 0),
            Self::Below(end) => (1, end.len()),
            Self::One(_) => (2, 0),
        }
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::One(host) => f.write_str(host),
            Self::Below(end) => write!(f, "*{end}"),
        }
    }
}

/// Where requests of a host and below a path go.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) hosts: Hosts,
    /// Without a slash at its end.
    pub(crate) path: Box<str>,
    pub(crate) upstream: Arc<Upstream>,
}

impl Route {
    /// Returns what an idempotency key of a request with a path is unique for: that path, of the
    /// hosts that this route is for. The upstream is no part of it, so that a route can be moved to
    /// another one without an operation being executed there again.
    pub(crate) fn operation(&self, path: &str) -> String {
        match &self.hosts {
            Hosts::Any => path.to_owned(),
            hosts => format!("{hosts}{path}"),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Routes(Vec<Arc<Route>>);

impl Routes {
    pub(crate) fn new(mut routes: Vec<Route>) -> Self {
        // The first one that matches is the one that says most.
        routes
            .sort_by_key(|route| std::cmp::Reverse((route.hosts.specificity(), route.path.len())));
        Self(routes.into_iter().map(Arc::new).collect())
    }

    /// Finds the route of a request: by its host first, then by the longest path.
    pub(crate) fn find<'a>(
        &self,
        host: impl FnOnce() -> &'a str,
        path: &str,
    ) -> Result<&Arc<Route>, Misses> {
        let host = LazyCell::new(host);
        // All that there is.
        let path = if path == "*" { "/" } else { path };
        let found = self.0.iter().find_map(|route| {
            let rest = path.strip_prefix(&*route.path)?;
            let below = rest.is_empty() || rest.starts_with('/');
            let matches = matches!(route.hosts, Hosts::Any) || route.hosts.matches(&host);
            (below && matches).then_some((route, rest))
        });
        let (route, rest) = found.ok_or(Misses::Unknown)?;
        match !route.path.is_empty() && leaves(rest) {
            true => Err(Misses::Outside),
            false => Ok(route),
        }
    }
}

/// The host that a request asks for, without its port.
pub(crate) fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> &'a str {
    let host = || headers.get(HOST).and_then(|host| host.to_str().ok());
    let whole = uri.authority().map(Authority::as_str).or_else(host);
    let whole = whole.unwrap_or_default();
    let host = whole.rsplit_once('@').map_or(whole, |(_, host)| host);
    let named = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    named.strip_suffix('.').unwrap_or(named)
}

/// The reason why a request can't be sent to an upstream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Misses {
    TooLong,
    Outside,
    Unknown,
}

impl Misses {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::TooLong => StatusCode::URI_TOO_LONG,
            Self::Outside => StatusCode::BAD_REQUEST,
            Self::Unknown => StatusCode::NOT_FOUND,
        }
    }
}

impl fmt::Display for Misses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "The path is longer than can be sent to the upstream.",
            Self::Outside => "The path leads out of what is served here.",
            Self::Unknown => "No route leads from this host and path to an upstream.",
        })
    }
}

impl Error for Misses {}

/// Returns whether a path leads above where it starts, as lenient servers read it.
pub(crate) fn leaves(path: &str) -> bool {
    if !path.contains("..") && !path.contains('%') {
        return false;
    }
    let path = path.to_ascii_lowercase().replace("%2e", ".");
    let path = path.replace("%2f", "/").replace("%5c", "/");
    let mut depth = 0_usize;
    for part in path.split(['/', '\\']) {
        // Parameters after `;` belong to the segment, and not to its name.
        let name = part.split(';').next().unwrap_or_default();
        depth = match name {
            "" | "." => depth,
            ".." if depth == 0 => return true,
            ".." => depth - 1,
            _ => depth + 1,
        };
    }
    false
}
