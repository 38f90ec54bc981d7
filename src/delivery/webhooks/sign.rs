//! Signatures by the Standard Webhooks scheme, for senders.
//!
//! A receiver can't see who calls it; what it can check is that the message was signed with a key
//! that it knows, lately, and for this id. Three headers carry that: `webhook-id`, the same for
//! each delivery of a message, so that a receiver can tell a repetition from something new;
//! `webhook-timestamp`, fresh for each delivery, so that an old one can't be played back; and
//! `webhook-signature` over both and the body.
//!
//! ```
//! use std::time::{Duration, UNIX_EPOCH};
//! use tower_reprise::delivery::webhooks::{MessageId, Signer};
//!
//! # fn main() -> Result<(), tower_reprise::error::ConfigError> {
//! let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
//! let id = MessageId::new("msg_p5jXN8AQM9LWM0D4loKWxJek")?;
//! let at = UNIX_EPOCH + Duration::from_secs(1_614_265_330);
//!
//! let signed = signer.sign(&id, at, br#"{"test": 2432232314}"#);
//! assert_eq!(signed.signature(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
//! # Ok(())
//! # }
//! ```
//!
//! # Rotation
//!
//! [`Signer::also`] signs with the old secret too, so that receivers can change theirs when it
//! suits them; both signatures are in the one header. A private key (`whsk_`) makes `v1a`
//! signatures (Ed25519), which receivers check with the public key and nobody but the sender can
//! make.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderValue};

use super::key::{Key, MAX_KEYS, Signed};
use crate::error::ConfigError;

pub(super) const ID: &str = "webhook-id";
pub(super) const TIMESTAMP: &str = "webhook-timestamp";
pub(super) const SIGNATURE: &str = "webhook-signature";

/// The longest id of a message.
pub(super) const LONGEST_ID: usize = 255;

/// By what a receiver knows a message, whichever delivery of it arrives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageId(HeaderValue);

impl MessageId {
    /// An id of your own: 1 to 255 visible ASCII characters, but no full stop, since that is what
    /// ends the id where it is signed.
    ///
    /// # Errors
    ///
    /// An id that is empty, too long, or that has other characters.
    pub fn new(id: impl AsRef<str>) -> Result<Self, ConfigError> {
        let id = id.as_ref();
        match HeaderValue::from_str(id) {
            Ok(value) if is_id(id.as_bytes()) => Ok(Self(value)),
            _ => Err(ConfigError::new(
                None,
                "webhook.id",
                format_args!(
                    "{} characters: {:?}",
                    id.len(),
                    id.chars().take(32).collect::<String>()
                ),
                "1 to 255 visible ASCII characters other than a full stop",
            )),
        }
    }

    /// A random one: `msg_` and 32 hexadecimal digits.
    #[must_use]
    pub fn random() -> Self {
        let value = HeaderValue::try_from(format!("msg_{:032x}", rand::random::<u128>()));
        Self(value.unwrap_or_else(|_| HeaderValue::from_static("msg")))
    }

    /// The id's characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether these bytes can be the id of a message.
pub(super) fn is_id(id: &[u8]) -> bool {
    (1..=LONGEST_ID).contains(&id.len()) && id.iter().all(|b| b.is_ascii_graphic() && *b != b'.')
}

/// Signs messages, with one key or during a rotation with several.
///
/// Its keys are not shown, and are wiped from memory when it is dropped.
#[derive(Clone)]
#[must_use]
pub struct Signer {
    keys: Vec<Key>,
}

impl Signer {
    /// Signs with a secret (`whsec_`) or a private key (`whsk_`).
    ///
    /// # Errors
    ///
    /// A key that can't be read, or that can't sign. The error does not show it.
    pub fn new(key: impl AsRef<str>) -> Result<Self, ConfigError> {
        Self { keys: Vec::new() }.also(key)
    }

    /// Signs with this key, too.
    ///
    /// # Errors
    ///
    /// A key that can't be read, or that can't sign, or more than eight of them.
    pub fn also(mut self, key: impl AsRef<str>) -> Result<Self, ConfigError> {
        const FIELD: &str = "signer.key";
        let key = Key::parse(FIELD, key.as_ref())?;
        if matches!(key, Key::Public(_)) {
            let allowed = "a public key can't sign; give the private one (whsk_)";
            return Err(ConfigError::new(None, FIELD, "", allowed));
        }
        if self.keys.len() >= MAX_KEYS {
            return Err(ConfigError::new(None, "signer.keys", "9", "1 to 8"));
        }
        self.keys.push(key);
        Ok(self)
    }

    /// The headers of one delivery, made at this time.
    #[must_use]
    pub fn sign(&self, id: &MessageId, at: SystemTime, body: &[u8]) -> SignedHeaders {
        let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let timestamp = seconds.to_string();
        let signed = Signed {
            id: id.as_str(),
            timestamp: &timestamp,
            body,
        };
        let mut signature = String::new();
        for key in &self.keys {
            if !signature.is_empty() {
                signature.push(' ');
            }
            key.sign(signed, &mut signature);
        }
        SignedHeaders {
            id: id.clone(),
            timestamp: seconds,
            signature,
        }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("keys", &self.keys.len())
            .finish_non_exhaustive()
    }
}

/// The headers that a signed message is sent with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedHeaders {
    id: MessageId,
    timestamp: u64,
    signature: String,
}

impl SignedHeaders {
    /// `webhook-id`.
    #[must_use]
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// `webhook-timestamp`: seconds since 1970.
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        self.timestamp
    }

    /// `webhook-signature`: all of them, with spaces between.
    #[must_use]
    pub fn signature(&self) -> &str {
        &self.signature
    }

    /// Puts them into the headers of a request, in the place of any that are there.
    pub fn apply(&self, headers: &mut HeaderMap) {
        headers.insert(ID, self.id.0.clone());
        headers.insert(TIMESTAMP, self.timestamp.into());
        let signature = HeaderValue::from_str(&self.signature);
        // It is ASCII, and were it not, a receiver would refuse this.
        let signature = signature.unwrap_or_else(|_| HeaderValue::from_static(""));
        headers.insert(SIGNATURE, signature);
    }
}
