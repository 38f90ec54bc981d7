use std::{fmt, ptr, sync::Arc};

use arc_swap::ArcSwapOption;

use super::{Dependencies, Dependency, Locate};

/// A service's view of the registry: the dependency of its last call, so that a service with one
/// peer takes no lock to find it, and the first dependency of all its clones, for clones that are
/// made for one call. An entry may hold more than the dependency, such as a retry's spare service,
/// which without the shared entry every such clone would allocate: its call through `stacks::client`
/// would take 3,750 instead of 3,200 instructions (callgrind).
pub(crate) struct DependencyCache<C, L, T = Dependency> {
    pub(crate) deps: Dependencies<C, L>,
    /// The entry that clones share: the first, and once that was retired, a later one.
    shared: Arc<ArcSwapOption<T>>,
    last: Option<Arc<T>>,
}

/// An entry of a [`DependencyCache`].
pub(crate) trait CacheEntry {
    fn dependency(&self) -> &Dependency;
}

impl CacheEntry for Dependency {
    fn dependency(&self) -> &Dependency {
        self
    }
}

impl<C: Clone, L: Clone, T> Clone for DependencyCache<C, L, T> {
    fn clone(&self) -> Self {
        Self {
            deps: self.deps.clone(),
            shared: Arc::clone(&self.shared),
            last: self.last.clone(),
        }
    }
}

impl<C, L, T> fmt::Debug for DependencyCache<C, L, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deps.fmt(f)
    }
}

impl<C, L, T: CacheEntry> DependencyCache<C, L, T> {
    pub(crate) fn new(deps: Dependencies<C, L>) -> Self {
        Self {
            deps,
            shared: Arc::default(),
            last: None,
        }
    }

    /// Returns the registry and the entry of the dependency that a request goes to. `make` makes a
    /// new entry, perhaps from parts of another one.
    #[inline(always)]
    pub(crate) fn find_or<Req>(
        &mut self,
        request: &Req,
        make: impl FnOnce(Arc<Dependency>, Option<Arc<T>>) -> Arc<T>,
    ) -> (&Dependencies<C, L>, &Arc<T>)
    where
        L: Locate<Req>,
    {
        let Self { deps, shared, last } = self;
        let is = |entry: &T| deps.locates(request, entry.dependency());
        let entry = find(last, shared, is, |before| make(deps.find(request), before));
        (deps, entry)
    }

    /// Returns the registry and the entry of a dependency that a layer above found.
    #[inline]
    pub(crate) fn of(
        &mut self,
        dependency: &Arc<Dependency>,
        make: impl FnOnce(Arc<Dependency>, Option<Arc<T>>) -> Arc<T>,
    ) -> (&Dependencies<C, L>, &Arc<T>) {
        let Self { deps, shared, last } = self;
        let is = |entry: &T| ptr::eq(entry.dependency(), &**dependency);
        let entry = find(last, shared, is, |before| {
            make(Arc::clone(dependency), before)
        });
        (deps, entry)
    }
}

/// Returns the entry that `is` the one, or makes it.
#[inline(always)]
fn find<'a, T: CacheEntry>(
    last: &'a mut Option<Arc<T>>,
    shared: &ArcSwapOption<T>,
    is: impl Fn(&T) -> bool,
    make: impl FnOnce(Option<Arc<T>>) -> Arc<T>,
) -> &'a Arc<T> {
    let found = match last.take() {
        Some(last) if is(&last) => last,
        // Several dependencies: the shared entry is no better a guess than the registry.
        Some(last) if !last.dependency().is_retired() => make_other(make, last),
        _ => find_shared(shared, is, make),
    };
    found.dependency().touch();
    last.insert(found)
}

#[cold]
fn make_other<T>(make: impl FnOnce(Option<Arc<T>>) -> Arc<T>, last: Arc<T>) -> Arc<T> {
    make(Some(last))
}

