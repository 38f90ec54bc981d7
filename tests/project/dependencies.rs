//! Checks the lists of `deny.toml` without `cargo deny`.

use std::{collections::BTreeSet, env, fs, path::Path, process::Command};

use serde_json::Value;

struct Project {
    deny: toml::Table,
    packages: Vec<Value>,
}

fn project() -> Project {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let deny = fs::read_to_string(root.join("deny.toml")).unwrap();
    let metadata = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version=1",
            "--all-features",
            "--locked",
        ])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(
        metadata.status.success(),
        "{}",
        String::from_utf8_lossy(&metadata.stderr)
    );
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    Project {
        deny: deny.parse().unwrap(),
        packages: metadata["packages"].as_array().unwrap().clone(),
    }
}

#[test]
fn every_licence_is_one_that_is_allowed() {
    let Project { deny, packages } = project();
    let allowed = deny["licenses"]["allow"].as_array().unwrap();
    let allowed: Vec<_> = allowed.iter().map(|name| name.as_str().unwrap()).collect();
    for package in &packages {
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(
            is_allowed(licence, &allowed),
            "{}: {licence:?}",
            package["name"]
        );
    }
}

#[test]
fn no_dependency_is_banned_or_comes_from_elsewhere() {
    let Project { deny, packages } = project();
    let banned = deny["bans"]["deny"].as_array().unwrap();
    let banned: Vec<_> = banned
        .iter()
        .map(|ban| ban["crate"].as_str().unwrap())
        .collect();
    for package in &packages {
        let name = package["name"].as_str().unwrap();
        assert!(!banned.contains(&name), "{name} is banned");
        match package["source"].as_str() {
            Some(source) => assert!(source.starts_with("registry+"), "{name}: {source}"),
            None => assert_eq!(name, env!("CARGO_PKG_NAME")),
        }
    }
    let ours = packages
        .iter()
        .find(|package| package["source"].is_null())
        .unwrap();
    let dependencies = ours["dependencies"].as_array().unwrap();
    let others = |dependency: &&Value| dependency["path"].is_null();
    for dependency in dependencies.iter().filter(others) {
        assert_ne!(
            dependency["req"], "*",
            "{}: any version",
            dependency["name"]
        );
    }
}

/// Whether an SPDX expression allows a use under these licences.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut tokens = spaced.split_whitespace().peekable();
    any(&mut tokens, allowed) && tokens.next().is_none()
}

type Tokens<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(tokens: &mut Tokens<'_>, allowed: &[&str]) -> bool {
    let mut holds = all(tokens, allowed);
    while tokens.next_if_eq(&"OR").is_some() {
        holds |= all(tokens, allowed);
    }
    holds
}

fn all(tokens: &mut Tokens<'_>, allowed: &[&str]) -> bool {
    let mut holds = one(tokens, allowed);
    while tokens.next_if_eq(&"AND").is_some() {
        holds &= one(tokens, allowed);
    }
    holds
}

fn one(tokens: &mut Tokens<'_>, allowed: &[&str]) -> bool {
    if tokens.next_if_eq(&"(").is_some() {
        let holds = any(tokens, allowed);
        return tokens.next() == Some(")") && holds;
    }
    let name = tokens.next().unwrap_or_default();
    let with_exception = tokens.next_if_eq(&"WITH").is_some() && tokens.next().is_some();
    allowed.contains(&name) && !with_exception
}

#[test]
fn expressions_are_read_as_spdx_means_them() {
    let allowed = ["MIT", "ISC"];
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("MIT AND ISC", true),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("(GPL-3.0 OR MIT) AND BSD", false),
        ("MIT WITH exception", false),
        ("", false),
        ("MIT )", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}

/// Default features bring what every user has: no TLS and no HTTP/2.
#[test]
fn default_features_bring_few_dependencies() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "-e", "normal", "--prefix", "none"])
        .args(["--format", "{p}", "--no-dedupe"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success());
    let tree = String::from_utf8(tree.stdout).unwrap();
    let ours = concat!(env!("CARGO_PKG_NAME"), " ");
    let packages: BTreeSet<_> = tree
        .lines()
        .filter(|line| !line.starts_with(ours))
        .collect();
    assert!(packages.len() <= 42, "{}: {packages:#?}", packages.len());
    for foreign in ["h2 ", "rustls ", "hyper ", "axum ", "tonic ", "reqwest "] {
        assert!(
            !packages.iter().any(|name| name.starts_with(foreign)),
            "{foreign}"
        );
    }
}

/// The README is read where the package is, too.
#[test]
fn the_package_has_what_its_readme_links_to() {
    let listed = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(listed.status.success());
    let listed = String::from_utf8(listed.stdout).unwrap();
    let packaged: BTreeSet<_> = listed.lines().collect();
    assert!(packaged.iter().all(|path| !path.starts_with("tests/")));
    for (page, text, folder) in [
        ("README.md", include_str!("../../README.md"), ""),
        (
            "examples/README.md",
            include_str!("../../examples/README.md"),
            "examples/",
        ),
    ] {
        for link in text.split("](").skip(1) {
            let (link, _) = link.split_once(')').unwrap();
            let path = format!("{folder}{link}");
            let is_there = link.contains("://") || packaged.contains(&*path);
            assert!(is_there, "{page} links to {link}");
        }
    }
}
