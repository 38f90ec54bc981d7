use std::{process::ExitCode, time::Duration};

use clap::Subcommand;
use serde_json::{Value, json};
use tokio::time::sleep;
use tower_reprise::error::BoxError;

use super::{encoded, path};
use crate::{
    admin_client::{AdminClient, At},
    output::{Format, cell, fields, progress, show, table},
};

/// Dead letters: what could not be done, to be looked at, redriven or purged
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    at: At,
}

#[derive(Subcommand)]
enum Action {
    /// Lists letters, the oldest first
    List {
        #[command(flatten)]
        filter: Filter,
        /// At most this many
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        limit: usize,
    },
    /// Shows one, with its history and its body
    Show {
        /// The letter's id
        id: String,
    },
    /// Queues letters again: by id, or all that a filter selects
    Redrive {
        /// The letters' ids; without one, the filter selects
        id: Vec<String>,
        #[command(flatten)]
        filter: Filter,
        /// All of the queue, with no other filter
        #[arg(long)]
        all: bool,
        /// Says how many there are, and changes nothing
        #[arg(long)]
        dry_run: bool,
        /// This many a second
        #[arg(long, value_name = "NUMBER", default_value_t = 10)]
        per_second: u32,
        /// At most this many
        #[arg(long, value_name = "NUMBER")]
        at_most: Option<u64>,
    },
    /// Removes letters for good: by id, or all that a filter selects
    Purge {
        /// The letters' ids; without one, the filter selects
        id: Vec<String>,
        #[command(flatten)]
        filter: Filter,
        /// All of the queue, with no other filter
        #[arg(long)]
        all: bool,
        /// Says how many there are, and changes nothing
        #[arg(long)]
        dry_run: bool,
        /// Confirms: nothing brings a purged letter back
        #[arg(long)]
        yes: bool,
        /// At most this many
        #[arg(long, value_name = "NUMBER")]
        at_most: Option<u64>,
    },
}

#[derive(clap::Args)]
struct Filter {
    /// The queue
    #[arg(long, value_name = "NAME", default_value = "replay")]
    queue: String,
    /// Only letters of this owner
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// Only letters of this label
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Only letters that were given up for this cause
    #[arg(long, value_name = "TEXT")]
    cause: Option<String>,
}

impl Filter {
    fn query(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("queue", Some(self.queue.clone())),
            ("owner", self.owner.clone()),
            ("label", self.label.clone()),
            ("cause", self.cause.clone()),
        ]
    }

    fn selects(&self) -> bool {
        self.owner.is_some() || self.label.is_some() || self.cause.is_some()
    }
}

/// The number of letters in one request.
const PAGE: usize = 1000;
/// The interval between two looks at the progress.
const LOOK: Duration = Duration::from_millis(200);

impl Args {
    pub(crate) fn run(self, by_hand: bool) -> Result<ExitCode, BoxError> {
        let Self { action, at } = self;
        let (Action::Redrive {
            id, filter, all, ..
        }
        | Action::Purge {
            id, filter, all, ..
        }) = &action
        else {
            return at.run(by_hand, |client, format| action.run(client, format));
        };
        if id.is_empty() && !filter.selects() && !all {
            return Err("say which letters: an id, a filter, or --all".into());
        }
        if let Action::Purge {
            dry_run: false,
            yes: false,
            ..
        } = action
        {
            return Err("nothing brings a purged letter back: say --yes, or --dry-run".into());
        }
        at.run(by_hand, |client, format| action.run(client, format))
    }
}

