//! Tables of a file that are merged with those they start from.

/// Merges two tables, field by field. Lists are replaced as a whole.
pub(super) trait Merge {
    /// Returns this table, with the fields of `base` where it has none.
    fn merge(self, base: Self) -> Self;
}

impl<T> Merge for Option<T> {
    fn merge(self, base: Self) -> Self {
        self.or(base)
    }
}

/// Defines a table of optional fields that rejects unknown ones.
macro_rules! table {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Default, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        $vis struct $name {
            $(pub(super) $field: $type,)*
        }

        impl $crate::config::table::Merge for $name {
            fn merge(self, base: Self) -> Self {
                Self {
                    $($field: $crate::config::table::Merge::merge(self.$field, base.$field),)*
                }
            }
        }
    };
}

pub(super) use table;
