//! What text of others' may be in an entry, and what must not be written down.

/// The longest owner or label of an entry, in characters.
pub(crate) const LONGEST: usize = 255;

/// Whether text can be kept as it is. An owner has to be: who is cut is somebody else.
pub(crate) fn fits(text: &str) -> bool {
    text.chars().count() <= LONGEST && !text.contains('\0')
}

/// As much of a label as is kept.
pub(crate) fn cut(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(LONGEST).collect()
}

/// Whether a header is likely to hold credentials, which are not journaled in the clear.
pub(crate) fn is_credential(name: &str) -> bool {
    let known = ["authorization", "cookie", "proxy-authorization"];
    let words = ["api-key", "apikey", "secret", "signature", "token"];
    known.contains(&name) || words.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j_13_credentials_are_known_by_their_names() {
        for name in [
            "authorization",
            "cookie",
            "x-api-key",
            "x-auth-token",
            "x-hub-signature",
        ] {
            assert!(is_credential(name), "{name}");
        }
        for name in ["accept", "idempotency-key", "x-request-id", "x-tenant"] {
            assert!(!is_credential(name), "{name}");
        }
    }

    #[test]
    fn s_3_labels_are_cut_and_owners_are_not() {
        let long = "é".repeat(LONGEST + 1);
        assert_eq!(cut(&long).chars().count(), LONGEST);
        assert!(!fits(&long) && !fits("a\0b") && fits(&cut(&long)));
    }
}
