use std::{
    borrow::Cow,
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::{EventFailure, EventResponse, KEEP, attempts, record_dead_letter};
use crate::{
    delivery::{redact, stored_message::StoredMessage},
    dependency::Dependencies,
    error::{BoxError, find},
    http::digest::Digest,
    server::idempotency::events::NotConsumed,
    store::journal::{Dedup, EntryId, Journal, NewEntry, Settlement},
    telemetry,
};

/// The wait after a store failed.
const STORE_PAUSE: Duration = Duration::from_secs(5);

/// The stored form of an event that could not be processed.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Letter {
    /// The event's id, if it has one: an event that is delivered twice is then one letter of its
    /// owner's.
    pub id: Option<String>,
    /// The owner.
    pub owner: String,
    /// The label: the event's type.
    pub label: String,
    /// The headers. Credentials and values marked as sensitive are stored only in a
    /// [sealed](Journal::is_sealed) journal.
    pub headers: HeaderMap,
    /// The content.
    pub payload: Bytes,
}

/// The result of an event that need not be delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered<R> {
    /// The consumer processed the event.
    Processed(R),
    /// The consumer failed, and the event is a dead letter.
    DeadLettered(EntryId),
}

/// Turns events that their consumer fails on into dead letters. Put it around the consumer and its
/// [`RetryLayer`](crate::client::retry::RetryLayer), and acknowledge each event for which the service
/// returns `Ok`.
///
/// A response that says that the consumer failed ([`EventResponse`]: an HTTP status that is an error)
/// is a failure as an error is. The letter has all attempts of a retry layer, and the error with its
/// sources.
///
/// An error means that the event must be delivered again: the journal failed, or the consumer could
/// not process the event now ([`NotConsumed`]).
///
/// The layer queues an alert with each letter: run a worker of [alerts](super::DeadLetters::alerts),
/// too.
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
/// let failed = consumer.oneshot("seven".to_owned()).await?;
/// assert!(matches!(failed, Delivered::DeadLettered(_)));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct DeadLetterLayer<J, F> {
    recorder: Arc<Recorder<J, F>>,
}

/// Stores the letters of one queue.
struct Recorder<J, F> {
    journal: J,
    queue: Cow<'static, str>,
    letter: F,
}

impl<J, F> DeadLetterLayer<J, F> {
    /// Stores failed events in this queue, each as the letter that `letter` makes of it.
    pub fn new<E>(journal: J, queue: impl Into<Cow<'static, str>>, letter: F) -> Self
    where
        F: Fn(&E) -> Letter,
    {
        Self {
            recorder: Arc::new(Recorder {
                journal,
                queue: queue.into(),
                letter,
            }),
        }
    }
}

impl<J, F> DeadLetterLayer<J, F> {
    /// Tells a registry, whose policy names this queue, that its letters are stored here.
    pub fn serving<C, L>(self, dependencies: &Dependencies<C, L>) -> Self {
        let queue = Some((*self.recorder.queue).into());
        dependencies.serve_dead_letters(queue, false);
        self
    }
}

impl<J, F> Clone for DeadLetterLayer<J, F> {
    fn clone(&self) -> Self {
        Self {
            recorder: Arc::clone(&self.recorder),
        }
    }
}

opaque_debug! { DeadLetterLayer<J, F>, self, queue = self.recorder.queue }

impl<S, J, F> Layer<S> for DeadLetterLayer<J, F> {
    type Service = DeadLetterService<S, J, F>;

    fn layer(&self, inner: S) -> Self::Service {
        DeadLetterService {
            inner,
            recorder: Arc::clone(&self.recorder),
        }
    }
}

/// The service of a [`DeadLetterLayer`].
pub struct DeadLetterService<S, J, F> {
    inner: S,
    recorder: Arc<Recorder<J, F>>,
}

impl<S: Clone, J, F> Clone for DeadLetterService<S, J, F> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            recorder: Arc::clone(&self.recorder),
        }
    }
}

opaque_debug! { DeadLetterService<S: fmt::Debug, J, F>, self, inner = self.inner }

