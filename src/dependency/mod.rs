//! The state of each dependency, shared by every layer that calls it.
//!
//! A retry loop that knows only its own call cannot see a storm. So the crate keeps for each
//! dependency how many originals and retries went there in the last 30 s (the budget), whether it
//! fails (the breaker), and until when it asked to be left alone (the gate). [`Dependencies`] is
//! the registry of these. It is built once, handed to the layers, and finds the dependency of a
//! request by its URI's authority, by a fixed name, or by a closure.
//!
//! ```
//! use tower_reprise::{Dependencies, Policy, dependency::BreakerState};
//!
//! let deps = Dependencies::builder(Policy::http().build()?)
//!     .policy_for("slow.example", Policy::http().max_retries(1).build()?)
//!     .capacity(500)
//!     .build();
//! let slow = deps.get("slow.example");
//! assert_eq!(slow.policy().max_retries(), 1);
//! assert_eq!(slow.status().breaker, BreakerState::Closed);
//! # Ok::<(), tower_reprise::error::ConfigError>(())
//! ```
//!
//! # Clone
//!
//! Clones of a registry share everything; two registries share nothing. Stack the layers of one
//! registry on a client, not of two: each counts a request, and charges its repeats.

mod account;
mod breaker;
mod budget;
mod cache;
mod charging;
mod gate;
mod hedge;
mod history;
mod hook;
mod latency;
mod locate;
mod permit;
mod registry;
mod route;
mod shard;
mod shared_verdict;
mod waiting;
mod window;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use self::{
    breaker::{Arrival, Breaker, Change, Denied},
    budget::Budget,
    gate::Gate,
    hook::Hook,
};
#[cfg(reprise_loom)]
pub(crate) mod models {
    pub use super::{breaker::model::*, budget::model::*, gate::model::*};
}

pub(crate) use self::{
    account::{Accounted, Accounting, account},
    breaker::nanos,
    budget::{Kind, LastSlot},
    cache::{CacheEntry, DependencyCache},
    gate::Hold,
    latency::Latency,
    permit::{Charge, Permit, Place},
    route::Route,
    shared_verdict::forget_verdict,
};
pub use self::{
    breaker::{BreakerReason, BreakerState},
    hook::Event,
    locate::{BoxLocate, ByAuthority, ByMessage, Locate, Named},
    registry::{BoxDependencies, Dependencies, DependenciesBuilder},
    window::WindowCounts,
};
use crate::{
    backoff::Jitter,
    call::{Cause, budget_mark::RegistryId},
    error::{Refusal, Refused},
    policy::Policy,
    telemetry::{self, SuccessCounter},
};

/// The least time between two reports of a budget whose gauge has to fall.
const GAUGE_EVERY: Duration = Duration::from_secs(1);

/// One dependency: its policy, budget, breaker, gate and latencies.
#[derive(Debug)]
pub struct Dependency {
    name: Arc<str>,
    policy: Policy,
    registry: RegistryId,
    origin: Instant,
    jitter: Arc<Jitter>,
    hook: Hook,
    budget: Budget,
    breaker: Breaker,
    gate: Arc<Gate>,
    /// Present if its policy hedges.
    latency: Option<Latency>,
    /// Calls that wait for it.
    held: Arc<AtomicUsize>,
    /// Bytes kept of bodies that may be sent again.
    recorded: Arc<AtomicUsize>,
    /// Set by use, cleared by the registry's sweep. Relaxed: a use that the sweep misses keeps the
    /// dependency for the next sweep, or it is made anew.
    touched: AtomicBool,
    /// Set when the registry dropped or replaced it, so that services stop using it. Relaxed: a
    /// call that begins meanwhile goes by the old policy, as one that began before does.
    retired: AtomicBool,
    /// When the gauge of the budget was last set above zero; 0 if it is at zero.
    raised_at: AtomicU64,
    succeeded: SuccessCounter,
    /// A layer of the registry is a retry loop, which warns of calls that are refused below it.
    has_retry_loop: Arc<AtomicBool>,
}

/// A snapshot of a dependency's state.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct DependencyStatus {
    /// Original requests of the last 30 s that went out.
    pub originals: u64,
    /// Retries of the last 30 s, those about to be sent included; zero without a budget.
    pub retries: u64,
    /// Retries that the budget allows now; `None` without a budget.
    pub retries_allowed: Option<u64>,
    /// The breaker's state.
    pub breaker: BreakerState,
    /// The reason of the breaker's last change of state, and the time since then.
    pub breaker_changed: Option<(BreakerReason, Duration)>,
    /// The counts by which the breaker and the throttle decide.
    pub window: WindowCounts,
    /// The share of calls that is kept from it because it is overloaded.
    pub shed: f64,
    /// Calls that wait for it.
    pub held: usize,
    /// The time that is left of a wait the dependency asked for.
    pub hold: Option<Duration>,
    /// The time after which a hedge goes out; `None` while it is unknown, or if its policy does not
    /// hedge.
    pub hedge_delay: Option<Duration>,
}

