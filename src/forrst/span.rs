use serde::{Deserialize, Deserializer};

use crate::http::span::whole;
pub use crate::http::span::{Span, Unit};

/// A count that may be left out.
pub(super) fn some_whole<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Count(#[serde(deserialize_with = "whole")] u64);

    let count = Option::<Count>::deserialize(deserializer)?;
    Ok(count.map(|count| count.0))
}
