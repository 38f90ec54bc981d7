use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;
use tower_reprise::error::BoxError;

use super::{encoded, path};
use crate::{
    admin_client::{AdminClient, At},
    output::{Format, show, table},
};

/// Requests that were written down to be replayed
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    at: At,
}

#[derive(Subcommand)]
enum Action {
    /// Lists replays, the oldest first
    List {
        /// Only those that are queued, processing, completed, failed, expired or cancelled
        #[arg(long, value_name = "STATUS")]
        status: Option<String>,
        /// Only those of this caller
        #[arg(long, value_name = "NAME")]
        owner: Option<String>,
        /// At most this many, 1 to 1000
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        limit: u32,
        /// Those after this number in the order of arrival
        #[arg(long, value_name = "SEQUENCE")]
        after: Option<u64>,
    },
    /// Shows where one stands
    Show {
        /// The replay's id
        id: String,
    },
    /// Replays one now, even in maintenance
    Trigger {
        /// The replay's id
        id: String,
    },
    /// Calls one off
    Cancel {
        /// The replay's id
        id: String,
    },
}

impl Args {
    pub(crate) fn run(self, by_hand: bool) -> Result<ExitCode, BoxError> {
        self.at
            .run(by_hand, |client, format| self.action.run(client, format))
    }
}

impl Action {
    async fn run(self, client: AdminClient, format: Format) -> Result<ExitCode, BoxError> {
        let at = |id: &str| format!("/replays/{}", encoded(id));
        let answer = match self {
            Self::List {
                status,
                owner,
                limit,
                after,
            } => {
                let query = [
                    ("status", status),
                    ("owner", owner),
                    ("limit", Some(limit.to_string())),
                    ("after", after.map(|after| after.to_string())),
                ];
                let answer = client.get(&path("/replays", &query)).await?;
                let columns = [
                    "id",
                    "status",
                    "queued_at",
                    "attempts",
                    "owner",
                    "label",
                    "sequence",
                ];
                let rows = |answer: &Value| {
                    table(
                        &columns,
                        answer["replays"].as_array().map_or(&[][..], Vec::as_slice),
                    )
                };
                show(format, &answer, rows);
                return Ok(ExitCode::SUCCESS);
            }
            Self::Show { id } => client.get(&at(&id)).await?,
            Self::Trigger { id } => client.post(&format!("{}/trigger", at(&id))).await?,
            Self::Cancel { id } => client.post(&format!("{}/cancel", at(&id))).await?,
        };
        show(format, &answer, |answer| format!("{answer:#}"));
        Ok(ExitCode::SUCCESS)
    }
}