impl Action {
    async fn run(self, client: AdminClient, format: Format) -> Result<ExitCode, BoxError> {
        match self {
            Self::List { filter, limit } => list(&client, format, &filter, limit).await?,
            Self::Show { id } => {
                let letter = client
                    .get(&format!("/dead-letters/{}", encoded(&id)))
                    .await?;
                show(format, &letter, text);
            }
            Self::Redrive { id, dry_run, .. } if !id.is_empty() => {
                each(&client, format, REDRIVE, id, dry_run).await?;
            }
            Self::Redrive {
                filter,
                dry_run,
                per_second,
                at_most,
                ..
            } => {
                let per_second = Some(per_second.to_string());
                let more = [("per_second", per_second)];
                return all(&client, format, REDRIVE, &filter, dry_run, at_most, more).await;
            }
            Self::Purge { id, dry_run, .. } if !id.is_empty() => {
                each(&client, format, PURGE, id, dry_run).await?;
            }
            Self::Purge {
                filter,
                dry_run,
                at_most,
                ..
            } => return all(&client, format, PURGE, &filter, dry_run, at_most, []).await,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// An act on letters, and the word for letters that it was done with.
type Act = (&'static str, &'static str);
const REDRIVE: Act = ("redrive", "redriven");
const PURGE: Act = ("purge", "purged");

/// Acts on letters by their ids.
async fn each(
    client: &AdminClient,
    format: Format,
    (act, done): Act,
    ids: Vec<String>,
    dry_run: bool,
) -> Result<(), BoxError> {
    let mut acted = Vec::new();
    for id in ids {
        let path = format!("/dead-letters/{}", encoded(&id));
        acted.push(match dry_run {
            true => client
                .get(&path)
                .await
                .map(|_| json!({ "id": id, "status": "failed" }))?,
            false => client.post(&format!("{path}/{act}")).await?,
        });
    }
    let answer = json!({ done: acted });
    show(format, &answer, |_| table(&["id", "status"], &acted));
    Ok(())
}

/// Acts on the letters that a filter selects.
async fn all(
    client: &AdminClient,
    format: Format,
    (act, done): Act,
    filter: &Filter,
    dry_run: bool,
    at_most: Option<u64>,
    more: impl IntoIterator<Item = (&'static str, Option<String>)>,
) -> Result<ExitCode, BoxError> {
    let mut query = filter.query();
    query.push(("dry_run", Some(dry_run.to_string())));
    query.push(("at_most", at_most.map(|most| most.to_string())));
    query.push(("background", Some("true".to_owned())));
    query.extend(more);
    let to = path(&format!("/dead-letters/{act}"), &query);
    let answer = client.post(&to).await?;
    if !dry_run {
        return follow(client, format, done, answer).await;
    }
    let count = |answer: &Value| format!("{} would be {done}", answer["matched"]);
    show(format, &answer, count);
    Ok(ExitCode::SUCCESS)
}

/// Lists page by page: stores do not select by cause, so a page may hold few of it or none.
async fn list(
    client: &AdminClient,
    format: Format,
    filter: &Filter,
    limit: usize,
) -> Result<(), BoxError> {
    let mut letters = Vec::new();
    let mut after = Some(0);
    while let Some(from) = after.filter(|_| letters.len() < limit) {
        let mut query = filter.query();
        query.push(("after", Some(from.to_string())));
        query.push(("limit", Some(PAGE.min(limit).to_string())));
        let page = client.get(&path("/dead-letters", &query)).await?;
        letters.extend(page["letters"].as_array().cloned().unwrap_or_default());
        after = page["after"].as_u64();
    }
    letters.truncate(limit);
    let answer = json!({ "queue": filter.queue, "letters": letters });
    let columns = ["id", "changed_at", "attempts", "cause", "owner", "label"];
    show(format, &answer, |_| table(&columns, &letters));
    Ok(())
}

/// Shows how far a redrive or purge is, until it has ended.
async fn follow(
    client: &AdminClient,
    format: Format,
    done: &str,
    started: Value,
) -> Result<ExitCode, BoxError> {
    let number = started["number"].as_u64().unwrap_or_default();
    let mut answer = started;
    loop {
        let count = |name: &str| answer[name].as_u64().unwrap_or_default();
        progress(count("seen"), count("total"));
        if answer["state"] != "running" {
            break;
        }
        sleep(LOOK).await;
        answer = client.get(&format!("/redrives/{number}")).await?;
    }
    show(format, &answer, |answer| {
        format!(
            "{}: {} of {} {done}",
            cell(&answer["state"]),
            answer[done],
            answer["total"]
        )
    });
    Ok(ExitCode::from(u8::from(answer["state"] != "done")))
}

fn text(letter: &Value) -> String {
    let names = [
        "id",
        "queue",
        "owner",
        "label",
        "cause",
        "reason",
        "attempts",
        "queued_at",
        "died_at",
    ];
    let mut text = fields(letter, &names);
    let empty = serde_json::Map::new();
    for (name, value) in letter["headers"].as_object().unwrap_or(&empty) {
        text += &format!("\n  {name}: {}", cell(value));
    }
    for event in letter["history"].as_array().into_iter().flatten() {
        text += &format!("\n  {}  {}", cell(&event["at"]), cell(&event["note"]));
    }
    text + "\n\n" + letter["payload"].as_str().unwrap_or_default()
}