impl Dependency {
    fn new(
        name: Arc<str>,
        policy: Policy,
        registry: RegistryId,
        origin: Instant,
        jitter: Arc<Jitter>,
        hook: Hook,
        has_retry_loop: Arc<AtomicBool>,
    ) -> Self {
        Self {
            budget: Budget::new(policy.budget()),
            breaker: Breaker::new(policy.breaker()),
            gate: Arc::new(Gate::new()),
            latency: policy.hedge().map(Latency::new),
            held: Arc::default(),
            recorded: Arc::default(),
            name,
            policy,
            registry,
            origin,
            jitter,
            hook,
            touched: AtomicBool::new(true),
            retired: AtomicBool::new(false),
            raised_at: AtomicU64::new(0),
            succeeded: SuccessCounter::default(),
            has_retry_loop,
        }
    }

    /// Sets whether the handle of the counter of successes is kept.
    fn keeps_counter(mut self, keeps: bool) -> Self {
        self.succeeded = SuccessCounter::new(keeps);
        self
    }

    /// Returns the dependency with another policy and the same budget, breaker and gate.
    fn with_policy(&self, policy: Policy) -> Self {
        let latency = policy.hedge().map(|hedge| match &self.latency {
            Some(latency) => latency.with_policy(hedge, self.now()),
            None => Latency::new(hedge),
        });
        Self {
            budget: self.budget.with_policy(policy.budget()),
            breaker: self.breaker.with_policy(policy.breaker()),
            gate: Arc::clone(&self.gate),
            latency,
            held: Arc::clone(&self.held),
            recorded: Arc::clone(&self.recorded),
            name: Arc::clone(&self.name),
            policy,
            registry: self.registry,
            origin: self.origin,
            jitter: Arc::clone(&self.jitter),
            hook: self.hook.clone(),
            touched: AtomicBool::new(self.touched.load(Ordering::Relaxed)),
            retired: AtomicBool::new(false),
            raised_at: AtomicU64::new(self.raised_at.load(Ordering::Relaxed)),
            succeeded: self.succeeded.renewed(),
            has_retry_loop: Arc::clone(&self.has_retry_loop),
        }
    }

    /// Returns its name, as logs and metrics show it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the registry that it is of.
    pub(crate) fn registry(&self) -> RegistryId {
        self.registry
    }

