//! Policies put to the simulator: its clients and servers, in virtual time.

use std::{path::PathBuf, process::ExitCode};

use http_body_util::Empty;
use serde_json::{Value, json};
use tower::{ServiceBuilder, ServiceExt};
use tower_reprise::{Dependencies, Policy, error::BoxError, policy::Policies, stacks};

use self::{
    dice::mix,
    trials::{DOWN, Load, Outage, WELL, outage, sweep},
    world::{Wire, virtual_time},
};
use crate::{
    output::{Format, progress, show, table},
    usage_error::UsageError,
};

#[path = "../../../examples/support/dice.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod dice;
#[path = "../../../examples/simulate/trials.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod trials;
#[path = "../../../examples/simulate/world.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod world;

/// Simulates a policy: what it is worth to clients and what it costs a server, in virtual time
///
/// Clients with the whole stack, and clients without retries, call a server that fails some of the
/// requests with 503; then an outage of 30s begins and ends. LOAD is requests a call: 1 without
/// retries. The same seed gives the same figures.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A policy file, TOML or JSON; without one, the standard's defaults for synchronous calls
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Whose policy of the file, instead of the default's
    #[arg(long, value_name = "NAME", requires = "file")]
    dependency: Option<String>,
    /// The requests that fail, in percent; a run for each
    #[arg(
        long,
        value_name = "PERCENT,…",
        value_delimiter = ',',
        default_value = "0,1,10,25,50,75,90,100"
    )]
    failing: Vec<f64>,
    /// Clients, with a budget and a breaker each, 1 to 1000
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    clients: u64,
    /// Calls a second of each client, 0.1 to 10000
    #[arg(long, value_name = "RATE", default_value_t = 10.0)]
    calls: f64,
    /// Length of each run in virtual time, 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "60s")]
    time: String,
    /// Everything random comes from it
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// The form of the figures
    #[arg(
        long,
        value_name = "FORMAT",
        env = "REPRISE_FORMAT",
        hide_env = true,
        default_value = "text"
    )]
    format: Format,
}

/// The most calls of a run: some minutes of work.
const MOST_CALLS: f64 = 5e6;
/// The length of the trial with an outage.
const TRIAL: f64 = 40.0;

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, BoxError> {
        let load = self.load()?;
        let policy = self.policy()?;
        let total = self.failing.len() as u64 + 1;
        let stack = |seed, wire| Ok(client(&policy, seed, wire));
        let mut rates = Vec::new();
        for (percent, done) in self.failing.iter().zip(0..) {
            progress(done, total);
            let (failing, seed) = (percent / 100.0, mix(self.seed, done));
            let ours = virtual_time(sweep(stack, failing, load, seed))??;
            let once = virtual_time(sweep(|_, wire| Ok(wire), failing, load, seed))??;
            rates.push(json!({
                "failing": failing,
                "success": ours.success(),
                "success_without_retries": once.success(),
                "load": ours.load(),
            }));
        }
        progress(total - 1, total);
        let mut down = Outage::default();
        for client in 0..load.clients {
            let seed = mix(mix(self.seed, total), client);
            down.add(virtual_time(outage(stack, load.rate, seed))??);
        }
        progress(total, total);
        let answer = json!({
            "file": self.file.as_ref().map(|file| file.display().to_string()),
            "dependency": self.dependency,
            "clients": load.clients,
            "calls_per_second": load.rate,
            "seconds": load.length,
            "seed": self.seed,
            "rates": rates,
            "outage": {
                "seconds": WELL - DOWN,
                "load": down.load(),
                "back_after_seconds": down.back(),
            },
        });
        show(self.format, &answer, text);
        Ok(ExitCode::SUCCESS)
    }

    fn load(&self) -> Result<Load, UsageError> {
        let wrong = |field: &str, value: String, allowed: &str| {
            Err(UsageError::new(field, &value, allowed))
        };
        for percent in &self.failing {
            if !(0.0..=100.0).contains(percent) {
                return wrong("failing", percent.to_string(), "0 to 100 percent");
            }
        }
        if !(1..=1000).contains(&self.clients) {
            return wrong("clients", self.clients.to_string(), "1 to 1000");
        }
        if !(0.1..=10_000.0).contains(&self.calls) {
            return wrong("calls", self.calls.to_string(), "0.1 to 10000 a second");
        }
        let length = humantime::parse_duration(&self.time).map(|time| time.as_secs_f64());
        let length = length.ok().filter(|length| (1.0..=3600.0).contains(length));
        let Some(length) = length else {
            return wrong("time", self.time.clone(), "1s to 1h");
        };
        let calls = self.clients as f64 * self.calls * length.max(TRIAL);
        if calls > MOST_CALLS {
            let allowed = "5000000 calls in all: fewer clients, fewer calls or less time";
            return wrong("clients", self.clients.to_string(), allowed);
        }
        Ok(Load {
            clients: self.clients,
            rate: self.calls,
            length,
        })
    }

    fn policy(&self) -> Result<Policy, BoxError> {
        let Some(file) = &self.file else {
            return Ok(Policy::http().service("simulate").build()?);
        };
        let policies = Policies::open(file)?;
        let Some(name) = &self.dependency else {
            return Ok(policies.default_policy().clone());
        };
        let known: Vec<_> = policies.iter().map(|(name, _)| name).collect();
        match known.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            true => Ok(policies.get(name).clone()),
            false => Err(UsageError::new("dependency", name, known.join(" or ")).into()),
        }
    }
}

/// A client with the whole stack, and state of its own.
fn client(policy: &Policy, seed: u64, wire: Wire) -> Wire {
    let deps = Dependencies::builder(policy.clone())
        .seed(mix(seed, 0))
        .build();
    ServiceBuilder::new()
        .layer(stacks::client(deps))
        .service(wire)
        .map_response(|reply| reply.map(|_| Empty::new()))
        .boxed_clone()
}

fn text(answer: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let percent = |value: &Value| format!("{:.1} %", number(value) * 100.0);
    let rates = answer["rates"].as_array().map_or(&[][..], Vec::as_slice);
    let rates = rates.iter().map(|rate| {
        json!({
            "failing": percent(&rate["failing"]),
            "success": percent(&rate["success"]),
            "without_retries": percent(&rate["success_without_retries"]),
            "load": format!("{:.2}", number(&rate["load"])),
        })
    });
    let rates: Vec<_> = rates.collect();
    let columns = ["failing", "success", "without_retries", "load"];
    let outage = &answer["outage"];
    let back = match outage["back_after_seconds"].as_f64() {
        Some(seconds) => format!("95 % of calls succeed {seconds:.1} s after its end"),
        None => "not back 4 s after its end".to_owned(),
    };
    format!(
        "{}\n\nAn outage of {} s: {:.2} requests a call, {back}",
        table(&columns, &rates),
        outage["seconds"],
        number(&outage["load"]),
    )
}
