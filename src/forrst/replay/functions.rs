//! `forrst.replay.status`, `cancel`, `list` and `trigger`.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::invalid;
use crate::{
    delivery::replay::{
        ReplayFilter, ReplayId, ReplayStatus,
        dialect::{CommandReport, ReplayCommand},
        document::{STATES, state},
    },
    forrst::{Call, EnvelopeError, Fault, Response, error::at_its_place},
    http::{problem::Problem, span::some_whole},
};

/// The prefix of their names.
pub(super) const PREFIX: &str = "forrst.replay.";

#[derive(Deserialize)]
struct One {
    replay_id: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Many {
    status: Option<String>,
    function: Option<String>,
    #[serde(default, deserialize_with = "some_whole")]
    limit: Option<u64>,
    cursor: Option<String>,
}

/// The head and the words of a rejection.
type Refused = Box<(Problem, Fault)>;

/// Reads the command of a call, if it is one of these functions.
pub(super) fn command(call: &Call) -> Result<Option<ReplayCommand>, Refused> {
    let command = match call.function.strip_prefix(PREFIX) {
        Some("status") => ReplayCommand::Status,
        Some("cancel") => ReplayCommand::Cancel,
        Some("trigger") => ReplayCommand::Trigger,
        Some("list") => {
            check_version(call)?;
            let filter = filter(arguments(call)?).map_err(refused)?;
            return Ok(Some(ReplayCommand::List(filter, true)));
        }
        _ => return Ok(None),
    };
    check_version(call)?;
    let one: Option<One> = arguments(call)?;
    let missing = || EnvelopeError::new("call.arguments", "missing field `replay_id`");
    let One { replay_id } = one.ok_or_else(|| refused(missing()))?;
    match replay_id.parse::<ReplayId>() {
        Ok(id) => Ok(Some(command(id))),
        // No replay has an id of this form.
        Err(_) => {
            let problem = Problem::REPLAY_NOT_FOUND;
            let fault = Fault::new(problem.code(), &*problem.detail);
            Err(Box::new((problem, fault)))
        }
    }
}

fn check_version(call: &Call) -> Result<(), Refused> {
    let version = call.version.as_deref().unwrap_or("1");
    match version.split('.').next() {
        Some("1") => Ok(()),
        _ => {
            let message = format!("{} is there in version 1.0.0.", call.function);
            let fault = Fault::new("NOT_FOUND", message);
            Err(Box::new((Problem::REPLAY_NOT_FOUND, fault)))
        }
    }
}

fn arguments<T: DeserializeOwned>(call: &Call) -> Result<Option<T>, Refused> {
    let arguments = call.arguments.as_ref().unwrap_or(&Value::Null);
    at_its_place("call.arguments", arguments).map_err(refused)
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(error: EnvelopeError) -> Refused {
    let fault = invalid("INVALID_ARGUMENTS", &error);
    Box::new((Problem::REPLAY_INVALID, fault))
}

fn filter(arguments: Option<Many>) -> Result<ReplayFilter, EnvelopeError> {
    let many = arguments.unwrap_or_default();
    let invalid = |name: &str, value: &str, allowed: &str| {
        let at = format!("call.arguments.{name}");
        EnvelopeError::new(at, format_args!("is {value:.64}, allowed: {allowed}"))
    };
    let status = match &many.status {
        None => None,
        Some(name) => {
            let known = state(name);
            Some(known.ok_or_else(|| invalid("status", name, STATES))?)
        }
    };
    let limit = match many.limit {
        None => None,
        Some(limit) => {
            let known = u32::try_from(limit).ok();
            let known = known.filter(|limit| (1..=100).contains(limit));
            Some(known.ok_or_else(|| invalid("limit", &limit.to_string(), "1 to 100"))?)
        }
    };
    if many
        .function
        .as_ref()
        .is_some_and(|name| name.contains('\0'))
    {
        return Err(invalid("function", "text with NUL", "text without"));
    }
    Ok(ReplayFilter {
        status,
        function: many.function,
        limit,
        cursor: many.cursor,
    })
}

/// Writes the result of a call.
pub(super) fn result(report: &CommandReport) -> Value {
    match report {
        CommandReport::Status(status, reply) => {
            let mut result = serde_json::to_value(status).unwrap_or_default();
            let told = reply.as_ref().map(http::Response::body);
            let told = told.and_then(|body| Response::parse(body).ok());
            if let Some(told) = told {
                match told.errors.is_empty() {
                    true => result["result"] = told.result.unwrap_or_default(),
                    false => result["errors"] = json!(told.errors),
                }
            }
            result
        }
        CommandReport::Cancelled(status) => json!({
            "replay_id": status.replay_id,
            "status": status.status,
            "cancelled_at": status.cancelled_at,
        }),
        CommandReport::Triggered(status) => {
            // It is next, before all others.
            let mut result = json!({ "replay_id": status.replay_id, "status": "processing" });
            if let Some(at) = &status.triggered_at {
                result["triggered_at"] = json!(at);
            }
            result
        }
        CommandReport::Page(page, total) => {
            let replays: Vec<_> = page.replays.iter().map(listed).collect();
            let mut result = json!({ "replays": replays });
            if let Some(total) = total {
                result["total"] = json!(total);
            }
            if let Some(cursor) = &page.next_cursor {
                result["next_cursor"] = json!(cursor);
            }
            result
        }
    }
}

fn listed(status: &ReplayStatus) -> Value {
    json!({
        "replay_id": status.replay_id,
        "function": status.function,
        "status": status.status,
        "queued_at": status.queued_at,
        "reason": status.reason,
    })
}
