//! The configuration, read again while the gateway runs.

use clap::ArgMatches;
use tower_reprise::error::BoxError;

use super::{
    flags::{self, Values},
    policy::Registries,
    settings::Settings,
    systemd,
    tls::Tls,
    upstreams::Upstreams,
};

/// The flags whose new values are taken; others take a restart.
const TAKEN: [&str; 7] = [
    "connect-timeout",
    "policy",
    "preserve-host",
    "replay-authorization-file",
    "upstream",
    "upstream-ca",
    "upstream-http2",
];

/// The command line that the gateway was started by, and what it came to.
pub(crate) struct Reload {
    matches: ArgMatches,
    values: Values,
    /// systemd opened the socket.
    socket: bool,
}

/// The parts of a gateway that take a new configuration.
pub(crate) struct Reloaded {
    pub(crate) registries: Registries,
    pub(crate) upstreams: Upstreams,
    pub(crate) tls: Option<Tls>,
}

impl Reload {
    pub(crate) fn new(matches: ArgMatches, values: Values, socket: bool) -> Self {
        Self {
            matches,
            values,
            socket,
        }
    }

    /// Reads everything again. A configuration that can't be used changes nothing.
    pub(crate) fn now(&mut self, parts: &Reloaded) {
        systemd::tell("RELOADING=1");
        if let Some(tls) = &parts.tls {
            tls.reload();
        }
        match self.read(parts) {
            Ok(()) => tracing::info!("the configuration was read again"),
            Err(error) => tracing::error!(%error, "the configuration stays as it was"),
        }
        systemd::tell("READY=1");
    }

    fn read(&mut self, parts: &Reloaded) -> Result<(), BoxError> {
        let values = flags::read(&self.matches)?;
        let settings = Settings::read(&values, self.socket)?;
        let before = parts.upstreams.list();
        parts
            .upstreams
            .reload(&settings.upstreams, &settings.routes)?;
        parts.registries.reload(&settings.policies);
        // Replays that were written down for one that is gone would wait for its breaker, which no call
        // closes any more.
        let is_there = |name: &str| settings.upstreams.iter().any(|it| *it.name == *name);
        for gone in before.iter().filter(|it| !is_there(it.name())) {
            parts.registries.upstream.get(gone.name()).reset();
        }
        for warning in &settings.warnings {
            tracing::warn!("{warning}");
        }
        let names = values.fields.keys().chain(self.values.fields.keys());
        let changed = |name: &&String| {
            !TAKEN.contains(&&***name) && values.fields.get(*name) != self.values.fields.get(*name)
        };
        let changed: std::collections::BTreeSet<_> = names.filter(changed).collect();
        for name in changed {
            tracing::warn!("{name} has changed, which takes a restart");
        }
        self.values = values;
        Ok(())
    }
}
