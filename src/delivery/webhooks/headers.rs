use http::{HeaderMap, HeaderName, HeaderValue};

use crate::error::ConfigError;

/// The most headers, and the most bytes of their names and values together.
const MAX_HEADERS: usize = 32;
const MAX_BYTES: usize = 8 * 1024;

/// Headers that the user who registered a webhook adds to its deliveries: a token for the
/// receiver's gateway, a tenant.
///
/// Names of the delivery's own headers are refused: the signature (`webhook-*`), `Host`,
/// `Content-Type`, `Idempotency-Key`, and those of framing and of the connection. Values are visible
/// ASCII and spaces. At most 32 headers with 8 KiB in all. `Debug` hides the values, which often are
/// credentials.
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
    /// Checks and collects headers.
    ///
    /// # Errors
    ///
    /// Returns the first header that is not allowed, without its value.
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
            // `HeaderValue` allows tabs.
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

    /// Returns the names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.map
            .iter()
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
    }

    /// Appends them to the headers of a request.
    pub(super) fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.map {
            headers.append(name, value.clone());
        }
    }
}

/// Whether a header belongs to the delivery or to the connection.
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