impl<S, J, F, E> Service<E> for DeadLetterService<S, J, F>
where
    S: Service<E>,
    S::Response: EventResponse,
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
        let letter = (self.recorder.letter)(&event);
        DeadLetterFuture {
            recorder: Arc::clone(&self.recorder),
            state: State::Calling {
                future: self.inner.call(event),
                letter,
            },
        }
    }
}

pin_project! {
    /// The future of a [`DeadLetterService`].
    #[must_use = "futures do nothing unless polled"]
    pub struct DeadLetterFuture<Fut, J, F> {
        recorder: Arc<Recorder<J, F>>,
        #[pin]
        state: State<Fut>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<Fut> {
        // The consumer processes the event.
        Calling { #[pin] future: Fut, letter: Letter },
        // The consumer failed, and the letter is stored.
        Recording { recording: Pin<Box<dyn Future<Output = Result<EntryId, BoxError>> + Send>> },
    }
}

opaque_debug! { DeadLetterFuture<Fut, J, F> }

impl<Fut, R, E, J, F> Future for DeadLetterFuture<Fut, J, F>
where
    Fut: Future<Output = Result<R, E>>,
    R: EventResponse,
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
                    let failure = match ready!(future.poll(cx)) {
                        Ok(response) => match response.failure() {
                            None => return Poll::Ready(Ok(Delivered::Processed(response))),
                            Some(failure) => failure,
                        },
                        Err(error) => {
                            let error = error.into();
                            if retry_after(&error).is_some() {
                                return Poll::Ready(Err(error));
                            }
                            EventFailure::of_error(&error)
                        }
                    };
                    let letter = mem::take(letter);
                    let recorder = Arc::clone(this.recorder);
                    let recording = Box::pin(async move { recorder.record(letter, failure).await });
                    this.state.set(State::Recording { recording });
                }
                StateProj::Recording { recording } => {
                    let recorded = ready!(recording.as_mut().poll(cx));
                    return Poll::Ready(recorded.map(Delivered::DeadLettered));
                }
            }
        }
    }
}

impl<R: EventResponse> EventResponse for Delivered<R> {
    fn failure(&self) -> Option<EventFailure> {
        match self {
            Self::Processed(response) => response.failure(),
            Self::DeadLettered(_) => None,
        }
    }
}

/// Returns the settlement of an event that failed.
pub(super) fn settlement(failure: &EventFailure) -> Settlement {
    let settlement = Settlement::failed(attempts::note(failure), KEEP);
    match failure.known_cause() {
        Some(cause) => settlement.cause(cause.to_owned()),
        None => settlement,
    }
}

/// Returns the wait before the event is delivered again, or `None` if it is a dead letter.
pub(super) fn retry_after(error: &BoxError) -> Option<Duration> {
    match find::<NotConsumed>(&**error) {
        Some(NotConsumed::InFlight(remaining)) => Some(*remaining),
        Some(NotConsumed::Store(_)) => Some(STORE_PAUSE),
        _ => None,
    }
}

impl<J: Journal, F> Recorder<J, F> {
    async fn record(&self, letter: Letter, failure: EventFailure) -> Result<EntryId, BoxError> {
        let new = self.entry(letter);
        let (attempts, failed) = (failure.attempts(), settlement(&failure));
        let recorded = record_dead_letter(&self.journal, new, attempts, failed).await;
        recorded.map_err(|error| {
            telemetry::journal_trouble("dead_letter", error.kind().as_str());
            error.into()
        })
    }

    fn entry(&self, letter: Letter) -> NewEntry {
        let mut new = NewEntry::new(self.queue.clone(), Bytes::new());
        new.dedup = letter.id.as_ref().map(|id| {
            let mut digest = Digest::new("letter");
            digest.part(&letter.owner);
            digest.part(id);
            Dedup {
                key: digest.into(),
                fingerprint: Digest::new("letter").into(),
            }
        });
        new.owner = redact::cut(&letter.owner);
        new.label = redact::cut(&letter.label);
        new.ttl = KEEP;
        let message = StoredMessage {
            meta: letter.id,
            headers: match self.journal.is_sealed() {
                true => letter.headers,
                false => redact::without_secrets(&letter.headers),
            },
            body: letter.payload,
        };
        new.payload = message.encode();
        new
    }
}