#[cold]
fn find_shared<T: CacheEntry>(
    shared: &ArcSwapOption<T>,
    is: impl Fn(&T) -> bool,
    make: impl FnOnce(Option<Arc<T>>) -> Arc<T>,
) -> Arc<T> {
    let entry = shared.load();
    match &*entry {
        Some(entry) if is(entry) => Arc::clone(entry),
        Some(entry) if !entry.dependency().is_retired() => make(Some(Arc::clone(entry))),
        before => {
            let found = make(before.clone());
            shared.store(Some(Arc::clone(&found)));
            found
        }
    }
}

impl<C, L> DependencyCache<C, L> {
    /// Returns the registry and the dependency that a request goes to.
    #[inline(always)]
    pub(crate) fn find<Req>(&mut self, request: &Req) -> (&Dependencies<C, L>, &Arc<Dependency>)
    where
        L: Locate<Req>,
    {
        self.find_or(request, |dependency, _| dependency)
    }
}

#[cfg(all(test, not(reprise_loom)))]
#[allow(clippy::unwrap_used, reason = "the helpers are tests too")]
mod tests {
    use http::Request;

    use super::*;
    use crate::policy::Policy;

    /// Returns the retries of the policy that a clone finds for a host, and whether it asked the
    /// registry.
    fn find<C: Clone, L: Clone + Locate<Request<()>>>(
        template: &DependencyCache<C, L>,
        host: &str,
    ) -> (u32, bool) {
        let uri = format!("http://{host}/");
        let request = Request::builder().uri(uri).body(()).unwrap();
        let mut asked = false;
        let mut clone = template.clone();
        let (_, found) = clone.find_or(&request, |dependency, _| {
            asked = true;
            dependency
        });
        (found.policy().max_retries(), asked)
    }

    #[test]
    fn p_4_clones_ask_once_for_each_reload() {
        let policy = |retries| Policy::http().max_retries(retries).build().unwrap();
        let deps = Dependencies::new(policy(3));
        let template = DependencyCache::new(deps.clone());
        assert_eq!(find(&template, "a"), (3, true));
        assert_eq!(find(&template, "a"), (3, false));
        assert_eq!(find(&template, "b"), (3, true), "only the first is shared");
        for next in [1, 2, 3, 4] {
            deps.reload(policy(next));
            assert_eq!(find(&template, "a"), (next, true));
            assert_eq!(find(&template, "a"), (next, false));
            assert_eq!(find(&template, "b"), (next, true));
            assert_eq!(find(&template, "a"), (next, false), "and stays so");
        }
    }

    #[test]
    fn p_4_the_entry_of_a_dependency_that_was_found_is_of_that_one() {
        let policy = |retries| Policy::http().max_retries(retries).build().unwrap();
        let deps = Dependencies::new(policy(3));
        let template = DependencyCache::<_, _, Dependency>::new(deps.clone());
        let mut service = template.clone();
        let (a, b) = (deps.get("a"), deps.get("b"));
        deps.reload(policy(1));
        for expected in [&a, &b, &b, &deps.get("a"), &a] {
            for service in [&mut service, &mut template.clone()] {
                let (_, entry) = service.of(expected, |dependency, _| dependency);
                assert!(Arc::ptr_eq(entry, expected));
            }
        }
    }

    /// Neither a service, nor its template, nor a thread that called once holds on to what was.
    #[test]
    fn p_4_a_reload_leaves_nothing_of_the_policies_before() {
        let policy = |retries| Policy::http().max_retries(retries).build().unwrap();
        let deps = Dependencies::new(policy(3));
        let template = DependencyCache::new(deps.clone());
        let mut service = template.clone();
        let request = Request::get("http://a/").body(()).unwrap();
        for next in [1, 2, 3, 4] {
            service.find(&request);
            find(&template, "a");
            let before = Arc::downgrade(&deps.get("a"));
            std::thread::scope(|scope| {
                scope.spawn(|| find(&template, "a"));
                scope.spawn(|| deps.clone().find(&request));
            });
            deps.reload(policy(next));
            service.find(&request);
            find(&template, "a");
            assert_eq!(before.strong_count(), 0, "reload {next}");
        }
    }
}
