use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::Endpoint;
use crate::{
    delivery::{guard::Target, worker::alert},
    store::{
        StoreError,
        journal::{Enqueued, Entry, EntryCommand, EntryId, Journal, NewEntry, Settlement, Status},
    },
    telemetry,
};

/// The time for which an endpoint is taken for working without a look into the journal.
const RECHECK: Duration = Duration::from_secs(60);

/// The endpoints that are remembered as working.
const MAX_KNOWN: usize = 10_000;

/// The retention of a disabled endpoint.
const FOREVER: Duration = Duration::MAX;

/// The cause of the dead letter that stands for a disabled endpoint.
const DISABLED: &str = "endpoint_disabled";

/// The endpoints that fail, and those that are disabled.
///
/// Both are dead letters in queues of their own, so that they are as durable as the events: an endpoint's
/// first failure since its last success, and the notice that it is disabled. Ids are derived from the
/// endpoint, so that of several processes one writes a letter, and all find it.
#[derive(Debug)]
pub(in super::super) struct Health {
    /// The time for which an endpoint fails before it is disabled, if it is.
    pub(super) disable_after: Option<Duration>,
    /// The queues of the letters.
    failing: String,
    disabled: String,
    /// Endpoints whose letter of this id was looked for and not there, and when.
    absent: Mutex<HashMap<EntryId, Instant>>,
}

impl Health {
    pub(in super::super) fn new(queue: &str, disable_after: Option<Duration>) -> Self {
        Self {
            disable_after,
            failing: format!("{queue}.failing"),
            disabled: format!("{queue}.disabled"),
            absent: Mutex::default(),
        }
    }

    /// Returns whether events for an endpoint are not to be sent. An endpoint that can't be looked up
    /// is taken for enabled.
    pub(in super::super) async fn is_disabled<J: Journal>(
        &self,
        journal: &J,
        endpoint: &Endpoint,
    ) -> bool {
        let found = self.letter(journal, self.disabled_id(endpoint)).await;
        or_trouble("find", found).flatten().is_some()
    }

    /// Records a success: the endpoint does not fail any more.
    pub(in super::super) async fn delivered<J: Journal>(&self, journal: &J, endpoint: &Endpoint) {
        if self.disable_after.is_none() {
            return;
        }
        let id = self.failing_id(endpoint);
        let found = self.letter(journal, id).await;
        if or_trouble("find", found).flatten().is_some() {
            or_trouble("command", journal.command(id, EntryCommand::Purge).await);
        }
    }

    /// Records an event that could not be delivered, and disables an endpoint that fails for too long.
    /// The time is that of the store.
    pub(in super::super) async fn failed<J: Journal>(
        &self,
        journal: &J,
        endpoint: &Endpoint,
        target: &Target,
        event: &Entry,
    ) {
        let Some(disable_after) = self.disable_after else {
            return;
        };
        let id = self.failing_id(endpoint);
        let letter = self.new_letter(id, &self.failing, endpoint, target);
        // Beyond that, a failure now and then is not one failure.
        let first = Settlement::failed("not delivered", disable_after * 2).cause("failing");
        let first = or_trouble("bury", journal.bury(letter, 1, first).await);
        self.absent().remove(&id);
        let Some(Enqueued::New(first) | Enqueued::Existing(first)) = first else {
            return;
        };
        let since = event.changed_at.since(first.changed_at);
        if since >= disable_after {
            let days = since.as_secs() / (24 * 60 * 60);
            let reason = format!("no event was delivered for {days} days");
            or_trouble(
                "bury",
                self.disable(journal, endpoint, target, reason).await,
            );
        }
    }

    /// Disables an endpoint, with a notice. One that is disabled already stays so.
    pub(super) async fn disable<J: Journal>(
        &self,
        journal: &J,
        endpoint: &Endpoint,
        target: &Target,
        reason: String,
    ) -> Result<(), StoreError> {
        let id = self.disabled_id(endpoint);
        let letter = self.new_letter(id, &self.disabled, endpoint, target);
        let notice = alert(&self.disabled, id, &endpoint.owner, FOREVER);
        let settlement = Settlement::failed(reason, FOREVER).cause(DISABLED);
        journal
            .bury(letter, 1, settlement.followed_by(notice))
            .await?;
        self.absent().remove(&id);
        Ok(())
    }

    /// Enables an endpoint, and forgets its failures. Returns whether it was disabled.
    pub(super) async fn enable<J: Journal>(
        &self,
        journal: &J,
        endpoint: &Endpoint,
    ) -> Result<bool, StoreError> {
        let (failing, disabled) = (self.failing_id(endpoint), self.disabled_id(endpoint));
        journal.command(failing, EntryCommand::Purge).await?;
        let purged = journal.command(disabled, EntryCommand::Purge).await?;
        Ok(purged.is_some_and(|purged| purged.applied))
    }

    /// Returns the letter of a disabled endpoint.
    pub(super) async fn disabled<J: Journal>(
        &self,
        journal: &J,
        endpoint: &Endpoint,
    ) -> Result<Option<Entry>, StoreError> {
        let letter = journal.find(self.disabled_id(endpoint)).await?;
        Ok(letter.filter(is_letter))
    }

    fn failing_id(&self, endpoint: &Endpoint) -> EntryId {
        endpoint.id("failing endpoint", &self.failing)
    }

    fn disabled_id(&self, endpoint: &Endpoint) -> EntryId {
        endpoint.id("disabled endpoint", &self.disabled)
    }

    fn new_letter(
        &self,
        id: EntryId,
        queue: &str,
        endpoint: &Endpoint,
        target: &Target,
    ) -> NewEntry {
        NewEntry {
            id,
            owner: endpoint.owner.clone(),
            label: target.to_string(),
            ..NewEntry::new(queue.to_owned(), endpoint.url.clone())
        }
    }

    /// Returns the letter of this id, unless there was none a moment ago. One that is there is looked up
    /// each time, so that all processes notice at once when it is gone.
    async fn letter<J: Journal>(
        &self,
        journal: &J,
        id: EntryId,
    ) -> Result<Option<Entry>, StoreError> {
        let is_recent = |at: &Instant| at.elapsed() < RECHECK;
        if self.absent().get(&id).is_some_and(is_recent) {
            return Ok(None);
        }
        let letter = journal.find(id).await?.filter(is_letter);
        if letter.is_none() {
            let mut absent = self.absent();
            if absent.len() >= MAX_KNOWN {
                absent.retain(|_, at| is_recent(at));
            }
            if absent.len() < MAX_KNOWN {
                absent.insert(id, Instant::now());
            }
        }
        Ok(letter)
    }

    fn absent(&self) -> MutexGuard<'_, HashMap<EntryId, Instant>> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_letter(entry: &Entry) -> bool {
    entry.status == Status::Failed
}

/// Logs an error of the journal: a delivery is not held up by it.
fn or_trouble<T>(verb: &'static str, result: Result<T, StoreError>) -> Option<T> {
    result
        .inspect_err(|error| telemetry::journal_trouble(verb, error.kind().as_str()))
        .ok()
}
