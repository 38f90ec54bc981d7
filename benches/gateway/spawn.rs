//! Processes of the gateway.

use std::{
    env,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

/// The example, optimised.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        // …/target/release/deps/gateway-…
        let this = env::current_exe().unwrap();
        let profile = this.parent().and_then(Path::parent).unwrap();
        let cargo = env::var_os("CARGO").unwrap_or("cargo".into());
        let mut build = Command::new(cargo);
        // What cargo told this process of its package would have some build scripts run again.
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy();
            let told = [
                "CARGO_PKG_",
                "CARGO_MANIFEST_",
                "CARGO_CRATE_",
                "CARGO_BIN_",
            ];
            if told.iter().any(|start| name.starts_with(start)) {
                build.env_remove(&*name);
            }
        }
        let built = build
            .args([
                "build",
                "--release",
                "--all-features",
                "--example",
                "gateway",
            ])
            .arg("--target-dir")
            .arg(profile.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.unwrap().success(), "no example");
        profile.join("examples/gateway")
    })
}

/// A gateway, which is killed when dropped.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) url: String,
}

impl Gateway {
    pub(crate) fn start(upstream: &str, flags: &[&str]) -> Self {
        let mut child = Command::new(binary())
            .args(["--listen", "127.0.0.1:0", "--upstream", upstream])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url =
            lines.find_map(|line| Some(line.unwrap().strip_prefix("listening on ")?.to_owned()));
        Self {
            child,
            url: url.expect("it listens"),
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
