//! The headers by which a request says whether and how it is to be replayed.
//!
//! | header | value |
//! | --- | --- |
//! | `replay` | `true` or `false` |
//! | `replay-ttl` | seconds |
//! | `replay-priority` | `high`, `normal` or `low` |
//! | `replay-callback` | a URL |
//! | `replay-callback-header` | `name: value`, as often as need be |

use std::time::Duration;

use http::HeaderMap;

use super::dialect::ReplayOptions;
use crate::{delivery::webhooks::UserHeaders, http::problem::Problem, store::journal::Priority};

/// The headers, which are for the layer alone.
pub(super) const HEADERS: [&str; 5] = [
    "replay",
    "replay-ttl",
    "replay-priority",
    "replay-callback",
    "replay-callback-header",
];

pub(super) fn read(headers: &HeaderMap) -> Result<ReplayOptions, Problem> {
    if HEADERS.iter().all(|name| !headers.contains_key(*name)) {
        return Ok(ReplayOptions::default());
    }
    let mut options = ReplayOptions {
        enabled: Some(true),
        ..ReplayOptions::default()
    };
    if let Some(value) = one(headers, "replay")? {
        options.enabled = Some(match value {
            "true" | "?1" => true,
            "false" | "?0" => false,
            other => return Err(invalid("replay", other, "true or false")),
        });
    }
    if let Some(value) = one(headers, "replay-ttl")? {
        let digits = value.bytes().all(|byte| byte.is_ascii_digit());
        let seconds = value.parse().ok().filter(|_| digits);
        let seconds = seconds.ok_or_else(|| invalid("replay-ttl", value, "whole seconds"))?;
        options.ttl = Some(Duration::from_secs(seconds));
    }
    if let Some(value) = one(headers, "replay-priority")? {
        options.priority = priority(value)
            .ok_or_else(|| invalid("replay-priority", value, "high, normal or low"))?;
    }
    let callback = one(headers, "replay-callback")?;
    let more = callback_headers(headers)?;
    options.callback = match callback {
        Some(url) => Some((url.to_owned(), more)),
        None if more.iter().next().is_none() => None,
        None => {
            let detail = "replay-callback-header without replay-callback";
            return Err(Problem::REPLAY_INVALID.detail(detail));
        }
    };
    Ok(options)
}

fn priority(name: &str) -> Option<Priority> {
    // Urgent is the priority of a triggered replay.
    let all = [Priority::High, Priority::Normal, Priority::Low];
    all.into_iter().find(|priority| priority.as_str() == name)
}

fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Problem> {
    let mut lines = headers.get_all(name).iter();
    let Some(value) = lines.next() else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(value) if lines.next().is_none() => Ok(Some(value.trim())),
        Ok(_) => Err(invalid(name, "several lines", "one")),
        Err(_) => Err(invalid(name, "not text", "visible ASCII")),
    }
}

fn callback_headers(headers: &HeaderMap) -> Result<UserHeaders, Problem> {
    let name = "replay-callback-header";
    let mut fields = Vec::new();
    for line in headers.get_all(name) {
        let field = line.to_str().ok().and_then(|line| line.split_once(':'));
        // Its value may be a secret.
        let (field, value) = field.ok_or_else(|| invalid(name, "a line", "name: value"))?;
        fields.push((field.trim(), value.trim()));
    }
    UserHeaders::new(fields).map_err(|error| Problem::REPLAY_INVALID.detail(error.to_string()))
}

fn invalid(header: &str, value: &str, allowed: &str) -> Problem {
    let shown: String = value.chars().take(64).collect();
    let detail = format!("{header} is {shown}, allowed: {allowed}");
    Problem::REPLAY_INVALID.detail(detail)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn read(lines: &[(&'static str, &'static str)]) -> Result<ReplayOptions, Problem> {
        let lines = lines.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        let mut headers = HeaderMap::new();
        lines.for_each(|(name, value)| {
            headers.append(name, value);
        });
        super::read(&headers)
    }

    #[test]
    fn j_15_options_are_headers() {
        assert_eq!(read(&[]).unwrap().enabled, None);
        let options = read(&[
            ("replay-ttl", "3600"),
            ("replay-priority", "high"),
            ("replay-callback", "https://shop.example/hook"),
            ("replay-callback-header", "X-Tenant: acme"),
            ("replay-callback-header", "authorization:Bearer 1"),
        ])
        .unwrap();
        assert_eq!(options.enabled, Some(true), "it is asked for by asking how");
        assert_eq!(options.ttl, Some(Duration::from_secs(3600)));
        assert_eq!(options.priority, Priority::High);
        let (url, headers) = options.callback.unwrap();
        assert_eq!(url, "https://shop.example/hook");
        let headers: Vec<_> = headers.iter().collect();
        assert_eq!(
            headers,
            [("x-tenant", "acme"), ("authorization", "Bearer 1")]
        );
        assert_eq!(read(&[("replay", "false")]).unwrap().enabled, Some(false));
    }

    #[test]
    fn j_15_what_can_t_be_read_is_refused_by_name() {
        for (line, part) in [
            (
                ("replay", "maybe"),
                "replay is maybe, allowed: true or false",
            ),
            (
                ("replay-ttl", "1h"),
                "replay-ttl is 1h, allowed: whole seconds",
            ),
            (("replay-ttl", "+5"), "replay-ttl is +5"),
            (("replay-ttl", "99999999999999999999"), "whole seconds"),
            (
                ("replay-priority", "urgent"),
                "allowed: high, normal or low",
            ),
            (
                ("replay-callback-header", "x-a: 1"),
                "without replay-callback",
            ),
        ] {
            let problem = read(&[line]).unwrap_err();
            let document = problem.response(false).into_body();
            let document = String::from_utf8_lossy(&document).into_owned();
            assert!(document.contains(part), "{document}");
        }
        for line in ["no colon", "host: a", "x-a: \u{7f}"] {
            let lines = [
                ("replay-callback", "https://a"),
                ("replay-callback-header", line),
            ];
            let lines: Vec<_> = lines.into_iter().collect();
            if HeaderValue::from_str(line).is_ok() {
                assert!(read(&lines).is_err(), "{line}");
            }
        }
    }
}
