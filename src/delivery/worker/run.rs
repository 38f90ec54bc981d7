use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    Admission, Handler, LaneAdmission, TargetAdmission, WorkerNotifier, handle::Phase, job::Job,
    slots::Slots,
};
use crate::{
    backoff::{Backoff, FullJitter},
    store::{
        StoreError,
        journal::{Entry, Journal, LeaseRequest, Priority, Status, coalesce::coalesce},
    },
    telemetry,
};

/// Lanes that are listed in one call.
const LANES: u32 = 64;

/// The bound on entries that are handled or not settled yet, as a multiple of those handled at a
/// time: a commit can take as long as a few handlers.
const UNSETTLED: usize = 4;

/// The waits after the journal failed.
const BACKOFF: FullJitter = FullJitter {
    base: Duration::from_millis(500),
    cap: Duration::from_secs(30),
};

/// The interval between measurements of the queue.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// The settings of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) concurrency: usize,
    pub(super) per_lane: usize,
    pub(super) prefetch: usize,
    pub(super) lease: Duration,
    pub(super) poll: Duration,
    pub(super) in_order: bool,
}

/// The next call to the journal.
enum Next {
    Wait,
    /// Leases from the lanes in [`Run::lanes`].
    LeaseKnown,
    /// Lists the lanes and leases from them.
    List,
}

/// The loop of a worker.
pub(super) struct Run<J, H> {
    job: Job<J, H>,
    queue: Cow<'static, str>,
    limits: Limits,
    notifier: WorkerNotifier,
    slots: Arc<Slots>,
    /// Entries that are being handled or settled.
    jobs: JoinSet<()>,
    /// The lane that was leased from last.
    cursor: Option<String>,
    /// Lanes with entries that there was no room for, the least recently leased first.
    lanes: VecDeque<String>,
    /// Whether `lanes` has all such lanes, as of the last listing.
    all_listed: bool,
    /// The lanes whose target accepts urgent entries alone: so far, and in the listing before.
    held_lanes: (usize, usize),
    /// When urgent entries were last looked for there, and whether this listing does it.
    urgent_at: Option<Instant>,
    looks_for_urgent: bool,
    measured_at: Option<Instant>,
}

