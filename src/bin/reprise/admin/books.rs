//! The part of the admin port that needs a store and no gateway.

use std::sync::Arc;

use axum::Router;
use tower_reprise::{
    delivery::{dead_letter::DeadLetters, replay::Replay},
    error::BoxError,
    server::dialect::Scope,
};

use super::{letters, redrives, redrives::Redrives, replays};
use crate::{gateway::caller::operator, store::Store};

/// Replays and dead letters of a store.
#[derive(Clone)]
pub(crate) struct Books {
    pub(crate) store: Store,
    pub(crate) replay: Replay<Store>,
    pub(crate) letters: DeadLetters<Store>,
    pub(crate) redrives: Arc<Redrives>,
}

impl Books {
    pub(crate) fn new(store: Store, replay: Replay<Store>, letters: DeadLetters<Store>) -> Self {
        Self {
            store,
            replay,
            letters,
            redrives: Arc::default(),
        }
    }

    /// The books of a store that no gateway of this process uses.
    pub(crate) fn of(store: Store) -> Result<Self, BoxError> {
        let replay = Replay::builder(store.clone(), Scope::new(operator)).build()?;
        let letters = DeadLetters::new(store.clone());
        Ok(Self::new(store, replay, letters))
    }

    pub(crate) fn routes(self) -> Router {
        Router::new()
            .nest("/dead-letters", letters::routes())
            .nest("/redrives", redrives::routes())
            .merge(replays::routes())
            .with_state(self)
    }
}
