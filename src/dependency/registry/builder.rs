use std::{
    borrow::Cow,
    sync::{
        Arc, OnceLock, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize},
    },
    time::Duration,
};

use dashmap::DashMap;
use http::Request;
use tokio::time::Instant;

use super::{Current, Dependencies, Registry};
use crate::{
    backoff::Jitter,
    call::budget_mark::RegistryId,
    classify::{BoxClassify, Classify, Standard},
    dependency::{BoxLocate, ByAuthority, ByMessage, Event, Locate, Named, hook::Hook, nanos},
    policy::{Policies, Policy},
};

const CAPACITY: usize = 1024;
const IDLE: Duration = Duration::from_secs(300);

/// A builder of [`Dependencies`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct DependenciesBuilder<C = Standard, L = ByAuthority> {
    policies: Policies,
    capacity: usize,
    idle: Duration,
    seed: Option<u64>,
    hook: Hook,
    keeps_counters: bool,
    classifier: C,
    locate: L,
}

impl DependenciesBuilder {
    pub(super) fn new(policies: Policies) -> Self {
        Self {
            policies,
            capacity: CAPACITY,
            idle: IDLE,
            seed: None,
            hook: Hook::default(),
            keeps_counters: false,
            classifier: Standard,
            locate: ByAuthority,
        }
    }
}

impl<C, L> DependenciesBuilder<C, L> {
    /// Sets the policy of one dependency.
    pub fn policy_for(mut self, name: &str, policy: Policy) -> Self {
        self.policies = self.policies.policy_for(name, policy);
        self
    }

    /// Sets how many dependencies get an entry of their own; the rest share one. Default: 1024.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets how long a dependency is unused before it is dropped, which it never is while its
    /// budget, breaker or gate holds anything. Default: five minutes.
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Draws all jitter from one seeded generator, for repeatable tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Calls a hook on every retry and hedge, on every call that is given up, and on every change of a breaker.
    /// It runs within the call that it is about, so it should be quick.
    pub fn on_event(mut self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.hook = Hook::new(hook);
        self
    }

    /// Says that the process has installed its recorder of metrics: the counter of calls that succeed
    /// is looked up once for each dependency, not for each call. Not for a recorder that forgets metrics
    /// after an idle time.
    pub fn recorder_installed(mut self) -> Self {
        self.keeps_counters = true;
        self
    }

    /// Classifies outcomes by this classifier. A closure is for responses of one type; the layers of
    /// [`stacks::client`](crate::stacks::client) see several, and take a
    /// [`Classify`](crate::classify::Classify) for all of them, as the
    /// [guide](crate::guide::migrating#from-reqwest-retry-09) shows.
    pub fn with_classifier<D>(self, classifier: D) -> DependenciesBuilder<D, L> {
        DependenciesBuilder {
            policies: self.policies,
            capacity: self.capacity,
            idle: self.idle,
            seed: self.seed,
            hook: self.hook,
            keeps_counters: self.keeps_counters,
            classifier,
            locate: self.locate,
        }
    }

    /// Names the one dependency of all requests.
    pub fn named(self, name: impl Into<Arc<str>>) -> DependenciesBuilder<C, Named> {
        self.with_locator(Named(name.into()))
    }

    /// Finds the dependency of an HTTP request by a closure. A
    /// [`RetryOverride`](crate::RetryOverride) on the request may name another.
    pub fn with_locate<F, B>(self, locate: F) -> DependenciesBuilder<C, F>
    where
        F: for<'a> Fn(&'a Request<B>) -> Cow<'a, str>,
    {
        self.with_locator(locate)
    }

    /// Finds the dependency of a message, or of any request that is not HTTP's, by a closure.
    pub fn with_locate_message<F, Req>(self, locate: F) -> DependenciesBuilder<C, ByMessage<F>>
    where
        F: for<'a> Fn(&'a Req) -> Cow<'a, str>,
    {
        self.with_locator(ByMessage(locate))
    }

    /// Finds the dependency of a request by any [`Locate`](crate::dependency::Locate).
    pub fn with_locator<M>(self, locate: M) -> DependenciesBuilder<C, M> {
        DependenciesBuilder {
            policies: self.policies,
            capacity: self.capacity,
            idle: self.idle,
            seed: self.seed,
            hook: self.hook,
            keeps_counters: self.keeps_counters,
            classifier: self.classifier,
            locate,
        }
    }

    /// Boxes classifier and locator, so that the registry's type can be written down, whatever closures
    /// they are: as [`BoxDependencies<Request, Response>`](crate::dependency::BoxDependencies).
    ///
    /// ```
    /// use std::error::Error;
    /// use tower_reprise::{
    ///     Dependencies, Policy,
    ///     call::{Cause, Verdict},
    ///     dependency::BoxDependencies,
    ///     error::ConfigError,
    /// };
    ///
    /// struct OrderPlaced;
    ///
    /// struct Consumer {
    ///     deps: BoxDependencies<OrderPlaced, ()>,
    /// }
    ///
    /// fn consumer() -> Result<Consumer, ConfigError> {
    ///     let judge = |outcome: Result<&(), &(dyn Error + 'static)>| match outcome {
    ///         Ok(()) => Verdict::SUCCESS,
    ///         Err(_) => Verdict::transient(Cause::Unknown),
    ///     };
    ///     let deps = Dependencies::builder(Policy::batch_item().build()?)
    ///         .with_classifier(judge)
    ///         .with_locate_message(|_: &OrderPlaced| "orders".into())
    ///         .boxed()
    ///         .build();
    ///     Ok(Consumer { deps })
    /// }
    /// # assert!(consumer()?.deps.list().is_empty());
    /// # Ok::<(), ConfigError>(())
    /// ```
    pub fn boxed<Req, Res>(self) -> DependenciesBuilder<BoxClassify<Req, Res>, BoxLocate<Req>>
    where
        C: Classify<Req, Res> + Clone + Send + Sync + 'static,
        L: Locate<Req> + Clone + Send + Sync + 'static,
    {
        let classifier = BoxClassify::new(self.classifier.clone());
        let locate = BoxLocate::new(self.locate.clone());
        self.with_classifier(classifier).with_locator(locate)
    }

    /// Makes the registry.
    pub fn build(self) -> Dependencies<C, L> {
        let hedges = AtomicBool::new(self.policies.hedge());
        Dependencies {
            shared: Arc::new(Registry {
                hedges,
                id: RegistryId::next(),
                current: RwLock::new(Current {
                    policies: self.policies,
                    overflow: OnceLock::new(),
                }),
                capacity: self.capacity,
                idle: nanos(self.idle),
                origin: Instant::now(),
                jitter: Arc::new(Jitter::new(self.seed)),
                hook: self.hook,
                known: DashMap::new(),
                recent: Default::default(),
                len: AtomicUsize::new(0),
                last_sweep: AtomicU64::new(0),
                has_counting_layer: AtomicBool::new(false),
                marks_originals: AtomicBool::new(false),
                has_retry_loop: Arc::default(),
                keeps_counters: self.keeps_counters,
                served: Default::default(),
            }),
            classifier: self.classifier,
            locate: self.locate,
        }
    }
}
