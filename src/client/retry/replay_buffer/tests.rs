//! Readers of one body, in any order.
#![allow(clippy::unwrap_used, reason = "the helpers are tests too")]

use std::{
    error::Error,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    task::Wake,
};

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::{superseded::Superseded, *};
use crate::{
    client::retry::ReplayBody,
    dependency::{Dependencies, Dependency},
    error::BoxError,
    policy::Policy,
};

type Boxed = BoxBody<Bytes, BoxError>;

const LIMIT: usize = 40;

/// The end of a body that is fed piece by piece, and must not be polled once it has ended.
#[derive(Default)]
struct Source {
    frames: VecDeque<Result<Frame<Bytes>, Broken>>,
    closed: bool,
    ended: bool,
    reader: Option<Waker>,
}

#[derive(Clone, Default)]
struct Fed(Arc<Mutex<Source>>);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken")
    }
}

impl Error for Broken {}

impl Fed {
    fn feed(&self, frame: Option<Result<Frame<Bytes>, Broken>>) {
        let mut source = self.0.lock().unwrap();
        source.closed |= frame.is_none();
        source.frames.extend(frame);
        if let Some(reader) = source.reader.take() {
            reader.wake();
        }
    }
}

impl Body for Fed {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut source = self.0.lock().unwrap();
        assert!(!source.ended, "it is over");
        if let Some(frame) = source.frames.pop_front() {
            return Poll::Ready(Some(frame));
        }
        if !source.closed {
            source.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        source.ended = true;
        Poll::Ready(None)
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Over,
    Superseded,
    Broken,
}

/// The body of an attempt, and what was read of it.
struct Reader {
    body: Option<Boxed>,
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
    end: Option<End>,
    /// It waits, until this is set.
    waits: Option<Arc<Flag>>,
}

impl Reader {
    fn new(body: Boxed) -> Self {
        Self {
            body: Some(body),
            data: Vec::new(),
            trailers: None,
            end: None,
            waits: None,
        }
    }

    /// Polls once. Returns whether there was a frame.
    fn poll(&mut self) -> bool {
        let Some(body) = self.body.as_mut().filter(|_| self.end.is_none()) else {
            return false;
        };
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(Arc::clone(&flag));
        match Pin::new(body).poll_frame(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                self.waits = Some(flag);
                return false;
            }
            Poll::Ready(None) => self.end = Some(End::Over),
            Poll::Ready(Some(Err(error))) => {
                self.end = Some(match error.is::<Superseded>() {
                    true => End::Superseded,
                    false => End::Broken,
                });
            }
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => self.data.extend_from_slice(&data),
                Err(frame) => self.trailers = frame.into_trailers().ok(),
            },
        }
        self.waits = None;
        self.end.is_none()
    }

    fn waits(&self) -> bool {
        let woken = |flag: &Arc<Flag>| flag.0.load(Ordering::Relaxed);
        self.body.is_some() && self.waits.as_ref().is_some_and(|flag| !woken(flag))
    }
}

#[derive(Debug, Clone)]
enum Step {
    Feed(Vec<u8>),
    /// Feeds trailers, an error, or nothing, and then the end.
    Trailers,
    Fail,
    Close,
    Poll(usize),
    Drop(usize),
    Retry,
    Hedge,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 0..12).prop_map(Step::Feed),
        1 => Just(Step::Trailers),
        1 => Just(Step::Fail),
        1 => Just(Step::Close),
        10 => (0_usize..4).prop_map(Step::Poll),
        2 => (0_usize..4).prop_map(Step::Drop),
        3 => Just(Step::Retry),
        1 => Just(Step::Hedge),
    ];
    prop::collection::vec(step, 0..60)
}

fn fields() -> HeaderMap {
    HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("1"))])
}

fn dependency() -> Arc<Dependency> {
    let policy = Policy::http().replay_limit(LIMIT).build();
    Dependencies::new(policy.unwrap()).get("a")
}

fn recorded(source: &Fed) -> (Recording<Boxed>, Reader) {
    let mut body: Boxed = source.clone().map_err(BoxError::from).boxed();
    let recording = body.record(&ReplayLimits::of(&dependency()));
    (recording.unwrap(), Reader::new(body))
}

