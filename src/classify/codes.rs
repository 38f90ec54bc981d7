use crate::call::Effect;
use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use http::{HeaderMap, StatusCode, header};

use crate::{
    call::{Health, Retryable},
    classify::Rules,
    http::GrpcCode,
};

/// A table of error codes in bodies, with their places and meanings.
///
/// APIs often tell the reason of a failure in the body rather than by the status: in the `errors` of
/// an envelope, an RFC 9457 problem's `type`, a `google.rpc` status.
/// [`PeekLayer`](crate::client::peek::PeekLayer) reads as much of the body as needed, and leaves the
/// response intact. A code in the table decides; otherwise the status does.
///
/// Codes are read from JSON, at your own pointers and then at `/errors/0/code`, `/error/status`,
/// `/error/code`, `/code` and `/type`. The first code in the table counts. A number matches its
/// digits.
///
/// With the `forrst` feature, `Codes::forrst` is the table of that protocol, and also reads the retry
/// guidance of its envelopes.
///
/// ```
/// use tower_reprise::{Policy, classify::Codes};
///
/// let codes = Codes::standard().retry("BUSY").never("FRAUD").pointer("/fault/id");
/// let policy = Policy::http().codes(codes).build()?;
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Codes {
    table: BTreeMap<Cow<'static, str>, CodeRule>,
    pointers: Vec<String>,
    content_types: Vec<String>,
    limit: usize,
    time: Duration,
    /// Whether a code of the table may come with any status.
    any_status: bool,
    /// Codes that the ready table never retries; to retry one takes an approval.
    never: &'static [&'static str],
    /// Reads the guidance of a document beside its code.
    #[cfg(feature = "codes")]
    envelope: Option<EnvelopeReader>,
}

/// A reader of one protocol's envelopes, for guidance beside an error code.
#[cfg(feature = "codes")]
#[derive(Clone, Copy)]
pub(crate) struct EnvelopeReader {
    /// The protocol's name, by which readers are compared.
    pub(crate) protocol: &'static str,
    /// Reads the advice in a document.
    pub(crate) advice: fn(&serde_json::Value) -> Advice,
    /// Returns whether a document is a failure replayed by an idempotency store.
    pub(crate) is_replayed: fn(&serde_json::Value) -> bool,
}

#[cfg(feature = "codes")]
impl PartialEq for EnvelopeReader {
    fn eq(&self, other: &Self) -> bool {
        self.protocol == other.protocol
    }
}

#[cfg(feature = "codes")]
impl Eq for EnvelopeReader {}

#[cfg(feature = "codes")]
impl std::fmt::Debug for EnvelopeReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.protocol)
    }
}

/// The meaning of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeRule {
    pub(crate) name: &'static str,
    pub(crate) retry: Retryable,
    /// `None` leaves it to the status.
    pub(crate) health: Option<Health>,
    /// The effect of the failed attempt, if less than that of the status.
    pub(crate) effect: Effect,
}

impl CodeRule {
    /// A failure replayed by an idempotency store.
    pub(crate) const CACHED: Self = Self {
        name: "cached",
        retry: Retryable::Never,
        health: Some(Health::Success),
        effect: Effect::Possible,
    };
}

/// The retry guidance of a body beside its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Advice {
    pub(crate) allowed: Option<bool>,
    /// The shortest wait before the first retry, and whether it doubles with each.
    pub(crate) floor: Duration,
    pub(crate) doubles: bool,
    /// The most retries.
    pub(crate) most: Option<u32>,
}

/// Codes for a first request with the same idempotency key that is still being processed.
const STILL_PROCESSING: [&str; 2] = [
    "IDEMPOTENCY_PROCESSING",
    "urn:tower-reprise:problem:idempotency-processing",
];

/// Codes that BlooBank's recipe never retries, beside `INTERNAL`.
const BANK_NEVER: [&str; 8] = [
    "INVALID_ARGUMENT",
    "WALLET_NOT_FOUND",
    "PAYMENT_ORDER_NOT_FOUND",
    "WALLET_ALREADY_EXISTS",
    "RBAC_DENY",
    "IDEMPOTENCY_KEY_IN_USE_WITH_DIFFERENT_PARAMS",
    "SIGNATURE_INVALID",
    "TIMESTAMP_SKEW_EXCEEDED",
];

/// The usual places of codes.
const POINTERS: [&str; 5] = [
    "/errors/0/code",
    "/error/status",
    "/error/code",
    "/code",
    "/type",
];

impl Codes {
    /// The default of `limit`.
    const LIMIT: usize = 64 * 1024;
    /// The default of `time`.
    const TIME: Duration = Duration::from_millis(250);

