use http::{HeaderMap, HeaderName, header};

/// Whether a header belongs to one connection, one caller or one moment, and not to the reply.
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

/// What is left out of a stored reply.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unstored {
    pub(crate) more: Vec<HeaderName>,
}

impl Unstored {
    /// For a reply with these headers.
    pub(crate) fn of<'a>(&'a self, headers: &'a HeaderMap) -> UnstoredOf<'a> {
        UnstoredOf {
            more: &self.more,
            connection: headers.contains_key(header::CONNECTION).then_some(headers),
        }
    }
}

pub(crate) struct UnstoredOf<'a> {
    more: &'a [HeaderName],
    /// The headers, if `Connection` names some of them.
    connection: Option<&'a HeaderMap>,
}

impl UnstoredOf<'_> {
    pub(crate) fn keeps(&self, name: &HeaderName) -> bool {
        !is_passing(name.as_str())
            && !self.more.contains(name)
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
