use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, response};
use serde_json::{Map, Value, json};

use super::{DAY, Forrst};
use crate::{
    error::ConfigError,
    forrst::{
        self, Call, EnvelopeError, Extension, Fault, IdempotencyData, IdempotencyOptions,
        caller::Caller, canonical::written, codes::effect_of, extension::only, fresh_id::resized,
        may_be_envelope, splice,
    },
    http::{
        Span,
        digest::Digest,
        headers::{IDEMPOTENCY_KEY, printable},
        problem::Problem,
        reply::Reply,
    },
    server::{
        dialect::{Admission, Context, Operation, OperationId, Rejection, Rewrite, WireFormat},
        idempotency::HandlerOutcome,
    },
    store::{Fingerprint, Note},
};

/// The caller of a function, and its key if it has one.
#[derive(Debug, Default)]
pub(crate) struct KeyedCaller {
    caller: Caller,
    key: Option<String>,
}

impl KeyedCaller {
    fn data(&self, status: &str, original: Option<&str>) -> IdempotencyData {
        IdempotencyData::new(self.key.clone(), status, original)
    }
}

impl WireFormat for Forrst {
    type Asked = Arc<KeyedCaller>;

    fn check(&self) -> Result<(), ConfigError> {
        let (times, allowed) = (DAY..=365 * DAY, "24h (R-6) to 365 days");
        ConfigError::within("forrst.longest_ttl", self.longest_ttl, times, allowed)
    }

    fn key_header(&self) -> HeaderName {
        IDEMPOTENCY_KEY
    }

    /// The key is that of the extension or, of a call that has none, that of the header: a call
    /// whose body can't be changed is replayed with a key in its header.
    fn identify(
        &self,
        head: &Request<()>,
        body: &[u8],
        max_key_len: usize,
        owner: Digest,
    ) -> Result<Option<OperationId>, Problem> {
        let request = forrst::Request::parse(body).map_err(invalid)?;
        let options = options(&request, max_key_len).map_err(invalid)?;
        let header = head.headers().get(IDEMPOTENCY_KEY);
        let key = options.as_ref().map(|options| options.key.as_bytes());
        let key = key.or_else(|| header.map(HeaderValue::as_bytes));
        Ok(key.map(|key| operation_id(&request.call, key, owner)))
    }

    fn admit(&self, _: Context<'_>, head: &Request<()>) -> Admission<Arc<KeyedCaller>> {
        match head.method().is_safe() {
            true => Admission::Passed,
            false => Admission::Admitted(Arc::default()),
        }
    }

    fn operation(
        &self,
        context: Context<'_>,
        head: &Request<()>,
        asked: &mut Arc<KeyedCaller>,
        body: &Bytes,
    ) -> Result<Option<Operation>, Problem> {
        let mut request = forrst::Request::parse(body).map_err(|error| {
            *asked = known(Caller::guess(body), None);
            invalid(error)
        })?;
        let caller = Caller::of(&mut request);
        let options = match options(&request, context.max_key_len) {
            Ok(options) => options,
            Err(error) => {
                *asked = known(caller, None);
                return Err(invalid(error));
            }
        };
        let Some(IdempotencyOptions { key, ttl, .. }) = options else {
            return Ok(None);
        };
        if let Err(error) = refuse_nul(&request.call, caller.id.as_deref()) {
            *asked = known(caller, None);
            return Err(invalid(error));
        }
        let note = note(&request.call, caller.id.as_deref().unwrap_or_default());
        let id = context
            .scope_digest(head)
            .map(|owner| operation_id(&request.call, key.as_bytes(), owner));
        *asked = known(caller, Some(key));
        Ok(Some(Operation {
            id: id?,
            note: note.ok_or_else(|| {
                let what = format!("is too long, allowed: up to {} bytes", Note::MAX_LEN);
                invalid(EnvelopeError::new("id", what))
            })?,
            retention: self.kept_for(ttl, context.retention),
        }))
    }

