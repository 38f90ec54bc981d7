use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, StatusCode,
    header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use serde_json::{Value, json};

use super::{caller, extension, functions, invalid, reply};
use crate::{
    call::key::LONGEST_CONFIGURABLE,
    classify::{BodySignal, Codes},
    delivery::{
        redact,
        replay::{
            ReplayId, ReplayStatus,
            callback::Event,
            dialect::{
                Accepted, Answer, Operation, OperationKey, Options, Refusal, Speak, Why, Wish,
            },
            document::{rfc3339, state},
        },
        webhooks::UserHeaders,
    },
    forrst::{
        self, EnvelopeError, Extension, Fault, IdempotencyData, IdempotencyOptions,
        MaintenanceData, ReplayCallback, ReplayData, ReplayOptions, ReplayPriority, Retry,
        advice::advice,
        extension::only,
        idempotency::speak::{self as idempotency, told},
        is_fixed, may_be_envelope, may_be_read, splice,
    },
    http::{Span, headers::IDEMPOTENCY_KEY, problem::Problem},
    store::{
        Fingerprint,
        journal::{EntryId, Priority, Status},
    },
};

type Response = http::Response<Bytes>;

/// Envelopes.
pub(super) struct Envelopes {
    pub(super) codes: Codes,
}

impl Speak for Envelopes {
    fn name(&self) -> &'static str {
        "forrst"
    }

    fn of_head(&self, head: &Request<()>) -> Result<Wish, Refusal> {
        let headers = head.headers();
        let unsaid = [CONTENT_TYPE, CONTENT_ENCODING];
        let unsaid = unsaid.iter().all(|name| !headers.contains_key(name));
        Ok(match unsaid || may_be_read(headers) {
            true => Wish::InBody,
            false => Wish::Foreign,
        })
    }

    fn of_body(&self, body: &[u8]) -> Result<Wish, Refusal> {
        let refusal = |problem: Problem, fault| {
            let head = problem.response(false);
            Box::new(caller(body).failed(fault, Vec::new(), head))
        };
        let refused = |error: EnvelopeError| {
            let fault = invalid("VALIDATION_ERROR", &error);
            refusal(Problem::ENVELOPE_INVALID, fault)
        };
        let request = forrst::Request::parse(body).map_err(refused)?;
        match functions::command(&request.call) {
            Ok(None) => {}
            Ok(Some(command)) => return Ok(Wish::Command(command)),
            Err(refused) => return Err(refusal(refused.0, refused.1)),
        }
        let options = options(&request).map_err(refused)?;
        key(&request).map_err(refused)?;
        Ok(Wish::Replay(Box::new(options)))
    }

    fn operation(&self, head: &Request<()>, body: &[u8]) -> Operation {
        let Ok(request) = forrst::Request::parse(body) else {
            return Operation::default();
        };
        let call = &request.call;
        let version = call.version.clone().unwrap_or_default();
        let header = || Some(head.headers().get(IDEMPOTENCY_KEY)?.as_bytes().to_vec());
        let key = key(&request).unwrap_or_default();
        let key = key.map(String::into_bytes).or_else(header);
        Operation {
            key: key.map(|key| OperationKey {
                parts: vec![
                    b"forrst".to_vec(),
                    call.function.clone().into_bytes(),
                    version.into_bytes(),
                    key,
                ],
                fingerprint: Fingerprint::new(call.arguments_digest()),
            }),
            version: call.version.clone().filter(|version| redact::fits(version)),
            request_id: request.id.filter(|id| redact::fits(id)),
            function: Some(request.call.function),
        }
    }

    fn refused(&self, body: &[u8], problem: &Problem) -> Response {
        let request = forrst::Request::parse(body).ok();
        let is_function = |request: &forrst::Request| {
            let function = &request.call.function;
            function.starts_with(functions::PREFIX)
        };
        let (code, status, words) = told(problem);
        let code = match problem.name {
            "replay-invalid" if request.as_ref().is_some_and(is_function) => "INVALID_ARGUMENTS",
            "replay-invalid" | "replay-too-large" => "VALIDATION_ERROR",
            "replay-anonymous" => "FORBIDDEN",
            "replay-unavailable" => "UNAVAILABLE",
            _ => &*code,
        };
        let key = request.and_then(|request| key(&request).ok().flatten());
        let (details, conflict) = match status.zip(key) {
            Some((status, key)) => {
                let details = json!({ "key": key });
                let data = IdempotencyData::new(Some(key), status, None);
                (details, idempotency::extension(&data))
            }
            None => (Value::Null, None),
        };
        let fault = Fault::new(code, words).details(details);
        let extensions = conflict.into_iter().collect();
        caller(body).failed(fault, extensions, problem.response(false))
    }

    fn accepted(&self, body: &[u8], accepted: &Accepted) -> Response {
        let status = &accepted.status;
        match (state(status.status), status.problem()) {
            (Some(Status::Completed | Status::Failed), _) => return ended(body, accepted),
            (_, Some(problem)) => return self.refused(body, &problem),
            (_, None) => {}
        }
        let data = ReplayData {
            reason: Some(status.reason.clone()),
            expires_at: Some(status.expires_at.clone()),
            position: status.position.map(u64::from),
            estimated_replay: status.estimated_replay,
            ..data_of(status)
        };
        let mut extensions = vec![extension(&data)];
        let by_switch = accepted.maintenance.as_ref().map(|state| {
            json!(MaintenanceData {
                scope: "server".to_owned(),
                reason: state.reason.clone(),
                until: state.until.map(|until| rfc3339(until.into())),
                ..MaintenanceData::default()
            })
        });
        if let Some(data) = by_switch.or_else(|| accepted.told.clone()) {
            extensions.push(Extension::with_data(MaintenanceData::URN, data));
        }
        let envelope = forrst::Response {
            extensions,
            meta: Some(json!({ "accepted": true })),
            ..caller(body).envelope()
        };
        reply(StatusCode::ACCEPTED, &envelope)
    }

    fn unserved(&self, reply: &[u8]) -> Option<Why> {
        const LONGEST: usize = 64;

        let envelope = forrst::Response::parse(reply).ok()?;
        let code = envelope.errors.into_iter().next()?.code;
        let mut extensions = envelope.extensions.into_iter();
        let told = extensions.find(|extension| extension.urn == *MaintenanceData::URN);
        (code.len() <= LONGEST).then(|| Why {
            code: code.into(),
            told: told.and_then(|extension| extension.data),
        })
    }

    fn answered(&self, body: &[u8], answer: &Answer) -> Response {
        let envelope = forrst::Response {
            result: Some(functions::result(answer)),
            ..caller(body).envelope()
        };
        reply(StatusCode::OK, &envelope)
    }

    fn reads(&self, headers: &HeaderMap) -> bool {
        may_be_envelope(headers)
    }

    fn processed(&self, reply: &[u8]) -> Option<Vec<u8>> {
        let envelope = forrst::Response::parse(reply).ok()?;
        let known = |extension: &Extension| extension.urn == *ReplayData::URN;
        let succeeded = envelope.result.is_some() && envelope.errors.is_empty();
        if !succeeded || envelope.extensions.iter().any(known) {
            return None;
        }
        let data = ReplayData {
            status: "processed".to_owned(),
            replay_id: Some(ReplayId::from(EntryId::random()).to_string()),
            ..ReplayData::default()
        };
        splice::with_extension(reply, &extension(&data))
    }

    fn keyed(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Bytes {
        let Ok(request) = forrst::Request::parse(&body) else {
            return body;
        };
        let has = |extension: &Extension| extension.urn == *IdempotencyOptions::URN;
        if headers.contains_key(IDEMPOTENCY_KEY) || request.extensions.iter().any(has) {
            return body;
        }
        // What comes with a digest can't be changed.
        let changed = (!is_fixed(headers)).then(|| {
            let options = json!({ "key": key });
            let extension = Extension::with_options(IdempotencyOptions::URN, options);
            splice::with_extension(&body, &extension)
        });
        match (changed.flatten(), HeaderValue::try_from(key)) {
            (Some(changed), _) => return changed.into(),
            (None, Ok(key)) => drop(headers.insert(IDEMPOTENCY_KEY, key)),
            _ => {}
        }
        body
    }

    fn rekeyed(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Option<Bytes> {
        let request = forrst::Request::parse(&body).ok()?;
        let in_header = headers.remove(IDEMPOTENCY_KEY).is_some();
        if in_header {
            headers.insert(IDEMPOTENCY_KEY, HeaderValue::try_from(key).ok()?);
        }
        let mut extensions = request.extensions.into_iter();
        match extensions.find(|extension| extension.urn == *IdempotencyOptions::URN) {
            None if in_header => Some(body),
            None => Some(self.keyed(headers, body, key)),
            // What comes with a digest can't be changed.
            Some(_) if is_fixed(headers) => None,
            Some(mut extension) => {
                let options = extension.options.as_mut()?.as_object_mut()?;
                options.insert("key".to_owned(), json!(key));
                splice::with_only(&body, &extension).map(Bytes::from)
            }
        }
    }

    fn is_busy(&self, reply: &Response) -> bool {
        let said = || forrst::Response::parse(reply.body()).ok();
        let busy = |fault: &Fault| fault.code == "IDEMPOTENCY_PROCESSING";
        Problem::is_processing(reply) || said().is_some_and(|said| said.errors.iter().any(busy))
    }

    fn signal(&self, reply: &Response) -> Option<BodySignal> {
        let value: Value = serde_json::from_slice(reply.body()).ok()?;
        let errors = value.get("errors")?.as_array()?;
        errors.first()?;
        let text_at = |pointer: &str| Some(value.pointer(pointer)?.as_str()?.into());
        let advice = advice(&value);
        Some(match self.codes.find(text_at) {
            Some(rule) => BodySignal::Code(rule, advice),
            None => BodySignal::Advice(advice),
        })
    }

    fn event(&self, event: &Event<'_>) -> Option<Vec<u8>> {
        let status = event.ended.status;
        let mut data = json!({
            "replay_id": event.id,
            "status": status.as_str(),
            "function": event.function,
            "queued_at": rfc3339(event.queued_at),
        });
        if let Some(id) = event.request_id {
            data["original_request_id"] = json!(id);
        }
        if status != Status::Expired {
            data["replayed_at"] = json!(event.timestamp);
        }
        let told = event
            .body()
            .and_then(|body| forrst::Response::parse(body).ok());
        match (status, told) {
            (Status::Completed, told) => {
                data["result"] = told.and_then(|told| told.result).unwrap_or_default();
            }
            (Status::Failed, told) => {
                let errors = told.map(|told| told.errors).unwrap_or_default();
                data["errors"] = match errors.is_empty() {
                    false => json!(errors),
                    true => json!([failure(event.ended.error)]),
                };
                data["attempts"] = json!(event.attempts);
            }
            _ => {}
        }
        serde_json::to_vec(&json!({
            "event": event.name,
            "timestamp": event.timestamp,
            "data": data,
        }))
        .ok()
    }
}

/// How a request is to be replayed, by its extension.
fn options(request: &forrst::Request) -> Result<Options, EnvelopeError> {
    let urn = ReplayOptions::URN;
    let Some(place) = only(&request.extensions, urn)? else {
        return Ok(Options::default());
    };
    let at = |member: &str| format!("extensions[{place}].options.{member}");
    let options: Option<ReplayOptions> = request.options_of(urn)?;
    let options = options.unwrap_or_default();
    let ttl = options.ttl.map(Span::duration);
    if ttl.is_some_and(|ttl| ttl.is_zero()) {
        return Err(EnvelopeError::new(at("ttl"), "is no time at all"));
    }
    let callback = match options.callback {
        None => None,
        Some(ReplayCallback { url, headers, .. }) => {
            let headers = UserHeaders::new(headers.unwrap_or_default())
                .map_err(|error| EnvelopeError::new(at("callback.headers"), error))?;
            Some((url, headers))
        }
    };
    Ok(Options {
        enabled: Some(options.enabled.unwrap_or(true)),
        ttl,
        priority: match options.priority.unwrap_or_default() {
            ReplayPriority::High => Priority::High,
            ReplayPriority::Normal => Priority::Normal,
            ReplayPriority::Low => Priority::Low,
        },
        callback,
    })
}

/// The key by which a repeated request is known, by the idempotency extension. What no idempotency
/// layer takes for one is refused now, rather than when it is replayed.
fn key(request: &forrst::Request) -> Result<Option<String>, EnvelopeError> {
    let options = idempotency::options(request, LONGEST_CONFIGURABLE)?;
    Ok(options.map(|options| options.key))
}

/// What is told of every replay.
fn data_of(status: &ReplayStatus) -> ReplayData {
    ReplayData {
        status: status.status.to_owned(),
        replay_id: Some(status.replay_id.to_string()),
        queued_at: Some(status.queued_at.clone()),
        ..ReplayData::default()
    }
}

/// A failure of which there is no more to tell.
fn failure(why: Option<&str>) -> Fault {
    let why = why.unwrap_or("The request failed.");
    Fault::new("INTERNAL_ERROR", why)
}

/// The reply to a request that was replayed since.
fn ended(body: &[u8], accepted: &Accepted) -> Response {
    let status = &accepted.status;
    let failed = status.status == Status::Failed.as_str();
    let data = ReplayData {
        replayed_at: status.replayed_at.clone(),
        attempts: Some(status.attempts.into()),
        ..data_of(status)
    };
    let extension = extension(&data);
    let empty = caller(body).envelope();
    let got = accepted.reply.as_ref();
    let got = got.and_then(|reply| again(reply, empty.id.as_deref(), &extension));
    let mut response = got.unwrap_or_else(|| {
        let (status, errors) = match failed {
            true => (StatusCode::INTERNAL_SERVER_ERROR, vec![failure(None)]),
            false => (StatusCode::OK, Vec::new()),
        };
        let envelope = forrst::Response {
            errors,
            extensions: vec![extension],
            ..empty
        };
        reply(status, &envelope)
    });
    if failed {
        // Whatever its code says, the same would come again.
        response.extensions_mut().insert(Retry::never());
    }
    response
}

/// The reply that a replay got, for a request of this id; `None` if it is no envelope.
fn again(reply: &Response, id: Option<&str>, extension: &Extension) -> Option<Response> {
    if !may_be_envelope(reply.headers()) {
        return None;
    }
    let body = splice::with_extension(reply.body(), extension)?;
    let body = splice::with_id(&body, id)?;
    let mut response = http::Response::new(Bytes::from(body));
    *response.status_mut() = reply.status();
    *response.headers_mut() = reply.headers().clone();
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
}
