//! Parameters of statements, whose types of PostgreSQL are known without asking the server.

use tokio_postgres::types::{ToSql, Type};

/// A parameter of a statement.
pub(super) trait Parameter: ToSql + Sync {
    /// Returns its type of PostgreSQL.
    fn kind(&self) -> Type;
}

impl<T: Typed + ToSql + Sync> Parameter for T {
    fn kind(&self) -> Type {
        T::TYPE
    }
}

/// A type of Rust that stands for one type of PostgreSQL.
pub(super) trait Typed {
    const TYPE: Type;
}

/// The same, of which there are arrays.
pub(super) trait Element: Typed {
    const ARRAY: Type;
}

macro_rules! typed {
    ($($rust:ty => $one:ident, $many:ident;)+) => {$(
        impl Typed for $rust {
            const TYPE: Type = Type::$one;
        }

        impl Element for $rust {
            const ARRAY: Type = Type::$many;
        }
    )+};
}

typed! {
    bool => BOOL, BOOL_ARRAY;
    i16 => INT2, INT2_ARRAY;
    i32 => INT4, INT4_ARRAY;
    i64 => INT8, INT8_ARRAY;
    &[u8] => BYTEA, BYTEA_ARRAY;
    &str => TEXT, TEXT_ARRAY;
    String => TEXT, TEXT_ARRAY;
}

impl<T: Typed> Typed for Option<T> {
    const TYPE: Type = T::TYPE;
}

impl<T: Element> Element for Option<T> {
    const ARRAY: Type = T::ARRAY;
}

impl<T: Element> Typed for Vec<T> {
    const TYPE: Type = T::ARRAY;
}

impl<T: Typed> Typed for &T {
    const TYPE: Type = T::TYPE;
}
