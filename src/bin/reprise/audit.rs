//! The audit of policies, as a gate for merges and deployments.

use std::{fs, path::PathBuf, process::ExitCode};

use serde_json::{Value, json};
use tower_reprise::{
    error::{BoxError, Enforcement},
    policy::{Audit, Policies, Severity},
};

use crate::{
    admin_client::{AdminClient, At},
    output::{self, table},
};

/// Audits policies by the standard: which rule is broken, where, and what that blocks
///
/// Without a gate every broken rule counts. `--gate merge` counts what blocks a merge (R-1, R-4,
/// R-6); `--gate deploy` also what blocks a deployment and what the board has not approved
///
///
/// Exit status: 0 nothing that counts; 1 a broken rule; 2 a file that can't be read.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Policy files, TOML or JSON
    #[arg(value_name = "FILE", required_unless_present = "admin")]
    files: Vec<PathBuf>,
    /// Audits what a running gateway does: its admin port, such as 127.0.0.1:8081
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// The admin port's token
    #[arg(
        long,
        value_name = "FILE",
        env = "REPRISE_ADMIN_TOKEN_FILE",
        hide_env = true
    )]
    admin_token_file: Option<PathBuf>,
    /// Which findings count
    #[arg(long, value_name = "GATE")]
    gate: Option<Gate>,
    /// The form of the findings; `sarif` is for code scanning
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Gate {
    Merge,
    Deploy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
    Sarif,
}

/// The findings of one file or gateway.
struct Audited {
    source: String,
    text: Option<String>,
    findings: Vec<Value>,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, BoxError> {
        let mut all = Vec::new();
        for path in &self.files {
            all.push(Audited {
                source: path.display().to_string(),
                findings: describe(&Policies::check(path)?),
                text: fs::read_to_string(path).ok(),
            });
        }
        let (gate, format) = (self.gate, self.format);
        let Some(admin) = self.admin else {
            return Ok(report(&all, gate, format));
        };
        let at = At::port(admin, self.admin_token_file);
        at.run(false, |client, _| async move {
            all.push(running(&client).await?);
            Ok(report(&all, gate, format))
        })
    }
}

async fn running(client: &AdminClient) -> Result<Audited, BoxError> {
    let answer = client.get("/audit").await?;
    let findings = answer["findings"].as_array().cloned();
    Ok(Audited {
        source: "gateway".to_owned(),
        text: None,
        findings: findings.ok_or("the gateway answers with no findings")?,
    })
}

/// The findings of an audit, for programs.
pub(crate) fn describe(audit: &Audit) -> Vec<Value> {
    let describe = |finding: &tower_reprise::policy::Finding| {
        let gate = match finding.rule.enforcement() {
            Enforcement::Merge => "merge",
            Enforcement::Deployment => "deploy",
            _ => "review",
        };
        json!({
            "rule": finding.rule.to_string(),
            "severity": finding.severity.as_str(),
            "gate": gate,
            "dependency": finding.dependency.as_deref(),
            "field": finding.field,
            "value": finding.value,
            "allowed": finding.allowed,
            "approval": finding.approval.as_deref(),
            "remedy": finding.remedy(),
        })
    };
    audit.findings().iter().map(describe).collect()
}

impl Gate {
    /// Whether a finding is stopped here.
    fn stops(gate: Option<Self>, finding: &Value) -> bool {
        finding["severity"] == Severity::Violation.as_str()
            && (gate != Some(Self::Merge) || finding["gate"] == "merge")
    }
}

fn report(all: &[Audited], gate: Option<Gate>, format: Format) -> ExitCode {
    let stops = |audited: &Audited| {
        audited
            .findings
            .iter()
            .any(|finding| Gate::stops(gate, finding))
    };
    let passed = !all.iter().any(stops);
    match format {
        Format::Text => {
            for audited in all {
                output::print(&audited.lines(!stops(audited)));
            }
        }
        Format::Json => {
            let audits = all.iter().map(|audited| {
                json!({
                    "source": audited.source,
                    "passed": !stops(audited),
                    "findings": audited.findings,
                })
            });
            let audits: Vec<_> = audits.collect();
            output::print(&format!(
                "{:#}",
                json!({ "passed": passed, "audits": audits })
            ));
        }
        Format::Sarif => output::print(&format!("{:#}", sarif(all, gate))),
    }
    ExitCode::from(u8::from(!passed))
}

impl Audited {
    fn lines(&self, passed: bool) -> String {
        let columns = [
            "rule",
            "severity",
            "gate",
            "dependency",
            "field",
            "value",
            "allowed",
            "approval",
        ];
        let findings = match self.findings.is_empty() {
            true => String::new(),
            false => table(&columns, &self.findings) + "\n",
        };
        let word = if passed {
            "in order"
        } else {
            "breaks the standard"
        };
        format!("{findings}{}: {word}", self.source)
    }

    /// The line of a finding's field, as far as a search tells.
    fn line(&self, finding: &Value) -> usize {
        let field = finding["field"].as_str().unwrap_or_default();
        let field = field.rsplit('.').next().unwrap_or_default();
        let section = match finding["dependency"].as_str() {
            Some("(default)") | None => "default",
            Some(name) => name,
        };
        let lines: Vec<_> = self.text.iter().flat_map(|text| text.lines()).collect();
        let start = lines
            .iter()
            .position(|line| line.contains(section))
            .unwrap_or(0);
        let found = lines
            .iter()
            .skip(start)
            .position(|line| line.contains(field));
        1 + start + found.unwrap_or(0)
    }
}

/// SARIF 2.1.0, as GitHub's code scanning takes it.
fn sarif(all: &[Audited], gate: Option<Gate>) -> Value {
    let results = all.iter().flat_map(|audited| {
        audited.findings.iter().map(move |finding| {
            let level = match Gate::stops(gate, finding) {
                true => "error",
                false if finding["severity"] == Severity::Approved.as_str() => "note",
                false => "warning",
            };
            let text = |name: &str| output::cell(&finding[name]);
            let message = format!(
                "{}: {} is {}, the standard has {}. Remedy: {}",
                text("rule"),
                text("field"),
                text("value"),
                text("allowed"),
                text("remedy"),
            );
            let place = match audited.text {
                Some(_) => json!({ "physicalLocation": {
                    "artifactLocation": { "uri": audited.source },
                    "region": { "startLine": audited.line(finding) },
                } }),
                None => {
                    json!({ "logicalLocations": [{ "fullyQualifiedName": finding["dependency"] }] })
                }
            };
            json!({
                "ruleId": finding["rule"],
                "level": level,
                "message": { "text": message },
                "locations": [place],
            })
        })
    });
    let results: Vec<_> = results.collect();
    let rules = (1..=8).map(|number| json!({ "id": format!("R-{number}") }));
    let rules: Vec<_> = rules.collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "reprise",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            } },
            "results": results,
        }],
    })
}
