use http::{HeaderMap, HeaderName, HeaderValue};

use crate::error::ConfigError;

/// The most headers of a user's, and the most bytes of their names and values together.
const MAX_HEADERS: usize = 32;
const MAX_BYTES: usize = 8 * 1024;

/// Headers that whoever registered a webhook wants its deliveries to carry: a token for the
/// receiver's gateway, a tenant.
///
/// They can't take the place of what the delivery itself says: its signature (`webhook-*`), where
/// it goes (`Host`), how long its body is and how it is framed, what the body is (`Content-Type`),
/// and what concerns the connection alone. Values can't break out of their line. There are at most
/// 32 of them, with 8 KiB in all. Since they often are credentials, values are not shown.
///
/// ```
/// use tower_reprise::delivery::webhooks::UserHeaders;
///
/// let headers = UserHeaders::new([("authorization", "Bearer 1234"), ("x-tenant", "acme")])?;
/// assert_eq!(headers.iter().count(), 2);
///
/// let refused = UserHeaders::new([("webhook-id", "mine")]).unwrap_err();
/// assert_eq!(refused.field(), "webhook.headers");
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserHeaders {
    map: HeaderMap,
}

impl UserHeaders {
    /// These headers.
    ///
    /// # Errors
    ///
    /// The first header that is not allowed. Its value is not shown.
    pub fn new<N, V>(headers: impl IntoIterator<Item = (N, V)>) -> Result<Self, ConfigError>
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut map = HeaderMap::new();
        let mut bytes = 0;
        for (name, value) in headers {
            let (name, value) = (name.as_ref(), value.as_ref());
            let refused = |allowed: &'static str| {
                let shown: String = name.chars().take(64).collect();
                ConfigError::new(None, "webhook.headers", format_args!("{shown:?}"), allowed)
            };
            bytes += name.len() + value.len();
            if map.len() >= MAX_HEADERS || bytes > MAX_BYTES {
                return Err(refused("at most 32 headers with 8 KiB in all"));
            }
            let known = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| refused("names of letters, digits and -"))?;
            if is_reserved(known.as_str()) {
                return Err(refused("headers that are not the delivery's own"));
            }
            // The type lets tabs through.
            let visible = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
            let mut value = HeaderValue::from_str(value)
                .ok()
                .filter(|_| visible)
                .ok_or_else(|| refused("values of visible ASCII characters and spaces"))?;
            value.set_sensitive(true);
            map.append(known, value);
        }
        Ok(Self { map })
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.map
            .iter()
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
    }

    /// Adds them to the headers of a request.
    pub(super) fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.map {
            headers.append(name, value.clone());
        }
    }
}

/// Whether a header is the delivery's own, or the connection's.
fn is_reserved(name: &str) -> bool {
    let delivery = matches!(
        name,
        "content-length" | "content-type" | "expect" | "host" | "idempotency-key"
    );
    let connection = matches!(
        name,
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "via"
    );
    delivery || connection || name.starts_with("proxy-") || name.starts_with("webhook-")
}
