mod builder;

pub use self::builder::DependenciesBuilder;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use dashmap::{DashMap, Entry};
use tokio::time::Instant;

use super::{
    BoxLocate, ByAuthority, Dependency, Locate, Named,
    hook::Hook,
    nanos,
    shard::{CacheLine, SHARDS, shard},
};
use crate::{
    backoff::Jitter,
    call::budget_mark::RegistryId,
    classify::{BoxClassify, Standard, TraceClassifier},
    error::Rule,
    policy::{Audit, Policies, Policy},
    telemetry,
};

/// The longest name that gets an entry of its own.
const LONGEST_NAME: usize = 255;
/// The name of the entry that all dependencies past the capacity share.
const OVERFLOW: &str = "overflow";

/// The registry of dependencies that a client's layers share.
#[derive(Clone)]
#[must_use]
pub struct Dependencies<C = Standard, L = ByAuthority> {
    shared: Arc<Registry>,
    pub(crate) classifier: C,
    pub(crate) locate: L,
}

/// A registry with any classifier and any locator for these requests and responses: made by
/// [`DependenciesBuilder::boxed`].
pub type BoxDependencies<Request, Response> =
    Dependencies<BoxClassify<Request, Response>, BoxLocate<Request>>;

struct Registry {
    /// Read-locked while a dependency is made, so that none is made by policies of before a reload.
    current: RwLock<Current>,
    id: RegistryId,
    capacity: usize,
    idle: u64,
    origin: Instant,
    jitter: Arc<Jitter>,
    hook: Hook,
    known: DashMap<Arc<str>, Known>,
    /// The dependency that threads of a shard asked for last, which is the one that the next layer
    /// of the same call asks for, which spares it a hash and a lock of the map. Without it a call
    /// through `stacks::client` to one of 100 dependencies by turns takes 4,920 instead of 4,570
    /// instructions (callgrind).
    recent: [CacheLine<Mutex<Option<Arc<Dependency>>>>; SHARDS],
    len: AtomicUsize,
    last_sweep: AtomicU64,
    /// A layer that counts originals was made.
    has_counting_layer: AtomicBool,
    /// More than one was made: originals that a layer counts are marked, since another layer of
    /// the same call may count them too.
    marks_originals: AtomicBool,
    /// One of the policies hedges. Relaxed: a call that begins during a reload goes by either.
    hedges: AtomicBool,
    /// A retry loop was made.
    has_retry_loop: Arc<AtomicBool>,
    keeps_counters: bool,
    served: Mutex<Served>,
}

/// The dead-letter queues that are served, and whether their letters are announced.
#[derive(Default)]
struct Served {
    queues: BTreeSet<Box<str>>,
    alerted: bool,
}

impl Served {
    /// Returns a finding if a queue is not served, or not announced.
    fn audit(&self, queue: &str) -> Audit {
        let missing = match self.queues.contains(queue) {
            false => "a queue that a worker or a dead-letter layer of the registry serves",
            true if self.alerted => return Audit::default(),
            true => "a queue with an alert: a worker of alerts with the registry",
        };
        Audit::violation(Rule::R8, "dead_letters", queue, missing)
    }
}

struct Current {
    policies: Policies,
    overflow: OnceLock<Arc<Dependency>>,
}

struct Known {
    dependency: Arc<Dependency>,
    idle_since: u64,
}

impl Dependencies {
    /// Makes a registry in which every dependency has this policy, or its own one of these
    /// policies.
    pub fn new(policies: impl Into<Policies>) -> Self {
        Self::builder(policies).build()
    }

    /// Makes a registry for a client with a single peer of that name.
    pub fn named(
        name: impl Into<Arc<str>>,
        policies: impl Into<Policies>,
    ) -> Dependencies<Standard, Named> {
        Self::builder(policies).named(name).build()
    }

    /// Starts a registry with settings beyond its policies.
    pub fn builder(policies: impl Into<Policies>) -> DependenciesBuilder {
        DependenciesBuilder::new(policies.into())
    }
}

impl<C, L> Dependencies<C, L> {
    /// Returns the dependency of that name, which is made if it is not known yet.
    #[must_use]
    pub fn get(&self, name: &str) -> Arc<Dependency> {
        self.shared.get(name)
    }

