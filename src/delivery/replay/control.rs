use std::{
    error::Error,
    fmt,
    time::{Duration, SystemTime},
};

use http::Response;

use super::{
    Replay, ReplayId, cursor,
    dialect::{CommandReport, ReplayCommand},
    document::{ReplayStatus, rfc3339},
    request::Stored,
};
use crate::{
    http::{Span, problem::Problem, reply},
    store::{
        StoreError,
        journal::{Entry, EntryCommand, Erased, Journal, Query, Status},
    },
    telemetry,
};

/// Positions are counted up to this, so that a 202 costs the same in front of a long queue.
const FAR: u32 = 1000;
/// Totals are counted up to this.
const MOST_COUNTED: u32 = 10_000;

/// The most replays of a page.
pub(super) const MOST: u32 = 100;

/// The reason why a command about a replay fails.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReplayError {
    /// There is none of that id, or it is another owner's: `REPLAY_NOT_FOUND`.
    NotFound,
    /// It was replayed already: `REPLAY_ALREADY_COMPLETE`.
    AlreadyComplete,
    /// It was cancelled: `REPLAY_CANCELLED`.
    Cancelled,
    /// It was not replayed in time: `REPLAY_EXPIRED`.
    Expired,
    /// It is being replayed: `REPLAY_PROCESSING`.
    Processing,
    /// The cursor of a list is not one that was given for this list.
    Cursor,
    /// The journal failed.
    Journal(StoreError),
}

impl ReplayError {
    /// Returns the problem that callers over the wire are told.
    pub(super) fn problem(&self) -> Problem {
        match self {
            Self::NotFound => Problem::REPLAY_NOT_FOUND,
            Self::AlreadyComplete => Problem::REPLAY_ALREADY_COMPLETE,
            Self::Cancelled => Problem::REPLAY_CANCELLED,
            Self::Expired => Problem::REPLAY_EXPIRED,
            Self::Processing => Problem::REPLAY_PROCESSING,
            Self::Cursor => Problem::REPLAY_INVALID.detail("The cursor is not of this list."),
            Self::Journal(_) => Problem::REPLAY_UNAVAILABLE,
        }
    }

    /// Returns the error of a command that an entry's state does not allow.
    fn of(status: Status) -> Self {
        match status {
            Status::Completed | Status::Failed => Self::AlreadyComplete,
            Status::Cancelled => Self::Cancelled,
            Status::Expired => Self::Expired,
            Status::Queued | Status::Processing => Self::Processing,
        }
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "there is no such replay",
            Self::AlreadyComplete => "it was replayed already",
            Self::Cancelled => "the replay was cancelled",
            Self::Expired => "it was not replayed in time",
            Self::Processing => "it is being replayed",
            Self::Cursor => "the cursor is not of this list",
            Self::Journal(_) => "the journal failed",
        })
    }
}

impl Error for ReplayError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Journal(error) => Some(error),
            _ => None,
        }
    }
}

impl From<StoreError> for ReplayError {
    fn from(error: StoreError) -> Self {
        Self::Journal(error)
    }
}

/// A selection of replays.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct ReplayFilter {
    /// Only in this state.
    pub status: Option<Status>,
    /// Only of this function.
    pub function: Option<String>,
    /// At most so many: 50 unless told otherwise, up to 100.
    pub limit: Option<u32>,
    /// Behind the page that gave this cursor.
    pub cursor: Option<String>,
}

/// A page of replays, and where to go on.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct ReplayPage {
    /// In the sequence in which they came.
    pub replays: Vec<ReplayStatus>,
    /// For the next page; `None` if this is the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Commands about replays. Each is of one owner; those of others are not found.
impl<J: Journal + Clone> Replay<J> {
    /// Returns the state of a replay.
    ///
    /// # Errors
    ///
    /// There is none of that id, or the journal failed.
    pub async fn status(&self, owner: &str, id: ReplayId) -> Result<ReplayStatus, ReplayError> {
        let entry = self.find(owner, id).await?;
        self.describe(&entry).await
    }

