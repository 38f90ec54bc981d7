use crate::store::journal::Status;
use std::{borrow::Cow, collections::VecDeque, sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{Admits, Handler, Limits, Phase, WorkerNotifier, job::Job, slots::Slots};
use crate::{
    backoff::{Backoff, FullJitter},
    store::{
        StoreError,
        journal::{Entry, Journal, LeaseRequest, Priority, coalesce::coalesce},
    },
    telemetry,
};

/// How many lanes are looked at in one go.
const LANES: u32 = 64;

/// How many entries there may be that are handled, or were and are not settled yet: so many times
/// as many as are handled at a time. A commit can take as long as a few leases.
const UNSETTLED: usize = 4;

/// How long to wait after the journal failed.
const PAUSE: FullJitter = FullJitter {
    base: Duration::from_millis(500),
    cap: Duration::from_secs(30),
};

/// How often the queue is counted.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// Whether to look for what is due.
enum Look {
    Not,
    /// Only in lanes of which it is known that they have something.
    Known,
    Anew,
}

/// The loop of a worker.
pub(super) struct Run<J, H> {
    job: Job<J, H>,
    queue: Cow<'static, str>,
    limits: Limits,
    wake: WorkerNotifier,
    slots: Arc<Slots>,
    /// What is being handled, and what was and is being settled.
    jobs: JoinSet<()>,
    /// The lane that was leased from last.
    cursor: Option<String>,
    /// Lanes that had more than there was room for, those that had their turn at the end.
    known: VecDeque<String>,
    /// Whether these are all such lanes, as of the last look.
    all_known: bool,
    counted: Option<Instant>,
}

impl<J: Journal, H: Handler> Run<J, H> {
    pub(super) fn new(
        job: Job<J, H>,
        queue: Cow<'static, str>,
        limits: Limits,
        wake: WorkerNotifier,
    ) -> Self {
        Self {
            job,
            queue,
            limits,
            wake,
            slots: Arc::default(),
            jobs: JoinSet::new(),
            cursor: None,
            known: VecDeque::new(),
            all_known: false,
            counted: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut phase = self.job.phase.clone();
        let mut failures = 0;
        let mut look = Look::Anew;
        let mut next = Instant::now();
        loop {
            let looked = match look {
                Look::Not => None,
                Look::Known => Some(self.lease_known().await),
                Look::Anew => {
                    let looked = self.fill().await;
                    next = self.after(self.limits.poll);
                    self.count().await;
                    Some(looked)
                }
            };
            match looked {
                Some(Ok(())) => failures = 0,
                Some(Err(error)) => {
                    telemetry::journal_trouble("lease", error.kind().as_str());
                    next = self.after(PAUSE.delay(failures, Duration::ZERO, rand::random()));
                    failures += 1;
                }
                None => {}
            }
            look = tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase >= Phase::Finishing) => break,
                () = self.slots.freed() => self.look_on(failures),
                Some(_) = self.jobs.join_next() => match self.jobs.is_empty() && failures == 0 {
                    true => Look::Anew,
                    false => self.look_on(failures),
                },
                () = self.wake.woken() => Look::Anew,
                () = sleep_until(next) => Look::Anew,
            };
        }
        while self.jobs.join_next().await.is_some() {}
    }

    /// Workers that started together do not stay together.
    fn after(&self, pause: Duration) -> Instant {
        Instant::now() + pause.mul_f64(rand::random_range(0.9..1.1))
    }

    /// What to do about room that there is. The journal is not asked for each that ended, nor what
    /// is known already.
    fn look_on(&mut self, failures: u32) -> Look {
        if failures > 0 || !self.is_hungry() {
            return Look::Not;
        }
        match (self.known.is_empty(), self.all_known) {
            (false, _) => Look::Known,
            (true, false) => Look::Anew,
            (true, true) => Look::Not,
        }
    }

    fn admits(&self) -> (usize, Priority) {
        let most = self.limits.concurrency;
        match self.job.handler.admits() {
            Admits::All => (most + self.limits.ahead, Priority::Low),
            Admits::UpTo(limit) => (limit.min(most), Priority::Low),
            Admits::Urgent => (most, Priority::Urgent),
        }
    }

    /// How many may be begun. Those that wait to be settled have no slot any more, but there may not
    /// be any number of them.
    fn room(&mut self, limit: usize) -> usize {
        while self.jobs.try_join_next().is_some() {}
        let most = (self.limits.concurrency + self.limits.ahead) * UNSETTLED;
        let unsettled = most.saturating_sub(self.jobs.len());
        limit.saturating_sub(self.slots.taken()).min(unsettled)
    }

    /// Whether there is enough room to ask the journal for more.
    fn is_hungry(&mut self) -> bool {
        let (limit, _) = self.admits();
        self.room(limit) * 4 >= limit
    }

    /// Leases from all lanes, beginning where it ended last, until there is no room or each was
    /// looked at.
    async fn fill(&mut self) -> Result<(), StoreError> {
        self.known.clear();
        self.all_known = false;
        let (limit, _) = self.admits();
        let start = self.cursor.clone();
        let mut wrapped = start.is_none();
        let mut had_more = Vec::new();
        while self.room(limit) > 0 {
            let cursor = self.cursor.as_deref();
            let mut lanes = self.job.journal.lanes(&self.queue, cursor, LANES).await?;
            let mut last = lanes.len() < LANES as usize;
            if let Some(start) = start.as_ref().filter(|_| wrapped) {
                let behind = lanes.iter().position(|lane| lane > start);
                last |= behind.is_some();
                lanes.truncate(behind.unwrap_or(lanes.len()));
            }
            self.known.extend(lanes);
            had_more.append(&mut self.lease().await?);
            if last && wrapped {
                self.all_known = true;
                self.come_round(had_more);
                return Ok(());
            }
            if !self.known.is_empty() {
                return Ok(());
            }
            if last {
                self.cursor = None;
                wrapped = true;
            }
        }
        Ok(())
    }

    /// Leases from the lanes that had more. Only when each of them had its turn, and if there are
    /// others, is it asked which there are.
    async fn lease_known(&mut self) -> Result<(), StoreError> {
        let had_more = self.lease().await?;
        if self.all_known {
            self.come_round(had_more);
        }
        Ok(())
    }

    /// Those that had more are next after all others; if there are no others, a look begins anew.
    fn come_round(&mut self, had_more: Vec<String>) {
        if self.known.is_empty() {
            self.cursor = None;
        }
        self.known.extend(had_more);
    }

    /// Leases from known lanes, all at the same time, until there is no room. Those that had more
    /// are not known any more, but returned.
    async fn lease(&mut self) -> Result<Vec<String>, StoreError> {
        let (limit, through) = self.admits();
        // Who is about to be done makes room for this one.
        let mut room = coalesce(limit, || self.room(limit)).await;
        let mut had_more = Vec::new();
        let mut leases = JoinSet::new();
        while room > 0
            && let Some(lane) = self.known.pop_front()
        {
            self.cursor = Some(lane.clone());
            let taken = self.slots.taken_by(&lane);
            let wanted = room.min(self.limits.per_lane.saturating_sub(taken));
            let Some(limit) = u32::try_from(wanted).ok().filter(|wanted| *wanted > 0) else {
                had_more.push(lane);
                continue;
            };
            room -= wanted;
            let want = LeaseRequest {
                through,
                ..LeaseRequest::new(self.queue.clone(), lane.clone(), limit, self.limits.lease)
            };
            let journal = Arc::clone(&self.job.journal);
            leases.spawn(async move { (lane, wanted, journal.lease(want).await) });
        }
        let mut failure = None;
        while let Some(leased) = leases.join_next().await {
            match leased {
                Ok((lane, wanted, Ok(entries))) => {
                    if entries.len() == wanted {
                        had_more.push(lane);
                    }
                    entries.into_iter().for_each(|entry| self.begin(entry));
                }
                Ok((_, _, Err(error))) => failure = Some(error),
                // A journal that panics is the user's own.
                Err(_) => {}
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(had_more),
        }
    }

    fn begin(&mut self, entry: Entry) {
        telemetry::leased(&self.queue, entry.changed_at.since(entry.due_at));
        let slot = self.slots.take(entry.lane.clone());
        self.jobs.spawn(self.job.clone().run(entry, slot));
    }

    /// Measures the queue, now and then.
    async fn count(&mut self) {
        let due = self.counted.is_none_or(|at| at.elapsed() >= COUNT_EVERY);
        if due && telemetry::counts_queues() {
            self.counted = Some(Instant::now());
            if let Ok(counts) = self.job.journal.counts(&self.queue).await {
                let by_status = [Status::Queued, Status::Processing, Status::Failed]
                    .map(|status| (status.as_str(), counts.of(status)));
                telemetry::queue(&self.queue, by_status, counts.oldest.unwrap_or_default());
            }
        }
    }
}
