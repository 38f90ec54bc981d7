//! Parses when a server wants to be called again.
//!
//! There are several formats: `Retry-After` as seconds or as one of three date formats, generations
//! of rate-limit fields whose reset is a delay in one API and a Unix timestamp in another, and gRPC's
//! pushback. The functions here turn all of them into one [`Guidance`].
//!
//! They are pure: the clock is an argument, and no header a peer can send makes them panic. A malformed value is ignored, as if it had not been sent. The one exception is
//! pushback, where the gRPC specification reads a malformed value as "do not retry".
//!
//! The durations are what the server asked for, up to `u64::MAX` seconds; add them to a point in
//! time with checked arithmetic.
//!
//! # Vendors
//!
//! The standard [`GuidanceTable`] has a row for each field below. Delays are floors: a call waits for
//! the largest of them, or for its backoff if that is longer, and one that can't wait fails at once.
//! `*` is any text, the same in the header with what remains.
//!
//! | sent by | field | form | effect |
//! | --- | --- | --- | --- |
//! | every server | `retry-after` | seconds, or an HTTP-date | floor |
//! | OpenAI, Azure OpenAI | `retry-after-ms` | milliseconds | floor |
//! | Azure Cosmos DB, API Management | `x-ms-retry-after-ms` | milliseconds | floor |
//! | AWS | `x-amz-retry-after` | milliseconds | floor; its SDKs wait at most 5 s longer than their backoff for it, here it is kept |
//! | OpenAI, Anthropic | `x-should-retry` | `false` or `true` | `false` stops; `true` has no effect |
//! | Stripe | `stripe-should-retry` | `false` or `true` | the same |
//! | IETF drafts 08 and later | `ratelimit` | `"default";r=0;t=5` | floor after 429 and 503, if `r` is 0 |
//! | IETF drafts 04 to 07 | `ratelimit` | `limit=9, remaining=0, reset=5` | the same, if `remaining` is 0 |
//! | IETF drafts up to 03, GitLab | `ratelimit-reset`, with `ratelimit-remaining` | any | the same |
//! | GitHub, Okta, Reddit, Kong | `x-ratelimit-reset`, with `x-ratelimit-remaining` | any | the same |
//! | Discord | `x-ratelimit-reset-after`, with `x-ratelimit-remaining` | any | the same |
//! | X, Okta | `x-rate-limit-reset`, with `x-rate-limit-remaining` | any | the same |
//! | OpenAI, Groq, Mistral | `x-ratelimit-reset-*`, with `x-ratelimit-remaining-*` | any: `1m30s`, `6ms` | the same |
//! | Anthropic | `anthropic-*-reset`, with `anthropic-*-remaining` | any: RFC 3339 | the same |
//! | Discord, Cloudflare | `/retry_after` in a JSON body | any | floor of this call |
//! | problem documents (RFC 9457) | `/retryAfter`, `/retry-after` | any | the same |
//! | Telegram | `/parameters/retry_after` | any | the same |
//! | Google (`google.rpc.RetryInfo`) | `/error/details/*/retryDelay` | any: `3.5s` | the same |
//! | problem documents | `/retry_after_ms`, `/retryAfterMs` | milliseconds | the same |
//!
//! *Any* form is one that [`delay_value`] reads: seconds, a Unix timestamp, a duration with units, or
//! a date. Bodies are read by a [`PeekLayer`](crate::PeekLayer) with the `codes` feature, and only
//! those of failures that may be retried. Nothing here is read of a response that succeeded.
//!
//! # Example
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use http::{HeaderMap, HeaderValue};
//! use tower_reprise::{call::Guidance, classify::retry_after::guidance};
//!
//! let now = SystemTime::now();
//! let mut headers = HeaderMap::new();
//! assert_eq!(guidance(&headers, now), None);
//!
//! headers.insert("retry-after", HeaderValue::from_static("3"));
//! headers.insert("ratelimit", HeaderValue::from_static(r#""minute";r=0;t=20, "day";r=812;t=9000"#));
//! assert_eq!(guidance(&headers, now), Some(Guidance::AtLeast(Duration::from_secs(20))));
//!
//! headers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("250"));
//! assert_eq!(guidance(&headers, now), Some(Guidance::Exactly(Duration::from_millis(250))));
//! ```

mod date;
mod limits;
mod table;
mod value;

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use self::value::{integer, trim};
pub use self::{
    date::{http_date, rfc3339_date},
    table::GuidanceTable,
    value::delay_value,
};
use crate::call::Guidance;

/// The most lines of a field, matches of a pattern, members of a list and parameters of a member that
/// are read.
const MAX_ITEMS: usize = 16;

/// Returns the [guidance](GuidanceTable::guidance) of a response that failed for want of capacity, by
/// the standard table.
#[must_use]
pub fn guidance(headers: &HeaderMap, now: SystemTime) -> Option<Guidance> {
    GuidanceTable::standard().guidance(headers, now)
}

/// Returns the [guidance](GuidanceTable::explicit_guidance) of a response that failed for another
/// reason, by the standard table.
#[must_use]
pub fn explicit_guidance(headers: &HeaderMap, now: SystemTime) -> Option<Guidance> {
    GuidanceTable::standard().explicit_guidance(headers, now)
}

/// Returns the delay in `grpc-retry-pushback-ms`, or `None` if the field is absent.
///
/// A negative number, anything that is not a number, and a field that is sent more than once all
/// mean [`Guidance::Stop`].
#[must_use]
pub fn pushback(headers: &HeaderMap) -> Option<Guidance> {
    let mut values = lines(headers, "grpc-retry-pushback-ms");
    let value = values.next()?;
    Some(match (integer(value), values.next()) {
        (Some(millis), None) => Guidance::Exactly(Duration::from_millis(millis)),
        _ => Guidance::Stop,
    })
}

/// Returns the delay in `Retry-After`: the largest of its well-formed lines, `None` if there is none.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    lines(headers, "retry-after")
        .filter_map(|value| retry_after_value(value, now))
        .max()
}

/// Returns the delay in one `Retry-After` value: digits are seconds, dates are relative to `now` and zero
/// once they have passed.
#[must_use]
pub fn retry_after_value(value: &[u8], now: SystemTime) -> Option<Duration> {
    let value = trim(value);
    integer(value).map(Duration::from_secs).or_else(|| {
        let date = http_date(value, now)?;
        Some(date.duration_since(now).unwrap_or_default())
    })
}

/// Returns the time until the exhausted [limits](GuidanceTable::rate_limit) of a failed response reset,
/// by the standard table.
#[must_use]
pub fn rate_limit(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    GuidanceTable::standard().rate_limit(headers, now)
}

fn lines<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let values = headers.get_all(name).into_iter().take(MAX_ITEMS);
    values.map(|value| trim(value.as_bytes()))
}
