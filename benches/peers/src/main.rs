//! The cost of the layers next to that of other libraries, measured in one run.

mod allocations;
mod before;
mod client;
mod idempotency;
mod journal;
mod report;
mod rounds;
mod stacks;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const USAGE: &str = "\
usage: peers <SUBCOMMAND> [--quick]

subcommands:
  client       the cost of a call that succeeds: time, allocations, instructions, and the budget
  stacks       the same on reqwest, hyper and tonic, without a network and over loopback
  idempotency  requests with idempotency keys on a server: throughput, and what is executed twice
  journal      jobs that are queued durably and worked off, on SQLite, and on PostgreSQL if
               REPRISE_TEST_POSTGRES says where it is

options:
  --quick      a short run, for a look: fewer rounds, so noisier
  --help       this text";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["client"] => client::run(false),
        ["client", "--quick"] | ["--quick", "client"] => client::run(true),
        ["stacks"] => stacks::run(false),
        ["stacks", "--quick"] | ["--quick", "stacks"] => stacks::run(true),
        ["idempotency"] => idempotency::run(false),
        ["idempotency", "--quick"] | ["--quick", "idempotency"] => idempotency::run(true),
        ["journal"] => journal::run(false),
        ["journal", "--quick"] | ["--quick", "journal"] => journal::run(true),
        // Internal subcommands: the benchmarks start them under valgrind and in many processes.
        ["one", contestant, shape, calls] => return client::one(contestant, shape, calls),
        ["sample", shape, rounds, calls] => return client::sample(shape, rounds, calls),
        ["stack-one", kind, contestant, calls] => return stacks::one(kind, contestant, calls),
        ["stack-sample", rounds, calls] => return stacks::sample(rounds, calls),
        ["--help" | "-h" | "help"] | [_, "--help" | "-h"] => println!("{USAGE}"),
        [] => return wrong("a subcommand is missing"),
        _ => return wrong(&format!("no such thing: {}", arguments.join(" "))),
    }
    ExitCode::SUCCESS
}

fn wrong(what: &str) -> ExitCode {
    eprintln!("{what}\n\n{USAGE}");
    ExitCode::from(2)
}
