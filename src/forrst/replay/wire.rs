use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, StatusCode,
    header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use serde_json::{Value, json};

use super::{caller, extension, functions, invalid, reply};
use crate::{
    call::key::LONGEST_CONFIGURABLE,
    classify::BodySignal,
    delivery::{
        redact,
        replay::{
            ReplayId, ReplayStatus,
            callback::Event,
            dialect::{
                self, Accepted, CommandReport, Description, Original, QueueReason, Rejected,
                ReplayFormat, ReplayRequest,
            },
            document::{rfc3339, state},
        },
        webhooks::UserHeaders,
    },
    forrst::{
        self, EnvelopeError, Extension, Fault, Forrst, IdempotencyData, IdempotencyOptions,
        MaintenanceData, ReplayCallback, ReplayData, ReplayOptions, ReplayPriority, Retry,
        advice::advice,
        canonical::written,
        extension::only,
        idempotency::wire::{self as idempotency, fault_of},
        is_fixed, may_be_envelope, may_be_read, splice,
    },
    http::{Span, headers::IDEMPOTENCY_KEY, problem::Problem},
    store::journal::{EntryId, Priority, Status},
};

type Response = http::Response<Bytes>;

impl ReplayFormat for Forrst {
    fn asks_by_head(&self, head: &Request<()>) -> Result<ReplayRequest, Rejected> {
        let headers = head.headers();
        let unsaid = [CONTENT_TYPE, CONTENT_ENCODING];
        let unsaid = unsaid.iter().all(|name| !headers.contains_key(name));
        Ok(match unsaid || may_be_read(headers) {
            true => ReplayRequest::InBody,
            false => ReplayRequest::Foreign,
        })
    }

