//! Events and metrics, recorded on the thread of a test.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex},
};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tracing::{
    Dispatch, Event, Level, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::DefaultGuard,
};
use tracing_subscriber::{Layer, Registry, layer::Context, prelude::*, registry::LookupSpan};

/// One event: where it came from, and its fields as text.
#[derive(Debug, Clone)]
pub(crate) struct Logged {
    pub(crate) target: &'static str,
    pub(crate) level: Level,
    pub(crate) fields: BTreeMap<&'static str, String>,
}

impl Visit for Logged {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

/// Keeps every event and every span, whoever they are from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(pub(crate) Arc<Mutex<Vec<Logged>>>);

impl Log {
    /// Listens on this thread until the guard is dropped.
    pub(crate) fn listen() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(log.clone()));
        (log, guard)
    }

    pub(crate) fn all(&self) -> Vec<Logged> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn with_message(&self, message: &str) -> Vec<Logged> {
        let mut found = self.all();
        found.retain(|event| {
            event.target == "tower_reprise"
                && event.fields.get("message").is_some_and(|m| m == message)
        });
        found
    }

    /// The events of retries: "retry 1 of 3".
    pub(crate) fn retries(&self) -> Vec<Logged> {
        let mut found = self.all();
        found.retain(|event| {
            let message = event.fields.get("message");
            event.target == "tower_reprise"
                && message.is_some_and(|text| text.starts_with("retry ") && text.contains(" of "))
        });
        found
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        let metadata = attributes.metadata();
        let mut logged = Logged {
            target: metadata.target(),
            level: *metadata.level(),
            fields: BTreeMap::new(),
        };
        attributes.record(&mut logged);
        self.0.lock().unwrap().push(logged);
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut logged = Logged {
            target: event.metadata().target(),
            level: *event.metadata().level(),
            fields: BTreeMap::new(),
        };
        event.record(&mut logged);
        self.0.lock().unwrap().push(logged);
    }
}

/// Keeps the spans of attempts with the fields that they have at their end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans(Arc<Mutex<Vec<Logged>>>);

impl Spans {
    /// Listens on this thread until the guard is dropped.
    pub(crate) fn listen() -> (Self, DefaultGuard) {
        let spans = Self::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(spans.clone()));
        (spans, guard)
    }

    /// Returns the spans that have ended, one line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        let spans = self.0.lock().unwrap();
        let lines = spans.iter().map(|span| {
            let fields = span.fields.iter();
            let fields = fields.map(|(name, value)| format!("{name}={value}"));
            Vec::from_iter(fields).join(" ")
        });
        lines.collect()
    }

    /// Returns a field of each span that has ended; empty where it has none.
    pub(crate) fn field(&self, name: &str) -> Vec<String> {
        let spans = self.0.lock().unwrap();
        let field = |span: &Logged| span.fields.get(name).cloned().unwrap_or_default();
        spans.iter().map(field).collect()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, of: Context<'_, S>) {
        let metadata = attributes.metadata();
        let mut logged = Logged {
            target: metadata.target(),
            level: *metadata.level(),
            fields: BTreeMap::new(),
        };
        attributes.record(&mut logged);
        let span = of.span(id).unwrap();
        if let Some(parent) = span.parent() {
            logged.fields.insert("parent", parent.name().to_owned());
        }
        span.extensions_mut().insert(logged);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, of: Context<'_, S>) {
        let span = of.span(id).unwrap();
        values.record(span.extensions_mut().get_mut::<Logged>().unwrap());
    }

    fn on_close(&self, id: span::Id, of: Context<'_, S>) {
        let span = of.span(&id).unwrap();
        let logged = span.extensions_mut().remove::<Logged>().unwrap();
        if logged.target == "tower_reprise::attempt" {
            self.0.lock().unwrap().push(logged);
        }
    }
}

/// Returns the metrics, as `name{label=value,…}` and its value. Reading resets histograms.
pub(crate) fn counted(snapshotter: &Snapshotter) -> BTreeMap<String, DebugValue> {
    let snapshot = snapshotter.snapshot().into_vec();
    let entries = snapshot.into_iter().map(|(key, _, _, value)| {
        let key = key.key();
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        (format!("{}{{{}}}", key.name(), labels.join(",")), value)
    });
    entries.collect()
}

/// Runs with a recorder of its own on this thread, and returns what it was told.
pub(crate) async fn measured(run: impl Future<Output = ()>) -> BTreeMap<String, DebugValue> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let guard = metrics::set_default_local_recorder(&recorder);
    run.await;
    drop(guard);
    counted(&snapshotter)
}

pub(crate) fn count(n: u64) -> DebugValue {
    DebugValue::Counter(n)
}

pub(crate) fn gauge(value: f64) -> DebugValue {
    DebugValue::Gauge(value.into())
}

pub(crate) fn samples(values: &[f64]) -> DebugValue {
    DebugValue::Histogram(values.iter().map(|value| (*value).into()).collect())
}

pub(crate) fn expected<const N: usize>(
    entries: [(&str, DebugValue); N],
) -> BTreeMap<String, DebugValue> {
    entries
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

/// An event's place in the code remembers whether anybody wants it, and with fewer than two
/// subscribers it asks the thread that gets there first. With two that nobody hears, no test
/// decides for another.
pub(crate) fn keep_tests_apart() {
    static UNHEARD: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Registry::default())));
    LazyLock::force(&UNHEARD);
}
