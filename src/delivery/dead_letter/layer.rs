use std::{
    borrow::Cow,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::{KEEP, bury};
use crate::{
    delivery::{parcel::Parcel, text},
    error::{BoxError, find},
    http::digest::Digest,
    server::idempotency::events::NotConsumed,
    store::journal::{Dedup, EntryId, Journal, NewEntry, Settlement},
    telemetry,
};

/// How long a store that failed is left alone.
const STORE_PAUSE: Duration = Duration::from_secs(5);

/// What is kept of an event that could not be processed.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Letter {
    /// The event's id, if it has one: then the same event is one letter, however often it is
    /// delivered.
    pub id: Option<String>,
    /// Whose it is.
    pub owner: String,
    /// What it is.
    pub label: String,
    /// Its headers. Credentials, and values that are marked as sensitive, are kept only in a
    /// [sealed](Journal::is_sealed) journal.
    pub headers: HeaderMap,
    /// What it says.
    pub payload: Bytes,
}

/// What became of an event that need not be delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered<R> {
    /// It was processed.
    Processed(R),
    /// It could not be, and is a dead letter.
    Buried(EntryId),
}

/// Makes dead letters of events that their consumer fails on: put it around the consumer and its
/// [`RetryLayer`](crate::client::retry::RetryLayer), and acknowledge what this returns without an error.
///
/// An error means that the event must be delivered again, since not even the journal took it. So
/// does one of [`NotConsumed`] that says not now.
///
/// With each letter an alert is queued: start a worker of
/// [alerts](super::DeadLetters::alerts) too, which is what takes them from the journal.
///
/// ```
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
/// use tower_reprise::{
///     delivery::dead_letter::{DeadLetterLayer, Delivered, Letter},
///     store::MemoryStore,
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_reprise::error::BoxError> {
/// let journal = MemoryStore::new();
/// let consumer = ServiceBuilder::new()
///     .layer(DeadLetterLayer::new(journal, "orders", |event: &String| Letter {
///         payload: event.clone().into(),
///         ..Letter::default()
///     }))
///     .service(service_fn(|event: String| async move {
///         event.parse::<u32>()
///     }));
///
/// assert_eq!(consumer.clone().oneshot("7".to_owned()).await?, Delivered::Processed(7));
/// let buried = consumer.oneshot("seven".to_owned()).await?;
/// assert!(matches!(buried, Delivered::Buried(_)));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct DeadLetterLayer<J, F> {
    shared: Arc<Shared<J, F>>,
}

struct Shared<J, F> {
    journal: J,
    queue: Cow<'static, str>,
    letter: F,
}

impl<J, F> DeadLetterLayer<J, F> {
    /// Buries events in this queue, as the letter that is made of each.
    pub fn new<E>(journal: J, queue: impl Into<Cow<'static, str>>, letter: F) -> Self
    where
        F: Fn(&E) -> Letter,
    {
        Self {
            shared: Arc::new(Shared {
                journal,
                queue: queue.into(),
                letter,
            }),
        }
    }
}

impl<J, F> Clone for DeadLetterLayer<J, F> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<J, F> fmt::Debug for DeadLetterLayer<J, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterLayer")
            .field("queue", &self.shared.queue)
            .finish_non_exhaustive()
    }
}

impl<S, J, F> Layer<S> for DeadLetterLayer<J, F> {
    type Service = DeadLetterService<S, J, F>;

    fn layer(&self, inner: S) -> Self::Service {
        DeadLetterService {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// The service of a [`DeadLetterLayer`].
pub struct DeadLetterService<S, J, F> {
    inner: S,
    shared: Arc<Shared<J, F>>,
}

impl<S: Clone, J, F> Clone for DeadLetterService<S, J, F> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug, J, F> fmt::Debug for DeadLetterService<S, J, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterService")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, J, F, E> Service<E> for DeadLetterService<S, J, F>
where
    S: Service<E>,
    S::Error: Into<BoxError>,
    J: Journal,
    F: Fn(&E) -> Letter + Send + Sync + 'static,
{
    type Response = Delivered<S::Response>;
    type Error = BoxError;
    type Future = DeadLetterFuture<S::Future, J, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, event: E) -> Self::Future {
        let letter = (self.shared.letter)(&event);
        DeadLetterFuture {
            shared: Arc::clone(&self.shared),
            state: State::Calling {
                future: self.inner.call(event),
                letter: Some(letter),
            },
        }
    }
}

pin_project! {
    /// The future of a [`DeadLetterService`].
    #[must_use = "futures do nothing unless polled"]
    pub struct DeadLetterFuture<Fut, J, F> {
        shared: Arc<Shared<J, F>>,
        #[pin]
        state: State<Fut>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<Fut> {
        // The consumer has it.
        Calling { #[pin] future: Fut, letter: Option<Letter> },
        // It failed, and the journal is told.
        Burying { burying: Pin<Box<dyn Future<Output = Result<EntryId, BoxError>> + Send>> },
    }
}

impl<Fut, J, F> fmt::Debug for DeadLetterFuture<Fut, J, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeadLetterFuture")
    }
}

impl<Fut, R, E, J, F> Future for DeadLetterFuture<Fut, J, F>
where
    Fut: Future<Output = Result<R, E>>,
    E: Into<BoxError>,
    J: Journal,
    F: Send + Sync + 'static,
{
    type Output = Result<Delivered<R>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Calling { future, letter } => {
                    let error = match ready!(future.poll(cx)) {
                        Ok(response) => return Poll::Ready(Ok(Delivered::Processed(response))),
                        Err(error) => error.into(),
                    };
                    let Some(letter) = letter.take().filter(|_| again_after(&error).is_none())
                    else {
                        return Poll::Ready(Err(error));
                    };
                    let shared = Arc::clone(this.shared);
                    let burying = Box::pin(async move { shared.bury(letter, &error).await });
                    this.state.set(State::Burying { burying });
                }
                StateProj::Burying { burying } => {
                    let buried = ready!(burying.as_mut().poll(cx));
                    return Poll::Ready(buried.map(Delivered::Buried));
                }
            }
        }
    }
}

/// When the event is to be delivered again; `None` if that would be of no use.
pub(super) fn again_after(error: &BoxError) -> Option<Duration> {
    match find::<NotConsumed>(&**error) {
        Some(NotConsumed::InFlight(remaining)) => Some(*remaining),
        Some(NotConsumed::Store(_)) => Some(STORE_PAUSE),
        _ => None,
    }
}

impl<J: Journal, F> Shared<J, F> {
    async fn bury(&self, letter: Letter, error: &BoxError) -> Result<EntryId, BoxError> {
        let new = self.entry(letter);
        let settle = Settlement::failed(error.to_string(), KEEP);
        let buried = bury(&self.journal, new, settle).await;
        buried.map_err(|error| {
            telemetry::journal_trouble("bury", error.kind().as_str());
            error.into()
        })
    }

    fn entry(&self, letter: Letter) -> NewEntry {
        let mut new = NewEntry::new(self.queue.clone(), Bytes::new());
        new.dedup = letter.id.as_ref().map(|id| {
            let mut digest = Digest::new("letter");
            digest.part(id);
            Dedup {
                key: digest.into(),
                fingerprint: Digest::new("letter").into(),
            }
        });
        new.owner = text::cut(&letter.owner);
        new.label = text::cut(&letter.label);
        new.ttl = KEEP;
        let parcel = Parcel {
            meta: letter.id,
            headers: match self.journal.is_sealed() {
                true => letter.headers,
                false => text::without_secrets(&letter.headers),
            },
            body: letter.payload,
        };
        new.payload = parcel.encode();
        new
    }
}
