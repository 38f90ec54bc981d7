//! Instructions per call, counted by valgrind, which no other load on the machine can disturb.

use std::process::Command;

use super::request::Shape;

const FEW: u64 = 500;
const MANY: u64 = 2500;

/// Whether valgrind is at hand.
pub(super) fn available() -> bool {
    let version = Command::new("valgrind").arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// Two runs of different length, so that starting up cancels out.
pub(super) fn per_call(contestant: &str, shape: Shape) -> Option<f64> {
    let few = count(contestant, shape, FEW)?;
    let many = count(contestant, shape, MANY)?;
    Some((many as f64 - few as f64) / (MANY - FEW) as f64)
}

fn count(contestant: &str, shape: Shape, calls: u64) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().ok()?)
        .args(["one", contestant, shape.name(), &calls.to_string()])
        .output()
        .ok()?;
    let log = String::from_utf8_lossy(&output.stderr);
    let (_, collected) = log.split_once("Collected : ")?;
    collected.split_whitespace().next()?.parse().ok()
}
