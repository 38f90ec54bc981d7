#[cfg(feature = "metrics")]
use std::sync::OnceLock;

#[cfg(feature = "metrics")]
use metrics::{Counter, Key, Label, Level, Metadata, with_recorder};

use super::Target;

/// The counter of a dependency's calls that succeed at once. The first of them makes its key, so that
/// the others allocate nothing: without a recorder they cost 36 instructions (callgrind). The recorder's
/// handle, which takes 980 instructions to find with Prometheus's, is kept only if the recorder stays:
/// it may be installed later, or be a test's own.
#[derive(Debug, Default)]
pub(crate) struct SuccessCounter {
    keeps_handle: bool,
    #[cfg(feature = "metrics")]
    key: OnceLock<Key>,
    #[cfg(feature = "metrics")]
    handle: OnceLock<Counter>,
}

impl SuccessCounter {
    /// Makes a counter that keeps its handle or not.
    pub(crate) fn new(keeps_handle: bool) -> Self {
        Self {
            keeps_handle,
            #[cfg(feature = "metrics")]
            key: OnceLock::new(),
            #[cfg(feature = "metrics")]
            handle: OnceLock::new(),
        }
    }

    /// Returns one for the same dependency, whose labels may be others.
    pub(crate) fn renewed(&self) -> Self {
        Self::new(self.keeps_handle)
    }

    #[inline]
    pub(crate) fn increment<'a>(&self, target: impl FnOnce() -> Target<'a>) {
        #[cfg(feature = "metrics")]
        {
            static METADATA: Metadata<'static> =
                Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
            let register = || {
                let key = self.key.get_or_init(|| {
                    let mut labels = super::count::labels(target());
                    labels.push(Label::from_static_parts("outcome", "success"));
                    // Recorders copy keys, which costs nothing for one that is shared.
                    Key::from_parts(super::count::CALLS, labels).to_retained()
                });
                with_recorder(|recorder| recorder.register_counter(key, &METADATA))
            };
            match self.keeps_handle {
                true => self.handle.get_or_init(register).increment(1),
                false => register().increment(1),
            }
        }
        #[cfg(not(feature = "metrics"))]
        let _ = target;
    }
}
