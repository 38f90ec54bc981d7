//! The mark that says that a request was counted by a budget.

use http::Extensions;

/// On a request's extensions: a layer above counted it as an original, so the layers below do not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted;

/// What is on a request's extensions. A look into them costs as much as all else that is done
/// with most requests, so one look tells whether others are worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// Nothing.
    Nothing,
    /// That it was counted, and nothing else.
    Counted,
    /// Something else.
    Others,
}

impl Marks {
    #[inline]
    pub(crate) fn on(extensions: &Extensions) -> Self {
        match extensions.len() {
            0 => Self::Nothing,
            1 if extensions.get::<Counted>().is_some() => Self::Counted,
            _ => Self::Others,
        }
    }
}