    /// Returns the reply that a replay got; `None` if it was not replayed yet, or if the reply was too
    /// large to keep.
    ///
    /// # Errors
    ///
    /// There is none of that id, or the journal failed.
    pub async fn reply(
        &self,
        owner: &str,
        id: ReplayId,
    ) -> Result<Option<Response<bytes::Bytes>>, ReplayError> {
        Ok(reply_of(&self.find(owner, id).await?))
    }

    /// Cancels a replay, if it was not begun.
    ///
    /// # Errors
    ///
    /// There is none of that id, it was begun or is over, or the journal failed.
    pub async fn cancel(&self, owner: &str, id: ReplayId) -> Result<ReplayStatus, ReplayError> {
        let keep = self.state.settings.keep;
        self.apply(owner, id, EntryCommand::Cancel(keep)).await
    }

    /// Removes up to `limit` replays of an owner, as [`Journal::erase`] does, and frees the idempotency
    /// keys of those that wait: they are cancelled first. Repeat the call until none is
    /// [left](Erased::left).
    ///
    /// Keys are freed by a [`Replay`] that was made [`before`](Self::before) an idempotency layer; those
    /// of another are held until the replay's time is over.
    ///
    /// # Errors
    ///
    /// The journal failed; some of the replays may be cancelled or gone.
    pub async fn erase(&self, owner: &str, limit: u32) -> Result<Erased, StoreError> {
        let waiting = ReplayFilter {
            status: Some(Status::Queued),
            ..ReplayFilter::default()
        };
        // Entries without an owner belong to nobody: none of them is erased.
        let limit = if owner.is_empty() { 0 } else { limit };
        // The oldest ones: the journal removes in the same order.
        let waiting = self.query(owner, &waiting, limit);
        for entry in self.journal.list(waiting).await? {
            let cancelled = self.cancel(owner, ReplayId(entry.id)).await;
            // Others were begun, are over or are gone since they were listed.
            if let Err(ReplayError::Journal(error)) = cancelled {
                return Err(error);
            }
        }
        let queue = &self.state.settings.queue;
        self.journal.erase(queue, owner, limit).await
    }

    /// Triggers a replay now and before all others, even during maintenance. One that is being
    /// replayed already is left alone.
    ///
    /// # Errors
    ///
    /// There is none of that id, it is over, or the journal failed.
    pub async fn trigger(&self, owner: &str, id: ReplayId) -> Result<ReplayStatus, ReplayError> {
        let triggered = self.apply(owner, id, EntryCommand::Trigger).await;
        self.state.wake.wake();
        match triggered {
            Err(ReplayError::Processing) => self.status(owner, id).await,
            triggered => triggered.map(|status| ReplayStatus {
                triggered_at: Some(rfc3339(SystemTime::now().into())),
                ..status
            }),
        }
    }

    /// Lists the replays of an owner, page by page. No body is read for it.
    ///
    /// # Errors
    ///
    /// The cursor is not one of this list, or the journal failed.
    pub async fn list(&self, owner: &str, filter: ReplayFilter) -> Result<ReplayPage, ReplayError> {
        let journal = &self.journal;
        let limit = filter.limit.unwrap_or(MOST / 2).clamp(1, MOST);
        let mut query = self.query(owner, &filter, limit + 1);
        let secret = journal.secret().await?;
        if let Some(cursor) = filter.cursor {
            query.after = cursor::read(&secret, &query, &cursor).ok_or(ReplayError::Cursor)?;
        }
        let mut entries = journal.list(query.clone()).await?;
        let more = entries.len() > limit as usize;
        entries.truncate(limit as usize);
        let last = entries.last().map(|last| last.sequence).filter(|_| more);
        let replays = entries.iter().map(|entry| ReplayStatus::new(entry, None));
        Ok(ReplayPage {
            replays: replays.collect(),
            next_cursor: last.map(|last| cursor::write(&secret, &query, last)),
        })
    }

