//! Requests with idempotency keys, on an axum router that is called in process: ours and
//! axum-idempotent, both with their records in memory.
//!
//! axum-idempotent finds a stored reply by the request's key, or by a hash of the whole request,
//! and keeps it in the caller's session: it needs a session layer and a cookie layer around it,
//! which are part of what is measured. Every router gets the same requests, cookie and key in all
//! of them, and ours takes the cookie as its scope. What is not compared, since only one of the
//! two does it: leases and orphans, a handler that goes on when its caller is gone, a store that
//! refuses rather than forgets, trailers.

mod contestant;
mod safety;
mod speed;

use self::{contestant::Contestant, safety::Safety, speed::Speed};
use crate::report;

pub(crate) fn run(quick: bool) {
    eprintln!("requests one after the other");
    let speeds = speed::measure(if quick { 21 } else { 201 });
    print_speeds(&speeds);
    eprintln!("requests that are executed twice");
    let safeties = safety::measure();
    print_safeties(&safeties);

    let mut values = Vec::new();
    for speed in &speeds {
        let load = speed.load;
        for (contestant, of) in Contestant::ALL.into_iter().zip(&speed.of) {
            let name = contestant.name();
            values.push((format!("{load}_per_second_{name}"), 1e9 / of.nanos));
            if contestant.is_theirs() {
                values.push((
                    format!("{load}_throughput_ratio_to_{name}"),
                    of.ours_to_this,
                ));
            }
        }
    }
    for (contestant, safety) in Contestant::ALL.into_iter().zip(&safeties) {
        let name = contestant.name();
        values.extend([
            (
                format!("executions_of_{}_{name}", safety::DUPLICATES),
                safety.concurrent,
            ),
            (format!("executions_after_hang_up_{name}"), safety.hung_up),
        ]);
    }
    report::json("idempotency", &values);
}

fn print_speeds(speeds: &[Speed]) {
    for speed in speeds {
        let rows: Vec<_> = Contestant::ALL
            .into_iter()
            .zip(&speed.of)
            .map(|(contestant, of)| {
                vec![
                    contestant.title().into(),
                    format!("{:.0}", 1e9 / of.nanos),
                    format!("{:.0}", of.nanos),
                    format!("{:.0}", of.added_nanos),
                    format!("{:.2}", of.ours_to_this),
                ]
            })
            .collect();
        let head = [
            "router",
            "requests/s",
            "ns",
            "added ns",
            "our throughput to this",
        ];
        report::table(speed.title, &head, &rows);
    }
}

fn print_safeties(safeties: &[Safety]) {
    let rows: Vec<_> = Contestant::ALL
        .into_iter()
        .zip(safeties)
        .map(|(contestant, safety)| {
            vec![
                contestant.title().into(),
                safety.concurrent.to_string(),
                safety.replies.clone(),
                safety.hung_up.to_string(),
                safety.other_body.clone(),
            ]
        })
        .collect();
    let many = format!("executions of {} at once", safety::DUPLICATES);
    let head = [
        "router",
        &many,
        "their replies",
        "executions after a hang-up",
        "same key, other body",
    ];
    report::table("one operation, asked for more than once", &head, &rows);
}
