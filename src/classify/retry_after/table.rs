use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName};

use super::{
    MAX_ITEMS,
    limits::Limits,
    lines, pushback, retry_after_value,
    value::{delay_value, number},
};
use crate::{call::Guidance, classify::codes::is_pointer};

/// The most rows that a table may have.
const MAX_ROWS: usize = 64;

/// The fields of a reply in which servers say when to call again: one row for each header, or member
/// of a JSON document, with the form of its value.
///
/// The [module](super) lists the rows of the standard table. A policy can have a table with more, or
/// fewer:
///
/// ```
/// use tower_reprise::{Policy, classify::retry_after::GuidanceTable};
///
/// let table = GuidanceTable::standard()
///     .delay("x-acme-wait")
///     .millis("/fault/waitMs")
///     .stop("/fault/retryable")
///     .reset("x-acme-*-reset", "x-acme-*-left")
///     .without("x-rate-limit-reset");
/// let policy = Policy::http().guidance(table).build()?;
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
///
/// A field that begins with `/` is a JSON pointer into the body of a failure, for a
/// [`PeekLayer`](crate::PeekLayer) with the `codes` feature; `*` in place of a whole step is each
/// element of an array. Other fields are headers, in which one `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct GuidanceTable {
    rows: Cow<'static, [Row]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    field: Cow<'static, str>,
    form: Form,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    /// `Retry-After`, by its grammar.
    RetryAfter,
    Delay,
    Millis,
    /// `false` stops.
    Stop,
    /// A `RateLimit` list or dictionary.
    RateLimit,
    Reset {
        remaining: Cow<'static, str>,
    },
}

const fn row(field: &'static str, form: Form) -> Row {
    Row {
        field: Cow::Borrowed(field),
        form,
    }
}

const fn reset(field: &'static str, remaining: &'static str) -> Row {
    let remaining = Cow::Borrowed(remaining);
    row(field, Form::Reset { remaining })
}

/// The standard table. The module's docs have the same rows, as a test checks.
static STANDARD: [Row; 20] = [
    row("x-should-retry", Form::Stop),
    row("stripe-should-retry", Form::Stop),
    row("retry-after", Form::RetryAfter),
    row("retry-after-ms", Form::Millis),
    row("x-ms-retry-after-ms", Form::Millis),
    row("x-amz-retry-after", Form::Millis),
    row("ratelimit", Form::RateLimit),
    reset("ratelimit-reset", "ratelimit-remaining"),
    reset("x-ratelimit-reset", "x-ratelimit-remaining"),
    reset("x-ratelimit-reset-after", "x-ratelimit-remaining"),
    reset("x-rate-limit-reset", "x-rate-limit-remaining"),
    reset("x-ratelimit-reset-*", "x-ratelimit-remaining-*"),
    reset("anthropic-*-reset", "anthropic-*-remaining"),
    row("/retry_after", Form::Delay),
    row("/retryAfter", Form::Delay),
    row("/retry-after", Form::Delay),
    row("/parameters/retry_after", Form::Delay),
    row("/error/details/*/retryDelay", Form::Delay),
    row("/retry_after_ms", Form::Millis),
    row("/retryAfterMs", Form::Millis),
];

impl GuidanceTable {
    /// Returns the table with the rows of the [module docs](super).
    pub const fn standard() -> Self {
        Self {
            rows: Cow::Borrowed(&STANDARD),
        }
    }

    /// Adds a field with a delay in any form: seconds, a Unix timestamp, a duration with units such as
    /// `1m30s`, or a date. Where it fails to be read, it is ignored.
    pub fn delay(self, field: impl Into<Cow<'static, str>>) -> Self {
        self.with(field, Form::Delay)
    }

    /// Adds a field with a delay in milliseconds.
    pub fn millis(self, field: impl Into<Cow<'static, str>>) -> Self {
        self.with(field, Form::Millis)
    }

    /// Adds a field in which `false` says that a retry is of no use. No value makes a failure
    /// retryable that is not.
    pub fn stop(self, field: impl Into<Cow<'static, str>>) -> Self {
        self.with(field, Form::Stop)
    }

