use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use dashmap::{DashMap, Entry};
use tokio::time::Instant;

use super::{ByAuthority, Dependency, Locate, Named, nanos};
use crate::{
    Policy,
    backoff::Jitter,
    classify::{Standard, TraceClassifier},
    policy::Audit,
    telemetry,
};

const CAPACITY: usize = 1024;
const IDLE: Duration = Duration::from_secs(300);
/// The longest name that gets an entry of its own.
const LONGEST_NAME: usize = 255;
/// The name of the entry that all dependencies past the capacity share.
const OVERFLOW: &str = "overflow";

/// The registry of dependencies that a client's layers share.
#[derive(Clone)]
#[must_use]
pub struct Dependencies<C = Standard, L = ByAuthority> {
    shared: Arc<Shared>,
    pub(crate) classifier: C,
    locate: L,
}

struct Shared {
    policy: Policy,
    overrides: HashMap<Box<str>, Policy>,
    capacity: usize,
    idle: u64,
    origin: Instant,
    jitter: Arc<Jitter>,
    known: DashMap<Box<str>, Known>,
    len: AtomicUsize,
    overflow: OnceLock<Arc<Dependency>>,
    last_sweep: AtomicU64,
    /// Services of this registry that count original requests.
    counting_layers: AtomicUsize,
}

struct Known {
    dependency: Arc<Dependency>,
    idle_since: u64,
}

impl Dependencies {
    /// A registry in which every dependency has this policy.
    pub fn new(policy: Policy) -> Self {
        Self::builder(policy).build()
    }

    /// A registry for a client with a single peer, by that name.
    pub fn named(name: impl Into<Arc<str>>, policy: Policy) -> Dependencies<Standard, Named> {
        Self::builder(policy).named(name).build()
    }

    /// A registry with more to say than a policy.
    pub fn builder(policy: Policy) -> DependenciesBuilder {
        DependenciesBuilder {
            policy,
            overrides: HashMap::new(),
            capacity: CAPACITY,
            idle: IDLE,
            seed: None,
            classifier: Standard,
            locate: ByAuthority,
        }
    }
}

impl<C, L> Dependencies<C, L> {
    /// The dependency of that name, which is made if it is not known yet.
    #[must_use]
    pub fn get(&self, name: &str) -> Arc<Dependency> {
        self.shared.get(name)
    }

    /// All known dependencies, by name.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Dependency>> {
        let known = self
            .shared
            .known
            .iter()
            .map(|known| Arc::clone(&known.dependency));
        let mut list: Vec<_> = known.chain(self.shared.overflow.get().cloned()).collect();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }

    /// Lists every difference of the policies here from the standard.
    pub fn audit(&self) -> Audit {
        let shared = &self.shared;
        let mut overrides: Vec<_> = shared.overrides.iter().collect();
        overrides.sort_by_key(|(name, _)| *name);
        let all = Audit::default().merge("default policy", shared.policy.audit());
        overrides
            .into_iter()
            .fold(all, |all, (name, policy)| all.merge(name, policy.audit()))
    }

    /// A classifier for tower-http's `TraceLayer` that judges by the tables of the default policy.
    #[must_use]
    pub fn trace(&self) -> TraceClassifier {
        TraceClassifier::new(self.shared.policy.rules().clone())
    }

    /// The same registry, for requests that are located in another way.
    pub(crate) fn relocated<M>(self, locate: M) -> Dependencies<C, M> {
        Dependencies {
            shared: self.shared,
            classifier: self.classifier,
            locate,
        }
    }

    /// Whether a request goes to this dependency, which is still the one of that name.
    #[inline]
    fn locates<Req>(&self, request: &Req, dependency: &Dependency) -> bool
    where
        L: Locate<Req>,
    {
        !dependency.evicted.load(Ordering::Relaxed) && self.locate.is(request, &dependency.name)
    }

    /// Called when a layer that counts original requests is put on a service.
    pub(crate) fn counts_originals(&self) {
        self.shared.counting_layers.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a counted request has to say so, because another layer may see it too.
    pub(crate) fn must_mark(&self) -> bool {
        self.shared.counting_layers.load(Ordering::Relaxed) > 1
    }

    /// Whether a mark that a counting layer finds was surely meant for that layer alone.
    pub(crate) fn must_pass_marks_on(&self) -> bool {
        self.shared.counting_layers.load(Ordering::Relaxed) > 2
    }
}

