/// The answer to [`erase`](super::Journal::erase).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Erased {
    /// The number of entries that were removed.
    pub removed: u32,
    /// The number of the owner's entries that are still in the queue, up to the limit. If fewer were
    /// removed than the limit, these are being processed.
    pub left: u32,
}