    /// Counts the replays on all pages of a list, up to 10 000.
    ///
    /// # Errors
    ///
    /// The journal failed.
    pub async fn total(&self, owner: &str, filter: &ReplayFilter) -> Result<u32, ReplayError> {
        Ok(self
            .journal
            .count(self.query(owner, filter, MOST_COUNTED))
            .await?)
    }

    fn query(&self, owner: &str, filter: &ReplayFilter, limit: u32) -> Query {
        Query {
            owner: Some(owner.to_owned()),
            status: filter.status,
            label: filter.function.clone(),
            ..Query::new(self.state.settings.queue.clone(), limit)
        }
    }

    /// Executes a command.
    pub(super) async fn command(
        &self,
        owner: &str,
        command: ReplayCommand,
    ) -> Result<CommandReport, Problem> {
        let done = async {
            Ok(match command {
                ReplayCommand::Status(id) => {
                    let entry = self.find(owner, id).await?;
                    let status = self.describe(&entry).await?;
                    CommandReport::Status(Box::new(status), reply_of(&entry))
                }
                ReplayCommand::Cancel(id) => {
                    CommandReport::Cancelled(self.cancel(owner, id).await?.into())
                }
                ReplayCommand::Trigger(id) => {
                    CommandReport::Triggered(self.trigger(owner, id).await?.into())
                }
                ReplayCommand::List(filter, counted) => {
                    let total = match counted {
                        true => Some(self.total(owner, &filter).await?),
                        false => None,
                    };
                    CommandReport::Page(self.list(owner, filter).await?, total)
                }
            })
        };
        done.await.map_err(|error: ReplayError| {
            if let ReplayError::Journal(error) = &error {
                telemetry::journal_trouble("command", error.kind().as_str());
            }
            error.problem()
        })
    }

    async fn apply(
        &self,
        owner: &str,
        id: ReplayId,
        command: EntryCommand,
    ) -> Result<ReplayStatus, ReplayError> {
        let mut entry = self.find(owner, id).await?;
        // The owner of an entry does not change in between.
        let result = self.journal.command(id.0, command).await?;
        let result = result.ok_or(ReplayError::NotFound)?;
        if !result.applied {
            return Err(ReplayError::of(result.entry.status));
        }
        (entry.status, entry.changed_at) = (result.entry.status, result.entry.changed_at);
        if entry.status == Status::Cancelled
            && let Some(stored) = stored(&entry)
        {
            self.abandon(&entry, &stored).await;
        }
        self.describe(&entry).await
    }

    async fn find(&self, owner: &str, id: ReplayId) -> Result<Entry, ReplayError> {
        let entry = self.journal.find(id.0).await?;
        let queue = &self.state.settings.queue;
        entry
            .filter(|entry| entry.owner == owner && entry.queue == *queue)
            .ok_or(ReplayError::NotFound)
    }

    pub(super) async fn describe(&self, entry: &Entry) -> Result<ReplayStatus, ReplayError> {
        let mut status = ReplayStatus::new(entry, stored(entry).as_ref());
        if entry.status == Status::Queued {
            let position = self.journal.position(entry.id, FAR).await?;
            let estimate = position.and_then(|n| self.estimate(&entry.lane, n));
            status.estimated_replay = estimate.map(Span::about);
            status.position = position.filter(|position| *position < FAR);
        }
        Ok(status)
    }

    /// Estimates how long it takes until an entry with so many before it in its lane is replayed: the
    /// rest of maintenance, and then as fast as was measured lately.
    fn estimate(&self, lane: &str, before: u32) -> Option<Duration> {
        let drain = self.state.pace(lane).estimate(before.saturating_add(1));
        match self.maintenance.state() {
            None => drain,
            Some(state) => Some(state.left()? + drain.unwrap_or_default()),
        }
    }
}

/// Returns the reply that a request got, if it was kept.
pub(super) fn reply_of(entry: &Entry) -> Option<Response<bytes::Bytes>> {
    let reply = reply::decode(entry.result.clone()?)?;
    let mut response = Response::new(reply.body);
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    Some(response)
}

fn stored(entry: &Entry) -> Option<Stored> {
    Stored::decode(entry.payload.clone())
}