impl<C, L> fmt::Debug for Dependencies<C, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dependencies")
            .field("policy", &self.shared.policy)
            .field("known", &self.shared.len.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn get(&self, name: &str) -> Arc<Dependency> {
        let name: Cow<'_, str> = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            name.to_ascii_lowercase().into()
        } else {
            name.into()
        };
        if let Some(known) = self.known.get(&*name) {
            known.dependency.touch();
            return Arc::clone(&known.dependency);
        }
        if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
            return self.overflow();
        }
        self.sweep();
        match self.known.entry(name.into()) {
            Entry::Occupied(known) => Arc::clone(&known.get().dependency),
            Entry::Vacant(vacant) => {
                // Those with a policy of their own are known beforehand, and few.
                let named = self.overrides.contains_key(vacant.key());
                if self.len.fetch_add(1, Ordering::AcqRel) >= self.capacity && !named {
                    self.len.fetch_sub(1, Ordering::AcqRel);
                    drop(vacant);
                    return self.overflow();
                }
                let policy = self.overrides.get(vacant.key()).unwrap_or(&self.policy);
                let dependency = self.make(vacant.key().as_ref().into(), policy);
                vacant.insert(Known {
                    dependency: Arc::clone(&dependency),
                    idle_since: 0,
                });
                dependency
            }
        }
    }

    fn make(&self, name: Arc<str>, policy: &Policy) -> Arc<Dependency> {
        Arc::new(Dependency::new(
            name,
            policy.clone(),
            self.origin,
            Arc::clone(&self.jitter),
        ))
    }

    fn overflow(&self) -> Arc<Dependency> {
        let overflow = self.overflow.get_or_init(|| {
            telemetry::overflow(self.capacity);
            self.make(OVERFLOW.into(), &self.policy)
        });
        Arc::clone(overflow)
    }

    /// Forgets dependencies that were not used for a while and that have nothing to remember.
    /// Runs when a new one is met, a few times in the idle time at most.
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
                dependency.evicted.store(true, Ordering::Relaxed);
                self.len.fetch_sub(1, Ordering::AcqRel);
            }
            keep
        });
    }
}

/// Makes a [`Dependencies`] registry.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct DependenciesBuilder<C = Standard, L = ByAuthority> {
    policy: Policy,
    overrides: HashMap<Box<str>, Policy>,
    capacity: usize,
    idle: Duration,
    seed: Option<u64>,
    classifier: C,
    locate: L,
}

impl<C, L> DependenciesBuilder<C, L> {
    /// Another policy for one dependency.
    pub fn policy_for(mut self, name: &str, policy: Policy) -> Self {
        self.overrides
            .insert(name.to_ascii_lowercase().into(), policy);
        self
    }

    /// How many dependencies get an entry of their own; the rest share one. 1024 unless told
    /// otherwise.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// How long a dependency goes unused before it is forgotten. Five minutes unless told
    /// otherwise, and never while it still has something to remember.
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Draws all jitter from one seeded generator, so that a test can be repeated.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Judges outcomes by this classifier.
    pub fn with_classifier<D>(self, classifier: D) -> DependenciesBuilder<D, L> {
        DependenciesBuilder {
            policy: self.policy,
            overrides: self.overrides,
            capacity: self.capacity,
            idle: self.idle,
            seed: self.seed,
            classifier,
            locate: self.locate,
        }
    }

    /// One name for everything.
    pub fn named(self, name: impl Into<Arc<str>>) -> DependenciesBuilder<C, Named> {
        self.with_locator(Named(name.into()))
    }

