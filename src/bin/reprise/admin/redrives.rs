//! Redrives and purges that go on in the background, with their progress.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::State,
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::AbortHandle};
use tower_reprise::{
    delivery::dead_letter::{DeadLetters, Selection, SelectionReport},
    store::StoreError,
};

use super::{AdminError, Path, StoreAdmin};
use crate::store::Store;

/// The number of redrives and purges that are remembered.
const REMEMBERED: usize = 32;

/// What is done with letters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Redrive,
    Purge,
}

impl Act {
    pub(super) async fn run(
        self,
        letters: &DeadLetters<Store>,
        selection: Selection,
    ) -> Result<SelectionReport, StoreError> {
        match self {
            Self::Redrive => letters.redrive_all(selection).await,
            Self::Purge => letters.purge_all(selection).await,
        }
    }

    /// The name of the number of letters that it was done with.
    pub(super) fn done(self) -> &'static str {
        match self {
            Self::Redrive => "redriven",
            Self::Purge => "purged",
        }
    }
}

#[derive(Default)]
pub(crate) struct Redrives {
    last: AtomicU64,
    known: Mutex<VecDeque<Known>>,
}

struct Known {
    number: u64,
    act: Act,
    filter: Value,
    total: u64,
    progress: watch::Receiver<SelectionReport>,
    end: Arc<Mutex<Option<Result<(), String>>>>,
    task: AbortHandle,
}

impl Redrives {
    /// Counts the letters, and starts.
    pub(super) async fn start(
        &self,
        act: Act,
        letters: DeadLetters<Store>,
        selection: Selection,
        filter: Value,
    ) -> Result<Value, StoreError> {
        let counted = act.run(&letters, selection.clone().dry_run()).await?;
        let total = counted.matched;
        let number = 1 + self.last.fetch_add(1, Ordering::Relaxed);
        let (report, progress) = watch::channel(SelectionReport::default());
        let end = Arc::new(Mutex::new(None));
        let ends = Arc::clone(&end);
        // No more than were counted: letters that die meanwhile wait for the next one.
        let selection = selection.at_most(total).progress(report);
        let task = tokio::spawn(async move {
            let done = act.run(&letters, selection).await;
            let done = done.map(drop).map_err(|error| error.to_string());
            *ends.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        });
        let known = Known {
            number,
            act,
            filter,
            total,
            progress,
            end,
            task: task.abort_handle(),
        };
        let described = known.describe();
        let mut all = self.known();
        all.push_back(known);
        if all.len() > REMEMBERED {
            all.pop_front();
        }
        Ok(described)
    }

    pub(super) fn describe(&self) -> Value {
        self.known().iter().map(Known::describe).collect()
    }

    fn known(&self) -> MutexGuard<'_, VecDeque<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn describe(&self) -> Value {
        let report = *self.progress.borrow();
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, error) = match &*end {
            Some(Ok(())) => ("done", None),
            Some(Err(error)) => ("failed", Some(error.clone())),
            None if self.task.is_finished() => ("stopped", None),
            None => ("running", None),
        };
        json!({
            "number": self.number,
            "filter": self.filter,
            "total": self.total,
            "seen": report.matched,
            self.act.done(): report.changed,
            "state": state,
            "error": error,
        })
    }
}

pub(super) fn routes() -> Router<StoreAdmin> {
    Router::new()
        .route("/", get(list))
        .route("/{number}", get(one))
        .route("/{number}/stop", post(stop))
}

async fn list(State(admin): State<StoreAdmin>) -> Json<Value> {
    Json(json!({ "redrives": admin.redrives.describe() }))
}

async fn one(
    State(admin): State<StoreAdmin>,
    Path(number): Path<String>,
) -> Result<Json<Value>, AdminError> {
    let number = parse(&number)?;
    let all = admin.redrives.known();
    let known = all.iter().find(|known| known.number == number);
    known
        .map(|known| Json(known.describe()))
        .ok_or_else(AdminError::not_found)
}

fn parse(number: &str) -> Result<u64, AdminError> {
    let allowed = "the number of a redrive or purge";
    let parsed = number.parse();
    parsed.map_err(|_| AdminError::invalid("number", number, allowed))
}

async fn stop(
    State(admin): State<StoreAdmin>,
    Path(path): Path<String>,
) -> Result<Json<Value>, AdminError> {
    let number = parse(&path)?;
    {
        let all = admin.redrives.known();
        let known = all.iter().find(|known| known.number == number);
        known.ok_or_else(AdminError::not_found)?.task.abort();
    }
    one(State(admin), Path(path)).await
}
