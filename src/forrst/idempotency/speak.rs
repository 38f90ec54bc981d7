use crate::forrst::codes::effect_of;
use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Request, Response, response};
use serde_json::{Map, Value, json};

use super::{DAY, Forrst};
use crate::{
    error::ConfigError,
    forrst::{
        self, EnvelopeError, Extension, Fault, IdempotencyData, IdempotencyOptions, Span,
        caller::Caller, canonical::written, extension::only, fresh_id::resized, may_be_envelope,
        splice,
    },
    http::{headers::printable, problem::Problem, reply::Reply},
    server::idempotency::{
        Outcome,
        dialect::{Common, Made, Met, Refusal, Speak},
        engine::Operation,
    },
    store::{Fingerprint, Note},
};

/// Who asks, and with which key if it has one.
#[derive(Debug, Default)]
pub(crate) struct Known {
    caller: Caller,
    key: Option<String>,
}

impl Known {
    fn data(&self, status: &str, original: Option<&str>) -> IdempotencyData {
        IdempotencyData::new(self.key.clone(), status, original)
    }
}

impl Speak for Forrst {
    type Asked = Arc<Known>;

    fn check(&self) -> Result<(), ConfigError> {
        if (DAY..=365 * DAY).contains(&self.longest_ttl) {
            return Ok(());
        }
        let (field, value) = ("forrst.longest_ttl", format!("{:?}", self.longest_ttl));
        Err(ConfigError::new(
            None,
            field,
            value,
            "24h (R-6) to 365 days",
        ))
    }

    fn meet(&self, _: Common<'_>, head: &Request<()>) -> Met<Arc<Known>> {
        match head.method().is_safe() {
            true => Met::Other,
            false => Met::Asked(Arc::default()),
        }
    }

    fn read(
        &self,
        common: Common<'_>,
        head: &Request<()>,
        asked: &mut Arc<Known>,
        body: &Bytes,
    ) -> Result<Option<Operation>, Problem> {
        let invalid = |error: EnvelopeError| Problem::ENVELOPE_INVALID.detail(error.to_string());
        let mut request = forrst::Request::parse(body).map_err(|error| {
            *asked = known(Caller::guess(body), None);
            invalid(error)
        })?;
        let caller = Caller::of(&mut request);
        let options = match options(&request, common.settings.longest) {
            Ok(options) => options,
            Err(error) => {
                *asked = known(caller, None);
                return Err(invalid(error));
            }
        };
        let Some(IdempotencyOptions { key, ttl, .. }) = options else {
            return Ok(None);
        };
        let note = Note::new(caller.id.as_deref().unwrap_or_default());
        let mut digest = common.whose(head);
        if let Ok(digest) = &mut digest {
            digest.part("forrst");
            digest.part(&request.call.function);
            digest.part(request.call.version.as_deref().unwrap_or_default());
            digest.part(&key);
        }
        *asked = known(caller, Some(key));
        Ok(Some(Operation {
            key: digest?.into(),
            fingerprint: Fingerprint::new(request.call.arguments_digest()),
            note: note.ok_or_else(|| {
                let what = format!("is too long, allowed: up to {} bytes", Note::MAX_LEN);
                invalid(EnvelopeError::new("id", what))
            })?,
            retention: self.kept_for(ttl, common.settings.retention),
        }))
    }

    fn key<'a>(&self, _: &'a Request<()>, asked: Option<&'a Arc<Known>>) -> Option<&'a str> {
        printable(asked?.key.as_ref()?.as_bytes())
    }

    fn refuse(asked: &Arc<Known>, refusal: &Refusal) -> Response<Bytes> {
        let Refusal {
            problem,
            note,
            fingerprint,
        } = refusal;
        let (code, status, message) = told(problem);
        let original = original(note);
        let mut details = Map::new();
        if let Some(key) = &asked.key {
            details.insert("key".into(), key.as_str().into());
        }
        if let Some(fingerprint) = fingerprint {
            let hash = written(fingerprint.as_bytes());
            details.insert("original_arguments_hash".into(), hash.into());
        }
        if let Some(wait) = problem.wait() {
            details.insert("retry_after".into(), json!(Span::from(wait)));
        }
        let extensions = match (status, original) {
            (Some(status), original) => extension(&asked.data(status, original)),
            (None, Some(original)) => {
                details.insert("original_request_id".into(), original.into());
                None
            }
            (None, None) => None,
        };
        let details = match details.is_empty() {
            true => Value::Null,
            false => details.into(),
        };
        let fault = Fault::new(code, message).details(details);
        let extensions = extensions.into_iter().collect();
        asked
            .caller
            .failed(fault, extensions, problem.response(false))
    }

