use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;
use tower_reprise::error::BoxError;

use super::path;
use crate::{
    admin_client::{AdminClient, At},
    output::{Format, show},
};

/// Maintenance of a running gateway: nothing is sent to the upstream, what may wait is written down
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    at: At,
}

#[derive(Subcommand)]
enum Action {
    /// Says whether it is on
    Status,
    /// Switches it on
    On {
        /// The time that callers are told, such as 10min; it stays on until it is switched off
        #[arg(long = "for", value_name = "TIME")]
        time: Option<String>,
    },
    /// Switches it off: what was written down is replayed
    Off,
}

impl Args {
    pub(crate) fn run(self, by_hand: bool) -> Result<ExitCode, BoxError> {
        if by_hand {
            return Err("maintenance is a gateway's, not a store's: say --admin".into());
        }
        let action = self.action.unwrap_or(Action::Status);
        self.at
            .without_store()
            .run(false, |client, format| action.run(client, format))
    }
}

impl Action {
    async fn run(self, client: AdminClient, format: Format) -> Result<ExitCode, BoxError> {
        let answer = match self {
            Self::Status => client.get("/maintenance").await?,
            Self::On { time } => {
                client
                    .post(&path("/maintenance/on", &[("for", time)]))
                    .await?
            }
            Self::Off => client.post("/maintenance/off").await?,
        };
        let word = |answer: &Value| match answer["on"] == true {
            true => "maintenance is on".to_owned(),
            false => "maintenance is off".to_owned(),
        };
        show(format, &answer, word);
        Ok(ExitCode::SUCCESS)
    }
}
