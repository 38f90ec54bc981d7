use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use tokio::{
    runtime::{self, Handle},
    sync::Semaphore,
    task::{JoinHandle, yield_now},
};

use super::*;

/// A store whose statements end when the test says so.
#[derive(Clone)]
struct Slow(Arc<Inner>);

struct Inner {
    batcher: Batcher<Row>,
    /// The rows of each statement, in the order in which they were sent.
    sent: Mutex<Vec<Vec<u32>>>,
    /// A permit for each statement that may end.
    ends: Semaphore,
}

struct Row(u32, Answer);

/// The server's response to a statement whose first row has it.
#[derive(Clone, Copy)]
enum Answer {
    Made,
    NotMade,
    Fails(StoreErrorKind),
}

impl Slow {
    fn new() -> Self {
        Self(Arc::new(Inner {
            batcher: Batcher::new(Duration::from_secs(5)),
            sent: Mutex::default(),
            ends: Semaphore::new(0),
        }))
    }

    /// A store whose last batch had several rows.
    fn crowded() -> Self {
        let store = Self::new();
        store.0.batcher.lock().crowded = true;
        store
    }

    fn sent(&self) -> Vec<Vec<u32>> {
        self.0.sent.lock().unwrap().clone()
    }

    fn start(&self, number: u32) -> JoinHandle<Result<Batched<u32>, StoreError>> {
        let store = self.clone();
        tokio::spawn(async move { batched(&store, Row(number, Answer::Made)).await })
    }

    async fn until_waiting(&self, transitions: usize) {
        while self.0.batcher.count() < transitions {
            yield_now().await;
        }
    }

    async fn until_sent(&self, statements: usize) {
        while self.sent().len() < statements {
            yield_now().await;
        }
    }

    fn is_idle(&self) -> bool {
        let pending = self.0.batcher.lock();
        pending.senders == 0 && !pending.lone && pending.waiting.is_empty()
    }

    async fn until_idle(&self) {
        while !self.is_idle() {
            yield_now().await;
        }
    }
}

impl BatchRow for Row {
    type Store = Slow;
    type Answer = u32;

    fn batcher(store: &Slow) -> &Batcher<Self> {
        &store.0.batcher
    }

    fn bytes(&self) -> usize {
        0
    }

    async fn send(
        store: &Slow,
        _deadline: Instant,
        rows: &[Self],
    ) -> Result<Vec<Option<u32>>, StoreError> {
        let numbers = rows.iter().map(|row| row.0).collect();
        store.0.sent.lock().unwrap().push(numbers);
        store.0.ends.acquire().await.unwrap().forget();
        match rows[0].1 {
            Answer::Made => Ok(rows.iter().map(|row| Some(row.0)).collect()),
            Answer::NotMade => Ok(rows.iter().map(|_| None).collect()),
            Answer::Fails(kind) => Err(StoreError::new(kind, "as asked").in_doubt()),
        }
    }
}

