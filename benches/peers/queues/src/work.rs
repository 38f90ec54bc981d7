//! The work that every queue is given.

use std::sync::{
    LazyLock,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{sync::Notify, task::JoinSet, time::Instant};

use crate::Queue;

/// 1 KiB.
pub(crate) static PAYLOAD: LazyLock<String> = LazyLock::new(|| "7".repeat(1024));

pub(crate) static HANDLED: Handled = Handled {
    left: AtomicUsize::new(0),
    all: Notify::const_new(),
};

/// Counts down what handlers have to do: nothing but this.
pub(crate) struct Handled {
    left: AtomicUsize,
    all: Notify,
}

impl Handled {
    pub(crate) fn expect(&self, jobs: usize) {
        self.left.store(jobs, Ordering::Relaxed);
    }

    /// Whether it was the last.
    pub(crate) fn one(&self) -> bool {
        let last = self.left.fetch_sub(1, Ordering::Relaxed) == 1;
        if last {
            self.all.notify_one();
        }
        last
    }

    pub(crate) async fn all(&self) {
        self.all.notified().await;
    }
}

/// Jobs a second.
pub(crate) async fn enqueue(queue: &impl Queue, callers: usize, jobs: usize) -> f64 {
    let started = Instant::now();
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let jobs: Vec<_> = (caller..jobs)
            .step_by(callers)
            .map(|_| queue.enqueue())
            .collect();
        running.spawn(async move {
            for job in jobs {
                job.await;
            }
        });
    }
    running.join_all().await;
    jobs as f64 / started.elapsed().as_secs_f64()
}
