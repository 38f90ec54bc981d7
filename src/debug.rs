//! `Debug` for types whose fields have none, or must not be shown.

/// Implements `Debug` as the name of a type and those of its values that may be shown.
///
/// ```text
/// opaque_debug! { Sender, self, timeout = self.timeout }
/// ```
macro_rules! opaque_debug {
    ($(#[$meta:meta])* $name:ident $(<$($param:ident $(: $bound:path)?),+>)?) => {
        opaque_debug! { $(#[$meta])* $name $(<$($param $(: $bound)?),+>)?, self, }
    };
    (
        $(#[$meta:meta])*
        $name:ident $(<$($param:ident $(: $bound:path)?),+>)?,
        $self:ident, $($field:ident = $value:expr),*
    ) => {
        $(#[$meta])*
        impl $(<$($param $(: $bound)?),+>)? std::fmt::Debug for $name $(<$($param),+>)? {
            fn fmt(&$self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &$value))*
                    .finish_non_exhaustive()
            }
        }
    };
}