    /// Returns the table of the standard: the two codes that make a 409 retryable, because the first
    /// request with the same idempotency key is still being processed.
    pub fn standard() -> Self {
        let mut codes = Self {
            table: BTreeMap::new(),
            pointers: Vec::new(),
            content_types: Vec::new(),
            limit: Self::LIMIT,
            time: Self::TIME,
            any_status: false,
            never: &[],
            #[cfg(feature = "codes")]
            envelope: None,
        };
        for code in STILL_PROCESSING {
            codes.set(code, Retryable::Yes, Some(Health::Success), Effect::None);
        }
        codes
    }

    /// Returns the table of the retry recipe that BlooBank publishes for clients of its API.
    pub fn bank() -> Self {
        let rules = [
            ("RESOURCE_EXHAUSTED", Retryable::Yes, Health::Neutral),
            ("PROVIDER_UNAVAILABLE", Retryable::Yes, Health::Failure),
            ("DATABASE_UNAVAILABLE", Retryable::Yes, Health::Failure),
            ("UPSTREAM_UNAVAILABLE", Retryable::Yes, Health::Failure),
            ("REPLAY_DETECTED", Retryable::FreshId, Health::Success),
            ("INTERNAL", Retryable::Never, Health::Failure),
        ];
        let mut codes = Self::standard().never_retried(&BANK_NEVER);
        for (code, retry, health) in rules {
            codes.set(code, retry, Some(health), Effect::Possible);
        }
        codes.for_any_status()
    }

    /// Retries on this code. One that a ready table never retries, or that is the name or number of a
    /// status that R-4 does not list, takes an approval.
    pub fn retry(self, code: impl Into<Cow<'static, str>>) -> Self {
        self.with(code, Retryable::Yes)
    }

    /// Retries on this code, which says that there are too many calls, and no fault of the
    /// dependency's: the wait has the base that
    /// [`throttled_base`](crate::policy::PolicyBuilder::throttled_base) sets.
    pub fn throttled(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.set(
            code,
            Retryable::Yes,
            Some(Health::Neutral),
            Effect::Possible,
        );
        self.for_any_status()
    }

    /// Retries on this code at most so many times in a row.
    pub fn at_most(self, code: impl Into<Cow<'static, str>>, times: u32) -> Self {
        self.with(code, Retryable::MaxPerCause(times))
    }

    /// Retries once on this code, with a fresh request id.
    pub fn fresh_id(self, code: impl Into<Cow<'static, str>>) -> Self {
        self.with(code, Retryable::FreshId)
    }

    /// Never retries on this code.
    pub fn never(self, code: impl Into<Cow<'static, str>>) -> Self {
        self.with(code, Retryable::Never)
    }

    /// Adds a place of codes, as a JSON pointer: `/fault/id`.
    pub fn pointer(mut self, pointer: impl Into<String>) -> Self {
        self.pointers.push(pointer.into());
        self
    }

