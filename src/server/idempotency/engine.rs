use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    Execution,
    drain::Pending,
    limits::TimeLimits,
    settlement::{Resumes, Settlement, WAITING_COST},
    timer::{Timer, now_or_later, within},
};
use crate::{
    server::dialect::Operation,
    store::{
        Claim, ClaimId, Claimed, CrashPolicy, IdempotencyStore, Lease, Ownership, RecordKey,
        StoreError, StoreErrorKind, Stored,
    },
    telemetry,
};

/// The pause before a claim is repeated whose answer got lost.
const CLAIM_PAUSE: Duration = Duration::from_millis(50);

/// The pauses between attempts to settle an execution that the store did not take at once.
const SETTLE_PAUSE: Duration = Duration::from_millis(100);
const SETTLE_PAUSE_MOST: Duration = Duration::from_secs(5);

/// The longest that a verb is repeated.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The claims, leases and settlements of executions, whatever is executed.
#[derive(Debug)]
pub(crate) struct Engine<St> {
    pub(super) store: St,
    pub(super) settings: EngineSettings,
    pub(super) pending: Arc<Pending>,
    /// Bytes for executions that wait to be settled, and for claims that wait to be given back.
    /// Apart from each other, since claims come faster when a store fails.
    unsettled: Arc<Semaphore>,
    in_doubt: Arc<Semaphore>,
}

/// The settings of an engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineSettings {
    pub(super) limits: TimeLimits,
    pub(super) crash_policy: CrashPolicy,
    /// Whether an operation that could not be claimed may be executed all the same.
    pub(super) fails_open: bool,
    /// The bytes that settlements may take that wait for the store.
    pub(super) unsettled_limit: usize,
}

/// Reserves memory, if there is that much left.
fn reserve(memory: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    let bytes = u32::try_from(bytes).ok()?;
    Arc::clone(memory).try_acquire_many_owned(bytes).ok()
}

impl<St: IdempotencyStore> Engine<St> {
    pub(super) fn new(store: St, settings: EngineSettings) -> Self {
        let limit = settings.unsettled_limit.min(Semaphore::MAX_PERMITS);
        Self {
            store,
            settings,
            pending: Arc::default(),
            unsettled: Arc::new(Semaphore::new(limit)),
            in_doubt: Arc::new(Semaphore::new(limit)),
        }
    }

    /// Claims a key. If the caller goes away before the answer is there, the claim is given back.
    pub(super) async fn claim(
        self: &Arc<Self>,
        operation: &Operation,
        resumes: Option<Resumes>,
    ) -> Result<Claimed, StoreError> {
        let (key, retention) = (operation.id.key, operation.retention);
        let claim = Claim {
            key,
            fingerprint: operation.id.fingerprint,
            id: ClaimId::random(),
            lease: self.settings.limits.lease,
            retention,
            crash_policy: self.settings.crash_policy,
            note: operation.note.clone(),
            resumes: resumes.map(|resumes| resumes.id),
        };
        let engine = Arc::clone(self);
        let mut claiming = Box::pin(async move { engine.claim_twice(claim, resumes).await });
        if let Poll::Ready(claimed) = now_or_later(claiming.as_mut()).await {
            return claimed;
        }
        let (answer, answered) = oneshot::channel();
        let engine = Arc::clone(self);
        tokio::spawn(async move {
            let claimed = Some(claiming.await);
            let _ = answer.send(Unclaimed {
                engine,
                key,
                retention,
                resumes,
                claimed,
            });
        });
        let claimed = answered
            .await
            .ok()
            .and_then(|mut answer| answer.claimed.take());
        claimed.unwrap_or_else(|| {
            let error = StoreError::new(StoreErrorKind::Other, "the claim was cancelled");
            Err(error.in_doubt())
        })
    }

    /// Claims, and repeats the claim once: the store knows it by its id.
    async fn claim_twice(
        self: &Arc<Self>,
        claim: Claim,
        resumes: Option<Resumes>,
    ) -> Result<Claimed, StoreError> {
        let (mut again, mut in_doubt) = (true, false);
        loop {
            let error = match self.bounded(pin!(self.store.claim(claim.clone()))).await {
                Ok(claimed) => return Ok(claimed),
                Err(error) => error,
            };
            in_doubt |= error.may_have_happened();
            if !again || !error.is_transient() {
                if in_doubt && !self.settings.fails_open {
                    self.give_back_later(claim, resumes);
                }
                return Err(error);
            }
            telemetry::store_trouble("claim", error.kind().as_str());
            sleep(CLAIM_PAUSE).await;
            again = false;
        }
    }