impl<J: Journal, H: Handler> Run<J, H> {
    pub(super) fn new(
        job: Job<J, H>,
        queue: Cow<'static, str>,
        limits: Limits,
        notifier: WorkerNotifier,
    ) -> Self {
        Self {
            job,
            queue,
            limits,
            notifier,
            slots: Arc::default(),
            jobs: JoinSet::new(),
            cursor: None,
            lanes: VecDeque::new(),
            all_listed: false,
            held_lanes: (0, 0),
            urgent_at: None,
            looks_for_urgent: false,
            measured_at: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut phase = self.job.phase.clone();
        self.job.journal.watch(&self.queue, self.notifier.shared());
        let mut failures = 0;
        let mut next = Next::List;
        let mut poll_at = Instant::now();
        loop {
            let leased = match next {
                Next::Wait => None,
                Next::LeaseKnown => Some(self.lease_known().await),
                Next::List => {
                    let leased = self.list_and_lease().await;
                    poll_at = after(self.limits.poll);
                    self.measure().await;
                    Some(leased)
                }
            };
            match leased {
                Some(Ok(())) => failures = 0,
                Some(Err(error)) => {
                    telemetry::journal_trouble("lease", error.kind().as_str());
                    poll_at = after(BACKOFF.delay(failures, Duration::ZERO, rand::random()));
                    failures += 1;
                }
                None => {}
            }
            next = tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase >= Phase::Draining) => break,
                () = self.slots.freed() => self.next(failures),
                Some(_) = self.jobs.join_next() => match self.jobs.is_empty() && failures == 0 {
                    true => Next::List,
                    false => self.next(failures),
                },
                () = self.notifier.notified() => Next::List,
                () = sleep_until(poll_at) => Next::List,
            };
        }
        while self.jobs.join_next().await.is_some() {}
    }

    /// Returns the next call to the journal after an entry ended. Waits until a quarter of the slots
    /// is free, so that the journal is not called for each entry, and lists lanes only if the last
    /// listing did not reach all of them.
    fn next(&mut self, failures: u32) -> Next {
        let (limit, _) = self.admission();
        if failures > 0 || self.room(limit) * 4 < limit {
            return Next::Wait;
        }
        match (self.lanes.is_empty(), self.all_listed) {
            (false, _) => Next::LeaseKnown,
            (true, false) => Next::List,
            (true, true) => Next::Wait,
        }
    }

    /// Returns how many entries may have a slot, and the lowest priority to lease.
    fn admission(&self) -> (usize, Priority) {
        self.bounds(self.job.handler.admission())
    }

    fn bounds(&self, admission: Admission) -> (usize, Priority) {
        let most = self.limits.concurrency;
        match admission {
            Admission::All => (most + self.limits.prefetch, Priority::Low),
            Admission::UpTo(limit) => (limit.min(most), Priority::Low),
            Admission::Urgent => (most, Priority::Urgent),
        }
    }

    /// Returns how many entries may be leased: as there are free slots, but no more than keeps
    /// handled and unsettled entries within their bound.
    fn room(&mut self, limit: usize) -> usize {
        while self.jobs.try_join_next().is_some() {}
        let most = (self.limits.concurrency + self.limits.prefetch) * UNSETTLED;
        let unsettled = most.saturating_sub(self.jobs.len());
        limit.saturating_sub(self.slots.taken()).min(unsettled)
    }

    /// Lists lanes and leases from them, from the lane after the last one leased from, until there
    /// is no room or each lane was visited.
    async fn list_and_lease(&mut self) -> Result<(), StoreError> {
        self.lanes.clear();
        self.all_listed = false;
        self.held_lanes = (0, self.held_lanes.0);
        let pause = self.limits.poll / 2;
        self.looks_for_urgent = self.urgent_at.is_none_or(|at| at.elapsed() >= pause);
        if self.looks_for_urgent {
            self.urgent_at = Some(Instant::now());
        }
        let (limit, _) = self.admission();
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
            self.lanes.extend(lanes);
            had_more.append(&mut self.lease().await?);
            if last && wrapped {
                self.all_listed = true;
                self.requeue(had_more);
                return Ok(());
            }
            if !self.lanes.is_empty() {
                return Ok(());
            }
            if last {
                self.cursor = None;
                wrapped = true;
            }
        }
        Ok(())
    }

    /// Leases from the lanes that had more. If not all lanes are listed, those that still have more
    /// are dropped: the listing comes to them after the others.
    async fn lease_known(&mut self) -> Result<(), StoreError> {
        let had_more = self.lease().await?;
        if self.all_listed {
            self.requeue(had_more);
        }
        Ok(())
    }

    /// Puts lanes that had more behind the others. If there are no others, the next listing starts
    /// from the first lane.
    fn requeue(&mut self, had_more: Vec<String>) {
        if self.lanes.is_empty() {
            self.cursor = None;
        }
        self.lanes.extend(had_more);
    }

    /// Leases concurrently from the known lanes until there is no room. Removes each lane, and
    /// returns those that had more.
    async fn lease(&mut self) -> Result<Vec<String>, StoreError> {
        let (limit, through) = self.admission();
        // Lets finishing jobs free their slots before leasing more.
        let mut room = coalesce(limit, || self.room(limit)).await;
        let mut had_more = Vec::new();
        let mut leases = JoinSet::new();
        let mut of_targets: HashMap<Arc<str>, usize> = HashMap::new();
        while room > 0
            && let Some(lane) = self.lanes.pop_front()
        {
            self.cursor = Some(lane.clone());
            let taken = self.slots.taken_by(&lane);
            let LaneAdmission {
                in_order,
                at_most,
                target,
            } = self.job.handler.lane(&lane);
            let in_order = self.limits.in_order || in_order;
            let most = if in_order { 1 } else { self.limits.per_lane };
            let mut wanted = room.min(most.saturating_sub(taken)).min(at_most);
            let (mut through, mut is_held) = (through, false);
            if let Some(TargetAdmission { name, admission }) = &target {
                let (limit, of_target) = self.bounds(*admission);
                is_held = of_target < through;
                if is_held && !self.visits_held() {
                    continue;
                }
                through = through.min(of_target);
                // Most likely nothing is leased if only urgent entries are: that counts for nothing.
                if through > Priority::Urgent {
                    let leased = of_targets.entry(Arc::clone(name)).or_default();
                    let taken = self.slots.taken_for(name) + *leased;
                    wanted = wanted.min(limit.saturating_sub(taken));
                    *leased += wanted;
                }
            }
            let target = target.map(|target| target.name);
            let Some(limit) = u32::try_from(wanted).ok().filter(|wanted| *wanted > 0) else {
                had_more.push(lane);
                continue;
            };
            // Nor does a lane that is held take room from others.
            if !is_held {
                room -= wanted;
            }
            let request = LeaseRequest {
                through,
                in_order,
                ..LeaseRequest::new(self.queue.clone(), lane.clone(), limit, self.limits.lease)
            };
            let journal = Arc::clone(&self.job.journal);
            leases.spawn(async move { (lane, target, wanted, journal.lease(request).await) });
        }
        let mut failure = None;
        while let Some(leased) = leases.join_next().await {
            match leased {
                Ok((lane, target, wanted, Ok(entries))) => {
                    if entries.len() == wanted {
                        had_more.push(lane);
                    }
                    for entry in entries {
                        self.begin(entry, target.clone());
                    }
                }
                Ok((_, _, _, Err(error))) => failure = Some(error),
                // The user's journal panicked; the next listing comes to its lane again.
                Err(_) => {}
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(had_more),
        }
    }

    /// Returns whether to look for urgent entries in a lane whose target accepts no others: for each
    /// interval of polling in about [`LANES`] of them, whichever they are, so that a target that is down
    /// costs the others little.
    fn visits_held(&mut self) -> bool {
        let (seen, before) = &mut self.held_lanes;
        *seen += 1;
        self.looks_for_urgent && rand::random_range(0..(*before).max(1)) < LANES as usize
    }

    fn begin(&mut self, entry: Entry, target: Option<Arc<str>>) {
        telemetry::leased(&self.queue, entry.changed_at.since(entry.due_at));
        let slot = self.slots.take(entry.lane.clone(), target);
        self.jobs.spawn(self.job.clone().run(entry, slot));
    }

    /// Reports the length and age of the queue, if a recorder wants them and they are due.
    async fn measure(&mut self) {
        let due = self
            .measured_at
            .is_none_or(|at| at.elapsed() >= MEASURE_EVERY);
        if due && telemetry::counts_queues() {
            self.measured_at = Some(Instant::now());
            self.job.retries.measure();
            if let Ok(counts) = self.job.journal.counts(&self.queue).await {
                let by_status = [Status::Queued, Status::Processing, Status::Failed]
                    .map(|status| (status.as_str(), counts.of(status)));
                telemetry::queue(&self.queue, by_status, counts.oldest.unwrap_or_default());
            }
        }
    }
}

/// Returns the instant after a pause, spread so that workers that started together drift apart.
fn after(pause: Duration) -> Instant {
    Instant::now() + pause.mul_f64(rand::random_range(0.9..1.1))
}
