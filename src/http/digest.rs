use http::{Request, header::CONTENT_TYPE};
use sha2::{Digest as _, Sha256};

use crate::http::original_uri::original_uri;

/// A SHA-256 over parts, each with its length before it, so that no two lists of parts are the
/// same bytes.
#[derive(Clone)]
pub(crate) struct Digest(Sha256);

impl Digest {
    /// Starts a digest. Digests of different purposes never meet.
    pub(crate) fn new(purpose: &str) -> Self {
        let mut digest = Self(Sha256::new());
        digest.part(purpose);
        digest
    }

    pub(crate) fn part(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        let length = (part.len() as u64).to_le_bytes();
        // Most are short, and hashed in one go.
        let mut both = [0; 64];
        match both.get_mut(..length.len() + part.len()) {
            Some(both) => {
                let (first, second) = both.split_at_mut(length.len());
                first.copy_from_slice(&length);
                second.copy_from_slice(part);
                self.0.update(both);
            }
            None => {
                self.0.update(length);
                self.0.update(part);
            }
        }
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// Digests what was asked for: method, path and query, content type and body.
pub(crate) fn fingerprint(head: &Request<()>, body: &[u8]) -> Digest {
    let uri = original_uri(head);
    let content_type = head.headers().get(CONTENT_TYPE);
    let mut digest = Digest::new("request");
    digest.part(head.method().as_str());
    digest.part(uri.path());
    digest.part(uri.query().unwrap_or_default());
    digest.part(content_type.map_or(&b""[..], |value| value.as_bytes()));
    digest.part(body);
    digest
}

/// Digests what was asked for, with a summary by the user in place of content type and body.
pub(crate) fn summarized(head: &Request<()>, summary: &[u8]) -> Digest {
    let uri = original_uri(head);
    let mut digest = Digest::new("summarized request");
    digest.part(head.method().as_str());
    digest.part(uri.path());
    digest.part(uri.query().unwrap_or_default());
    digest.part(summary);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-19: each part has its length before it, however long it is.
    #[test]
    fn i_19_parts_with_their_lengths() {
        for length in [0, 1, 55, 56, 57, 64, 1000] {
            let part = vec![7; length];
            let mut digest = Digest::new("p");
            digest.part(&part);
            let mut expected = Sha256::new();
            expected.update([1, 0, 0, 0, 0, 0, 0, 0, b'p']);
            expected.update((length as u64).to_le_bytes());
            expected.update(&part);
            let expected: [u8; 32] = expected.finalize().into();
            assert_eq!(digest.finish(), expected, "{length}");
        }
    }
}