    /// Returns all known dependencies, by name.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Dependency>> {
        let known = self
            .shared
            .known
            .iter()
            .map(|known| Arc::clone(&known.dependency));
        let overflow = self.shared.current().overflow.get().cloned();
        let mut list: Vec<_> = known.chain(overflow).collect();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }

    /// Lists every difference of the policies from the standard, and the dead-letter queues that they
    /// name and that nothing serves or announces: neither a worker with this registry, nor a
    /// dead-letter layer, nor [another system](Self::dead_letters_elsewhere).
    pub fn audit(&self) -> Audit {
        let current = self.shared.current();
        let policies = &current.policies;
        let default = ("(default)", policies.default_policy());
        let named = std::iter::once(default).chain(policies.iter());
        let served = self.served();
        named.fold(policies.audit(), |audit, (name, policy)| {
            let queue = policy.dead_letters();
            audit.merge(
                name,
                queue.map_or_else(Audit::default, |queue| served.audit(queue)),
            )
        })
    }

    /// Says that another process or system serves and announces the dead letters of this queue.
    pub fn dead_letters_elsewhere(&self, queue: impl Into<Box<str>>) {
        self.serve_dead_letters(Some(queue.into()), true);
    }

    /// Remembers that a queue is served, and whether its letters are announced.
    pub(crate) fn serve_dead_letters(&self, queue: Option<Box<str>>, alerted: bool) {
        let mut served = self.served();
        served.queues.extend(queue);
        served.alerted |= alerted;
    }

    fn served(&self) -> MutexGuard<'_, Served> {
        let served = self.shared.served.lock();
        served.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the policy of dependencies that have none of their own.
    #[cfg(feature = "delivery")]
    pub(crate) fn default_policy(&self) -> Policy {
        self.shared.current().policies.default_policy().clone()
    }

    /// Returns a dead-letter queue that one of the policies names.
    #[cfg(feature = "delivery")]
    pub(crate) fn dead_letters(&self) -> Option<String> {
        let current = self.shared.current();
        let policies = &current.policies;
        let mut all = policies.iter().map(|(_, policy)| policy);
        let default = policies.default_policy().dead_letters();
        let named = default.or_else(|| all.find_map(|policy| policy.dead_letters()));
        named.map(str::to_owned)
    }

    /// Replaces the policies of a live registry and of all its clones.
    ///
    /// No call is dropped, and none sees half of a policy:
    ///
    /// - a call ends by the policy that it began with: retries, waits, deadline and classification.
    ///   To layers below a retry loop each attempt is a call;
    /// - calls that begin after this has returned go by the new policies;
    /// - budgets, breakers and gates keep their state, and apply the limits of each call's policy to
    ///   it. An open breaker stays open for the cooldown it was opened with. Only a breaker's window
    ///   of another length begins anew, and a budget where there was none knows no earlier retries.
    ///
    /// Reading comes first and may fail; this cannot. So a file that is wrong changes nothing:
    ///
    /// ```
    /// # #[cfg(feature = "serde")] {
    /// use tower_reprise::{Dependencies, policy::Policies};
    ///
    /// let deps = Dependencies::new(Policies::from_toml("default.profile = 'synchronous'")?);
    /// let reload = |text| Ok::<_, tower_reprise::error::ConfigError>(deps.reload(Policies::from_toml(text)?));
    ///
    /// assert!(reload("default = { profile = 'synchronous', max_retries = 50 }").is_err());
    /// assert_eq!(deps.get("a.example").policy().max_retries(), 3);
    ///
    /// reload("default = { profile = 'synchronous', max_retries = 1 }")?;
    /// assert_eq!(deps.get("a.example").policy().max_retries(), 1);
    /// # }
    /// # Ok::<(), tower_reprise::error::ConfigError>(())
    /// ```
    pub fn reload(&self, policies: impl Into<Policies>) {
        self.shared.reload(policies.into());
    }

    /// Makes a classifier for tower-http's `TraceLayer` from the tables that the default policy has
    /// now.
    #[must_use]
    pub fn trace(&self) -> TraceClassifier {
        let current = self.shared.current();
        TraceClassifier::new(current.policies.default_policy().rules().clone())
    }

    /// Returns the same registry for a client of a single peer with that name, such as one endpoint
    /// of a service that is balanced.
    pub fn at(self, name: impl Into<Arc<str>>) -> Dependencies<C, Named> {
        self.relocated(Named(name.into()))
    }

    /// Returns the registry for callers that look dependencies up by their names alone.
    #[cfg(feature = "delivery")]
    pub(crate) fn by_name(&self) -> Dependencies {
        Dependencies {
            shared: Arc::clone(&self.shared),
            classifier: Standard,
            locate: ByAuthority,
        }
    }

    /// Returns the same registry for requests that are located in another way.
    pub(crate) fn relocated<M>(self, locate: M) -> Dependencies<C, M> {
        Dependencies {
            shared: self.shared,
            classifier: self.classifier,
            locate,
        }
    }

    /// Returns the dependency that a request goes to.
    pub(super) fn find<Req>(&self, request: &Req) -> Arc<Dependency>
    where
        L: Locate<Req>,
    {
        // A thread that would have to wait asks the registry.
        let mut recent = self.shared.recent[shard()].0.try_lock().ok();
        let found = recent.as_deref().and_then(Option::as_ref);
        if let Some(found) = found.filter(|recent| self.locates(request, recent)) {
            return Arc::clone(found);
        }
        let found = self.get(&self.locate.locate(request));
        if let Some(recent) = &mut recent {
            **recent = Some(Arc::clone(&found));
        }
        found
    }

    /// Returns whether a request goes to this dependency and the registry still has it.
    #[inline]
    pub(super) fn locates<Req>(&self, request: &Req, dependency: &Dependency) -> bool
    where
        L: Locate<Req>,
    {
        !dependency.is_retired() && self.locate.is(request, &dependency.name)
    }

    /// Registers a layer that counts originals. From the second one on, a `RetryLayer` marks what it
    /// counts, so that each original counts once in any order. A mark costs two allocations, which a
    /// client with one such layer saves. A `RetryBudgetLayer` marks in any case.
    pub(crate) fn register_counting_layer(&self) {
        if self.shared.has_counting_layer.swap(true, Ordering::Relaxed) {
            self.shared.marks_originals.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether one of the policies hedges.
    #[inline]
    pub(crate) fn hedges(&self) -> bool {
        self.shared.hedges.load(Ordering::Relaxed)
    }

    /// Registers a retry loop: it counts originals, and warns of calls that are refused below it.
    pub(crate) fn register_retry_loop(&self) {
        self.shared.has_retry_loop.store(true, Ordering::Relaxed);
        self.register_counting_layer();
    }

    /// Returns whether a layer that counts an original marks it for the layers below.
    pub(crate) fn marks_originals(&self) -> bool {
        self.shared.marks_originals.load(Ordering::Relaxed)
    }
}

impl<C> Dependencies<C, Named> {
    /// Returns the name of the one dependency.
    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.locate.0)
    }
}

