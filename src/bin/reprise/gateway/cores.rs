//! Threads that serve callers' connections, one for each core.
//!
//! A connection stays on its thread, and so do its requests on their way to the upstream and back: no
//! other thread is woken for them.

use std::{
    cell::Cell,
    io,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

thread_local! {
    /// The number of the thread: 0 for those that serve no connections.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of the core whose thread this is, from 1 on, or 0 for any other thread.
pub(crate) fn number() -> usize {
    NUMBER.get()
}

/// The number of cores when the program started: a limit of its container may change later.
static COUNT: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

/// Returns the number of cores.
pub(crate) fn count() -> usize {
    *COUNT
}

/// The threads. They end when this is dropped, with what still runs on them.
pub(crate) struct Cores(Vec<Core>);

struct Core {
    handle: Handle,
    connections: Arc<AtomicUsize>,
    _end: oneshot::Sender<()>,
}

impl Cores {
    pub(crate) fn start() -> io::Result<Self> {
        let start = |number| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let (end, ended) = oneshot::channel();
            thread::Builder::new()
                .name(format!("core-{number}"))
                .spawn(move || {
                    NUMBER.set(number);
                    let _ = runtime.block_on(ended);
                })?;
            Ok(Core {
                handle,
                connections: Arc::default(),
                _end: end,
            })
        };
        (1..=count()).map(start).collect::<Result<_, _>>().map(Self)
    }

    /// Serves a connection on the thread that has the fewest.
    pub(crate) fn spawn(&self, serving: impl Future<Output = ()> + Send + 'static) {
        let load = |core: &&Core| core.connections.load(Ordering::Relaxed);
        let Some(core) = self.0.iter().min_by_key(load) else {
            unreachable!("there is at least one core");
        };
        let counted = Counted::new(&core.connections);
        core.handle.spawn(async move {
            let _counted = counted;
            serving.await;
        });
    }
}

/// A connection that is counted until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connections))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
