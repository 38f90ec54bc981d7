//! Verbs of a store, one line each.

/// Implements verbs of [`IdempotencyStore`](super::IdempotencyStore) or
/// [`Journal`](super::journal::Journal): `verb(name: type, …) -> answer = future;`.
macro_rules! verbs {
    ($self:ident; $($verb:ident($($name:ident: $type:ty),*) -> $answer:ty = $future:expr;)*) => {$(
        #[allow(
            clippy::manual_async_fn,
            reason = "an async fn stores its arguments twice, which doubles a claim's future"
        )]
        fn $verb(
            &$self,
            $($name: $type),*
        ) -> impl Future<Output = Result<$answer, $crate::store::StoreError>> + Send {
            $future
        }
    )*};
}

pub(crate) use verbs;
