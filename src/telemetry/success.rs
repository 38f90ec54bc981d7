#[cfg(feature = "metrics")]
use std::sync::OnceLock;

#[cfg(feature = "metrics")]
use metrics::{Key, Label, Level, Metadata, with_recorder};

use super::Target;

/// The counter of a dependency's calls that succeed at once. The first of them makes its key, so that
/// the others allocate nothing: without a recorder they cost 36 instructions (callgrind). Nothing of
/// a recorder is kept, since it may be installed later.
#[derive(Debug, Default)]
pub(crate) struct SuccessCounter {
    #[cfg(feature = "metrics")]
    key: OnceLock<Key>,
}

impl SuccessCounter {
    #[inline]
    pub(crate) fn increment<'a>(&self, target: impl FnOnce() -> Target<'a>) {
        #[cfg(feature = "metrics")]
        {
            static METADATA: Metadata<'static> =
                Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
            let key = self.key.get_or_init(|| {
                let mut labels = super::count::labels(target());
                labels.push(Label::from_static_parts("outcome", "success"));
                // Recorders copy keys, which costs nothing for one that is shared.
                Key::from_parts(super::count::CALLS, labels).to_retained()
            });
            with_recorder(|recorder| recorder.register_counter(key, &METADATA)).increment(1);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = target;
    }
}