    /// Adds a header with the time at which a limit resets, in any form that [`delay`](Self::delay)
    /// reads, and the one with what remains of the limit. It is a floor after 429 and 503 if nothing
    /// remains. What `*` stands for in the first stands for it in the second.
    pub fn reset(
        self,
        field: impl Into<Cow<'static, str>>,
        remaining: impl Into<Cow<'static, str>>,
    ) -> Self {
        let remaining = lower(remaining.into());
        self.with(field, Form::Reset { remaining })
    }

    /// Removes the rows of a field.
    pub fn without(mut self, field: &str) -> Self {
        let rows = self.rows.to_mut();
        rows.retain(|row| !row.field.eq_ignore_ascii_case(field));
        self
    }

    /// Iterates over the fields.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| &*row.field)
    }

    /// Returns the guidance of a response that failed for want of capacity, by precedence.
    ///
    /// A gRPC [`pushback`] decides alone. Without one, a `false` that stops ends the call. Otherwise
    /// the larger of [`longest_delay`](Self::longest_delay) and [`rate_limit`](Self::rate_limit) is the floor.
    #[must_use]
    pub fn guidance(&self, headers: &HeaderMap, now: SystemTime) -> Option<Guidance> {
        match self.explicit_guidance(headers, now) {
            None => self.rate_limit(headers, now).map(Guidance::AtLeast),
            Some(Guidance::AtLeast(wait)) => {
                let limit = self.rate_limit(headers, now).unwrap_or_default();
                Some(Guidance::AtLeast(wait.max(limit)))
            }
            decision => decision,
        }
    }

    /// Returns the guidance of a response that failed for another reason: as
    /// [`guidance`](Self::guidance), without the limits, which many servers send with every reply.
    #[must_use]
    pub fn explicit_guidance(&self, headers: &HeaderMap, now: SystemTime) -> Option<Guidance> {
        if let Some(decision) = pushback(headers) {
            return Some(decision);
        }
        let mut stops = false;
        self.each_header(headers, |name, _, form| {
            stops |= *form == Form::Stop && lines(headers, name).any(is_false);
        });
        match stops {
            true => Some(Guidance::Stop),
            false => self.longest_delay(headers, now).map(Guidance::AtLeast),
        }
    }

    /// Returns the largest of the delays in headers: `Retry-After` and its relatives.
    #[must_use]
    pub fn longest_delay(&self, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
        let mut longest = None;
        self.each_header(headers, |name, _, form| {
            let read: fn(&[u8], SystemTime) -> Option<Duration> = match form {
                Form::RetryAfter => retry_after_value,
                Form::Delay => delay_value,
                Form::Millis => |value, _| millis(value),
                _ => return,
            };
            let delays = lines(headers, name).filter_map(|value| read(value, now));
            longest = longest.max(delays.max());
        });
        longest
    }

    /// Returns the time until the exhausted limits of a failed response reset; the largest wins.
    ///
    /// A limit with requests remaining did not cause the failure and is ignored. A reset without a
    /// remaining count counts as exhausted, unless another field says that requests remain.
    #[must_use]
    pub fn rate_limit(&self, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
        let mut limits = Limits::default();
        self.each_header(headers, |name, any, form| match form {
            Form::RateLimit => limits.read_list(headers, name, now),
            Form::Reset { remaining } => {
                let remaining = remaining.replacen('*', any, 1);
                limits.read_pair(headers, name, &remaining, now);
            }
            _ => {}
        });
        limits.floor()
    }

    /// Visits the headers that rows name, and those that match a pattern, with the text that `*` stands
    /// for. A header with a row of its own is no match of a pattern.
    fn each_header(&self, headers: &HeaderMap, mut visit: impl FnMut(&str, &str, &Form)) {
        for Row { field, form } in &*self.rows {
            match field.split_once('*') {
                _ if field.starts_with('/') => {}
                None => visit(field, "", form),
                Some((start, end)) => {
                    let any = |name: &'_ HeaderName| -> Option<(usize, usize)> {
                        let (name, from) = (name.as_str(), start.len());
                        let to = name.len().checked_sub(end.len())?;
                        let matches = from < to && name.starts_with(start) && name.ends_with(end);
                        (matches && !self.fields().any(|own| own == name)).then_some((from, to))
                    };
                    let matches = headers.keys().filter_map(|name| Some((name, any(name)?)));
                    for (name, (from, to)) in matches.take(MAX_ITEMS) {
                        visit(name.as_str(), &name.as_str()[from..to], form);
                    }
                }
            }
        }
    }

    /// Checks the rows. The error is a value, and the allowed ones.
    pub(crate) fn check(&self) -> Result<(), (String, &'static str)> {
        if self.rows.len() > MAX_ROWS {
            return Err((self.rows.len().to_string(), "at most 64 fields"));
        }
        for Row { field, form } in &*self.rows {
            let is_member = field.starts_with('/');
            if is_member && matches!(form, Form::Reset { .. }) {
                return Err((format!("{field:?}"), "a header, for a reset"));
            }
            if !(is_header(field) || is_pointer(field)) {
                let allowed = "a header name with at most one `*`, or a JSON pointer";
                return Err((format!("{field:?}"), allowed));
            }
            let Form::Reset { remaining } = form else {
                continue;
            };
            let same = field.contains('*') == remaining.contains('*');
            if !is_header(remaining) || !same {
                let allowed = "a header name, with a `*` if the field of the reset has one";
                return Err((format!("{remaining:?}"), allowed));
            }
        }
        Ok(())
    }

    fn with(mut self, field: impl Into<Cow<'static, str>>, form: Form) -> Self {
        let field = lower(field.into());
        self.rows.to_mut().push(Row { field, form });
        self
    }
}

