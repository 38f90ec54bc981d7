use std::collections::HashSet;

use serde_json::Value;

use super::{
    GrpcBackoff, HedgingPolicy, MOST_ATTEMPTS, MethodConfig, MethodName, RetryPolicy,
    ServiceConfig, Throttling, node::Node,
};
use crate::error::ConfigError;

/// The largest document, in bytes.
const LARGEST: usize = 1024 * 1024;

/// Fields of gRPC's that say nothing about retries.
const IGNORED: [&str; 3] = [
    "waitForReady",
    "maxRequestMessageBytes",
    "maxResponseMessageBytes",
];
const IGNORED_AT_TOP: [&str; 3] = [
    "loadBalancingPolicy",
    "loadBalancingConfig",
    "healthCheckConfig",
];

pub(super) fn document(text: &str) -> Result<ServiceConfig, ConfigError> {
    ConfigError::within("service config", text.len(), 0..=LARGEST, "at most 1 MiB")?;
    let value: Value = serde_json::from_str(text)
        .map_err(|error| ConfigError::unreadable("service config".into(), error.to_string()))?;
    let root = Node::root(&value);
    let mut notes = Vec::new();
    ignore(&root, &IGNORED_AT_TOP, &mut notes)?;
    let mut methods = Vec::new();
    let mut known = HashSet::new();
    if let Some(configs) = root.member("methodConfig")? {
        for config in configs.elements()? {
            let names = names(&config, &mut known)?;
            if names.is_empty() {
                notes.push(format!("{} is ignored: it has no name", config.path));
                continue;
            }
            ignore(&config, &IGNORED, &mut notes)?;
            methods.push(method(&config, names)?);
        }
    }
    let throttling = root.member("retryThrottling")?;
    let throttling = throttling.as_ref().map(read_throttling).transpose()?;
    Ok(ServiceConfig {
        methods,
        throttling,
        notes,
    })
}

fn ignore(node: &Node<'_>, fields: &[&str], notes: &mut Vec<String>) -> Result<(), ConfigError> {
    for field in fields {
        if let Some(ignored) = node.member(field)? {
            notes.push(format!("{} is ignored: it is the channel's", ignored.path));
        }
    }
    Ok(())
}

fn names(
    config: &Node<'_>,
    known: &mut HashSet<MethodName>,
) -> Result<Vec<MethodName>, ConfigError> {
    let mut names = Vec::new();
    let Some(list) = config.member("name")? else {
        return Ok(names);
    };
    for name in list.elements()? {
        let part = |field: &str| match name.member(field)? {
            Some(part) => part.text(),
            None => Ok(""),
        };
        let read = match (part("service")?, part("method")?) {
            ("", "") => MethodName(String::new()),
            ("", _) => return Err(name.wrong("a method with its service")),
            (service, "") => MethodName(service.to_owned()),
            (service, method) => MethodName(format!("{service}/{method}")),
        };
        if !known.insert(read.clone()) {
            return Err(name.wrong("each name once in the document"));
        }
        names.push(read);
    }
    Ok(names)
}

fn method(config: &Node<'_>, names: Vec<MethodName>) -> Result<MethodConfig, ConfigError> {
    let timeout = config.member("timeout")?;
    let retry = config.member("retryPolicy")?;
    let hedging = config.member("hedgingPolicy")?;
    if let (Some(hedging), Some(_)) = (&hedging, &retry) {
        return Err(hedging.wrong("a retryPolicy or a hedgingPolicy, not both"));
    }
    Ok(MethodConfig {
        path: config.path.clone(),
        names,
        timeout: timeout.map(|timeout| timeout.duration(false)).transpose()?,
        retry: retry.as_ref().map(retry_policy).transpose()?,
        hedging: hedging.as_ref().map(hedging_policy).transpose()?,
    })
}

fn retry_policy(policy: &Node<'_>) -> Result<RetryPolicy, ConfigError> {
    const DURATION: &str = "a duration of more than 0 such as \"0.1s\"";
    const FACTOR: &str = "a number of more than 0";
    const CODES: &str = "an array of at least one gRPC status";

    let max_attempts = max_attempts(policy)?;
    let initial = policy
        .required("initialBackoff", DURATION)?
        .duration(true)?;
    let max = policy.required("maxBackoff", DURATION)?.duration(true)?;
    let factor = policy.required("backoffMultiplier", FACTOR)?;
    let multiplier = factor.number(FACTOR)?;
    if multiplier <= 0.0 {
        return Err(factor.wrong(FACTOR));
    }
    let attempt_timeout = policy.member("perAttemptRecvTimeout")?;
    let attempt_timeout = attempt_timeout.map(|timeout| timeout.duration(true));
    let attempt_timeout = attempt_timeout.transpose()?;
    let listed = policy.required("retryableStatusCodes", CODES)?;
    let codes: Vec<_> = listed
        .elements()?
        .map(|code| code.code())
        .collect::<Result<_, _>>()?;
    if codes.is_empty() && attempt_timeout.is_none() {
        return Err(listed.wrong(CODES));
    }
    Ok(RetryPolicy {
        max_attempts,
        backoff: GrpcBackoff {
            initial,
            max,
            multiplier,
        },
        codes,
        attempt_timeout,
    })
}

fn hedging_policy(policy: &Node<'_>) -> Result<HedgingPolicy, ConfigError> {
    let max_attempts = max_attempts(policy)?;
    let delay = policy.member("hedgingDelay")?;
    let delay = delay.map(|delay| delay.duration(false)).transpose()?;
    let listed = policy.member("nonFatalStatusCodes")?;
    let codes = match &listed {
        Some(listed) => listed
            .elements()?
            .map(|code| code.code())
            .collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    Ok(HedgingPolicy {
        max_attempts,
        delay: delay.unwrap_or_default(),
        codes,
    })
}

fn max_attempts(policy: &Node<'_>) -> Result<u32, ConfigError> {
    let attempts = policy.required("maxAttempts", "an integer of at least 2")?;
    let attempts = attempts.attempts()?.min(MOST_ATTEMPTS);
    Ok(u32::try_from(attempts).unwrap_or_default())
}

fn read_throttling(throttling: &Node<'_>) -> Result<Throttling, ConfigError> {
    const TOKENS: &str = "a number of more than 0 and at most 1000";
    const RATIO: &str = "a number of more than 0";

    let tokens = throttling.required("maxTokens", TOKENS)?;
    let max_tokens = tokens.number(TOKENS)?;
    if !(max_tokens > 0.0 && max_tokens <= 1000.0) {
        return Err(tokens.wrong(TOKENS));
    }
    let ratio = throttling.required("tokenRatio", RATIO)?;
    let token_ratio = ratio.number(RATIO)?;
    if token_ratio <= 0.0 {
        return Err(ratio.wrong(RATIO));
    }
    // More decimals are ignored.
    let token_ratio = (token_ratio * 1000.0 + 1e-6).floor() / 1000.0;
    Ok(Throttling {
        max_tokens,
        token_ratio,
    })
}