impl<C, L> From<&Dependencies<C, L>> for Audit {
    fn from(deps: &Dependencies<C, L>) -> Self {
        deps.audit()
    }
}

opaque_debug! {
    Dependencies<C, L>, self, policies = self.shared.current().policies, known = self.shared.len.load(Ordering::Relaxed)
}

impl Registry {
    fn get(&self, name: &str) -> Arc<Dependency> {
        if let Some(known) = self.known.get(name) {
            known.dependency.prefetch();
            known.dependency.touch();
            return Arc::clone(&known.dependency);
        }
        // Names are kept in lower case.
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return self.get(&name.to_ascii_lowercase());
        }
        if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
            return self.overflow(&self.current());
        }
        self.sweep();
        let current = self.current();
        match self.known.entry(name.into()) {
            Entry::Occupied(known) => Arc::clone(&known.get().dependency),
            Entry::Vacant(vacant) => {
                // Dependencies with a policy of their own are few: the capacity is not for them.
                let own = current.policies.own(vacant.key());
                if self.len.fetch_add(1, Ordering::AcqRel) >= self.capacity && own.is_none() {
                    self.len.fetch_sub(1, Ordering::AcqRel);
                    drop(vacant);
                    return self.overflow(&current);
                }
                let policy = own.unwrap_or(current.policies.default_policy());
                let dependency = self.make(Arc::clone(vacant.key()), policy);
                vacant.insert(Known {
                    dependency: Arc::clone(&dependency),
                    idle_since: 0,
                });
                dependency
            }
        }
    }

    fn make(&self, name: Arc<str>, policy: &Policy) -> Arc<Dependency> {
        let dependency = Dependency::new(
            name,
            policy.clone(),
            self.id,
            self.origin,
            Arc::clone(&self.jitter),
            self.hook.clone(),
            Arc::clone(&self.has_retry_loop),
        );
        Arc::new(dependency.keeps_counter(self.keeps_counters))
    }

    fn current(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn overflow(&self, current: &Current) -> Arc<Dependency> {
        let overflow = current.overflow.get_or_init(|| {
            telemetry::overflow(self.capacity);
            self.make(OVERFLOW.into(), current.policies.default_policy())
        });
        Arc::clone(overflow)
    }

    fn reload(&self, policies: Policies) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let replace = |dependency: &mut Arc<Dependency>, policy: &Policy| {
            let renewed = Arc::new(dependency.with_policy(policy.clone()));
            std::mem::replace(dependency, renewed)
                .retired
                .store(true, Ordering::Release);
        };
        for mut known in self.known.iter_mut() {
            let policy = policies.get(known.key()).clone();
            replace(&mut known.dependency, &policy);
        }
        if let Some(overflow) = current.overflow.get_mut() {
            replace(overflow, policies.default_policy());
        }
        self.hedges.store(policies.hedge(), Ordering::Relaxed);
        current.policies = policies;
        // A look-up holds its place here while it reads the policies.
        drop(current);
        // A thread that asks for nothing again would keep its dependency for ever.
        for recent in &self.recent {
            *recent.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        telemetry::reloaded(self.len.load(Ordering::Relaxed));
    }

    /// Drops dependencies that were idle for long and whose state is as good as new. Runs when a new
    /// one is made, at most four times in the idle time.
    fn sweep(&self) {
        let now = nanos(self.origin.elapsed());
        let last = self.last_sweep.load(Ordering::Relaxed);
        let due = now.saturating_sub(last) >= self.idle / 4;
        let claim = |last| {
            self.last_sweep
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
        };
        if !due || claim(last).is_err() {
            return;
        }
        self.known.retain(|_, known| {
            let dependency = &*known.dependency;
            if dependency.touched.swap(false, Ordering::Relaxed) {
                known.idle_since = now;
            }
            let keep = now.saturating_sub(known.idle_since) < self.idle || !dependency.is_idle(now);
            if !keep {
                dependency.retired.store(true, Ordering::Relaxed);
                dependency.forget_gauges();
                self.len.fetch_sub(1, Ordering::AcqRel);
            }
            keep
        });
    }
}
