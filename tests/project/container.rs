//! The container file: Debian's packages alone, and nothing that the project does not have.

use std::{fs, path::Path};

/// The instructions of a container file, with their continued lines.
fn instructions() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("Dockerfile")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let lines = joined.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()))
        .collect()
}

#[test]
fn the_container_is_built_from_debians_packages_alone() {
    let all = instructions();
    let of = |wanted: &str| {
        let found = all.iter().filter(|(name, _)| name == wanted);
        found.map(|(_, rest)| rest.clone()).collect::<Vec<_>>()
    };
    for image in of("FROM") {
        assert!(image.starts_with("debian:"), "{image}");
    }
    for run in of("RUN") {
        for other in ["curl", "wget", "pip", "rustup", "git "] {
            assert!(!run.contains(other), "{run}");
        }
        for address in run.split_whitespace().filter(|word| word.contains("://")) {
            assert_eq!(address, "http://deb.debian.org/debian");
        }
    }
    let build = of("RUN")
        .into_iter()
        .find(|run| run.contains("cargo build"));
    let build = build.unwrap();
    let manifest: toml::Table =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
            .unwrap()
            .parse()
            .unwrap();
    let program = manifest["bin"][0]["name"].as_str().unwrap();
    for word in [
        "--locked",
        "--profile dist",
        "--features cli,postgres,redis",
        &format!("--bin {program}"),
    ] {
        assert!(build.contains(word), "{word}: {build}");
    }
    assert!(manifest["features"].get("cli").is_some());
    assert!(manifest["profile"].get("dist").is_some());
    let copied = of("COPY").pop().unwrap();
    let built = format!("/src/target/dist/{program} ");
    assert!(copied.contains(&built), "{copied}");
    // Whoever breaks in is nobody.
    let user = of("USER").pop().unwrap();
    assert!(
        user.split(':').all(|id| id.parse::<u32>().unwrap() > 0),
        "{user}"
    );
    assert_eq!(of("ENTRYPOINT"), [format!("[\"{program}\"]")]);
    assert!(of("CMD")[0].contains("\"gateway\", \"--config\""));
}
