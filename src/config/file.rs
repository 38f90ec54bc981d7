//! Reads files with a policy for every dependency.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::File,
    io::Read,
    path::Path,
};

use serde::{Deserialize, Deserializer, de::Error};

use super::{
    read,
    section::{Section, built_in_profile},
    table::Merge,
};
use crate::{
    error::ConfigError,
    policy::{Audit, Policies, Policy, PolicyBuilder, Profile},
    telemetry,
};

/// The largest file, in bytes.
const LARGEST: usize = 1024 * 1024;
/// The most dependencies of a file: each has an entry in the registry from its first call.
const MOST_DEPENDENCIES: usize = 4096;
/// The longest chain of profiles that start from one another.
const DEEPEST: usize = 16;
/// The longest name of a dependency.
const LONGEST_NAME: usize = 255;

/// Policies from a file.
///
/// A file has a `[default]` policy, `[profiles]` that others start from, and `[dependencies]` with
/// policies of their own. Each of these sections can set any field of a [`Policy`]. `profile` names
/// the section it starts from, a [`Profile`] or one of `[profiles]`; without it, that is `[default]`.
/// Fields that it sets replace those it starts from, lists as a whole.
/// `examples/policy.toml` documents all fields.
///
/// ```
/// use tower_reprise::{Dependencies, policy::{Policies, assert_compliant}};
///
/// let policies = Policies::from_toml(r#"
///     service = "checkout"
///
///     [default]
///     profile = "synchronous"
///     total_timeout = "10s"
///
///     [profiles.partner]
///     profile = "synchronous"
///     max_retries = 1
///     breaker = { consecutive_failures = 3 }
///
///     [dependencies."stock.example"]
///     attempt_timeout = "500ms"
///
///     [dependencies."bank.example:8443"]
///     profile = "partner"
///     breaker = { cooldown = "2s" }
/// "#)?;
/// assert_compliant(&policies);
/// let bank = policies.get("bank.example:8443");
/// assert_eq!((bank.max_retries(), bank.breaker().consecutive_failures), (1, 3));
/// assert_eq!(policies.get("stock.example").total_timeout().as_secs(), 10);
///
/// let error = Policies::from_toml("default.profile = 'bank'\ndependencies.'a.example'.profile = 'b'").unwrap_err();
/// assert_eq!(error.field(), "dependencies.\"a.example\".profile");
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
impl Policies {
    /// Reads policies from TOML.
    ///
    /// # Errors
    ///
    /// Names the field that can't be read, is unknown, or has a value that is not allowed.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Format::Toml.parse(text)?.policies()
    }

    /// Reads policies from JSON, with the same fields.
    ///
    /// # Errors
    ///
    /// Names the field that can't be read, is unknown, or has a value that is not allowed.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Format::Json.parse(text)?.policies()
    }

    /// Reads policies from a file that ends in `.toml` or `.json` and has at most 1 MiB.
    ///
    /// # Errors
    ///
    /// Names the field that can't be read, is unknown, or has a value that is not allowed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Document::open(path.as_ref())?.policies()
    }

    /// Audits a file: lists all values that break a rule, where [`open`](Self::open) fails on the
    /// first.
    ///
    /// # Errors
    ///
    /// Names the field that can't be read, is unknown, or has a value that no approval allows.
    pub fn check(path: impl AsRef<Path>) -> Result<Audit, ConfigError> {
        Document::open(path.as_ref())?.audit()
    }

    /// Audits TOML, as [`check`](Self::check) does a file.
    ///
    /// ```
    /// # use tower_reprise::{error::Rule, policy::Policies};
    /// let audit = Policies::check_toml(r#"
    ///     default = { profile = "synchronous", max_retries = 9, total_timeout = "1m" }
    ///     dependencies.orders = { profile = "asynchronous" }
    /// "#)?;
    /// let rules: Vec<_> = audit.violations().map(|finding| finding.rule).collect();
    /// assert_eq!(rules, [Rule::R2, Rule::R3, Rule::R8]);
    /// # Ok::<(), tower_reprise::error::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Names the field that can't be read, is unknown, or has a value that no approval allows.
    pub fn check_toml(text: &str) -> Result<Audit, ConfigError> {
        Format::Toml.parse(text)?.audit()
    }
}

/// For policies inside a configuration of your own.
impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Document::deserialize(deserializer)?
            .policies()
            .map_err(D::Error::custom)
    }
}

type Check = fn(PolicyBuilder) -> Result<Policy, ConfigError>;

#[derive(Clone, Copy)]
enum Format {
    Toml,
    Json,
}

