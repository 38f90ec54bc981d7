//! Files with a policy for every dependency.

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
    section::{Section, standard_profile},
    table::Over,
};
use crate::{
    error::ConfigError,
    policy::{Audit, Policies, Policy, PolicyBuilder, Profile},
    telemetry,
};

/// The most that is read of a file.
const LARGEST: usize = 1024 * 1024;
/// The most dependencies a file may name: each has an entry in the registry from its first call.
const MOST_DEPENDENCIES: usize = 4096;
/// The most profiles that build on one another.
const DEEPEST: usize = 16;
/// The longest name of a dependency.
const LONGEST_NAME: usize = 255;

/// Policies from a file.
///
/// A file has a `[default]` policy, `[profiles]` that others start from, and `[dependencies]`
/// that differ. Each of these says as much as a [`Policy`] can, or as little: `profile` names what
/// it starts from, which is a profile of the standard or one of the file, and without it `[default]`.
/// Every field it then says takes the place of the one it started with. A list is one field.
/// `examples/policy.toml` has all fields, with what they mean.
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
    /// What can't be read, what is unknown, and what is not allowed, with the field's name.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Format::Toml.parse(text)?.policies()
    }

    /// Reads policies from JSON, with the same fields.
    ///
    /// # Errors
    ///
    /// What can't be read, what is unknown, and what is not allowed, with the field's name.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Format::Json.parse(text)?.policies()
    }

    /// Reads policies from a file that ends in `.toml` or `.json` and has at most 1 MiB.
    ///
    /// # Errors
    ///
    /// What can't be read, what is unknown, and what is not allowed, with the field's name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Document::open(path.as_ref())?.policies()
    }

    /// Audits a file. Unlike [`open`](Self::open), which refuses the first value that breaks a
    /// rule, it finds them all: use it where people read the answer.
    ///
    /// # Errors
    ///
    /// What can't be read, what is unknown, and what not even an approval allows.
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
    /// What can't be read, what is unknown, and what not even an approval allows.
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
    /// The name of the calling service, which is one for all.
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

    /// The policies, each of them checked in a way.
    fn build(&self, check: Check) -> Result<Policies, ConfigError> {
        self.check_names()?;
        let policy = |place: &str, section: &Section, check: Check| {
            let (profile, section) = self.resolve(place, section)?;
            check(section.apply(profile)).map_err(|error| error.inside(place))
        };
        let default = policy("default", &self.default, check)?;
        // What breaks a rule here may be approved where it is used, or not be used at all.
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
            if standard_profile(name).is_ok() {
                let allowed = "a name that no profile of the standard has";
                return Err(strange("profiles", name, allowed));
            }
        }
        let mut known = BTreeSet::new();
        for name in self.dependencies.keys() {
            if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
                let allowed = "names of 1 to 255 visible characters";
                return Err(strange("dependencies", name, allowed));
            }
            if !known.insert(name.to_ascii_lowercase()) {
                let allowed = "names that differ in more than case";
                return Err(strange("dependencies", name, allowed));
            }
        }
        Ok(())
    }

    /// What a section says with all it starts from, down to a profile of the standard.
    fn resolve(&self, place: &str, section: &Section) -> Result<(Profile, Section), ConfigError> {
        let field = || format!("{place}.profile");
        let mut whole = section.clone();
        let mut last = section;
        for _ in 0..DEEPEST {
            last = match &last.profile {
                Some(name) => match (standard_profile(name), self.profiles.get(name)) {
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
            whole = whole.over(last.clone());
        }
        let value = format_args!("{:?}", section.profile.as_deref().unwrap_or("default"));
        let allowed = format!("what leads to a profile of the standard in {DEEPEST} steps");
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

fn strange(table: &'static str, name: &str, allowed: &'static str) -> ConfigError {
    ConfigError::new(None, table, format_args!("{name:?}"), allowed)
}

fn too_large(name: impl Into<std::borrow::Cow<'static, str>>) -> ConfigError {
    ConfigError::new(
        None,
        name,
        "larger than that",
        format!("at most {LARGEST} bytes (1 MiB)"),
    )
}

/// A table's name in a file, quoted where it has to be.
fn place(table: &str, name: &str) -> String {
    format!("{table}.{}", read::key(name))
}
