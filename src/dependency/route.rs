use std::sync::{Arc, Mutex, PoisonError};

use super::{CacheEntry, Dependency};

/// State that the calls of one service to one dependency share.
#[derive(Debug)]
pub(crate) struct Route<S> {
    pub(crate) dependency: Arc<Dependency>,
    /// Cloned by calls that make further attempts, so that others need not clone the service.
    spare: Arc<Mutex<S>>,
}

impl<S: Clone> Route<S> {
    /// Makes a route to a dependency: from the one before, in place if no call is on it, or with a
    /// clone of the service.
    pub(crate) fn to(
        dependency: Arc<Dependency>,
        before: Option<Arc<Self>>,
        service: &S,
    ) -> Arc<Self> {
        let Some(mut route) = before else {
            let spare = Arc::new(Mutex::new(service.clone()));
            return Arc::new(Self { dependency, spare });
        };
        match Arc::get_mut(&mut route) {
            Some(route) => route.dependency = dependency,
            None => {
                let spare = Arc::clone(&route.spare);
                route = Arc::new(Self { dependency, spare });
            }
        }
        route
    }

    /// Returns a service for a further attempt, which is not the one that the caller readied.
    pub(crate) fn service(&self) -> S {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.clone()
    }
}

impl<S> CacheEntry for Route<S> {
    fn dependency(&self) -> &Dependency {
        &self.dependency
    }
}