    fn printable_key<'a>(
        &self,
        _: &'a Request<()>,
        asked: Option<&'a Arc<KeyedCaller>>,
    ) -> Option<&'a str> {
        printable(asked?.key.as_ref()?.as_bytes())
    }

    fn reject(asked: &Arc<KeyedCaller>, rejection: &Rejection) -> Response<Bytes> {
        let Rejection {
            problem,
            note,
            fingerprint,
        } = rejection;
        let (code, status, message) = fault_of(problem);
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

    fn rewrite(
        &self,
        context: Context<'_>,
        asked: &Arc<KeyedCaller>,
        retention: Duration,
        head: &response::Parts,
        body: &Bytes,
    ) -> Rewrite {
        let Some(reply) = envelope(&head.headers, body) else {
            return Rewrite::Unchanged;
        };
        let marked = head.extensions.get::<HandlerOutcome>().is_some();
        let undone = |fault: &Fault| effect_of(&fault.code) <= context.no_effect;
        if !marked && !reply.errors.is_empty() && reply.errors.iter().all(undone) {
            return Rewrite::NoEffect;
        }
        let now = (self.clock)();
        let mut data = asked.data("processed", asked.caller.id.as_deref());
        data.expires_at = now.checked_add(retention).map(iso_8601);
        let with_extension = |data| splice::with_only(body, &extension(&data)?);
        let sent = with_extension(data.clone());
        // The reply as it will be sent once more, but for the id.
        data.status = "cached".to_owned();
        data.cached_at = Some(iso_8601(now));
        match (with_extension(data), sent) {
            (Some(stored), Some(sent)) => Rewrite::Rewritten {
                stored: stored.into(),
                sent: sent.into(),
            },
            _ => Rewrite::Unchanged,
        }
    }

    fn rewrite_replayed(&self, asked: &Arc<KeyedCaller>, note: &Note, reply: &mut Reply) {
        let Some(stored) = envelope(&reply.headers, &reply.body) else {
            return;
        };
        let mut changed = None;
        let data: Option<IdempotencyData> =
            stored.data_of(IdempotencyData::URN).unwrap_or_default();
        // A reply that its handler stored itself has no extension yet.
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

fn known(caller: Caller, key: Option<String>) -> Arc<KeyedCaller> {
    Arc::new(KeyedCaller { caller, key })
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: EnvelopeError) -> Problem {
    Problem::ENVELOPE_INVALID.detail(error.to_string())
}

/// Identifies a call by its function, version and key among those of its owner.
fn operation_id(call: &Call, key: &[u8], mut owner: Digest) -> OperationId {
    owner.part("forrst");
    owner.part(&call.function);
    owner.part(call.version.as_deref().unwrap_or_default());
    owner.part(key);
    OperationId {
        key: owner.into(),
        fingerprint: Fingerprint::new(call.arguments_digest()),
    }
}

/// Refuses text that a store may have no column for: PostgreSQL's has no NUL.
fn refuse_nul(call: &Call, id: Option<&str>) -> Result<(), EnvelopeError> {
    let texts = [
        ("id", id),
        ("call.function", Some(&*call.function)),
        ("call.version", call.version.as_deref()),
    ];
    let has_nul = |(_, text): &&(_, Option<&str>)| text.is_some_and(|text| text.contains('\0'));
    match texts.iter().find(has_nul) {
        Some((at, _)) => Err(EnvelopeError::new(*at, "has a NUL")),
        None => Ok(()),
    }
}

/// Reads the options of the extension. If it is there, it is there once, and with a key.
pub(in crate::forrst) fn options(
    request: &forrst::Request,
    max_key_len: usize,
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
    let fits = (1..=max_key_len).contains(&key.len());
    if fits && key.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Ok(Some(options));
    }
    let allowed = format!("allowed: 1 to {max_key_len} printable characters of ASCII");
    wrong(format!("{at}.key"), format!("{allowed}; is {key:?}"))
}

/// Returns the code of a problem, the status of the extension, and a message.
pub(in crate::forrst) fn fault_of(problem: &Problem) -> (String, Option<&'static str>, String) {
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

/// Parses a reply that can be rewritten: one with a result or errors.
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

/// Ends the function and the version in a note, and begins a note that has them. Views of stores
/// find them by it.
const MARK: char = '\u{1f}';

/// Returns the note of a call: its function and version, where there is room for them, and its id.
/// `None` if that is too long.
fn note(call: &Call, id: &str) -> Option<Note> {
    let version = call.version.as_deref().unwrap_or_default();
    let marked = [&call.function, version]
        .iter()
        .any(|text| text.contains(MARK));
    let whole = format!("{MARK}{}{MARK}{version}{MARK}{id}", call.function);
    let whole = (!marked).then(|| Note::new(whole)).flatten();
    whole.or_else(|| Note::new(id))
}

/// Returns the id of the request that had the key first.
fn original(note: &Note) -> Option<&str> {
    let note = str::from_utf8(note.as_bytes()).ok()?;
    let id = match note.strip_prefix(MARK) {
        Some(rest) => rest.splitn(3, MARK).nth(2)?,
        None => note,
    };
    (!id.is_empty()).then_some(id)
}

/// Writes a time in whole seconds, not before 1970.
fn iso_8601(time: SystemTime) -> String {
    let mut text = String::new();
    let time = time.max(SystemTime::UNIX_EPOCH);
    let _ = write!(text, "{}", humantime::format_rfc3339_seconds(time));
    text
}
