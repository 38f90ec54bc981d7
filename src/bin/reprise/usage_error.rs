use std::{error::Error, fmt};

/// A flag that can't be used: which one, its value, what is allowed.
#[derive(Debug)]
pub(crate) struct UsageError {
    field: String,
    value: String,
    allowed: String,
}

impl UsageError {
    pub(crate) fn new(field: &str, value: &str, allowed: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            value: shown(field, value),
            allowed: allowed.into(),
        }
    }

    /// One that is missing.
    pub(crate) fn missing(field: &str, allowed: &str) -> Self {
        Self {
            field: field.to_owned(),
            value: "missing".to_owned(),
            allowed: allowed.to_owned(),
        }
    }
}

/// A value as far as it is surely no password, and holds none.
fn shown(field: &str, value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".:/_-[]".contains(c);
    let name = field.rsplit_once('.').map_or(field, |(_, name)| name);
    let harmless = match name {
        "store" => false,
        "upstream" | "endpoints" => value.chars().all(plain),
        // The value may be the secret itself, given in place of its file by mistake.
        "admin-token-file" | "callback-secret-file" | "replay-authorization-file" => {
            value.starts_with(['/', '.'])
        }
        _ => !value.contains('@'),
    };
    let scheme = value.split_once(':').map(|(scheme, _)| scheme);
    let scheme = scheme.filter(|scheme| KINDS.contains(scheme));
    match scheme {
        _ if harmless => value.to_owned(),
        Some(scheme) => format!("{scheme}:…"),
        None => "something else".to_owned(),
    }
}

/// The address schemes that are shown.
const KINDS: [&str; 8] = [
    "http",
    "https",
    "mysql",
    "postgres",
    "postgresql",
    "redis",
    "rediss",
    "sqlite",
];

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            value,
            allowed,
        } = self;
        write!(f, "{field} is {value}, allowed: {allowed}")
    }
}

impl Error for UsageError {}