impl Format {
    fn parse(self, text: &str) -> Result<Document, ConfigError> {
        if text.len() > LARGEST {
            return Err(too_large("file"));
        }
        match self {
            Self::Toml => read::toml(text, "file"),
            Self::Json => read::json(text, "file"),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// The name of the calling service, for all sections.
    service: Option<String>,
    default: Section,
    #[serde(default, deserialize_with = "read::named")]
    profiles: BTreeMap<String, Section>,
    #[serde(default, deserialize_with = "read::named")]
    dependencies: BTreeMap<String, Section>,
}

impl Document {
    fn open(path: &Path) -> Result<Self, ConfigError> {
        let name = || path.display().to_string();
        let format = match path.extension().and_then(OsStr::to_str) {
            Some("toml") => Format::Toml,
            Some("json") => Format::Json,
            _ => {
                let allowed = "a file that ends in .toml or .json";
                return Err(ConfigError::new(None, "file", name(), allowed));
            }
        };
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(LARGEST as u64 + 1).read_to_string(&mut text))
            .map_err(|error| ConfigError::unreadable(name(), error.to_string()))?;
        if text.len() > LARGEST {
            return Err(too_large(name()));
        }
        format.parse(&text)
    }

    fn policies(&self) -> Result<Policies, ConfigError> {
        let policies = self.build(PolicyBuilder::approved)?;
        let own = policies.iter().map(|(_, policy)| policy);
        let mut approvals = BTreeSet::new();
        for policy in own.chain([policies.default_policy()]) {
            for (rule, reason) in policy.approvals() {
                approvals.insert((policy.service(), *rule, &**reason));
            }
        }
        for (service, rule, reason) in approvals {
            telemetry::approved(service, rule, reason);
        }
        Ok(policies)
    }

    fn audit(&self) -> Result<Audit, ConfigError> {
        Ok(self.build(PolicyBuilder::possible)?.audit())
    }

    /// Builds the policies of all sections, and checks each.
    fn build(&self, check: Check) -> Result<Policies, ConfigError> {
        self.check_names()?;
        let policy = |place: &str, section: &Section, check: Check| {
            let (profile, section) = self.resolve(place, section)?;
            check(section.apply(profile)).map_err(|error| error.inside(place))
        };
        let default = policy("default", &self.default, check)?;
        // A section that uses a profile may approve a rule that the profile breaks.
        for (name, section) in &self.profiles {
            let place = place("profiles", name);
            policy(&place, section, PolicyBuilder::possible)?;
        }
        let mut policies = Policies::new(default);
        for (name, section) in &self.dependencies {
            let policy = policy(&place("dependencies", name), section, check)?;
            policies = policies.policy_for(name, policy);
        }
        Ok(policies)
    }

    fn check_names(&self) -> Result<(), ConfigError> {
        let count = self.dependencies.len();
        if count > MOST_DEPENDENCIES {
            let allowed = format!("at most {MOST_DEPENDENCIES}");
            return Err(ConfigError::new(None, "dependencies", count, allowed));
        }
        for name in self.profiles.keys() {
            if built_in_profile(name).is_ok() {
                let allowed = "a name that no profile of the standard has";
                return Err(bad_name("profiles", name, allowed));
            }
        }
        let mut known = BTreeSet::new();
        for name in self.dependencies.keys() {
            if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
                let allowed = "names of 1 to 255 visible characters";
                return Err(bad_name("dependencies", name, allowed));
            }
            // Dependencies are known by host and port, so a URL would never match one.
            if name.contains("://") {
                let allowed = "host and port, as `bank.example:8443`, or a name of your own";
                return Err(bad_name("dependencies", name, allowed));
            }
            if !known.insert(name.to_ascii_lowercase()) {
                let allowed = "names that differ in more than case";
                return Err(bad_name("dependencies", name, allowed));
            }
        }
        Ok(())
    }

    /// Merges a section with those it starts from, down to a [`Profile`].
    fn resolve(&self, place: &str, section: &Section) -> Result<(Profile, Section), ConfigError> {
        let field = || format!("{place}.profile");
        let mut whole = section.clone();
        let mut last = section;
        for _ in 0..DEEPEST {
            last = match &last.profile {
                Some(name) => match (built_in_profile(name), self.profiles.get(name)) {
                    (Ok(profile), _) => {
                        whole.service = whole.service.or_else(|| self.service.clone());
                        return Ok((profile, whole));
                    }
                    (Err(_), Some(parent)) => parent,
                    (Err(unknown), None) => {
                        return Err(ConfigError::new(
                            None,
                            field(),
                            format_args!("{name:?}"),
                            self.profile_names(&unknown),
                        ));
                    }
                },
                None if std::ptr::eq(last, &self.default) => {
                    return Err(ConfigError::unreadable(
                        "default.profile".into(),
                        "missing: the default policy starts from a profile".into(),
                    ));
                }
                None => &self.default,
            };
            whole = whole.merge(last.clone());
        }
        let value = format_args!("{:?}", section.profile.as_deref().unwrap_or("default"));
        let allowed = format!("a chain to a profile of the standard in {DEEPEST} steps");
        Err(ConfigError::new(None, field(), value, allowed))
    }

    fn profile_names(&self, unknown: &serde::de::value::Error) -> String {
        let message = unknown.to_string();
        let standard = message
            .split_once("expected ")
            .map_or(&*message, |(_, names)| names);
        let own: Vec<_> = self
            .profiles
            .keys()
            .map(|name| format!("`{name}`"))
            .collect();
        match own.is_empty() {
            true => standard.to_owned(),
            false => format!("{standard}, or of [profiles] {}", own.join(", ")),
        }
    }
}

fn bad_name(table: &'static str, name: &str, allowed: &'static str) -> ConfigError {
    ConfigError::new(None, table, format_args!("{name:?}"), allowed)
}

fn too_large(name: impl Into<std::borrow::Cow<'static, str>>) -> ConfigError {
    let allowed = format!("at most {LARGEST} bytes (1 MiB)");
    ConfigError::new(None, name, "larger", allowed)
}

/// Returns a table's name in a file, quoted if necessary.
fn place(table: &str, name: &str) -> String {
    format!("{table}.{}", read::key(name))
}
