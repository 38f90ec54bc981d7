use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};

use super::{
    super::{
        SendError, Webhooks,
        webhook::{DAY, url_of},
    },
    Endpoint, target_of,
};
use crate::{
    delivery::guard::Target,
    store::{
        StoreError,
        journal::{EntryCommand, Journal, Query, Status, Timestamp},
    },
};

/// Letters that are listed in one call.
const PAGE: u32 = 100;

/// The pause between two events that are delivered again.
const PAUSE: Duration = Duration::from_millis(100);

impl<J: Journal + Clone> Webhooks<J> {
    /// Returns since when an endpoint is disabled; `None` if it is not.
    ///
    /// # Errors
    ///
    /// The journal failed.
    pub async fn disabled_since(
        &self,
        endpoint: &Endpoint,
    ) -> Result<Option<Timestamp>, StoreError> {
        let letter = self
            .settings
            .health
            .disabled(&self.journal, endpoint)
            .await?;
        Ok(letter.map(|letter| letter.changed_at))
    }

    /// Disables an endpoint, with a notice: no event is sent to it, by any process after a minute, until
    /// it is [enabled](Self::enable). Its events are queued all the same, and become dead letters.
    ///
    /// # Errors
    ///
    /// The URL is not allowed, or the journal failed.
    pub async fn disable(&self, endpoint: &Endpoint) -> Result<(), SendError> {
        let settings = &self.settings;
        let target = Target::parse(&endpoint.url, &settings.guard).map_err(SendError::Target)?;
        let reason = "disabled by an operator".to_owned();
        let disabled = settings
            .health
            .disable(&self.journal, endpoint, &target, reason);
        disabled.await.map_err(SendError::Journal)
    }

    /// Enables an endpoint. Returns whether it was disabled. Events that failed stay dead letters:
    /// [`recover`](Self::recover) delivers them, too.
    ///
    /// # Errors
    ///
    /// The journal failed.
    pub async fn enable(&self, endpoint: &Endpoint) -> Result<bool, StoreError> {
        self.settings.health.enable(&self.journal, endpoint).await
    }

    /// Enables an endpoint, and queues the events for it again that failed at this time or later, ten a
    /// second. Returns their number. An event is delivered under its id, as by any
    /// [redrive](crate::delivery::dead_letter::DeadLetters::redrive): two recoveries of one failure
    /// are one. A future that is dropped leaves the rest as they are, for the next call.
    ///
    /// # Errors
    ///
    /// The journal failed. Events that were queued before that stay so.
    pub async fn recover(&self, endpoint: &Endpoint, since: SystemTime) -> Result<u64, StoreError> {
        self.enable(endpoint).await?;
        let since = Timestamp::from(since);
        let mut query = Query {
            status: Some(Status::Failed),
            owner: Some(endpoint.owner.clone()),
            ..Query::new(self.settings.queue.clone(), PAGE)
        };
        let (mut recovered, mut next) = (0, Instant::now());
        loop {
            let page = self.journal.list(query.clone()).await?;
            let Some(last) = page.last() else {
                return Ok(recovered);
            };
            query.after = last.sequence;
            let may_be_one = |lane: &str| endpoint.url.starts_with(target_of(lane).0);
            for letter in &page {
                if letter.changed_at < since || !may_be_one(&letter.lane) {
                    continue;
                }
                // A list has no URLs.
                let whole = self.journal.find(letter.id).await?;
                if whole.and_then(url_of).as_deref() != Some(&*endpoint.url) {
                    continue;
                }
                sleep_until(next).await;
                next = Instant::now() + PAUSE;
                let redrive = EntryCommand::Redrive(DAY);
                let redriven = self.journal.command(letter.id, redrive).await?;
                recovered += u64::from(redriven.is_some_and(|redriven| redriven.applied));
                self.notifier.wake();
            }
        }
    }
}