fn is_complete(recording: &Recording<Boxed>) -> bool {
    let buffer = recording.0.as_ref().unwrap();
    buffer.lock().recorded.is_complete()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn d_8_readers_in_any_order_lose_nothing_and_repeat_nothing(steps in steps()) {
        let source = Fed::default();
        let (recording, first) = recorded(&source);
        let mut readers = vec![first];
        // What was fed, and the reader that reads on.
        let (mut all, mut trailers, mut closed) = (Vec::new(), None, false);
        let mut current = 0;
        for step in steps.into_iter().chain([Step::Close]) {
            let most = readers.iter().map(|reader| reader.data.len() + if reader.trailers.is_some() { 6 } else { 0 });
            let most = most.max().unwrap_or_default();
            let failed = readers.iter().any(|reader| reader.end == Some(End::Broken));
            match step {
                Step::Feed(data) if !closed => {
                    all.extend_from_slice(&data);
                    source.feed(Some(Ok(Frame::data(data.into()))));
                }
                Step::Trailers if !closed => {
                    (trailers, closed) = (Some(fields()), true);
                    source.feed(Some(Ok(Frame::trailers(fields()))));
                    source.feed(None);
                }
                Step::Fail if !closed => {
                    closed = true;
                    source.feed(Some(Err(Broken)));
                    source.feed(None);
                }
                Step::Close if !closed => {
                    closed = true;
                    source.feed(None);
                }
                Step::Poll(n) => {
                    if let Some(reader) = readers.get_mut(n) {
                        reader.poll();
                    }
                }
                Step::Drop(n) => {
                    if let Some(reader) = readers.get_mut(n) {
                        reader.body = None;
                    }
                }
                Step::Retry => {
                    let can = Boxed::is_replayable(&recording);
                    // One that is known to fail is not sent again either.
                    prop_assert!(!can || (most <= LIMIT && !failed));
                    prop_assert!(can || most > LIMIT || failed || closed);
                    if can {
                        let complete = is_complete(&recording);
                        let body = Boxed::replay(&recording);
                        prop_assert!(body.is_some());
                        readers.extend(body.map(Reader::new));
                        if !complete {
                            current = readers.len() - 1;
                        }
                    }
                }
                Step::Hedge if Boxed::is_complete(&recording) => {
                    let complete = is_complete(&recording);
                    prop_assert!(complete || readers[current].body.is_none());
                    let body = Boxed::replay(&recording);
                    readers.extend(body.map(Reader::new));
                    if !complete {
                        current = readers.len() - 1;
                    }
                }
                _ => {}
            }
            // The one that reads on is told of anything that is there for it.
            let is_there = !source.0.lock().unwrap().frames.is_empty();
            prop_assert!(!(readers[current].waits() && is_there));
        }

        drop(recording);
        for (n, reader) in readers.iter_mut().enumerate() {
            while reader.poll() {}
            prop_assert!(all.starts_with(&reader.data));
            if reader.body.is_none() {
                continue;
            }
            match reader.end {
                Some(End::Over) => {
                    prop_assert_eq!((&reader.data, &reader.trailers), (&all, &trailers));
                }
                Some(End::Superseded) => prop_assert!(n < current),
                Some(End::Broken) => prop_assert!(closed && trailers.is_none()),
                None => prop_assert!(false, "{n} of {current} never ends"),
            }
        }
    }
}

/// A hedge asks for the rest of a body that is out, and its sender is still told of more.
#[test]
fn d_8_a_sender_that_waits_is_woken_though_a_hedge_asked_too() {
    let source = Fed::default();
    let (recording, mut first) = recorded(&source);
    assert!(!first.poll() && first.waits());
    assert!(!Boxed::is_complete(&recording));
    assert!(!first.waits(), "it asks again");
    assert!(!first.poll() && first.waits());
    source.feed(Some(Ok(Frame::data(Bytes::from_static(b"ab")))));
    assert!(!first.waits());
    // One that waits for a turn that is over is told so.
    assert!(first.poll() && !first.poll() && first.waits());
    let mut second = Reader::new(Boxed::replay(&recording).unwrap());
    assert!(!first.waits());
    first.poll();
    assert_eq!(first.end, Some(End::Superseded));
    assert!(second.poll() && !second.poll() && second.waits());
    drop(first);
    source.feed(Some(Ok(Frame::data(Bytes::from_static(b"cd")))));
    assert!(!second.waits(), "the one before it took its waker along");
    assert!(second.poll());
    assert_eq!(second.data, b"abcd");
}

/// The room of a call bounds what was recorded and what was read ahead together, however often a retry
/// or a hedge is decided on.
#[test]
fn d_8_deciding_again_and_again_reads_no_further_than_there_is_room() {
    let source = Fed::default();
    let (recording, mut first) = recorded(&source);
    for _ in 0..20 {
        source.feed(Some(Ok(Frame::data(vec![7; 15].into()))));
    }
    assert!(first.poll());
    for _ in 0..5 {
        assert!(Boxed::is_replayable(&recording));
        assert!(!Boxed::is_complete(&recording));
        // One fits beside the first, and the one after that ends it.
        assert_eq!(source.0.lock().unwrap().frames.len(), 17);
    }
    let room = |recording: &Recording<Boxed>| {
        let state = recording.0.as_ref().unwrap().lock();
        state.ahead_room.bytes() + state.recorded.room()
    };
    assert_eq!(room(&recording), 30);
    source.feed(None);
    while first.poll() {}
    assert_eq!((first.data.len(), first.end), (300, Some(End::Over)));
    assert_eq!(room(&recording), 0);
}

/// An error type of which there is no value: its transport waits, and never takes a part for all.
#[test]
fn d_8_a_superseded_body_whose_error_is_unknown_stays_pending() {
    let source = Fed::default();
    let mut body: BoxBody<Bytes, Broken> = source.clone().boxed();
    let recording = body.record(&ReplayLimits::of(&dependency())).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let mut second = BoxBody::replay(&recording).unwrap();
    source.feed(None);
    assert!(Pin::new(&mut body).poll_frame(&mut cx).is_pending());
    assert!(!body.is_end_stream());
    let end = Pin::new(&mut second).poll_frame(&mut cx);
    assert!(matches!(end, Poll::Ready(None)));
    assert_eq!(superseded::known_error::<Broken>(Superseded), None);
    let io: Option<std::io::Error> = superseded::known_error(Superseded);
    assert!(io.is_some_and(|error| error.downcast::<Superseded>().is_ok()));
}

#[test]
#[cfg(all(feature = "axum", feature = "reqwest", feature = "tonic"))]
fn d_8_the_bodies_of_stacks_fail_when_they_are_superseded() {
    fn fails<B: AnyBody<Error: Error + 'static>>() {
        let error = B::superseded().unwrap();
        assert!(crate::error::find::<Superseded>(&error).is_some());
    }
    fails::<axum::body::Body>();
    fails::<reqwest::Body>();
    fails::<tonic::body::Body>();
}