/// Polls once.
async fn is_pending(mut future: Pin<&mut impl Future>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

fn made(sent: &Result<Batched<u32>, StoreError>) -> Option<u32> {
    match sent {
        Ok(Batched::Made(number)) => Some(*number),
        _ => None,
    }
}

/// T-8: nothing comes before the statement of a lone transition.
#[tokio::test(start_paused = true)]
async fn t_8_a_lone_transition_is_sent_at_once() {
    let store = Slow::new();
    let mut sent = pin!(batched(&store, Row(1, Answer::Made)));
    assert!(is_pending(sent.as_mut()).await);
    assert_eq!(store.sent(), [[1]]);
}

#[tokio::test(start_paused = true)]
async fn a_lone_transition_is_sent_by_its_caller() {
    let store = Slow::new();
    store.0.ends.add_permits(2);
    for number in [1, 2] {
        let sent = batched(&store, Row(number, Answer::Made)).await;
        assert_eq!(made(&sent), Some(number));
        let metrics = Handle::current().metrics();
        assert_eq!(metrics.num_alive_tasks(), 0, "it needs no task");
    }
    assert_eq!(store.sent(), [[1], [2]]);
}

#[tokio::test(start_paused = true)]
async fn those_that_come_together_share_a_statement() {
    let store = Slow::crowded();
    store.0.ends.add_permits(1);
    let row = |number| batched(&store, Row(number, Answer::Made));
    let sent = tokio::join!(row(1), row(2), row(3));
    let made = [made(&sent.0), made(&sent.1), made(&sent.2)];
    assert_eq!(made, [Some(1), Some(2), Some(3)]);
    assert_eq!(store.sent(), [[2, 3, 1]]);
}

#[tokio::test(start_paused = true)]
async fn those_that_come_while_a_batch_is_sent_are_sent_after_it() {
    let store = Slow::crowded();
    let first = [store.start(1), store.start(2)];
    store.until_sent(1).await;
    let others = [store.start(3), store.start(4)];
    store.until_waiting(2).await;
    assert_eq!(store.sent().len(), 1);
    store.0.ends.add_permits(2);
    for (other, number) in first.into_iter().chain(others).zip(1..) {
        assert_eq!(made(&other.await.unwrap()), Some(number));
    }
    assert_eq!(store.sent(), [[2, 1], [3, 4]]);
    store.until_idle().await;
}

/// T-8: a caller that sends its own transition may be polled by a task that waits for another one.
#[tokio::test(start_paused = true)]
async fn t_8_nobody_waits_for_a_caller_that_is_not_polled() {
    let store = Slow::new();
    let mut first = pin!(batched(&store, Row(1, Answer::Made)));
    while store.sent().is_empty() {
        assert!(is_pending(first.as_mut()).await);
    }
    store.0.ends.add_permits(2);
    let second = batched(&store, Row(2, Answer::Made)).await;
    assert_eq!(made(&second), Some(2));
    assert_eq!(made(&first.await), Some(1));
    assert_eq!(store.sent(), [[1], [2]]);
    store.until_idle().await;
}

/// T-8: a caller that is cancelled takes nobody's transition with it.
#[tokio::test(start_paused = true)]
async fn t_8_a_cancelled_caller_strands_nobody() {
    let store = Slow::new();
    let first = store.start(1);
    store.until_sent(1).await;
    let others = [store.start(2), store.start(3)];
    store.until_sent(2).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    store.0.ends.add_permits(1);
    for (other, number) in others.into_iter().zip(2..) {
        assert_eq!(made(&other.await.unwrap()), Some(number));
    }
    store.until_idle().await;
    // One that is dropped before it sends leaves nothing behind, either.
    let mut dropped = Box::pin(batched(&store, Row(4, Answer::Made)));
    assert!(is_pending(dropped.as_mut()).await);
    drop(dropped);
    store.0.ends.add_permits(1);
    assert_eq!(made(&store.start(5).await.unwrap()), Some(5));
    assert_eq!(store.sent(), [vec![1], vec![2, 3], vec![5]]);
}

/// T-8: during an outage callers come and leave; what they left is not sent when the server is back.
#[tokio::test(start_paused = true)]
async fn t_8_what_nobody_waits_for_any_more_is_not_sent() {
    let store = Slow::crowded();
    let first = [store.start(1), store.start(2)];
    store.until_sent(1).await;
    let left: Vec<_> = (10..20).map(|number| store.start(number)).collect();
    store.until_waiting(10).await;
    for left in left {
        left.abort();
        assert!(left.await.unwrap_err().is_cancelled());
    }
    let stays = store.start(3);
    store.until_waiting(11).await;
    store.0.ends.add_permits(2);
    for (sent, number) in first.into_iter().chain([stays]).zip(1..) {
        assert_eq!(made(&sent.await.unwrap()), Some(number));
    }
    assert_eq!(store.sent(), [vec![2, 1], vec![3]]);
    store.until_idle().await;
}

#[test]
fn a_task_whose_runtime_ends_leaves_the_others_to_themselves() {
    let store = Slow::crowded();
    let runtime = || {
        let mut builder = runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let (ending, staying) = (runtime(), runtime());
    ending.block_on(async {
        drop((store.start(1), store.start(2)));
        store.until_sent(1).await;
    });
    let mut other = None;
    staying.block_on(async {
        other = Some(store.start(3));
        store.until_waiting(1).await;
    });
    drop(ending);
    let sent = staying.block_on(other.unwrap()).unwrap();
    assert!(matches!(sent, Ok(Batched::Alone { in_doubt: true, .. })));
    assert!(store.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_lone_transition_that_fails_is_repeated_where_that_helps() {
    let store = Slow::new();
    let send = async |answer| {
        store.0.ends.add_permits(1);
        batched(&store, Row(1, answer)).await
    };
    let alone = |sent, expected| matches!(sent, Ok(Batched::Alone { in_doubt, .. }) if in_doubt == expected);
    assert!(alone(send(Answer::NotMade).await, false));
    let lost = StoreErrorKind::Unavailable;
    assert!(alone(send(Answer::Fails(lost)).await, true));
    let refused = StoreErrorKind::Other;
    assert!(alone(send(Answer::Fails(refused)).await, false));
    for kind in [StoreErrorKind::Timeout, StoreErrorKind::PoolExhausted] {
        let error = send(Answer::Fails(kind)).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains("as asked"), "{error}");
    }
    assert!(store.is_idle());
}

/// The transition of a caller that waits, until this is dropped.
type Caller = oneshot::Receiver<Sent<Row>>;

/// Returns whether a task has to be started.
fn add(batcher: &Batcher<Row>, callers: &mut Vec<Caller>) -> bool {
    let (answer, caller) = oneshot::channel();
    callers.push(caller);
    batcher.add(Row(0, Answer::Made), answer)
}

#[test]
fn few_are_sent_one_batch_after_the_other() {
    let (batcher, callers) = (Batcher::new(Duration::ZERO), &mut Vec::new());
    assert!(add(&batcher, callers), "the first starts a task");
    assert_eq!(batcher.next().len(), 1);
    assert!((1..MANY).all(|_| !add(&batcher, callers)));
    assert_eq!(batcher.next().len(), MANY - 1);
    assert!(batcher.next().is_empty());
    assert!(add(&batcher, callers), "the task has ended");
}

#[test]
fn nothing_waits_for_a_task_that_was_dropped() {
    let (batcher, callers) = (Batcher::new(Duration::ZERO), &mut Vec::new());
    assert!(add(&batcher, callers), "the first starts a task");
    assert!(!add(&batcher, callers));
    batcher.abandon();
    assert_eq!(batcher.count(), 0, "they are sent one by one");
    assert!(add(&batcher, callers), "the task has ended");
}

#[test]
fn many_are_sent_in_two_batches_at_a_time() {
    let (batcher, callers) = (Batcher::new(Duration::ZERO), &mut Vec::new());
    assert!(add(&batcher, callers));
    assert_eq!(batcher.next().len(), 1);
    let started = (0..2 * FULL).filter(|_| add(&batcher, callers)).count();
    assert_eq!(started, SENDERS - 1);
    assert_eq!(batcher.next().len(), FULL);
    assert_eq!(batcher.next().len(), FULL);
    add(&batcher, callers);
    assert!(batcher.next().is_empty(), "one task is enough for that");
    assert_eq!(batcher.next().len(), 1);
    assert!(batcher.next().is_empty());
    assert_eq!(batcher.lock().senders, 0);
}
