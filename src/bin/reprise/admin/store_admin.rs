//! The part of the admin port that needs a store and no gateway.

use std::{sync::Arc, time::Duration};

use axum::Router;
use tower_reprise::{
    delivery::{dead_letter::DeadLetters, replay::Replay},
    error::BoxError,
    server::dialect::Scope,
    store::{Claim, ClaimId, Claimed, CrashPolicy, Fingerprint, IdempotencyStore, Note, RecordKey},
};

use super::{keys, letters, owners, redrives, redrives::Redrives, replays};
use crate::{gateway::caller::operator, store::Store};

/// The longest time that a readiness probe stays in the store if it can't be removed.
const PROBE: Duration = Duration::from_secs(5);

/// Replays, dead letters and unknown outcomes of a store.
#[derive(Clone)]
pub(crate) struct StoreAdmin {
    pub(crate) store: Store,
    pub(crate) replay: Replay<Store>,
    pub(crate) letters: DeadLetters<Store>,
    pub(crate) redrives: Arc<Redrives>,
}

impl StoreAdmin {
    pub(crate) fn new(store: Store, replay: Replay<Store>, letters: DeadLetters<Store>) -> Self {
        Self {
            store,
            replay,
            letters,
            redrives: Arc::default(),
        }
    }

    /// Makes one for a store that no gateway of this process uses.
    pub(crate) fn of(store: Store) -> Result<Self, BoxError> {
        let replay = Replay::builder(store.clone(), Scope::new(operator)).build()?;
        let letters = DeadLetters::new(store.clone());
        Ok(Self::new(store, replay, letters))
    }

    /// Whether the store takes what is written: a claim that is given back.
    pub(crate) async fn writes(&self) -> bool {
        let key = RecordKey::new(rand::random());
        let claim = Claim {
            key,
            fingerprint: Fingerprint::new([0; 32]),
            id: ClaimId::random(),
            lease: PROBE,
            retention: PROBE,
            crash_policy: CrashPolicy::Reexecute,
            note: Note::NONE,
            resumes: None,
        };
        match self.store.claim(claim).await {
            Ok(Claimed::New(lease)) => self.store.release(key, lease.token).await.is_ok(),
            Ok(_) => true,
            Err(_) => false,
        }
    }

    pub(crate) fn routes(self) -> Router {
        Router::new()
            .nest("/dead-letters", letters::routes())
            .nest("/keys", keys::routes())
            .nest("/redrives", redrives::routes())
            .merge(owners::routes())
            .merge(replays::routes())
            .with_state(self)
    }
}
