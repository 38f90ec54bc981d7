use std::time::Duration;

use http::HeaderName;
use tower::Layer;

use super::{Deadline, trust::Trust};
use crate::{call::hop::reads_otherwise, error::ConfigError};

/// The longest deadline that can be set: longer than any call.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Gives calls that are made to serve a request its caller's deadline and attempt number. See the
/// [module docs](super).
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct DeadlineLayer {
    settings: Settings,
}

/// The settings of the layer.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) trust: Trust,
    pub(super) default: Option<Duration>,
    pub(super) chain_stop: bool,
    /// Failures after a nested call gave up are final; by default as callers are believed.
    pub(super) final_failures: Option<bool>,
    pub(super) task_local: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            default: None,
            chain_stop: true,
            final_failures: None,
            task_local: true,
        }
    }
}

impl Settings {
    pub(super) fn answers_finally(&self) -> bool {
        self.final_failures.unwrap_or(self.trust.callers)
    }
}

impl DeadlineLayer {
    /// Makes a layer that believes nothing that a request says, and removes it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Believes the deadlines and attempt numbers that requests name, up to the maxima: their callers
    /// are services of yours, or a proxy of yours cleared these headers.
    pub fn trust_callers(mut self) -> Self {
        self.settings.trust.callers = true;
        self
    }

    /// Sets the time that a request has if it names no deadline, or is not believed.
    ///
    /// # Errors
    ///
    /// For less than 1 ms, or more than a day.
    pub fn default_deadline(mut self, time: Duration) -> Result<Self, ConfigError> {
        check("deadline.default_deadline", time)?;
        self.settings.default = Some(time);
        Ok(self)
    }

    /// Sets the longest deadline that is believed.
    ///
    /// # Errors
    ///
    /// For less than 1 ms, or more than a day.
    pub fn max_deadline(mut self, time: Duration) -> Result<Self, ConfigError> {
        check("deadline.max_deadline", time)?;
        self.settings.trust.max_deadline = time;
        Ok(self)
    }

    /// Sets the greatest attempt number that is believed.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.settings.trust.max_attempts = attempts;
        self
    }

    /// Sets the header that names a deadline in milliseconds, besides `grpc-timeout`.
    ///
    /// # Errors
    ///
    /// For a header that has another meaning here, such as `grpc-timeout` itself.
    pub fn header(mut self, name: HeaderName) -> Result<Self, ConfigError> {
        if reads_otherwise(&name) {
            let allowed = "a header of milliseconds, not one with a format of its own";
            return Err(ConfigError::new(None, "deadline.header", name, allowed));
        }
        self.settings.trust.header = name;
        Ok(self)
    }

    /// Sets whether calls that are made to serve a retry are not retried themselves.
    pub fn chain_stop(mut self, stop: bool) -> Self {
        self.settings.chain_stop = stop;
        self
    }

    /// Sets whether a failure tells the caller not to retry, if a call that was made for it was
    /// refused or given up. By default it does where callers are [trusted](Self::trust_callers).
    pub fn final_failures(mut self, are_final: bool) -> Self {
        self.settings.final_failures = Some(are_final);
        self
    }

    /// Sets whether the caller's context is also in the scope of the task, where calls find it
    /// without the handler's help.
    pub fn task_local(mut self, scoped: bool) -> Self {
        self.settings.task_local = scoped;
        self
    }
}

fn check(field: &'static str, time: Duration) -> Result<(), ConfigError> {
    ConfigError::within(field, time, Duration::from_millis(1)..=DAY, "1ms to 1 day")
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline {
            inner,
            settings: self.settings.clone(),
        }
    }
}
