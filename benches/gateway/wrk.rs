//! wrk, and what it says.

use std::process::Command;

/// The figures of one run of `wrk`.
pub(crate) struct Load {
    /// Requests a second.
    pub(crate) rate: f64,
    /// In milliseconds, as the next one.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Replies that are not 2xx or 3xx, and connections that broke.
    pub(crate) failed: u64,
}

/// Loads a server for so many seconds, with this script if there is one.
pub(crate) fn wrk(url: &str, seconds: u32, script: Option<&str>) -> Load {
    let mut command = Command::new("wrk");
    command.args([
        "--threads",
        "1",
        "--connections",
        "16",
        "--latency",
        "--duration",
    ]);
    command.arg(format!("{seconds}s"));
    let path = std::env::temp_dir().join(format!("reprise-{}.lua", std::process::id()));
    if let Some(script) = script {
        std::fs::write(&path, script).unwrap();
        command.arg("--script").arg(&path);
    }
    let output = command.arg(url).output();
    let output = output.expect("wrk, which tests/run gateway installs");
    let _ = std::fs::remove_file(&path);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let after = |start: &str| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(start))
    };
    let number = |text: &str| -> u64 { text.trim().parse().unwrap_or(0) };
    // Socket errors: connect 0, read 0, write 0, timeout 0
    let broken = after("Socket errors:").map_or(0, |line| {
        line.split(',')
            .filter_map(|part| part.split_whitespace().last())
            .map(number)
            .sum()
    });
    Load {
        rate: after("Requests/sec:")
            .and_then(|rate| rate.trim().parse().ok())
            .expect("a rate"),
        p50: after("50%").and_then(milliseconds).expect("a percentile"),
        p99: after("99%").and_then(milliseconds).expect("a percentile"),
        failed: broken + after("Non-2xx or 3xx responses:").map_or(0, number),
    }
}

/// wrk writes 812.00us, 1.25ms, 1.02s.
fn milliseconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let units = [("us", 0.001), ("ms", 1.0), ("s", 1000.0), ("m", 60_000.0)];
    units.into_iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number * factor)
    })
}
