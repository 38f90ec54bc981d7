//! The command line.

use std::{io::Write, process::ExitCode};

use clap::{
    ArgMatches, Command, FromArgMatches, Subcommand,
    error::{ContextKind, ContextValue},
};
use clap_complete::Shell;
use tower_reprise::error::BoxError;

use crate::{
    audit,
    commands::{erase, keys, letters, maintenance, replays},
    gateway, simulate,
};

const ABOUT: &str = "Calls that are safe to repeat, for services in any language: a gateway with \
    retries, budgets, a circuit breaker, idempotency keys and replay; an audit and a simulation of policies; and what \
    operators need of dead letters, replays and unknown outcomes.";

const MORE: &str = "Every flag can be given by the environment too: `--admin` as REPRISE_ADMIN. The \
    command line has the last word.\n\n\
    Exit status: 0 done; 1 not done, or an audit that finds a broken rule; 2 a flag or a file that \
    can't be used.";

// All commands but the gateway, whose flags are a table. (A doc comment would be what `--help` says of
// the program.)
#[derive(Subcommand)]
enum Commands {
    Audit(audit::Args),
    Letters(letters::Args),
    Replays(replays::Args),
    Erase(erase::Args),
    Keys(keys::Args),
    Maintenance(maintenance::Args),
    Simulate(simulate::Args),
    /// Prints completions for a shell, to be sourced by it
    Completions {
        /// The shell
        shell: Shell,
    },
}

fn command() -> Command {
    let command = Command::new("reprise")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .after_help(MORE)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(gateway::flags::command());
    Commands::augment_subcommands(command)
}

/// Reads the command line and does what it asks for. What can't be read there, and `--help`, ends
/// the process.
pub(crate) fn run() -> Result<ExitCode, BoxError> {
    let matches = command().try_get_matches();
    let matches = matches.unwrap_or_else(|error| without_value(error).exit());
    if let Some(("gateway", matches)) = matches.subcommand() {
        return gateway::serve(matches);
    }
    let inner = matches.subcommand().map(|(_, inner)| inner);
    match Commands::from_arg_matches(&matches)? {
        Commands::Audit(args) => args.run(),
        Commands::Letters(args) => args.run(given(inner)),
        Commands::Replays(args) => args.run(given(inner)),
        Commands::Erase(args) => args.run(given(inner)),
        Commands::Keys(args) => args.run(given(inner)),
        Commands::Maintenance(args) => args.run(given(inner)),
        Commands::Simulate(args) => args.run(),
        Commands::Completions { shell } => {
            let mut command = command();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "reprise", &mut script);
            // A reader that left has seen enough.
            let _ = std::io::stdout().write_all(&script);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Whether `--store` was written on the command line, which then wins over `REPRISE_ADMIN`.
fn given(matches: Option<&ArgMatches>) -> bool {
    let source = matches.and_then(|matches| matches.value_source("store"));
    source == Some(clap::parser::ValueSource::CommandLine)
}

/// Hides a word that belongs to no flag: it may belong to one that holds a password.
fn without_value(mut error: clap::Error) -> clap::Error {
    let word = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    if word.is_some_and(|word| !word.starts_with('-')) {
        let hidden = ContextValue::String("…".to_owned());
        error.insert(ContextKind::InvalidArg, hidden);
    }
    error
}
