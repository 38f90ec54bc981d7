//! A store of records that fails on demand.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_reprise::store::{
    Claim, ClaimId, Claimed, FencingToken, IdempotencyStore, MemoryStore, Ownership, RecordKey,
    StoreError, StoreErrorKind, Stored,
};

pub(crate) const ALWAYS: usize = usize::MAX;

/// A verb of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Claim,
    /// A claim that resumes an execution.
    Resume,
    Renew,
    Suspend,
    Complete,
    Release,
}

impl Verb {
    const ALL: [Self; 6] = [
        Self::Claim,
        Self::Resume,
        Self::Renew,
        Self::Suspend,
        Self::Complete,
        Self::Release,
    ];
}

/// A fault of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing happens.
    Error(StoreErrorKind),
    /// It happens, and the answer gets lost.
    Lost,
    /// No answer ever comes.
    Hang,
    /// It happens after a while, if its caller still waits.
    Slow(Duration),
    /// It happens after a while, whether or not its caller still waits.
    Delayed(Duration),
    /// It happens, and the answer takes a while.
    Late(Duration),
}

/// A store that fails on demand.
#[derive(Debug, Clone)]
pub(crate) struct Flaky<St = MemoryStore> {
    pub(crate) store: St,
    faults: Arc<Mutex<Vec<(Verb, Fault, usize)>>>,
    calls: Arc<Mutex<Vec<Verb>>>,
}

impl Default for Flaky {
    fn default() -> Self {
        Self::new(MemoryStore::new())
    }
}

impl<St> Flaky<St> {
    pub(crate) fn new(store: St) -> Self {
        Self {
            store,
            faults: Arc::default(),
            calls: Arc::default(),
        }
    }

    /// The next `times` calls of `verb` go wrong.
    pub(crate) fn fail(&self, verb: Verb, fault: Fault, times: usize) {
        self.faults.lock().unwrap().push((verb, fault, times));
    }

    /// No verb happens until it is healed.
    pub(crate) fn go_down(&self) {
        for verb in Verb::ALL {
            self.fail(verb, Fault::Error(StoreErrorKind::Unavailable), ALWAYS);
        }
    }

    pub(crate) fn heal(&self) {
        self.faults.lock().unwrap().clear();
    }

    pub(crate) fn calls(&self, verb: Verb) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| **call == verb).count()
    }

    fn fault(&self, verb: Verb) -> Option<Fault> {
        self.calls.lock().unwrap().push(verb);
        let mut faults = self.faults.lock().unwrap();
        let (_, fault, left) = faults
            .iter_mut()
            .find(|(v, _, left)| *v == verb && *left > 0)?;
        *left -= 1;
        Some(*fault)
    }
}

impl<St: Clone> Flaky<St> {
    async fn run<T, Fut>(
        &self,
        verb: Verb,
        transition: impl FnOnce(St) -> Fut,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        Fut: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let transition = transition(self.store.clone());
        match self.fault(verb) {
            None => transition.await,
            Some(Fault::Error(kind)) => Err(StoreError::new(kind, "on demand")),
            Some(Fault::Lost) => {
                transition.await?;
                Err(StoreError::new(StoreErrorKind::Unavailable, "answer lost").in_doubt())
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Slow(time)) => {
                tokio::time::sleep(time).await;
                transition.await
            }
            Some(Fault::Delayed(time)) => {
                let delayed = async move {
                    tokio::time::sleep(time).await;
                    transition.await
                };
                tokio::spawn(delayed).await.unwrap()
            }
            Some(Fault::Late(time)) => {
                let answer = transition.await;
                tokio::time::sleep(time).await;
                answer
            }
        }
    }
}

impl<St: IdempotencyStore + Clone> IdempotencyStore for Flaky<St> {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let verb = match claim.resumes {
            None => Verb::Claim,
            Some(_) => Verb::Resume,
        };
        self.run(verb, |store| async move { store.claim(claim).await })
            .await
    }

    async fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let renew = |store: St| async move { store.renew(key, token, lease, retention).await };
        self.run(Verb::Renew, renew).await
    }

    async fn suspend(
        &self,
        key: RecordKey,
        token: FencingToken,
        resumed_by: ClaimId,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let suspend = |store: St| async move {
            let suspended = store.suspend(key, token, resumed_by, lease, retention);
            suspended.await
        };
        self.run(Verb::Suspend, suspend).await
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let complete =
            |store: St| async move { store.complete(key, token, stored, retention).await };
        self.run(Verb::Complete, complete).await
    }

    async fn release(&self, key: RecordKey, token: FencingToken) -> Result<Ownership, StoreError> {
        let release = |store: St| async move { store.release(key, token).await };
        self.run(Verb::Release, release).await
    }
}
