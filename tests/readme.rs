//! The README's snippets are pasted into a new crate, as a newcomer would, and that crate builds.
//!
//! A comment before a snippet says what it finds there: `<!-- given name: type, … -->`.

#![cfg(feature = "full")]
#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

use std::{env, fmt::Write, fs, path::Path, process::Command};

/// The dependencies of a project that pastes the snippets, in this crate's own versions.
const THEIRS: [(&str, &str); 9] = [
    ("axum", ""),
    ("bytes", ""),
    ("http-body-util", ""),
    (
        "hyper-util",
        r#"features = ["client-legacy", "http1", "tokio"]"#,
    ),
    ("reqwest", "default-features = false"),
    ("reqwest-middleware", "default-features = false"),
    (
        "tokio",
        r#"features = ["macros", "net", "rt-multi-thread"]"#,
    ),
    ("tonic", ""),
    ("tower", ""),
];

fn blocks<'a>(readme: &'a str, language: &str) -> Vec<(&'a str, &'a str)> {
    let fence = format!("\n```{language}\n");
    let starts = readme.match_indices(&fence);
    let block = |(start, _): (usize, &str)| {
        let (before, rest) = readme.split_at(start);
        let code = rest[fence.len()..].split("\n```").next().unwrap();
        let last = before.lines().next_back().unwrap_or_default();
        let given = last.strip_prefix("<!-- given ");
        (
            given.map_or("", |given| given.trim_end_matches(" -->")),
            code,
        )
    };
    starts.map(block).collect()
}

/// The features that a reader is told to take: in the dependencies of each quick start, and by name
/// before a snippet.
fn features(readme: &str) -> Vec<&str> {
    let shown = blocks(readme, "toml").into_iter().map(|(_, toml)| {
        let ours = toml.lines().find(|line| line.starts_with("tower-reprise"));
        let ours = ours.unwrap();
        assert!(ours.contains("version = \"0.1\""), "{ours}");
        let (_, features) = ours.split_once("features = ").unwrap();
        features.split('"').skip(1).step_by(2).collect::<Vec<_>>()
    });
    let is_word = |line: &&str| line.contains("feature `") || line.contains("features `");
    let named = readme.lines().filter(|line| line.ends_with(':'));
    let named = named.filter(is_word);
    let named = named.map(|line| {
        let (_, features) = line.rsplit_once("feature").unwrap();
        features.split('`').skip(1).step_by(2).collect()
    });
    shown.chain(named).flatten().collect()
}

#[test]
fn every_snippet_builds_in_a_new_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let snippets = blocks(&readme, "rust");
    assert!(snippets.len() >= 3, "{} snippets", snippets.len());

    let mut main = String::from("#![allow(dead_code, unused_variables)]\nfn main() {}\n");
    for (number, (given, code)) in snippets.iter().enumerate() {
        let error = "Box<dyn std::error::Error>";
        writeln!(
            main,
            "fn snippet_{number}({given}) -> Result<(), {error}> {{\n{code}\nOk(())\n}}"
        )
        .unwrap();
    }
    let ours = format!(
        "tower-reprise = {{ version = \"0.1\", features = {:?} }}",
        features(&readme)
    );
    assert!(env!("CARGO_PKG_VERSION").starts_with("0.1."));

    let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("newcomer");
    fs::create_dir_all(new.join("src")).unwrap();
    fs::write(new.join("src/main.rs"), main).unwrap();
    fs::write(new.join("Cargo.toml"), manifest(root, &ours)).unwrap();
    // The versions that are at hand, so that nothing is fetched.
    fs::copy(root.join("Cargo.lock"), new.join("Cargo.lock")).unwrap();
    let built = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--quiet", "--target-dir"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap())
        .current_dir(&new)
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
}

/// With the line for this crate, at its path.
fn manifest(root: &Path, ours: &str) -> String {
    let mut manifest = String::from(
        "[package]\nname = \"newcomer\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
         [profile.dev]\ndebug = \"line-tables-only\"\n[profile.dev.package.\"*\"]\ndebug = false\n\
         [dependencies]\n",
    );
    let root = root.display().to_string().replace('\\', "/");
    let ours = ours.replace("version = \"0.1\"", &format!("path = {root:?}"));
    writeln!(manifest, "{ours}").unwrap();
    for (name, more) in THEIRS {
        let version = "version = \"*\"";
        let comma = if more.is_empty() { "" } else { ", " };
        writeln!(manifest, "{name} = {{ {version}{comma}{more} }}").unwrap();
    }
    manifest
}
