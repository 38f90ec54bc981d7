//! Tables of a file, which can be laid over one another.

/// What is said here, and where nothing is, what the other says. A list is said as a whole.
pub(super) trait Over {
    fn over(self, base: Self) -> Self;
}

impl<T> Over for Option<T> {
    fn over(self, base: Self) -> Self {
        self.or(base)
    }
}

/// A table whose fields may all be left out, and that knows no others.
macro_rules! table {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Default, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        $vis struct $name {
            $(pub(super) $field: $type,)*
        }

        impl $crate::config::table::Over for $name {
            fn over(self, base: Self) -> Self {
                Self {
                    $($field: $crate::config::table::Over::over(self.$field, base.$field),)*
                }
            }
        }
    };
}

pub(super) use table;
