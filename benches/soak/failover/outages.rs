//! A server of its own that is stopped, killed and started again, on a thread of its own: what it
//! takes to do that is neither a task nor a wait of the runtime that is watched.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{dice::Dice, report::Report, support::database::Restart};

/// The shortest and the longest time for which the server is up, and down before it is started.
const UP: (f64, f64) = (4.0, 9.0);
const DOWN: (f64, f64) = (0.0, 4.0);
/// A store has recovered by then.
const CALM: Duration = Duration::from_secs(3);

/// The ways in which a server goes, in turns.
const FAULTS: [&str; 3] = ["shut down", "stopped at once", "killed"];

#[derive(Default)]
struct State {
    over: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    up_since: Option<Instant>,
    outages: [u32; FAULTS.len()],
    longest: Duration,
}

pub(crate) struct Outages {
    state: Arc<State>,
    /// Held while the server is needed.
    needed: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Outages {
    /// Starts a server, and returns its address; `None` if the program is not installed. It fails
    /// over from now on.
    pub(crate) fn start<R: Restart>(
        seed: u64,
        make: impl AsyncFnOnce() -> Option<(R, String)> + Send + 'static,
    ) -> Option<(Self, String)> {
        let state = Arc::<State>::default();
        let (needed, until_over) = mpsc::channel();
        let (said, address) = mpsc::channel();
        let own = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let Some((server, address)) = make().await else {
                    return;
                };
                let mut server = server;
                let _ = said.send(address);
                own.fail_over(Dice::new(seed), &mut server).await;
                let _ = until_over.recv();
                drop(server);
            });
        });
        let address = address.recv().ok()?;
        let outages = Self {
            state,
            needed,
            thread,
        };
        Some((outages, address))
    }

    /// Whether the server has been up for a while.
    pub(crate) fn is_calm(&self) -> bool {
        let seen = self.state.seen.lock().expect("no panic");
        seen.up_since.is_some_and(|since| since.elapsed() > CALM)
    }

    pub(crate) fn count(&self) -> u32 {
        let seen = self.state.seen.lock().expect("no panic");
        seen.outages.iter().sum()
    }

    /// The outage that goes on, if any, is the last.
    pub(crate) fn stop(&self) {
        self.state.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn judge(&self, report: &mut Report, longest: Duration) {
        let seen = self.state.seen.lock().expect("no panic");
        for (name, count) in FAULTS.iter().zip(seen.outages) {
            report.at_least(&name.replace(' ', "_"), f64::from(count), 1.0);
        }
        // Else operations are executed again as their policy says.
        let seconds = |time: Duration| time.as_secs_f64();
        report.at_most(
            "longest_outage_seconds",
            seconds(seen.longest),
            seconds(longest),
        );
    }

    /// Stops the server for good.
    pub(crate) fn end(self) {
        drop(self.needed);
        self.thread.join().expect("no panic");
    }
}

impl State {
    async fn fail_over(&self, mut dice: Dice, server: &mut impl Restart) {
        let mut seconds = |(least, most): (f64, f64)| {
            Duration::from_secs_f64(least + (most - least) * dice.uniform())
        };
        for round in 0.. {
            self.seen.lock().expect("no panic").up_since = Some(Instant::now());
            let down_at = Instant::now() + seconds(UP);
            while Instant::now() < down_at {
                if self.over.load(Ordering::Relaxed) {
                    return;
                }
                sleep(Duration::from_millis(100)).await;
            }
            let down = Instant::now();
            self.seen.lock().expect("no panic").up_since = None;
            match round % FAULTS.len() {
                0 => server.shut_down().await,
                1 => server.stop().await,
                _ => server.kill().await,
            }
            sleep(seconds(DOWN)).await;
            server.start().await;
            let mut seen = self.seen.lock().expect("no panic");
            seen.outages[round % FAULTS.len()] += 1;
            seen.longest = seen.longest.max(down.elapsed());
        }
    }
}
