use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
use serde_json::Value;
use tower_reprise::error::BoxError;

use super::{encoded, path};
use crate::{
    admin_client::{AdminClient, At},
    output::{Format, cell, fields, show, table},
    usage_error::UsageError,
};

/// Idempotency keys whose outcome is unknown, to be looked at and resolved
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    at: At,
}

#[derive(Subcommand)]
enum Action {
    /// Lists keys of unknown outcome
    List {
        /// At most this many, 1 to 1000
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        limit: u32,
        /// Those after an earlier page, which ends with this
        #[arg(long, value_name = "CURSOR")]
        after: Option<String>,
    },
    /// Shows one
    Show {
        /// The key of its record, 64 hexadecimal digits
        key: String,
    },
    /// Says how the operation ended
    #[command(group(clap::ArgGroup::new("finding").required(true)))]
    Resolve {
        /// The key of its record
        key: String,
        /// It took effect: repeats get a reply of this status
        #[arg(long, value_name = "STATUS", group = "finding")]
        reply: Option<u16>,
        /// The reply's body
        #[arg(long, value_name = "FILE", requires = "reply", conflicts_with_all = ["no_reply", "no_effect"])]
        body: Option<PathBuf>,
        /// The reply's content type
        #[arg(
            long,
            value_name = "TYPE",
            requires = "body",
            default_value = "application/json"
        )]
        content_type: String,
        /// It took effect, and nobody knows the reply: repeats are told so
        #[arg(long, group = "finding")]
        no_reply: bool,
        /// It had no effect: the next repeat is executed
        #[arg(long, group = "finding")]
        no_effect: bool,
        /// For how long repeats are told this
        #[arg(long, value_name = "TIME", default_value = "24h")]
        keep: String,
        /// Only while it has this token, as it was shown
        #[arg(long, value_name = "TOKEN")]
        token: Option<u64>,
    },
    /// Releases the key without a finding: the next repeat is executed, even if that is the second time
    Release {
        /// The key of its record
        key: String,
        /// Only while it has this token, as it was shown
        #[arg(long, value_name = "TOKEN")]
        token: Option<u64>,
    },
}

const SHOWN: [&str; 5] = ["key", "unknown_since", "expires_at", "token", "note"];

impl Args {
    pub(crate) fn run(self, by_hand: bool) -> Result<ExitCode, BoxError> {
        // A file that can't be read is no answer of the gateway's: the exit status is 2.
        let body = match &self.action {
            Action::Resolve { body, .. } => body.as_deref().map(read).transpose()?,
            _ => None,
        };
        self.at.run(by_hand, |client, format| {
            self.action.run(client, format, body)
        })
    }
}

impl Action {
    async fn run(
        self,
        client: AdminClient,
        format: Format,
        body: Option<Vec<u8>>,
    ) -> Result<ExitCode, BoxError> {
        let at = |key: &str| format!("/keys/{}", encoded(key));
        let token = |token: Option<u64>| ("token", token.map(|token| token.to_string()));
        match self {
            Self::List { limit, after } => {
                let query = [("limit", Some(limit.to_string())), ("after", after)];
                let answer = client.get(&path("/keys", &query)).await?;
                show(format, &answer, listed);
            }
            Self::Show { key } => {
                let answer = client.get(&at(&key)).await?;
                show(format, &answer, |answer| fields(answer, &SHOWN));
            }
            Self::Resolve {
                key,
                reply,
                body: _,
                content_type,
                no_reply,
                no_effect: _,
                keep,
                token: shown,
            } => {
                let effect = match (reply, no_reply) {
                    (Some(_), _) => "reply",
                    (None, true) => "unknown_reply",
                    (None, false) => "none",
                };
                let query = [
                    ("effect", Some(effect.to_owned())),
                    ("status", reply.map(|status| status.to_string())),
                    ("keep", Some(keep)),
                    token(shown),
                ];
                let body = body.map(|body| (content_type, body));
                let path = path(&format!("{}/resolve", at(&key)), &query);
                done(format, &client.post_body(&path, body).await?);
            }
            Self::Release { key, token: shown } => {
                let path = path(&format!("{}/release", at(&key)), &[token(shown)]);
                done(format, &client.post(&path).await?);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, BoxError> {
    let shown = path.display().to_string();
    std::fs::read(path).map_err(|error| {
        let allowed = format!("a file that can be read ({error})");
        UsageError::new("body", &shown, allowed).into()
    })
}

fn listed(answer: &Value) -> String {
    let keys = answer["keys"].as_array().map_or(&[][..], Vec::as_slice);
    let mut text = table(&SHOWN, keys);
    if let Some(next) = answer["next"].as_str() {
        text += &format!("\nmore: --after {next}");
    }
    text
}

fn done(format: Format, answer: &Value) {
    show(format, answer, |answer| {
        format!("{} {}", cell(&answer["key"]), cell(&answer["status"]))
    });
}
