use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwapOption;

use super::{Dependencies, Dependency, Locate};

/// A service's own view of the registry. It remembers the dependency it used last, so that a
/// service with one peer takes no lock to find it, and shares the first one it found with its
/// clones, so that neither does a clone that is made for one call. What is remembered may be more
/// than the dependency: anything that a service wants to have at hand with it.
pub(crate) struct DependencyCache<C, L, T = Dependency> {
    pub(crate) deps: Dependencies<C, L>,
    shared: Arc<First<T>>,
    last: Option<Arc<T>>,
}

/// What was found first, and since that was retired, the first that was not.
struct First<T> {
    ever: OnceLock<Arc<T>>,
    since: ArcSwapOption<T>,
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

impl<C, L, T: Remembered> DependencyCache<C, L, T> {
    pub(crate) fn new(deps: Dependencies<C, L>) -> Self {
        Self {
            deps,
            shared: Arc::new(First {
                ever: OnceLock::new(),
                since: ArcSwapOption::empty(),
            }),
            last: None,
        }
    }

    /// The registry, and what is remembered with the dependency that a request goes to. What is to
    /// be remembered may be made of what was remembered with another one.
    #[inline(always)]
    pub(crate) fn find_or<Req>(
        &mut self,
        request: &Req,
        remember: impl FnOnce(Arc<Dependency>, Option<Arc<T>>) -> Arc<T>,
    ) -> (&Dependencies<C, L>, &Arc<T>)
    where
        L: Locate<Req>,
    {
        let found = match self.last.take() {
            Some(last) if self.deps.locates(request, last.dependency()) => last,
            // It has several, and the first one is no likelier than the others.
            Some(last) if !last.dependency().is_retired() => {
                self.ask(request, remember, Some(last))
            }
            _ => self.look_up(request, remember),
        };
        found.dependency().touch();
        (&self.deps, self.last.insert(found))
    }

    #[cold]
    fn look_up<Req>(
        &self,
        request: &Req,
        remember: impl FnOnce(Arc<Dependency>, Option<Arc<T>>) -> Arc<T>,
    ) -> Arc<T>
    where
        L: Locate<Req>,
    {
        let First { ever, since } = &*self.shared;
        let Some(first) = ever.get() else {
            let found = self.ask(request, remember, None);
            let _ = ever.set(Arc::clone(&found));
            return found;
        };
        if self.deps.locates(request, first.dependency()) {
            return Arc::clone(first);
        }
        let before = || Some(Arc::clone(first));
        if !first.dependency().is_retired() {
            return self.ask(request, remember, before());
        }
        let since_then = since.load();
        match &*since_then {
            Some(first) if self.deps.locates(request, first.dependency()) => Arc::clone(first),
            Some(first) if !first.dependency().is_retired() => {
                self.ask(request, remember, before())
            }
            _ => {
                let found = self.ask(request, remember, before());
                since.store(Some(Arc::clone(&found)));
                found
            }
        }
    }

    #[cold]
    fn ask<Req>(
        &self,
        request: &Req,
        remember: impl FnOnce(Arc<Dependency>, Option<Arc<T>>) -> Arc<T>,
        before: Option<Arc<T>>,
    ) -> Arc<T>
    where
        L: Locate<Req>,
    {
        remember(self.deps.find(request), before)
    }
}

impl<C, L> DependencyCache<C, L> {
    /// The registry, and the dependency that a request goes to.
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

    /// The retries that a clone finds for a request to a host, and whether it had to ask.
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
        let policy = |retries| Policy::synchronous().max_retries(retries).build().unwrap();
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
}