    /// Repeats a claim until it is known whether it was made, and then gives it back: nothing is
    /// executed for it, and repeats should neither wait for its lease nor be told that its outcome
    /// is unknown.
    fn give_back_later(self: &Arc<Self>, claim: Claim, resumes: Option<Resumes>) {
        let Some(memory) = reserve(&self.in_doubt, WAITING_COST) else {
            return;
        };
        let engine = Arc::clone(self);
        let pending = self.pending.settlement();
        tokio::spawn(async move {
            let _held = (memory, pending);
            let mut pauses = Pauses::within(claim.lease);
            while pauses.next().await {
                let claimed = engine.store.claim(claim.clone());
                match engine.bounded(pin!(claimed)).await {
                    Ok(Claimed::New(lease)) => {
                        let Claim { key, retention, .. } = claim;
                        return engine.unclaim(key, retention, resumes, lease).await;
                    }
                    Ok(_) => return,
                    Err(error) => telemetry::store_trouble("claim", error.kind().as_str()),
                }
            }
        });
    }

    /// Gives back a claim that will not be executed.
    async fn unclaim(
        self: &Arc<Self>,
        key: RecordKey,
        retention: Duration,
        resumes: Option<Resumes>,
        lease: Lease,
    ) {
        let settlement = Settlement::unexecuted(lease.orphaned, resumes);
        let execution = Execution::new(Arc::clone(self) as _, key, lease, retention);
        let _ = self.settle(&execution, settlement).await;
    }

    /// Runs an execution to its end, and renews its lease meanwhile, for a bounded time.
    pub(super) fn hold<'a, F: Future>(
        self: &'a Arc<Self>,
        execution: &'a Execution,
        future: Pin<&'a mut F>,
    ) -> impl Future<Output = F::Output> + use<'a, F, St> {
        self.hold_for(self.settings.limits.max_execution, execution, future)
    }

    /// Runs a future to its end, and renews a lease meanwhile, for at most this long.
    fn hold_for<'a, F: Future>(
        self: &'a Arc<Self>,
        longest: Duration,
        execution: &'a Execution,
        mut future: Pin<&'a mut F>,
    ) -> impl Future<Output = F::Output> + use<'a, F, St> {
        let mut due = Timer::new(self.renew_every());
        let mut renewing = None;
        poll_fn(move |cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            // Most are done before a renewal is due, and need no task for it.
            if renewing.is_none() && due.poll(cx).is_ready() {
                let (engine, execution) = (Arc::clone(self), execution.clone());
                let until = Instant::now() + longest.saturating_sub(self.renew_every());
                renewing = Some(AbortOnDrop(tokio::spawn(async move {
                    engine.renew(&execution, until).await;
                })));
            }
            Poll::Pending
        })
    }

    fn renew_every(&self) -> Duration {
        self.settings.limits.lease / 3
    }

    /// Renews until the lease is lost, or until this time: a handler that hangs does not hold its key
    /// for ever.
    async fn renew(&self, execution: &Execution, until: Instant) {
        loop {
            let (key, token) = (execution.key(), execution.token());
            if Instant::now() >= until {
                telemetry::renewal_ended(key);
                return;
            }
            let renewable = execution.renewable().await;
            if !*renewable {
                return;
            }
            let (lease, retention) = (self.settings.limits.lease, execution.retention());
            let renewal = self.store.renew(key, token, lease, retention);
            let renewed = self.bounded(pin!(renewal)).await;
            drop(renewable);
            match renewed {
                Ok(Ownership::Held) => sleep(self.renew_every()).await,
                // The handler may have committed its reply itself: completing such a record
                // again is held, and changes nothing.
                Ok(Ownership::Lost) => match self.complete(execution, &Stored::NotRetained).await {
                    Ok(Ownership::Held) => return,
                    Ok(Ownership::Lost) => {
                        execution.lose();
                        telemetry::lease_lost(key);
                        return;
                    }
                    Err(error) => self.renew_later(&error).await,
                },
                Err(error) => self.renew_later(&error).await,
            }
        }
    }

    async fn renew_later(&self, error: &StoreError) {
        telemetry::store_trouble("renew", error.kind().as_str());
        sleep(self.renew_every() / 4).await;
    }

    /// Settles an execution with the store. A settlement that the store does not take now is
    /// repeated, while the lease is renewed. Returns [`Ownership::Lost`] if it is known that another
    /// execution took over.
    pub(super) async fn settle(
        self: &Arc<Self>,
        execution: &Execution,
        settlement: Settlement,
    ) -> Ownership {
        match self.settle_once(execution, &settlement).await {
            Ok(Ownership::Lost) => {
                execution.lose();
                telemetry::lease_lost(execution.key());
                Ownership::Lost
            }
            Ok(Ownership::Held) => Ownership::Held,
            Err(error) => {
                telemetry::store_trouble("settle", error.kind().as_str());
                self.settle_later(execution.clone(), settlement);
                Ownership::Held
            }
        }
    }

    /// Holds the key of a suspended execution for this long from now. If a further attempt has begun,
    /// the key is its own, and nothing changes.
    pub(super) async fn hold_suspended(
        self: &Arc<Self>,
        execution: &Execution,
        id: ClaimId,
        hold: Duration,
    ) {
        let settlement = Settlement::Suspend(id, hold);
        if let Err(error) = self.settle_once(execution, &settlement).await {
            telemetry::store_trouble("settle", error.kind().as_str());
            self.settle_later(execution.clone(), settlement);
        }
    }

    async fn settle_once(
        &self,
        execution: &Execution,
        settlement: &Settlement,
    ) -> Result<Ownership, StoreError> {
        match settlement {
            Settlement::Complete(stored) => match self.complete(execution, stored).await {
                // A full store has room for a record without its reply.
                Err(error) if error.kind() == StoreErrorKind::Full => {
                    telemetry::store_trouble("settle", error.kind().as_str());
                    self.complete(execution, &Stored::NotRetained).await
                }
                completed => completed,
            },
            Settlement::Release if !execution.is_orphan() => {
                let released = self.store.release(execution.key(), execution.token());
                // Nothing took effect, so another owner is no harm.
                let released = self.bounded(pin!(released)).await;
                released.map(|_| Ownership::Held)
            }
            // The record has to stay, to tell the next execution that this one may have taken
            // effect. With its lease over, repeats need not wait.
            Settlement::Release | Settlement::Orphan => {
                let (key, token) = (execution.key(), execution.token());
                let retention = execution.retention();
                let ended = self.store.renew(key, token, Duration::ZERO, retention);
                self.bounded(pin!(ended)).await.map(|_| Ownership::Held)
            }
            Settlement::Suspend(resumed_by, hold) => {
                let (key, token) = (execution.key(), execution.token());
                let retention = execution.retention();
                let mut renewable = execution.renewable().await;
                let suspended = self
                    .store
                    .suspend(key, token, *resumed_by, *hold, retention);
                let suspended = self.bounded(pin!(suspended)).await;
                *renewable &= suspended.is_err();
                suspended
            }
        }
    }

    async fn complete(
        &self,
        execution: &Execution,
        stored: &Stored,
    ) -> Result<Ownership, StoreError> {
        let (key, token) = (execution.key(), execution.token());
        let completed = self
            .store
            .complete(key, token, stored.clone(), execution.retention());
        self.bounded(pin!(completed)).await
    }

    fn settle_later(self: &Arc<Self>, execution: Execution, settlement: Settlement) {
        // Without room for its reply, a record that says that it was executed is better than none.
        let (settlement, memory) = match reserve(&self.unsettled, settlement.cost()) {
            Some(memory) => (settlement, Some(memory)),
            None => (
                settlement.without_reply(),
                reserve(&self.unsettled, WAITING_COST),
            ),
        };
        let Some(memory) = memory else {
            telemetry::settling_given_up(execution.key());
            return;
        };
        let engine = Arc::clone(self);
        let pending = self.pending.settlement();
        tokio::spawn(async move {
            let _held = (memory, pending);
            let settling = async {
                let mut pauses = Pauses::within(execution.retention());
                while pauses.next().await {
                    match engine.settle_once(&execution, &settlement).await {
                        Ok(_) => return,
                        Err(error) => telemetry::store_trouble("settle", error.kind().as_str()),
                    }
                }
                telemetry::settling_given_up(execution.key());
            };
            let longest = execution.retention();
            engine.hold_for(longest, &execution, pin!(settling)).await;
        });
    }

    /// Bounds the wait for the store.
    async fn bounded<T>(
        &self,
        transition: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
    ) -> Result<T, StoreError> {
        let timeout = self.settings.limits.store_timeout();
        match within(timeout, transition).await {
            Some(result) => result,
            None => {
                let message = format!("no answer within {timeout:?}");
                Err(StoreError::new(StoreErrorKind::Timeout, message).in_doubt())
            }
        }
    }
}