/// Members of JSON documents.
#[cfg(feature = "codes")]
mod members {
    use serde_json::Value;

    use super::{Duration, Form, GuidanceTable, MAX_ITEMS, Row, SystemTime, delay_value, millis};

    impl GuidanceTable {
        /// Returns whether there are rows for documents.
        pub(crate) fn has_members(&self) -> bool {
            self.fields().any(|field| field.starts_with('/'))
        }

        /// Returns the largest of the delays in a document, and whether it says to stop.
        pub(crate) fn in_document(
            &self,
            document: &Value,
            now: SystemTime,
        ) -> (Option<Duration>, bool) {
            let (mut longest, mut stops) = (None, false);
            for Row { field, form } in &*self.rows {
                if !field.starts_with('/') {
                    continue;
                }
                each(document, field, &mut |value| match form {
                    Form::Stop => {
                        stops |= *value == Value::Bool(false)
                            || value
                                .as_str()
                                .is_some_and(|text| super::is_false(text.as_bytes()));
                    }
                    Form::Millis => longest = longest.max(read(value, millis)),
                    _ => longest = longest.max(read(value, |text| delay_value(text, now))),
                });
            }
            (longest, stops)
        }
    }

    /// Visits the values at a pointer, of which there are several if it has a `*`.
    fn each(document: &Value, pointer: &str, visit: &mut impl FnMut(&Value)) {
        match pointer.split_once("/*") {
            None => document.pointer(pointer).into_iter().for_each(visit),
            Some((array, rest)) => {
                let array = document.pointer(array).and_then(Value::as_array);
                for element in array.into_iter().flatten().take(MAX_ITEMS) {
                    // One array is as deep as documents nest them.
                    element.pointer(rest).into_iter().for_each(&mut *visit);
                }
            }
        }
    }

    fn read(value: &Value, parse: impl Fn(&[u8]) -> Option<Duration>) -> Option<Duration> {
        match value {
            Value::String(text) => parse(text.as_bytes()),
            Value::Number(number) => parse(number.to_string().as_bytes()),
            _ => None,
        }
    }
}

fn millis(value: &[u8]) -> Option<Duration> {
    number(value).map(Duration::from_millis)
}

fn is_false(value: &[u8]) -> bool {
    value.eq_ignore_ascii_case(b"false")
}

fn is_header(field: &str) -> bool {
    // `*` is a character of names as well.
    field.matches('*').count() <= 1 && HeaderName::try_from(field).is_ok()
}

/// Headers are compared in lower case.
fn lower(field: Cow<'static, str>) -> Cow<'static, str> {
    match !field.starts_with('/') && field.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => field.to_ascii_lowercase().into(),
        false => field,
    }
}

impl Default for GuidanceTable {
    fn default() -> Self {
        Self::standard()
    }
}