    fn asks_by_body(&self, body: &[u8]) -> Result<ReplayRequest, Rejected> {
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
            Ok(Some(command)) => return Ok(ReplayRequest::Command(command)),
            Err(refused) => return Err(refusal(refused.0, refused.1)),
        }
        let options = options(&request).map_err(refused)?;
        key(&request).map_err(refused)?;
        Ok(ReplayRequest::Serve(Box::new(options)))
    }

    fn describe(&self, _: &Request<()>, body: &[u8]) -> Description {
        let Ok(forrst::Request { call, id, .. }) = forrst::Request::parse(body) else {
            return Description::default();
        };
        Description {
            version: call.version.filter(|version| redact::fits(version)),
            request_id: id.filter(|id| redact::fits(id)),
            function: Some(call.function),
        }
    }

    fn rejected(&self, body: &[u8], problem: &Problem) -> Response {
        rejected(body, problem, None)
    }

    fn conflict(&self, body: &[u8], problem: &Problem, original: &Original) -> Response {
        rejected(body, problem, Some(original))
    }

    fn accepted(&self, body: &[u8], accepted: &Accepted) -> Response {
        let status = &accepted.status;
        match (state(status.status), status.problem()) {
            (Some(Status::Completed | Status::Failed), _) => return ended(body, accepted),
            (_, Some(problem)) => return self.rejected(body, &problem),
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
        if let Some(data) = by_switch.or_else(|| accepted.details.clone()) {
            extensions.push(Extension::with_data(MaintenanceData::URN, data));
        }
        let envelope = forrst::Response {
            extensions,
            meta: Some(json!({ "accepted": true })),
            ..caller(body).envelope()
        };
        reply(StatusCode::ACCEPTED, &envelope)
    }

    fn reason(&self, reply: &[u8]) -> Option<QueueReason> {
        const LONGEST: usize = 64;

        let envelope = forrst::Response::parse(reply).ok()?;
        let code = envelope.errors.into_iter().next()?.code;
        let mut extensions = envelope.extensions.into_iter();
        let told = extensions.find(|extension| extension.urn == *MaintenanceData::URN);
        (code.len() <= LONGEST).then(|| QueueReason {
            code: code.into(),
            details: told.and_then(|extension| extension.data),
        })
    }

    fn reported(&self, body: &[u8], report: &CommandReport) -> Response {
        let envelope = forrst::Response {
            result: Some(functions::result(report)),
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

    fn with_key(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Bytes {
        let Ok(request) = forrst::Request::parse(&body) else {
            return body;
        };
        let has = |extension: &Extension| extension.urn == *IdempotencyOptions::URN;
        if headers.contains_key(IDEMPOTENCY_KEY) || request.extensions.iter().any(has) {
            return body;
        }
        // A body that comes with a digest can't be changed.
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

    fn with_new_key(&self, headers: &mut HeaderMap, body: Bytes, key: &str) -> Option<Bytes> {
        let request = forrst::Request::parse(&body).ok()?;
        let in_header = headers.remove(IDEMPOTENCY_KEY).is_some();
        if in_header {
            headers.insert(IDEMPOTENCY_KEY, HeaderValue::try_from(key).ok()?);
        }
        let mut extensions = request.extensions.into_iter();
        match extensions.find(|extension| extension.urn == *IdempotencyOptions::URN) {
            None if in_header => Some(body),
            None => Some(self.with_key(headers, body, key)),
            // A body that comes with a digest can't be changed.
            Some(_) if is_fixed(headers) => None,
            Some(mut extension) => {
                let options = extension.options.as_mut()?.as_object_mut()?;
                options.insert("key".to_owned(), json!(key));
                splice::with_only(&body, &extension).map(Bytes::from)
            }
        }
    }

    fn is_processing(&self, reply: &Response) -> bool {
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

/// Answers a request that is neither served nor journaled, with what is known of the one that has its
/// key.
fn rejected(body: &[u8], problem: &Problem, original: Option<&Original>) -> Response {
    let request = forrst::Request::parse(body).ok();
    let is_function = |request: &forrst::Request| {
        let function = &request.call.function;
        function.starts_with(functions::PREFIX)
    };
    let (code, status, words) = fault_of(problem);
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
            let mut details = json!({ "key": key });
            if let Some(original) = original {
                let hash = written(original.fingerprint.as_bytes());
                details["original_arguments_hash"] = json!(hash);
            }
            let first = original.and_then(|original| original.request_id.as_deref());
            let data = IdempotencyData::new(Some(key), status, first);
            (details, idempotency::extension(&data))
        }
        None => (Value::Null, None),
    };
    let fault = Fault::new(code, words).details(details);
    let extensions = conflict.into_iter().collect();
    caller(body).failed(fault, extensions, problem.response(false))
}

/// Reads how a request is to be replayed from its extension.
fn options(request: &forrst::Request) -> Result<dialect::ReplayOptions, EnvelopeError> {
    let urn = ReplayOptions::URN;
    let Some(place) = only(&request.extensions, urn)? else {
        return Ok(dialect::ReplayOptions::default());
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
    Ok(dialect::ReplayOptions {
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

/// Reads the key of the idempotency extension. A key that no idempotency layer takes is rejected
/// now, rather than when it is replayed.
fn key(request: &forrst::Request) -> Result<Option<String>, EnvelopeError> {
    let options = idempotency::options(request, LONGEST_CONFIGURABLE)?;
    Ok(options.map(|options| options.key))
}

/// Returns the data that is told of every replay.
fn data_of(status: &ReplayStatus) -> ReplayData {
    ReplayData {
        status: status.status.to_owned(),
        replay_id: Some(status.replay_id.to_string()),
        queued_at: Some(status.queued_at.clone()),
        ..ReplayData::default()
    }
}

/// Returns the fault of a failure without an envelope.
fn failure(why: Option<&str>) -> Fault {
    let why = why.unwrap_or("The request failed.");
    Fault::new("INTERNAL_ERROR", why)
}

/// Answers a repeat of a request that was replayed since.
fn ended(body: &[u8], accepted: &Accepted) -> Response {
    let status = &accepted.status;
    let failed = status.status == Status::Failed.as_str();
    let data = ReplayData {
        replayed_at: status.replayed_at.clone(),
        attempts: Some(status.attempts.into()),
        ..data_of(status)
    };
    let empty = caller(body).envelope();
    let got = accepted.reply.as_ref();
    let got = got.and_then(|reply| repeated(reply, empty.id.as_deref(), &data));
    let mut response = got.unwrap_or_else(|| {
        let (status, errors) = match failed {
            true => (StatusCode::INTERNAL_SERVER_ERROR, vec![failure(None)]),
            false => (StatusCode::OK, Vec::new()),
        };
        let envelope = forrst::Response {
            errors,
            extensions: vec![extension(&data)],
            ..empty
        };
        reply(status, &envelope)
    });
    if failed {
        // Another call would get the same, whatever its code says.
        response.extensions_mut().insert(Retry::never());
    }
    response
}

/// Returns the reply that a replay got, for a request of this id; `None` if it is no envelope.
fn repeated(reply: &Response, id: Option<&str>, data: &ReplayData) -> Option<Response> {
    if !may_be_envelope(reply.headers()) {
        return None;
    }
    let mut body = splice::with_id(reply.body(), id)?;
    // 003: the result was stored for another request.
    let told = forrst::Response::parse(&body).ok()?;
    let told: Option<IdempotencyData> = told.data_of(IdempotencyData::URN).unwrap_or_default();
    if let Some(stored) = told.filter(|told| !told.is_cached()) {
        let stored = idempotency::extension(&IdempotencyData {
            status: "cached".to_owned(),
            cached_at: data.replayed_at.clone(),
            ..stored
        });
        body = splice::with_only(&body, &stored?)?;
    }
    let body = splice::with_extension(&body, &extension(data))?;
    let mut response = http::Response::new(Bytes::from(body));
    *response.status_mut() = reply.status();
    *response.headers_mut() = reply.headers().clone();
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
}
