use std::time::Duration;

use crate::{call::hop::reads_otherwise, classify::Codes, error::ConfigError, policy::Settings};

/// Checks the bounds of waits.
pub(super) fn backoff(
    field: &'static str,
    base: Duration,
    cap: Duration,
) -> Result<(), ConfigError> {
    within(
        field,
        base,
        Duration::from_millis(1),
        Duration::from_secs(3600),
    )?;
    within("backoff.cap", cap, base, Duration::from_secs(24 * 3600))
}

/// Checks the limits that no approval lifts.
pub(super) fn settings(settings: &Settings) -> Result<(), ConfigError> {
    let wrong = |field: &'static str, value: &dyn std::fmt::Display, allowed: &'static str| {
        Err(ConfigError::new(None, field, value, allowed))
    };
    let day = Duration::from_secs(24 * 3600);
    let millisecond = Duration::from_millis(1);
    if !is_label(&settings.service) {
        return wrong(
            "service",
            &format_args!("{:?}", settings.service),
            "1 to 128 visible characters",
        );
    }
    if let Some(queue) = settings
        .dead_letters
        .as_deref()
        .filter(|queue| !is_label(queue))
    {
        return wrong(
            "dead_letters",
            &format_args!("{queue:?}"),
            "1 to 128 visible characters",
        );
    }
    let allowed = "at most 100, whatever is approved";
    ConfigError::within("max_retries", settings.max_retries, 0..=100, allowed)?;
    if reads_otherwise(&settings.rules.deadline_header) {
        return wrong(
            "rules.deadline_header",
            &settings.rules.deadline_header,
            "a header of milliseconds, not one with a format of its own",
        );
    }
    within("total_timeout", settings.total, millisecond, 30 * day)?;
    if let Some(timeout) = settings.attempt_timeout {
        within("attempt_timeout", timeout, millisecond, settings.total)?;
    }
    if let Some(budget) = settings.budget
        && !(0.0..=10.0).contains(&budget.ratio)
    {
        return wrong(
            "budget.ratio",
            &budget.ratio,
            "0 to 0.2, up to 10 with an approval of R-7",
        );
    }
    if let Some(quota) = settings.budget.and_then(|budget| budget.quota) {
        let costs = [quota.failure, quota.timeout, quota.throttled];
        if !(1..=1_000_000).contains(&quota.capacity) {
            return wrong("budget.quota.capacity", &quota.capacity, "1 to 1000000");
        }
        if let Some(cost) = costs
            .into_iter()
            .find(|cost| !(1..=quota.capacity).contains(cost))
        {
            return wrong("budget.quota", &cost, "costs of 1 to its capacity");
        }
    }
    let breaker = settings.breaker;
    if breaker.consecutive_failures == 0 {
        return wrong("breaker.consecutive_failures", &0, "at least 1");
    }
    if !(breaker.failure_rate > 0.0 && breaker.failure_rate <= 1.0) {
        return wrong(
            "breaker.failure_rate",
            &breaker.failure_rate,
            "more than 0, at most 1",
        );
    }
    if breaker.minimum_calls == 0 {
        return wrong("breaker.minimum_calls", &0, "at least 1");
    }
    within(
        "breaker.no_success_for",
        breaker.no_success_for,
        Duration::ZERO,
        day,
    )?;
    if let Some(slow) = breaker.slow_call {
        within("breaker.slow_call", slow, millisecond, day)?;
    }
    if let Some(factor) = breaker.throttle
        && !(1.0..=100.0).contains(&factor)
    {
        return wrong("breaker.throttle", &factor, "1 to 100");
    }
    within(
        "breaker.window",
        breaker.window,
        Duration::from_secs(1),
        day,
    )?;
    within("breaker.cooldown", breaker.cooldown, millisecond, day)?;
    within(
        "breaker.max_cooldown",
        breaker.max_cooldown,
        breaker.cooldown,
        day,
    )?;
    within(
        "retry_after.spread",
        settings.retry_after.spread,
        Duration::ZERO,
        Duration::from_secs(60),
    )?;
    within(
        "retry_after.longest",
        settings.retry_after.longest,
        Duration::ZERO,
        day,
    )?;
    if let Some(hedge) = settings.hedge {
        if settings.budget.is_none() {
            return wrong(
                "hedge",
                &"on",
                "off without a budget, which bounds it (R-7)",
            );
        }
        if !(0.75..=0.999).contains(&hedge.quantile) {
            return wrong("hedge.quantile", &hedge.quantile, "0.75 to 0.999");
        }
        within("hedge.min_delay", hedge.min_delay, millisecond, day)?;
        within("hedge.max_delay", hedge.max_delay, hedge.min_delay, day)?;
    }
    let allowed = "at most 67108864 bytes (64 MiB)";
    ConfigError::within("replay_limit", settings.replay_limit, 0..=64 << 20, allowed)?;
    let allowed = "at most 1073741824 bytes (1 GiB)";
    ConfigError::within("replay_pool", settings.replay_pool, 0..=1 << 30, allowed)?;
    if let Err((field, value, allowed)) = settings.rules.codes.check() {
        return wrong(field, &value, allowed);
    }
    if let Err((value, allowed)) = settings.rules.guidance.check() {
        return wrong("rules.guidance", &value, allowed);
    }
    // Without the feature nothing reads bodies, and a table of codes would be silently idle.
    if !cfg!(feature = "codes") && settings.rules.codes != Codes::standard() {
        let allowed = "the standard's, without the `codes` feature of this crate";
        return wrong("rules.codes", &"another table", allowed);
    }
    let methods = [
        (
            "rules.idempotent_methods",
            &settings.rules.idempotent_methods,
        ),
        ("rules.unary_methods", &settings.rules.unary_methods),
    ];
    for (field, methods) in methods {
        let strange = |method: &&String| method.is_empty() || method.starts_with('/');
        if let Some(method) = methods.iter().find(strange) {
            let allowed = "`package.Service/Method`, or `package.Service`";
            return wrong(field, &format_args!("{method:?}"), allowed);
        }
    }
    for (rule, reason) in &settings.approvals {
        if reason.trim().is_empty() {
            return wrong(
                "approvals.reason",
                &format_args!("empty for {rule}"),
                "a reason",
            );
        }
    }
    Ok(())
}

fn within(
    field: &'static str,
    value: Duration,
    least: Duration,
    most: Duration,
) -> Result<(), ConfigError> {
    ConfigError::within(field, value, least..=most, format!("{least:?} to {most:?}"))
}

/// Returns whether a name is fit for a metric's label.
fn is_label(name: &str) -> bool {
    (1..=128).contains(&name.len()) && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use crate::policy::Policy;

    /// C-6: a table of codes that nothing reads is an error, not idle.
    #[test]
    fn c_6_codes_need_their_feature() {
        let bank = Policy::bank().build();
        assert_eq!(bank.is_ok(), cfg!(feature = "codes"), "{bank:?}");
        assert!(Policy::http().build().is_ok());
    }
}