    /// Reads codes of successful responses of this content type too.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_types.push(content_type.into());
        self
    }

    /// Sets the most that is read of a body, in bytes.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Sets the longest wait for the body of a failed response.
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    fn with(mut self, code: impl Into<Cow<'static, str>>, retry: Retryable) -> Self {
        self.set(code, retry, None, Effect::Possible);
        self.for_any_status()
    }

    pub(crate) fn for_any_status(mut self) -> Self {
        self.any_status = true;
        self
    }

    /// Sets the codes that take an approval to be retried.
    pub(crate) fn never_retried(mut self, codes: &'static [&'static str]) -> Self {
        for code in codes {
            self.set(
                *code,
                Retryable::Never,
                Some(Health::Success),
                Effect::Possible,
            );
        }
        self.never = codes;
        self
    }

    #[cfg(feature = "forrst")]
    pub(crate) fn with_envelope(mut self, reader: EnvelopeReader) -> Self {
        self.envelope = Some(reader);
        self
    }

    /// Returns whether the table is that of a protocol with envelopes, whose servers honour keys.
    pub(crate) fn has_envelope(&self) -> bool {
        #[cfg(feature = "forrst")]
        return self.envelope.is_some();
        #[cfg(not(feature = "forrst"))]
        false
    }

    #[cfg(feature = "codes")]
    pub(crate) fn envelope(&self) -> Option<EnvelopeReader> {
        self.envelope
    }

    pub(crate) fn set(
        &mut self,
        code: impl Into<Cow<'static, str>>,
        retry: Retryable,
        health: Option<Health>,
        effect: Effect,
    ) {
        // Leaked, because logs and metrics take `&'static str`: a table is made once.
        let name = match code.into() {
            Cow::Borrowed(name) => name,
            Cow::Owned(name) => name.leak(),
        };
        let rule = CodeRule {
            name,
            retry,
            health,
            effect,
        };
        self.table.insert(Cow::Borrowed(name), rule);
    }

    /// Lists the codes that it retries although the standard or a ready table never does.
    pub(crate) fn forbidden(&self) -> impl Iterator<Item = &str> {
        let retried = self.table.values();
        let retried = retried.filter(|rule| rule.retry != Retryable::Never);
        retried
            .map(|rule| rule.name)
            .filter(|code| is_final(code) || self.never.contains(code))
    }

    /// Checks the table. The error is a field, its value, and the allowed ones.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String, &'static str)> {
        if self.limit == 0 || self.limit > 1024 * 1024 {
            let value = self.limit.to_string();
            return Err(("rules.codes.limit", value, "1 to 1048576 bytes (1 MiB)"));
        }
        if self.time > Duration::from_secs(10) {
            let value = format!("{:?}", self.time);
            return Err(("rules.codes.time", value, "at most 10s"));
        }
        if let Some(pointer) = self.pointers.iter().find(|pointer| !is_pointer(pointer)) {
            let allowed = "a JSON pointer, such as \"/fault/id\"";
            return Err(("rules.codes.pointers", format!("{pointer:?}"), allowed));
        }
        if let Some(strange) = self.content_types.iter().find(|kind| !is_media_type(kind)) {
            let allowed = "a media type without parameters, such as \"application/json\"";
            return Err(("rules.codes.content_types", format!("{strange:?}"), allowed));
        }
        match self.table.keys().find(|code| !is_code(code)) {
            Some(code) => {
                let allowed = "1 to 128 visible ASCII characters";
                Err(("rules.codes", format!("{code:?}"), allowed))
            }
            None => Ok(()),
        }
    }

    /// Returns the meaning of the first known code in a document with these texts.
    pub(crate) fn find<'a>(
        &self,
        text_at: impl Fn(&str) -> Option<Cow<'a, str>>,
    ) -> Option<CodeRule> {
        let own = self.pointers.iter().map(String::as_str);
        own.chain(POINTERS)
            .filter_map(text_at)
            .find_map(|code| self.table.get(&*code).copied())
    }

    /// Returns whether a response may hold a code for which its body should be read.
    pub(crate) fn may_be_in(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let failed = status.is_client_error() || status.is_server_error();
        if !failed && self.content_types.is_empty() {
            return false;
        }
        if failed && !self.any_status && status != StatusCode::CONFLICT {
            return false;
        }
        let Some(content_type) = plain_content_type(headers) else {
            return false;
        };
        let declared = || {
            self.content_types
                .iter()
                .any(|declared| declared.eq_ignore_ascii_case(content_type))
        };
        (failed && is_json(content_type)) || declared()
    }

    pub(crate) fn most(&self) -> usize {
        self.limit
    }

    pub(crate) fn longest(&self) -> Duration {
        self.time
    }
}

impl Default for Codes {
    fn default() -> Self {
        Self::standard()
    }
}

/// Returns the media type of a body, if it is not compressed.
fn plain_content_type(headers: &HeaderMap) -> Option<&str> {
    let encoding = headers.get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return None;
    }
    let content_type = headers.get(header::CONTENT_TYPE);
    let text = content_type.and_then(|value| value.to_str().ok());
    text.map_or(Some(""), |text| text.split(';').next().map(str::trim))
}

/// Returns whether a body is a JSON document that can be read as it is.
#[cfg(feature = "codes")]
pub(crate) fn is_plain_json(headers: &HeaderMap) -> bool {
    plain_content_type(headers).is_some_and(is_json)
}

pub(crate) fn is_json(content_type: &str) -> bool {
    let lower = content_type.to_ascii_lowercase();
    lower == "application/json" || lower.ends_with("+json")
}

/// Checks a JSON pointer by RFC 6901: each piece begins with `/`, and `~` is followed by 0 or 1.
pub(crate) fn is_pointer(pointer: &str) -> bool {
    let mut escapes = pointer.split('~').skip(1);
    pointer.starts_with('/') && escapes.all(|after| after.starts_with(['0', '1']))
}

fn is_media_type(text: &str) -> bool {
    let is_token = |token: &str| {
        let special = |byte| b"!#$%&'*+-.^_`|~".contains(&byte);
        !token.is_empty()
            && token
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || special(b))
    };
    text.split_once('/')
        .is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype))
}

/// Returns whether a code is never retried: by a ready table, or by R-4 if it is the name of a gRPC
/// status or the number of an HTTP one.
fn is_final(code: &str) -> bool {
    let grpc = GrpcCode::from_name(code).is_some_and(|code| !Rules::allows_grpc(code));
    let status = StatusCode::from_bytes(code.as_bytes()).is_ok_and(|status| {
        let failed = status.is_client_error() || status.is_server_error();
        failed && status != StatusCode::TOO_EARLY && !Rules::allows_status(status)
    });
    grpc || status || BANK_NEVER.contains(&code)
}

fn is_code(code: &str) -> bool {
    (1..=128).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests;
