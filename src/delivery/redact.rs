//! Limits on the text of entries, and the headers that must not be stored in the clear.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http::headers::{IDEMPOTENCY_KEY, printable};

/// The longest owner or label of an entry, in characters.
const MAX_CHARS: usize = 255;

/// Whether text can be stored unchanged. Owners must be: a shortened owner is another owner.
pub(crate) fn fits(text: &str) -> bool {
    text.chars().count() <= MAX_CHARS && !text.contains('\0')
}

/// Returns the part of a label that is stored.
pub(crate) fn cut(text: &str) -> String {
    text.chars()
        .filter(|c| *c != '\0')
        .take(MAX_CHARS)
        .collect()
}

/// Whether a header must not be stored in the clear: a credential, or a value marked as sensitive.
/// An idempotency key is stored even if it is marked: without it a replay is another operation.
pub(crate) fn is_secret(name: &HeaderName, value: &HeaderValue) -> bool {
    is_credential(name.as_str()) || (value.is_sensitive() && name != IDEMPOTENCY_KEY)
}

/// Returns the headers that can be stored in the clear.
pub(crate) fn without_secrets(headers: &HeaderMap) -> HeaderMap {
    let kept = headers
        .iter()
        .filter(|(name, value)| !is_secret(name, value));
    kept.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Whether a header is likely to hold credentials, by its name in lower case.
///
/// Such headers are not stored in a journal that is not
/// [sealed](crate::store::journal::Journal::is_sealed). In doubt a header counts as a credential.
///
/// ```
/// use tower_reprise::delivery::is_credential;
///
/// assert!(is_credential("x-api-key") && is_credential("x-session-id"));
/// assert!(!is_credential("idempotency-key") && !is_credential("x-tenant"));
/// ```
#[must_use]
pub fn is_credential(name: &str) -> bool {
    /// Found anywhere in a name.
    const WITHIN: [&str; 19] = [
        "accesskey",
        "apikey",
        "authentication",
        "authorisation",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "jwt",
        "oauth",
        "passphrase",
        "passwd",
        "password",
        "privatekey",
        "saml",
        "secret",
        "session",
        "signature",
        "token",
    ];
    /// Found as a whole part of a name.
    const PARTS: [&str; 14] = [
        "assertion",
        "auth",
        "csrf",
        "dpop",
        "hmac",
        "otp",
        "pass",
        "pin",
        "pw",
        "pwd",
        "sid",
        "sig",
        "totp",
        "xsrf",
    ];
    /// Parts that make a `key` harmless.
    const HARMLESS: [&str; 6] = [
        "cache",
        "idempotency",
        "ordering",
        "partition",
        "routing",
        "surrogate",
    ];
    let parts = || name.split(['-', '_', '.']);
    let a_key = || parts().any(|part| part == "key") && !parts().any(|it| HARMLESS.contains(&it));
    WITHIN.iter().any(|word| name.contains(word))
        || parts().any(|it| PARTS.contains(&it))
        || a_key()
}

/// Returns the id that ties a stored message to the request or event that it came from.
pub(crate) fn correlation_id(headers: &HeaderMap) -> Option<String> {
    let mut ids = ["x-request-id", "traceparent"].into_iter();
    ids.find_map(|name| printable(headers.get(name)?.as_bytes()).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j_13_credentials_are_known_by_the_parts_of_their_names() {
        let credentials = "authorization proxy-authorization x-authorization x-forwarded-authorization x-auth \
             x-auth-token x-auth-user authentication-info cookie x-api-key x-apikey x-access-key \
             x-goog-api-key x-functions-key x_private_key x-accesskey-id x-session x-session-id \
             jsessionid x-password x-passwd x-user-pwd x-passphrase x-credentials x-client-secret \
             x-hub-signature-256 x-sig x-hmac x-amz-security-token x-csrf \
             x-goog-iap-jwt-assertion x-saml x-bearer x-otp x-pin dpop";
        for name in credentials.split(' ') {
            assert!(is_credential(name), "{name}");
        }
        let others = "accept author x-author content-type idempotency-key x-idempotency-key \
             x-partition-key surrogate-key x-keyboard x-passenger x-pinned x-request-id x-tenant \
             x-user traceparent";
        for name in others.split(' ') {
            assert!(!is_credential(name), "{name}");
        }
    }

    #[test]
    fn j_13_what_is_marked_as_sensitive_is_a_secret() {
        let header = |name, sensitive| {
            let mut value = HeaderValue::from_static("v");
            value.set_sensitive(sensitive);
            is_secret(&HeaderName::from_static(name), &value)
        };
        assert!(!header("x-customer", false) && header("x-customer", true));
        assert!(header("authorization", false));
        assert!(!header("idempotency-key", true));
    }

    #[test]
    fn s_3_labels_are_cut_and_owners_are_not() {
        let long = "é".repeat(MAX_CHARS + 1);
        assert_eq!(cut(&long).chars().count(), MAX_CHARS);
        assert!(!fits(&long) && !fits("a\0b") && fits(&cut(&long)));
    }
}
