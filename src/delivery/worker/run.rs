use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep},
};

use super::{Admits, Handler, Limits, Phase, Wake, job::Job};
use crate::{
    backoff::{Backoff, FullJitter},
    store::{
        StoreError,
        journal::{Entry, Journal, Priority, Want},
    },
    telemetry,
};

/// How many lanes are looked at in one go.
const LANES: u32 = 64;

/// How long to wait after the journal failed.
const PAUSE: FullJitter = FullJitter {
    base: Duration::from_millis(500),
    cap: Duration::from_secs(30),
};

/// How often the queue is counted.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// The loop of a worker.
pub(super) struct Run<J, H> {
    job: Job<J, H>,
    queue: Cow<'static, str>,
    limits: Limits,
    wake: Wake,
    running: JoinSet<()>,
    /// Which lane each task is of, and how many tasks each lane has.
    lane_of: HashMap<Id, String>,
    in_lane: HashMap<String, usize>,
    /// The lane that was looked at last.
    cursor: Option<String>,
    counted: Option<Instant>,
}

impl<J: Journal, H: Handler> Run<J, H> {
    pub(super) fn new(
        job: Job<J, H>,
        queue: Cow<'static, str>,
        limits: Limits,
        wake: Wake,
    ) -> Self {
        Self {
            job,
            queue,
            limits,
            wake,
            running: JoinSet::new(),
            lane_of: HashMap::new(),
            in_lane: HashMap::new(),
            cursor: None,
            counted: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut phase = self.job.phase.clone();
        let mut failures = 0;
        let mut look = true;
        loop {
            let mut pause = self.limits.poll;
            if look || self.is_hungry() {
                match self.fill().await {
                    Ok(()) => failures = 0,
                    Err(error) => {
                        telemetry::journal_trouble("lease", error.kind());
                        pause = PAUSE.delay(failures, Duration::ZERO, rand::random());
                        failures += 1;
                    }
                }
                self.count().await;
            }
            look = true;
            tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase >= Phase::Finishing) => break,
                Some(ended) = self.running.join_next_with_id() => {
                    self.ended(&ended);
                    // The journal is not asked for each of them.
                    look = failures == 0 && self.running.is_empty();
                }
                () = self.wake.woken() => {}
                // Workers that started together do not stay together.
                () = sleep(pause.mul_f64(rand::random_range(0.9..1.1))) => {}
            }
            while let Some(ended) = self.running.try_join_next_with_id() {
                self.ended(&ended);
            }
        }
        while let Some(ended) = self.running.join_next_with_id().await {
            self.ended(&ended);
        }
    }

    fn admits(&self) -> (usize, Priority) {
        let most = self.limits.concurrency;
        match self.job.handler.admits() {
            Admits::All => (most, Priority::Low),
            Admits::UpTo(limit) => (limit.min(most), Priority::Low),
            Admits::Urgent => (most, Priority::Urgent),
        }
    }

    /// Whether there is enough room to ask the journal for more.
    fn is_hungry(&self) -> bool {
        let (limit, _) = self.admits();
        self.running.len() * 4 <= limit * 3
    }

    /// Leases from all lanes, beginning where it ended last, until there is no room or each was
    /// looked at.
    async fn fill(&mut self) -> Result<(), StoreError> {
        let start = self.cursor.clone();
        let mut wrapped = start.is_none();
        loop {
            let cursor = self.cursor.as_deref();
            let mut lanes = self.job.journal.lanes(&self.queue, cursor, LANES).await?;
            let mut last = lanes.len() < LANES as usize;
            if let Some(start) = start.as_ref().filter(|_| wrapped) {
                let behind = lanes.iter().position(|lane| lane > start);
                last |= behind.is_some();
                lanes.truncate(behind.unwrap_or(lanes.len()));
            }
            if !self.lease(lanes).await? {
                return Ok(());
            }
            if last {
                self.cursor = None;
                if wrapped {
                    return Ok(());
                }
                wrapped = true;
            }
        }
    }

    /// Leases from these lanes, all at the same time; whether there is room for more.
    async fn lease(&mut self, lanes: Vec<String>) -> Result<bool, StoreError> {
        let (limit, through) = self.admits();
        let mut room = limit.saturating_sub(self.running.len());
        let mut leases = JoinSet::new();
        for lane in lanes {
            if room == 0 {
                break;
            }
            self.cursor = Some(lane.clone());
            let taken = self.in_lane.get(&lane).copied().unwrap_or_default();
            let wanted = room.min(self.limits.per_lane.saturating_sub(taken));
            if wanted > 0 {
                room -= wanted;
                let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
                let want = Want {
                    through,
                    ..Want::new(self.queue.clone(), lane, wanted, self.limits.lease)
                };
                let journal = Arc::clone(&self.job.journal);
                leases.spawn(async move { journal.lease(want).await });
            }
        }
        let mut failure = None;
        while let Some(leased) = leases.join_next().await {
            match leased {
                Ok(Ok(entries)) => entries.into_iter().for_each(|entry| self.begin(entry)),
                Ok(Err(error)) => failure = Some(error),
                // A journal that panics is the user's own.
                Err(_) => {}
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(self.running.len() < limit),
        }
    }

    fn begin(&mut self, entry: Entry) {
        telemetry::leased(&self.queue, entry.changed_at.since(entry.due_at));
        let lane = entry.lane.clone();
        *self.in_lane.entry(lane.clone()).or_default() += 1;
        let task = self.running.spawn(self.job.clone().run(entry));
        self.lane_of.insert(task.id(), lane);
    }

    fn ended(&mut self, ended: &Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let Some(lane) = self.lane_of.remove(&id) else {
            return;
        };
        if let Some(tasks) = self.in_lane.get_mut(&lane) {
            *tasks -= 1;
            if *tasks == 0 {
                self.in_lane.remove(&lane);
            }
        }
    }

    /// Measures the queue, now and then.
    async fn count(&mut self) {
        let due = self.counted.is_none_or(|at| at.elapsed() >= COUNT_EVERY);
        if due && telemetry::counts_queues() {
            self.counted = Some(Instant::now());
            if let Ok(counts) = self.job.journal.counts(&self.queue).await {
                telemetry::queue(&self.queue, &counts);
            }
        }
    }
}
