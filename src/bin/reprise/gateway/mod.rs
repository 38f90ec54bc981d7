//! The gateway: all layers in front of a service that exists already.

mod access;
pub(crate) mod caller;
mod cores;
mod dial;
mod file;
pub(crate) mod flags;
mod headers;
pub(crate) mod policy;
mod prompt;
mod reader;
mod reload;
mod routes;
mod run;
mod server;
mod settings;
mod stack;
mod systemd;
mod tls;
pub(crate) mod traffic;
mod tunnel;
mod unknown_outcome;
mod upload;
mod upstream;
pub(crate) mod upstreams;

use std::process::ExitCode;

use clap::ArgMatches;
use tower_reprise::error::BoxError;

use self::{access::AccessLog, settings::Settings};
use crate::{output::print, usage_error::UsageError};

/// Serves by these flags until it is told to stop, or checks them.
pub(crate) fn serve(matches: &ArgMatches) -> Result<ExitCode, BoxError> {
    let socket = systemd::socket()?;
    let values = flags::read(matches)?;
    let settings = Settings::read(&values, socket.is_some())?;
    if matches.get_flag("check") {
        print(&settings.summary());
        return Ok(ExitCode::SUCCESS);
    }
    let open = |path: &String| {
        let allowed = |error| format!("a file that can be written to, or - ({error})");
        AccessLog::open(path).map_err(|error| UsageError::new("access-log", path, allowed(error)))
    };
    let access_log = settings.access_log.as_ref().map(open).transpose()?;
    tracing_subscriber::fmt()
        .with_max_level(settings.log)
        .with_writer(std::io::stderr)
        .init();
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let reload = reload::Reload::new(matches.clone(), values, socket.is_some());
    Ok(crate::block_on(run::run(
        settings, socket, access_log, reload,
    )))
}
