use http::{HeaderMap, HeaderName, header};

/// Returns whether a header belongs to one connection, caller, moment or request, and not to the
/// reply.
fn is_passing(name: &str) -> bool {
    let connection = matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authentication-info"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
            | "via"
    );
    let caller = matches!(
        name,
        "authentication-info" | "set-cookie" | "set-cookie2" | "www-authenticate"
    );
    let moment = matches!(name, "age" | "date" | "server-timing");
    let request = matches!(
        name,
        "b3" | "baggage"
            | "request-id"
            | "traceparent"
            | "traceresponse"
            | "tracestate"
            | "x-amzn-requestid"
            | "x-amzn-trace-id"
            | "x-cloud-trace-context"
            | "x-correlation-id"
            | "x-request-id"
            | "x-trace-id"
    );
    connection || caller || moment || request || name.starts_with("x-b3-")
}

/// The headers that are left out of a stored reply, next to those of [`is_passing`].
#[derive(Debug, Clone, Default)]
pub(crate) struct HeaderFilter {
    pub(crate) left_out: Vec<HeaderName>,
}

impl HeaderFilter {
    /// Returns the filter for a reply with these headers.
    pub(crate) fn for_reply<'a>(&'a self, headers: &'a HeaderMap) -> FilterFor<'a> {
        FilterFor {
            left_out: &self.left_out,
            connection: headers.contains_key(header::CONNECTION).then_some(headers),
        }
    }
}

pub(crate) struct FilterFor<'a> {
    left_out: &'a [HeaderName],
    /// The headers, if `Connection` names some of them.
    connection: Option<&'a HeaderMap>,
}

impl FilterFor<'_> {
    pub(crate) fn keeps(&self, name: &HeaderName) -> bool {
        !is_passing(name.as_str())
            && !self.left_out.contains(name)
            && !self.connection.is_some_and(|headers| names(headers, name))
    }
}

fn names(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .any(|option| {
            option
                .trim_ascii()
                .eq_ignore_ascii_case(name.as_str().as_bytes())
        })
}