    /// Returns its labels in logs and metrics.
    pub(crate) fn target(&self) -> telemetry::Target<'_> {
        telemetry::Target {
            service: self.policy.service(),
            dependency: &self.name,
        }
    }

    /// Records a change of the breaker, with the cause of the failure that led to it.
    fn breaker_changed(&self, change: Change, cause: Option<Cause>) {
        let reason = change.reason.as_str();
        let is_open = matches!(change.state, BreakerState::Open(_));
        let cause = cause.filter(|_| is_open);
        match is_open {
            true => telemetry::breaker_opened(self.target(), reason, cause),
            false => telemetry::breaker_closed(self.target(), reason),
        }
        let Change { state, reason } = change;
        self.happened(&Event::Breaker {
            dependency: &self.name,
            state,
            reason,
            cause,
        });
    }

    /// Counts a call that succeeded with its first attempt.
    #[inline]
    pub(crate) fn count_success(&self) {
        self.succeeded.increment(|| self.target());
    }

    /// Records that a layer refused a call.
    pub(crate) fn tell_refused(&self, by: Refusal) {
        let has_retry_loop = self.has_retry_loop.load(Ordering::Relaxed);
        telemetry::refused(self.target(), by.as_str(), has_retry_loop);
    }

    /// Tells the registry's hook.
    pub(crate) fn happened(&self, event: &Event<'_>) {
        self.hook.call(event);
    }

    /// Returns the policy for calls to it. It never changes, so that a call ends by the policy that
    /// it began with; after a [reload](Dependencies::reload) the registry returns another
    /// `Dependency` with the same name, budget, breaker and gate.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns a snapshot of its state.
    #[must_use]
    pub fn status(&self) -> DependencyStatus {
        let now = self.now();
        let (retries, allowed) = self.budget.usage(now).unzip();
        let (breaker, changed) = self.breaker.state(now);
        let since = |at: u64| Duration::from_nanos(now.saturating_sub(at));
        DependencyStatus {
            originals: self.budget.originals_in_window(now),
            retries: retries.unwrap_or_default(),
            retries_allowed: allowed,
            breaker,
            breaker_changed: changed.map(|(reason, at)| (reason, since(at))),
            window: self.breaker.window(now),
            shed: self.breaker.shed_share(now),
            held: self.held.load(Ordering::Relaxed),
            hold: self.hold().map(|hold| hold.left),
            hedge_delay: self.latency.as_ref().and_then(Latency::delay),
        }
    }

    /// Returns whether its breaker is open and refuses every call that is made now, so that a choice
    /// among several endpoints prefers another. Once a probe is due it does not, until one is out.
    /// Takes no lock while the breaker is closed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.breaker.refuses_next(self.now())
    }

    /// Opens the breaker, so that a [`CircuitBreakerLayer`](crate::CircuitBreakerLayer) refuses all
    /// calls, until [`reset`](Self::reset) or
    /// [`force_closed`](Self::force_closed).
    pub fn force_open(&self) {
        self.breaker_changed(self.breaker.force_open(self.now()), None);
    }

    /// Closes the breaker, and keeps it closed whatever fails, until [`reset`](Self::reset) or
    /// [`force_open`](Self::force_open).
    pub fn force_closed(&self) {
        self.breaker_changed(self.breaker.force_closed(self.now()), None);
    }

    /// Closes the breaker, stops shedding calls, and forgets the time that the dependency asked for:
    /// later calls pass at once. Calls that wait already keep their time, and the budget stays as it
    /// is.
    pub fn reset(&self) {
        self.gate.reset();
        self.breaker_changed(self.breaker.reset(self.now()), None);
    }

    #[inline]
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        nanos(instant.saturating_duration_since(self.origin))
    }

    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// Draws uniformly from [0, 1).
    pub(crate) fn draw(&self) -> f64 {
        self.jitter.draw()
    }

    /// Reports it once in a while as long as the gauge is above zero: without retries nothing else
    /// would.
    #[cold]
    fn lower_gauge(&self) {
        let since = self
            .now()
            .saturating_sub(self.raised_at.load(Ordering::Relaxed));
        if since >= nanos(GAUGE_EVERY) {
            self.refresh_budget();
        }
    }

    /// Lowers the gauges of a dependency that is no longer known.
    fn forget_gauges(&self) {
        let opened = self.breaker.state(self.now()).0 != BreakerState::Closed;
        let raised = self.raised_at.load(Ordering::Relaxed) != 0;
        telemetry::forgotten(self.target(), opened, raised);
    }

    /// Asks throttle and breaker to admit a call.
    #[inline(always)]
    pub(crate) fn admit(
        self: &Arc<Self>,
        is_retry: impl FnOnce() -> bool,
    ) -> Result<Permit, Refused> {
        let arrival = || Arrival {
            now: self.now(),
            uniform: self.draw(),
            retry: is_retry(),
        };
        match self.breaker.admit(arrival) {
            Ok(ticket) => Ok(Permit::new(Arc::clone(self), ticket)),
            Err(Denied::Open(left)) => Err(self.refused(Refusal::Breaker, left)),
            Err(Denied::Overload) => Err(self.refused(Refusal::Throttle, None)),
        }
    }

    pub(crate) fn refused(&self, kind: Refusal, retry_after: Option<Duration>) -> Refused {
        Refused::new(kind, Arc::clone(&self.name), retry_after)
    }

    /// Reserves room for recorded bytes. Returns whether there was enough.
    pub(crate) fn take_room(&self, bytes: usize) -> bool {
        let pool = self.policy.replay_pool();
        let more = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= pool);
        self.recorded
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    pub(crate) fn give_room_back(&self, bytes: usize) {
        self.recorded.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Reads a word of each part that layers are about to use, so that cache misses overlap instead
    /// of following each other. Without it a call through the stack to one of 100,000 dependencies
    /// takes 1.8 instead of 1.6 µs.
    #[inline]
    fn prefetch(&self) {
        let words = self.budget.word() ^ self.breaker.word() ^ self.gate.word();
        std::hint::black_box(words ^ u64::from(self.is_retired()));
    }

    #[inline]
    fn touch(&self) {
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Returns whether a new entry in its place would behave the same.
    fn is_idle(&self, now: u64) -> bool {
        let keeps_bodies = self.recorded.load(Ordering::Relaxed) > 0;
        !keeps_bodies
            && self.budget.is_idle(now)
            && self.breaker.is_idle(now)
            && self.gate.hold(|| now).is_none()
    }
}

fn longest_attempt(policy: &Policy) -> Duration {
    policy.attempt_timeout().unwrap_or(policy.total_timeout())
}
