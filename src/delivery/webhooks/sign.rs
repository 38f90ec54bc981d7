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
const MAX_ID_LEN: usize = 255;

/// The id of a message, the same for each delivery of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageId(HeaderValue);

impl MessageId {
    /// Checks an id: 1 to 255 visible ASCII characters, without the full stop, which ends the id in
    /// the signed content.
    ///
    /// # Errors
    ///
    /// The id is empty, too long, or has other characters.
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

    /// Returns a random id: `msg_` and 32 hexadecimal digits.
    #[must_use]
    pub fn random() -> Self {
        let value = HeaderValue::try_from(format!("msg_{:032x}", rand::random::<u128>()));
        Self(value.unwrap_or_else(|_| unreachable!("hexadecimal digits are visible ASCII")))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let text = self.0.to_str();
        text.unwrap_or_else(|_| unreachable!("an id is visible ASCII"))
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether these bytes are an id of a message.
pub(super) fn is_id(id: &[u8]) -> bool {
    (1..=MAX_ID_LEN).contains(&id.len()) && id.iter().all(|b| b.is_ascii_graphic() && *b != b'.')
}

/// Signs messages by the Standard Webhooks scheme.
///
/// A signed delivery has three headers: `webhook-id`, the same for each delivery of a message, by
/// which a receiver recognises a repetition; `webhook-timestamp`, new for each delivery, so that an
/// old one can't be played back; and `webhook-signature` over both and the body.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use tower_reprise::delivery::webhooks::{MessageId, Signer};
///
/// # fn main() -> Result<(), tower_reprise::error::ConfigError> {
/// let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
/// let id = MessageId::new("msg_p5jXN8AQM9LWM0D4loKWxJek")?;
/// let at = UNIX_EPOCH + Duration::from_secs(1_614_265_330);
///
/// let signed = signer.sign(&id, at, br#"{"test": 2432232314}"#);
/// assert_eq!(signed.signature(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
/// # Ok(())
/// # }
/// ```
///
/// A secret (`whsec_`) makes `v1` signatures (HMAC-SHA256). A private key (`whsk_`) makes `v1a`
/// signatures (Ed25519), which receivers check with the public key and only the sender can make.
/// During a rotation, [`also`](Self::also) adds a signature by the old key, so that receivers can
/// change theirs at any time.
///
/// `Debug` hides the keys, and dropping wipes them from memory.
#[derive(Clone)]
#[must_use]
pub struct Signer {
    keys: Vec<Key>,
}

impl Signer {
    /// Creates a signer with a secret (`whsec_`) or a private key (`whsk_`).
    ///
    /// # Errors
    ///
    /// The key can't be read, or is a public one. The error does not show it.
    pub fn new(key: impl AsRef<str>) -> Result<Self, ConfigError> {
        Self { keys: Vec::new() }.also(key)
    }

    /// Adds a key, whose signature stands in the same header.
    ///
    /// # Errors
    ///
    /// The key can't be read, is a public one, or is the ninth.
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

    /// Signs a delivery that is made at this time.
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

opaque_debug! { Signer, self, keys = self.keys.len() }

/// The headers of a signed delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedHeaders {
    id: MessageId,
    timestamp: u64,
    signature: String,
}

impl SignedHeaders {
    /// Returns `webhook-id`.
    #[must_use]
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// Returns `webhook-timestamp`, in seconds since 1970.
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        self.timestamp
    }

    /// Returns `webhook-signature`: one signature a key, separated by spaces.
    #[must_use]
    pub fn signature(&self) -> &str {
        &self.signature
    }

    /// Inserts them into the headers of a request.
    pub fn apply(&self, headers: &mut HeaderMap) {
        headers.insert(ID, self.id.0.clone());
        headers.insert(TIMESTAMP, self.timestamp.into());
        let signature = HeaderValue::from_str(&self.signature);
        let signature = signature.unwrap_or_else(|_| unreachable!("base64 is visible ASCII"));
        headers.insert(SIGNATURE, signature);
    }
}
