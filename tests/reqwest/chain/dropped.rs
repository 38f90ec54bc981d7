//! Calls and attempts that are called off.

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, timeout};
use tower_reprise::{
    Dependencies, Policy, RetryLayer, RetryOverride,
    call::{Cause, StopReason},
    stacks::{self},
};

use super::{answering, failed, get, said};
use crate::{
    cause,
    support::{deps, outcome_of, quick},
};

/// Says when it is dropped.
struct Guard(Arc<Mutex<Vec<String>>>, usize, Instant);

impl Guard {
    fn new(log: &Arc<Mutex<Vec<String>>>, number: usize) -> Self {
        log.lock().unwrap().push(format!("start {number}"));
        Self(log.clone(), number, Instant::now())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let after = self.2.elapsed().as_millis();
        let ended = format!("end {} after {after} ms", self.1);
        self.0.lock().unwrap().push(ended);
    }
}

#[tokio::test(start_paused = true)]
async fn d_3_an_attempt_that_times_out_is_gone_at_once() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let written = log.clone();
    // The waits between attempts are long enough for one that goes on to answer the next.
    let policy = Policy::http().attempt_timeout(Duration::from_secs(1));
    let deps = Dependencies::new(policy.base(Duration::from_secs(8)).build().unwrap());
    let client = answering(RetryLayer::new(deps), move |_, n| {
        let guard = Guard::new(&written, n);
        async move {
            let _guard = guard;
            tokio::time::sleep(Duration::from_millis(1001)).await;
            Ok(said(200))
        }
    });
    let wish = RetryOverride::new().max_retries(1);
    let error = failed(get(&client).with_extension(wish)).await;
    assert_eq!(outcome_of(&error), (2, Some(StopReason::Exhausted)));
    let log = log.lock().unwrap();
    let expected = [
        "start 0",
        "end 0 after 1000 ms",
        "start 1",
        "end 1 after 1000 ms",
    ];
    assert_eq!(*log, expected);
}

#[tokio::test(start_paused = true)]
async fn d_6_a_call_that_is_dropped_ends_its_attempt() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let written = log.clone();
    let deps = deps(quick());
    let client = answering(stacks::client(deps.clone()), move |_, n| {
        let guard = (n > 0).then(|| Guard::new(&written, n));
        async move {
            match guard {
                Some(_guard) => pending().await,
                None => Ok(said(503)),
            }
        }
    });
    assert!(
        timeout(Duration::from_secs(5), get(&client).send())
            .await
            .is_err()
    );
    let log = log.lock().unwrap().clone();
    assert!(log.len() == 2 && log[1].starts_with("end 1"), "{log:?}");
    // One that is waiting for its turn, too.
    let client = answering(stacks::client(deps), |_, _| async { Ok(said(503)) });
    let mut call = pin!(get(&client).send());
    poll_fn(|cx| {
        assert!(call.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn d_1_a_stall_ends_with_the_time_of_the_call() {
    let client = answering(stacks::client(deps(quick())), |_, _| pending());
    let error = failed(get(&client)).await;
    assert_eq!(outcome_of(&error), (1, Some(StopReason::Deadline)));
    assert_eq!(cause(&error), Cause::Timeout);
}
