//! A file of `--config`: flags by their names, and what has no flag: upstreams, routes, policies.

use std::{collections::BTreeMap, fs};

use toml::{Table, Value};
use tower_reprise::error::BoxError;

use super::flags::Values;
use crate::usage_error::UsageError;

/// The values of some fields, each a list of texts.
pub(crate) type Fields = BTreeMap<String, Vec<String>>;

/// The fields of an upstream.
const UPSTREAM: [&str; 7] = [
    "endpoints",
    "http2",
    "ca",
    "connect-timeout",
    "preserve-host",
    "replay-authorization-file",
    "policy",
];
/// The fields of a route.
const ROUTE: [&str; 3] = ["host", "path", "upstream"];

/// The tables of a file.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Tables {
    pub(crate) upstreams: BTreeMap<String, Fields>,
    pub(crate) routes: Vec<Fields>,
    /// A policy file's content; that of an upstream is among its dependencies, by its name.
    pub(crate) policy: Option<Table>,
}

/// Reads a file in which these flags may be.
pub(crate) fn read(path: &str, flags: &[&str]) -> Result<Values, BoxError> {
    let text = fs::read_to_string(path).map_err(|error| {
        UsageError::new("config", path, format!("a file that can be read ({error})"))
    })?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        // Without the line itself, which may hold a password.
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.split('\n').count());
        let allowed = format!("TOML (line {line}: {})", error.message());
        UsageError::new("config", path, allowed)
    })?;
    let (mut fields, mut tables) = (Fields::new(), Tables::default());
    let mut own = Table::new();
    for (name, value) in table {
        match (&*name, value) {
            ("upstreams", value) => {
                for (name, value) in table_of("upstreams", value)? {
                    let place = format!("upstreams.{name}");
                    let mut upstream = table_of(&place, value)?;
                    if let Some(policy) = upstream.remove("policy") {
                        let policy = table_of(&format!("{place}.policy"), policy)?;
                        own.insert(name.clone(), Value::Table(policy));
                    }
                    let upstream = texts_of(&place, upstream, &UPSTREAM)?;
                    tables.upstreams.insert(name, upstream);
                }
            }
            ("routes", Value::Array(routes)) => {
                for (index, route) in routes.into_iter().enumerate() {
                    let place = format!("routes[{index}]");
                    let route = table_of(&place, route)?;
                    tables.routes.push(texts_of(&place, route, &ROUTE)?);
                }
            }
            ("routes", value) => {
                let allowed = "a [[routes]] table for each route";
                return Err(UsageError::new("routes", value.type_str(), allowed).into());
            }
            ("policy", Value::Table(policy)) => tables.policy = Some(policy),
            (name, value) if flags.contains(&name) => {
                fields.insert(name.to_owned(), texts(name, value)?);
            }
            (name, _) => {
                let tables = ["upstreams", "routes"];
                let names: Vec<_> = flags.iter().chain(&tables).copied().collect();
                let allowed = format!("one of {}", names.join(", "));
                return Err(UsageError::new("config", name, allowed).into());
            }
        }
    }
    if !own.is_empty() {
        tables.policy = Some(with_own(&fields, tables.policy, own)?);
    }
    Ok(Values { fields, tables })
}

/// Adds the policies of upstreams to those of the file.
fn with_own(fields: &Fields, policy: Option<Table>, own: Table) -> Result<Table, UsageError> {
    if fields.contains_key("policy") {
        let allowed = "a table [policy] beside policies of upstreams";
        return Err(UsageError::new("policy", "a file", allowed));
    }
    let mut policy = match policy {
        Some(policy) => policy,
        None => {
            let standard = Table::from_iter([("profile".to_owned(), "synchronous".into())]);
            Table::from_iter([("default".to_owned(), Value::Table(standard))])
        }
    };
    let dependencies = policy.remove("dependencies");
    let dependencies = dependencies.map(|value| table_of("policy.dependencies", value));
    let mut dependencies = dependencies.transpose()?.unwrap_or_default();
    for (name, section) in own {
        if dependencies.insert(name.clone(), section).is_some() {
            let field = format!("policy.dependencies.{name}");
            let allowed = format!("either that, or upstreams.{name}.policy");
            return Err(UsageError::new(&field, "there twice", allowed));
        }
    }
    policy.insert("dependencies".to_owned(), Value::Table(dependencies));
    Ok(policy)
}

fn table_of(place: &str, value: Value) -> Result<Table, UsageError> {
    match value {
        Value::Table(table) => Ok(table),
        other => Err(UsageError::new(place, other.type_str(), "a table")),
    }
}

/// The fields of a table, which are all known.
fn texts_of(place: &str, table: Table, known: &[&str]) -> Result<Fields, UsageError> {
    let read = |(name, value): (String, Value)| match known.contains(&&*name) {
        true => Ok((name.clone(), texts(&format!("{place}.{name}"), value)?)),
        false => {
            let allowed = format!("one of {}", known.join(", "));
            Err(UsageError::new(place, &name, allowed))
        }
    };
    table.into_iter().map(read).collect()
}

/// A value as the command line would have it.
fn texts(field: &str, value: Value) -> Result<Vec<String>, UsageError> {
    const ALLOWED: &str = "a text, a whole number, true or false";
    let list = match value {
        Value::Array(list) => list,
        value => vec![value],
    };
    let text = |value| match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Boolean(is) => Ok(is.to_string()),
        Value::Float(number) => Err(UsageError::new(field, &number.to_string(), ALLOWED)),
        other => Err(UsageError::new(field, other.type_str(), ALLOWED)),
    };
    list.into_iter().map(text).collect()
}