/// Growing pauses between attempts of a verb that the store did not take.
struct Pauses {
    until: Instant,
    next: Duration,
}

impl Pauses {
    fn within(longest: Duration) -> Self {
        let now = Instant::now();
        Self {
            until: now.checked_add(longest).unwrap_or(now + FOREVER),
            next: SETTLE_PAUSE,
        }
    }

    /// Waits; `false` if the time is over.
    async fn next(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        sleep(self.next).await;
        self.next = (self.next * 2).min(SETTLE_PAUSE_MOST);
        true
    }
}

/// A claim on its way to its caller. If that is gone, the claim is given back.
struct Unclaimed<St: IdempotencyStore> {
    engine: Arc<Engine<St>>,
    key: RecordKey,
    retention: Duration,
    resumes: Option<Resumes>,
    claimed: Option<Result<Claimed, StoreError>>,
}

impl<St: IdempotencyStore> Drop for Unclaimed<St> {
    fn drop(&mut self) {
        let Some(Ok(Claimed::New(lease))) = self.claimed.take() else {
            return;
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let engine = Arc::clone(&self.engine);
            let (key, retention, resumes) = (self.key, self.retention, self.resumes);
            let pending = engine.pending.settlement();
            runtime.spawn(async move {
                let _pending = pending;
                engine.unclaim(key, retention, resumes, lease).await;
            });
        }
    }
}

/// Aborts a task when dropped.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