    /// Finds the dependency of a request by a closure.
    pub fn with_locate<F, Req>(self, locate: F) -> DependenciesBuilder<C, F>
    where
        F: for<'a> Fn(&'a Req) -> Cow<'a, str>,
    {
        self.with_locator(locate)
    }

    /// Finds the dependency of a request by any [`Locate`].
    pub fn with_locator<M>(self, locate: M) -> DependenciesBuilder<C, M> {
        DependenciesBuilder {
            policy: self.policy,
            overrides: self.overrides,
            capacity: self.capacity,
            idle: self.idle,
            seed: self.seed,
            classifier: self.classifier,
            locate,
        }
    }

    /// Makes the registry.
    pub fn build(self) -> Dependencies<C, L> {
        Dependencies {
            shared: Arc::new(Shared {
                policy: self.policy,
                overrides: self.overrides,
                capacity: self.capacity,
                idle: nanos(self.idle),
                origin: Instant::now(),
                jitter: Arc::new(Jitter::new(self.seed)),
                known: DashMap::new(),
                len: AtomicUsize::new(0),
                overflow: OnceLock::new(),
                last_sweep: AtomicU64::new(0),
                counting_layers: AtomicUsize::new(0),
            }),
            classifier: self.classifier,
            locate: self.locate,
        }
    }
}

/// A service's own view of the registry. It remembers the dependency it used last, so that a
/// service with one peer takes no lock to find it, and shares the first one it found with its
/// clones, so that neither does a clone that is made for one call. What is remembered may be more
/// than the dependency: anything that a service wants to have at hand with it.
pub(crate) struct Lookup<C, L, T = Dependency> {
    pub(crate) deps: Dependencies<C, L>,
    first: Arc<OnceLock<Arc<T>>>,
    last: Option<Arc<T>>,
}

/// What is remembered with a dependency.
pub(crate) trait Remembered {
    fn dependency(&self) -> &Dependency;
}

impl Remembered for Dependency {
    fn dependency(&self) -> &Dependency {
        self
    }
}

impl<C: Clone, L: Clone, T> Clone for Lookup<C, L, T> {
    fn clone(&self) -> Self {
        Self {
            deps: self.deps.clone(),
            first: Arc::clone(&self.first),
            last: self.last.clone(),
        }
    }
}

impl<C, L, T> fmt::Debug for Lookup<C, L, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deps.fmt(f)
    }
}

impl<C, L, T: Remembered> Lookup<C, L, T> {
    pub(crate) fn new(deps: Dependencies<C, L>) -> Self {
        Self {
            deps,
            first: Arc::default(),
            last: None,
        }
    }

    /// The registry, and what is remembered with the dependency that a request goes to.
    #[inline(always)]
    pub(crate) fn find_or<Req>(
        &mut self,
        request: &Req,
        remember: impl FnOnce(Arc<Dependency>) -> Arc<T>,
    ) -> (&Dependencies<C, L>, &Arc<T>)
    where
        L: Locate<Req>,
    {
        let found = match self.last.take() {
            Some(last) if self.deps.locates(request, last.dependency()) => last,
            _ => self.look_up(request, remember),
        };
        found.dependency().touch();
        (&self.deps, self.last.insert(found))
    }

    #[cold]
    fn look_up<Req>(
        &self,
        request: &Req,
        remember: impl FnOnce(Arc<Dependency>) -> Arc<T>,
    ) -> Arc<T>
    where
        L: Locate<Req>,
    {
        match self.first.get() {
            Some(first) if self.deps.locates(request, first.dependency()) => Arc::clone(first),
            _ => {
                let found = remember(self.deps.get(&self.deps.locate.locate(request)));
                let _ = self.first.set(Arc::clone(&found));
                found
            }
        }
    }
}

impl<C, L> Lookup<C, L> {
    /// The registry, and the dependency that a request goes to.
    #[inline(always)]
    pub(crate) fn find<Req>(&mut self, request: &Req) -> (&Dependencies<C, L>, &Arc<Dependency>)
    where
        L: Locate<Req>,
    {
        self.find_or(request, |dependency| dependency)
    }
}
