//! Tells workers of other processes that something was queued (`NOTIFY`).
//!
//! A notice is sent after the entries are committed, by a statement of its own: in the transaction that
//! queues them it would hold a lock of the whole server until their commit is on disk. It names the
//! queue. One process sends a queue's notices at most every few milliseconds.
//!
//! Notices are hints. One that gets lost, with a connection say, is made up for by the next poll.

use std::{
    collections::{BTreeSet, HashMap},
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, task::AbortHandle};
use tokio_postgres::{AsyncMessage, Client, Error};

use super::{Inner, PostgresStore, builder::Table};
use crate::{http::digest::Digest, store::journal::NewEntry, telemetry};

/// The time from one notice to the next.
const PAUSE: Duration = Duration::from_millis(5);
const RECONNECT: Duration = Duration::from_secs(1);
/// The server takes names of no more than 8000 bytes.
const LONGEST_NAME: usize = 1000;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
pub(super) type PollMessage =
    Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> + Send>;

/// Opens a connection whose messages can be read.
pub(super) type Connector =
    Arc<dyn Fn() -> BoxFuture<Result<(Client, PollMessage), Error>> + Send + Sync>;

pub(super) struct Notices {
    channel: String,
    /// None on a pool of the user's, whose connections keep their messages.
    connector: Option<Connector>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By queue.
    watched: HashMap<String, Vec<Weak<Notify>>>,
    listening: Option<AbortHandle>,
    /// Queues with entries that nobody was told about.
    untold: BTreeSet<String>,
    /// Whether a task sends notices. Invariant: while a queue is untold there is one, since a task that
    /// ends looks for untold queues under the same lock.
    sending: bool,
}

impl Notices {
    pub(super) fn new(table: &Table, connector: Option<Connector>) -> Self {
        let mut digest = Digest::new("channel");
        digest.part(table.to_string());
        let [a, b, c, d, e, f, g, h, ..] = digest.finish();
        let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Self {
            channel: format!("reprise_{number:016x}"),
            connector,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those that watch a queue; all of them if none is named.
    fn wake(&self, queue: Option<&str>) {
        let mut state = self.lock();
        let named = |name: &String| queue.is_none_or(|queue| queue == name);
        for (_, watching) in state.watched.iter_mut().filter(|(name, _)| named(name)) {
            watching.retain(|wake| wake.upgrade().inspect(|wake| wake.notify_one()).is_some());
        }
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        if let Some(listening) = self.lock().listening.take() {
            listening.abort();
        }
    }
}

impl PostgresStore {
    /// Sends a notice of new entries that are due at once.
    pub(super) fn announce<'a>(&self, entries: impl IntoIterator<Item = &'a NewEntry>) {
        let due = entries.into_iter().filter(|new| new.delay.is_zero());
        self.announce_queues(due.map(|new| &*new.queue));
    }

    pub(super) fn announce_queues<'a>(&self, queues: impl IntoIterator<Item = &'a str>) {
        let mut state = self.inner.notices.lock();
        for queue in queues {
            if queue.len() <= LONGEST_NAME && !state.untold.contains(queue) {
                state.untold.insert(queue.to_owned());
            }
        }
        if state.untold.is_empty() || mem::replace(&mut state.sending, true) {
            return;
        }
        drop(state);
        let store = self.clone();
        tokio::spawn(async move {
            while let Some(queues) = store.next_untold() {
                let channel = &store.inner.notices.channel;
                // A hint does not wait for the disk.
                let sql = "SELECT pg_notify($1, queue), set_config('synchronous_commit', 'off', true) \
                           FROM unnest($2::text[]) queue";
                // Failures are those of other verbs, too, and workers poll.
                let _ = store.rows(sql, &[channel, &queues]).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
    }

    fn next_untold(&self) -> Option<Vec<String>> {
        let mut state = self.inner.notices.lock();
        state.sending = !state.untold.is_empty();
        state
            .sending
            .then(|| mem::take(&mut state.untold).into_iter().collect())
    }

    /// Wakes by the notices of a queue, from a connection that is opened by the first call.
    pub(super) fn watch_notices(&self, queue: &str, wake: &Arc<Notify>) {
        let notices = &self.inner.notices;
        let (Some(connector), Ok(runtime)) = (&notices.connector, Handle::try_current()) else {
            return;
        };
        let mut state = notices.lock();
        let watching = state.watched.entry(queue.to_owned()).or_default();
        watching.retain(|wake| wake.strong_count() > 0);
        watching.push(Arc::downgrade(wake));
        if state
            .listening
            .as_ref()
            .is_none_or(AbortHandle::is_finished)
        {
            let listening = listen(
                Arc::downgrade(&self.inner),
                Arc::clone(connector),
                format!("LISTEN {}", notices.channel),
            );
            state.listening = Some(runtime.spawn(listening).abort_handle());
        }
    }
}

/// Receives notices until the store is dropped.
async fn listen(store: Weak<Inner>, connector: Connector, sql: String) {
    loop {
        match connector().await {
            Ok((client, mut poll_message)) => {
                let mut listening = pin!(client.batch_execute(&sql));
                let mut listens = false;
                let next_message = |context: &mut Context<'_>| {
                    if !listens && listening.as_mut().poll(context).is_ready() {
                        listens = true;
                        // For entries that were queued while nobody listened.
                        store.upgrade().inspect(|store| store.notices.wake(None));
                    }
                    poll_message(context)
                };
                receive(&store, next_message).await;
            }
            Err(_) => telemetry::store_trouble("connect", "listen"),
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Returns when the connection is lost.
async fn receive(
    store: &Weak<Inner>,
    mut next_message: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>>,
) {
    while let Some(Ok(message)) = poll_fn(&mut next_message).await {
        if let (AsyncMessage::Notification(notice), Some(store)) = (message, store.upgrade()) {
            store.notices.wake(Some(notice.payload()));
        }
    }
}
