//! All of it in front of a service that you already have, in any language, without writing code:
//!
//! ```text
//! cargo run --release --all-features --example gateway -- \
//!     --listen 127.0.0.1:8080 --upstream http://127.0.0.1:9000 \
//!     --store sqlite:gateway.db --policy policy.toml --admin 127.0.0.1:8081
//! ```
//!
//! `--help` says what else there is. Try it in front of `python3 -m http.server 9000`:
//!
//! ```text
//! curl http://127.0.0.1:8080/                                  # passed on, streamed, retried if need be
//! curl -X POST -H 'authorization: me' -H 'idempotency-key: 1' …   # executed once, however often you ask
//! curl -X POST http://127.0.0.1:8081/maintenance/on
//! curl -X POST -H 'authorization: me' -H 'replay: true' …      # 202: written down, and done after …
//! curl -X POST http://127.0.0.1:8081/maintenance/off
//! curl http://127.0.0.1:8081/dependencies                      # budget, breaker and gate
//! ```

mod admin;
mod caller;
mod flags;
mod headers;
mod letters;
mod policy;
mod prompt;
mod replays;
mod run;
mod server;
mod settings;
mod stack;
mod store;
mod uncertain;
mod upstream;
mod wrong;

use std::process::ExitCode;

use flags::Asked;
use settings::Settings;

fn main() -> ExitCode {
    let settings = match flags::read() {
        Ok(Asked::Check(path)) => return policy::check(&path),
        Ok(Asked::Serve(values)) => Settings::read(&values),
        Err(error) => Err(error),
    };
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("gateway: {error}");
            return ExitCode::from(2);
        }
    };
    tracing_subscriber::fmt()
        .with_max_level(settings.log)
        .with_writer(std::io::stderr)
        .init();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("gateway: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run::run(settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gateway: {error}");
            let mut source = error.source();
            while let Some(error) = source {
                eprintln!("  because: {error}");
                source = error.source();
            }
            ExitCode::FAILURE
        }
    }
}
