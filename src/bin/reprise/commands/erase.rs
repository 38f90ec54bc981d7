use std::process::ExitCode;

use serde_json::{Value, json};
use tower_reprise::error::BoxError;

use super::path;
use crate::{
    admin_client::{AdminClient, At},
    output::{Format, show, table},
};

/// The queues that bear owners, unless they were given other names. An endpoint whose letter in
/// `webhooks.disabled` is erased is enabled.
const QUEUES: [&str; 5] = [
    "replay",
    "webhooks",
    "webhooks.failing",
    "webhooks.disabled",
    "reprise.alerts",
];

/// Erases what the queues hold of an owner: what waits, dead letters, replies, histories
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The owner, as in the column `owner` of `replays list` and `letters list`, such as x-customer:ada;
    /// where `authorization` tells callers apart, each credential of a person is an owner of its own
    #[arg(long, value_name = "NAME")]
    owner: String,
    /// The queue; may be given several times. By default those of replays and of webhooks, and what is
    /// noted beside them
    #[arg(long, value_name = "NAME", default_values = QUEUES)]
    queue: Vec<String>,
    /// Says how many entries there are, and changes nothing
    #[arg(long)]
    dry_run: bool,
    /// Confirms: nothing brings an erased entry back, and what waits is not executed any more
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    at: At,
}

impl Args {
    pub(crate) fn run(self, by_hand: bool) -> Result<ExitCode, BoxError> {
        let Self {
            owner,
            queue,
            dry_run,
            yes,
            at,
        } = self;
        if !dry_run && !yes {
            return Err("nothing brings an erased entry back: say --yes, or --dry-run".into());
        }
        at.run(by_hand, |client, format| {
            run(client, format, owner, queue, dry_run)
        })
    }
}

async fn run(
    client: AdminClient,
    format: Format,
    owner: String,
    queues: Vec<String>,
    dry_run: bool,
) -> Result<ExitCode, BoxError> {
    let mut rows = Vec::new();
    for queue in &queues {
        let query = [
            ("owner", Some(owner.clone())),
            ("queue", Some(queue.clone())),
            ("dry_run", Some(dry_run.to_string())),
        ];
        let to = path("/owners/erase", &query);
        rows.push(match dry_run {
            true => client.post(&to).await?,
            false => erase(&client, queue, &to).await?,
        });
    }
    let columns: &[_] = match dry_run {
        true => &["queue", "matched"],
        false => &["queue", "erased", "processing"],
    };
    let answer = json!({ "owner": owner, "queues": rows });
    show(format, &answer, |_| table(columns, &rows));
    let sum = |name: &str| -> u64 { rows.iter().filter_map(|row| row[name].as_u64()).sum() };
    // Running entries were left to end: they take another call.
    let processing = sum("processing");
    if sum("matched") + sum("erased") + processing == 0 {
        let why = "no entry of this owner: the column `owner` of `replays list` and \
                   `letters list` shows how it is named";
        return Err(why.into());
    }
    Ok(ExitCode::from(u8::from(processing > 0)))
}

/// Erases step by step, until only what is being processed is left.
async fn erase(client: &AdminClient, queue: &str, to: &str) -> Result<Value, BoxError> {
    let mut erased = 0;
    loop {
        let answer = client.post(to).await?;
        let count = |name: &str| answer[name].as_u64().unwrap_or_default();
        erased += count("erased");
        if count("erased") == 0 || count("left") == 0 {
            let left = count("left");
            return Ok(json!({ "queue": queue, "erased": erased, "processing": left }));
        }
    }
}
