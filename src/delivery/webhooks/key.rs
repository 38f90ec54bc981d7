use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::error::ConfigError;

/// The most keys that a rotation may have at once.
pub(super) const MAX_KEYS: usize = 8;

/// The longest decoded key: secrets have 24 to 64 bytes, Ed25519 keys 32 or 64.
const MAX_LEN: usize = 64;

/// A key of the Standard Webhooks scheme, of the kind that the prefix of its text names.
#[derive(Clone)]
pub(super) enum Key {
    /// `whsec_`: the secret of both sides, as the HMAC state keyed with it.
    Shared(Box<Hmac<Sha256>>),
    /// `whsk_`: the sender's private key.
    Private(Box<SigningKey>),
    /// `whpk_`: the receiver's public key.
    Public(Box<VerifyingKey>),
}

/// The signed content: id, timestamp and body.
#[derive(Clone, Copy)]
pub(super) struct Signed<'a> {
    pub(super) id: &'a str,
    pub(super) timestamp: &'a str,
    pub(super) body: &'a [u8],
}

impl<'a> Signed<'a> {
    fn parts(self) -> [&'a [u8]; 5] {
        let (id, timestamp) = (self.id.as_bytes(), self.timestamp.as_bytes());
        [id, b".", timestamp, b".", self.body]
    }
}

impl Key {
    /// Reads a key. The error names `field`, and never shows the text.
    pub(super) fn parse(field: &'static str, text: &str) -> Result<Self, ConfigError> {
        let refused = |allowed: &'static str| ConfigError::new(None, field, "", allowed);
        let mut bytes = Zeroizing::new([0; MAX_LEN]);
        let mut decode = |text: &str| -> Option<usize> {
            BASE64.decode_slice(text.trim_end(), &mut *bytes).ok()
        };
        if let Some(text) = text.strip_prefix("whsec_") {
            let length = decode(text).filter(|length| *length >= 24);
            length
                .and_then(|length| Hmac::new_from_slice(&bytes[..length]).ok())
                .map(|mac| Self::Shared(Box::new(mac)))
                .ok_or_else(|| refused("a secret is whsec_ and the base64 of 24 to 64 bytes"))
        } else if let Some(text) = text.strip_prefix("whsk_") {
            // The seed alone, or with the public key after it.
            let key = match decode(text) {
                Some(64) => SigningKey::from_keypair_bytes(&bytes).ok(),
                Some(32) => bytes.first_chunk().map(SigningKey::from_bytes),
                _ => None,
            };
            key.map(|key| Self::Private(Box::new(key))).ok_or_else(|| {
                refused("a private key is whsk_ and the base64 of an Ed25519 key, 32 or 64 bytes")
            })
        } else if let Some(text) = text.strip_prefix("whpk_") {
            let key = decode(text).filter(|length| *length == 32);
            key.and_then(|_| bytes.first_chunk())
                .and_then(|bytes| VerifyingKey::from_bytes(bytes).ok())
                .filter(|key| !key.is_weak())
                .map(|key| Self::Public(Box::new(key)))
                .ok_or_else(|| {
                    refused("a public key is whpk_ and the base64 of an Ed25519 key, 32 bytes")
                })
        } else {
            Err(refused(
                "a key begins with whsec_ (a secret), whsk_ (a private key) or whpk_ (a public key)",
            ))
        }
    }

    /// Appends a signature to the header's value. A public key appends nothing.
    pub(super) fn sign(&self, signed: Signed<'_>, header: &mut String) {
        match self {
            Self::Shared(mac) => {
                header.push_str("v1,");
                BASE64.encode_string(update(mac, signed).finalize().into_bytes(), header);
            }
            Self::Private(key) => {
                header.push_str("v1a,");
                let signature = key.sign(&signed.parts().concat());
                BASE64.encode_string(signature.to_bytes(), header);
            }
            Self::Public(_) => {}
        }
    }

    /// Whether this key made the signature. Compares secrets in constant time.
    pub(super) fn verifies(&self, signed: Signed<'_>, signature: &Presented) -> bool {
        match (self, signature) {
            (Self::Shared(mac), Presented::V1(signature)) => {
                update(mac, signed).verify_slice(signature).is_ok()
            }
            (Self::Public(key), Presented::V1a(signature)) => {
                let signature = Signature::from_bytes(signature);
                let signed = signed.parts().concat();
                key.verify_strict(&signed, &signature).is_ok()
            }
            _ => false,
        }
    }
}

fn update(mac: &Hmac<Sha256>, signed: Signed<'_>) -> Hmac<Sha256> {
    let mut mac = mac.clone();
    for part in signed.parts() {
        mac.update(part);
    }
    mac
}

/// One signature of the header.
pub(super) enum Presented {
    V1([u8; 32]),
    V1a([u8; 64]),
}

impl Presented {
    /// Reads a signature; `None` for an unknown version or a malformed one.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        if let Some(text) = text.strip_prefix(b"v1,") {
            let mut bytes = [0; 32];
            let length = BASE64.decode_slice(text, &mut bytes).ok()?;
            (length == bytes.len()).then_some(Self::V1(bytes))
        } else {
            let mut bytes = [0; 64];
            let text = text.strip_prefix(b"v1a,")?;
            let length = BASE64.decode_slice(text, &mut bytes).ok()?;
            (length == bytes.len()).then_some(Self::V1a(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use zeroize::ZeroizeOnDrop;

    use super::*;

    /// S-2: this is checked by the compiler.
    #[test]
    fn w_4_secrets_are_wiped() {
        fn wiped<T: ZeroizeOnDrop>() {}
        // The state of an HMAC, which has no marker of its own.
        wiped::<Sha256>();
        wiped::<SigningKey>();
    }
}