    fn processed(
        &self,
        common: Common<'_>,
        asked: &Arc<Known>,
        retention: Duration,
        head: &response::Parts,
        body: &Bytes,
    ) -> Made {
        let Some(reply) = envelope(&head.headers, body) else {
            return Made::AsItIs;
        };
        let marked = head.extensions.get::<Outcome>().is_some();
        let errors = common.settings.server_errors;
        let undone = |fault: &Fault| errors.is_undone(effect_of(&fault.code));
        if !marked && !reply.errors.is_empty() && reply.errors.iter().all(undone) {
            return Made::NoEffect;
        }
        let now = (self.clock)();
        let mut data = asked.data("processed", asked.caller.id.as_deref());
        data.expires_at = now.checked_add(retention).map(iso_8601);
        let dress = |data| splice::with_only(body, &extension(&data)?);
        let sent = dress(data.clone());
        // As it will be sent once more, but for the id.
        data.status = "cached".to_owned();
        data.cached_at = Some(iso_8601(now));
        match (dress(data), sent) {
            (Some(kept), Some(sent)) => Made::Dressed {
                kept: kept.into(),
                sent: sent.into(),
            },
            _ => Made::AsItIs,
        }
    }

    fn replayed(&self, asked: &Arc<Known>, note: &Note, reply: &mut Reply) {
        let Some(stored) = envelope(&reply.headers, &reply.body) else {
            return;
        };
        let mut changed = None;
        let data: Option<IdempotencyData> =
            stored.data_of(IdempotencyData::URN).unwrap_or_default();
        // A handler that stored its reply itself left this to us.
        if !data.is_some_and(|data| data.is_cached()) {
            let data = asked.data("cached", original(note));
            changed = extension(&data).and_then(|data| splice::with_only(&reply.body, &data));
        }
        if stored.id != asked.caller.id {
            let body = changed.as_deref().unwrap_or(&reply.body);
            changed = splice::with_id(body, asked.caller.id.as_deref()).or(changed);
        }
        if let Some(changed) = changed {
            reply.body = resized(&mut reply.headers, changed);
        }
    }
}

impl Forrst {
    fn kept_for(&self, ttl: Option<Span>, retention: Duration) -> Duration {
        let longest = self.longest_ttl.max(retention);
        ttl.map_or(retention, |ttl| ttl.duration().clamp(DAY, longest))
    }
}

fn known(caller: Caller, key: Option<String>) -> Arc<Known> {
    Arc::new(Known { caller, key })
}

/// The options of the extension, if it is there: then once, and with a key.
pub(in crate::forrst) fn options(
    request: &forrst::Request,
    longest: usize,
) -> Result<Option<IdempotencyOptions>, EnvelopeError> {
    let urn = IdempotencyOptions::URN;
    let Some(index) = only(&request.extensions, urn)? else {
        return Ok(None);
    };
    let wrong = |at: String, what: String| Err(EnvelopeError::new(at, what));
    let at = format!("extensions[{index}].options");
    let Some(options) = request.options_of::<IdempotencyOptions>(urn)? else {
        return wrong(at, "is missing".to_owned());
    };
    let key = options.key.as_str();
    let fits = (1..=longest).contains(&key.len());
    if fits && key.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Ok(Some(options));
    }
    let allowed = format!("allowed: 1 to {longest} printable characters of ASCII");
    wrong(format!("{at}.key"), format!("{allowed}; is {key:?}"))
}

/// What is said about a refusal: its code, the status of the extension, and words for people.
pub(in crate::forrst) fn told(problem: &Problem) -> (String, Option<&'static str>, String) {
    let words = match &*problem.detail {
        "" => problem.title.to_owned(),
        detail => detail.to_owned(),
    };
    let (code, status) = match problem.name {
        "idempotency-key-reused" => {
            let words = "Idempotency key already used with different arguments";
            return (
                "IDEMPOTENCY_CONFLICT".into(),
                Some("conflict"),
                words.into(),
            );
        }
        "idempotency-processing" => {
            let words = "Previous request with this key is still processing";
            return (
                "IDEMPOTENCY_PROCESSING".into(),
                Some("processing"),
                words.into(),
            );
        }
        "idempotency-unavailable" => ("UNAVAILABLE".into(), None),
        "idempotency-handler-crashed" => ("INTERNAL_ERROR".into(), None),
        "idempotency-anonymous" => ("FORBIDDEN".into(), None),
        "forrst-envelope-invalid"
        | "idempotency-request-too-large"
        | "idempotency-request-unreadable" => ("VALIDATION_ERROR".into(), None),
        _ => (problem.code(), None),
    };
    (code, status, words)
}

/// A reply that more can be written into: one with a result or errors.
fn envelope(headers: &http::HeaderMap, body: &[u8]) -> Option<forrst::Response> {
    if !may_be_envelope(headers) {
        return None;
    }
    let reply = forrst::Response::parse(body).ok()?;
    (reply.result.is_some() || !reply.errors.is_empty()).then_some(reply)
}

pub(in crate::forrst) fn extension(data: &IdempotencyData) -> Option<Extension> {
    let data = serde_json::to_value(data).ok()?;
    Some(Extension::with_data(IdempotencyData::URN, data))
}

/// The id of the request that had the key first.
fn original(note: &Note) -> Option<&str> {
    let id = str::from_utf8(note.as_bytes()).ok()?;
    (!id.is_empty()).then_some(id)
}

/// In whole seconds. What lies before 1970 is not told apart.
fn iso_8601(time: SystemTime) -> String {
    let mut text = String::new();
    let time = time.max(SystemTime::UNIX_EPOCH);
    let _ = write!(text, "{}", humantime::format_rfc3339_seconds(time));
    text
}
