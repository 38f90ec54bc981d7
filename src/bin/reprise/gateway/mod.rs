//! The gateway: all layers in front of a service that exists already.

mod access;
pub(crate) mod caller;
pub(crate) mod flags;
mod headers;
pub(crate) mod policy;
mod prompt;
mod run;
mod server;
mod settings;
mod stack;
mod systemd;
mod tls;
pub(crate) mod traffic;
mod tunnel;
mod uncertain;
pub(crate) mod upstream;

use std::process::ExitCode;

use clap::ArgMatches;
use tower_reprise::error::BoxError;

use self::settings::Settings;

/// Serves by these flags until it is told to stop.
pub(crate) fn serve(matches: &ArgMatches) -> Result<ExitCode, BoxError> {
    let settings = Settings::read(&flags::read(matches)?)?;
    tracing_subscriber::fmt()
        .with_max_level(settings.log)
        .with_writer(std::io::stderr)
        .init();
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    Ok(crate::block_on(run::run(settings), |()| ExitCode::SUCCESS))
}
