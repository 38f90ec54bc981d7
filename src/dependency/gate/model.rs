#![allow(missing_docs, reason = "their names say what they show")]

use loom::{sync::Arc, thread};

use super::*;

const SECOND: u64 = 1_000_000_000;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn ra_9_of_two_that_ask_at_once_the_later_holds() {
    loom::model(|| {
        let gate = Arc::new(Gate::new());
        let other = Arc::clone(&gate);
        let thread = thread::spawn(move || other.learn(0, secs(5)));
        gate.learn(0, secs(2));
        thread.join().unwrap();
        let hold = gate.hold(|| SECOND).unwrap();
        assert_eq!(hold.left, secs(4));
    });
}

/// A call that finds the gate past its time closes nothing that was asked for meanwhile.
pub fn ra_9_opening_it_forgets_nothing_new() {
    loom::model(|| {
        let gate = Arc::new(Gate::new());
        gate.learn(0, secs(1));
        let other = Arc::clone(&gate);
        let thread = thread::spawn(move || other.learn(2 * SECOND, secs(3)));
        let _ = gate.hold(|| 2 * SECOND);
        thread.join().unwrap();
        assert_eq!(gate.hold(|| 2 * SECOND).unwrap().left, secs(3));
    });
}
