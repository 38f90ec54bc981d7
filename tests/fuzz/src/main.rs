//! One program for all targets, since linking takes longer than any of them: `REPRISE_FUZZ` names
//! the one to run, and the rest of the command line is libFuzzer's. A failed assertion is a crash,
//! whose input libFuzzer writes to a file; given that file's name, it is run again.
#![no_main]

mod bodies;
mod calls;
mod cursor;
mod envelopes;
mod fields;
mod policies;
mod retry_after;
mod support;

use std::sync::OnceLock;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 7] = [
    ("bodies", bodies::run),
    ("calls", calls::run),
    ("cursor", cursor::run),
    ("envelopes", envelopes::run),
    ("fields", fields::run),
    ("policies", policies::run),
    ("retry_after", retry_after::run),
];

fn target() -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("REPRISE_FUZZ").unwrap_or_default();
        match TARGETS.iter().find(|(known, _)| *known == name) {
            Some((_, run)) => *run,
            None => {
                let names = TARGETS.map(|(name, _)| name).join(", ");
                eprintln!("REPRISE_FUZZ={name:?} is no target; there are: {names}");
                std::process::exit(2);
            }
        }
    })
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| target()(input));
