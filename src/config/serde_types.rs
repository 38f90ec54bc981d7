//! Values as files have them.

use std::{fmt, time::Duration};

use http::{HeaderName, StatusCode};
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

use crate::http::GrpcCode;

/// Defines a wrapper that a function reads from a string or a number.
macro_rules! wrapper {
    ($name:ident($type:ty), $expecting:literal, $($visit:ident: $from:ty => $read:expr),+) => {
        #[derive(Clone)]
        pub(super) struct $name(pub(super) $type);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Reader;
                impl Visitor<'_> for Reader {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    $(fn $visit<E: Error>(self, value: $from) -> Result<$name, E> {
                        let read = $read;
                        let value = read(value).ok_or_else(|| {
                            E::custom(format_args!("{value:?} is not {}", $expecting))
                        })?;
                        Ok($name(value))
                    })+
                }
                deserializer.deserialize_any(Reader)
            }
        }
    };
}

wrapper!(Human(Duration), "a duration such as \"500ms\", \"30s\", \"5m\" or \"24h\"",
    visit_str: &str => |text| humantime::parse_duration(text).ok());
wrapper!(Status(StatusCode), "an HTTP status from 400 to 599",
    visit_u64: u64 => |number| status(number),
    visit_i64: i64 => |number| status(u64::try_from(number).ok()?));
wrapper!(Grpc(GrpcCode), "a gRPC status name such as \"UNAVAILABLE\"",
    visit_str: &str => GrpcCode::from_name);
wrapper!(Header(HeaderName), "a header name",
    visit_str: &str => |name: &str| HeaderName::try_from(name).ok());

fn status(number: u64) -> Option<StatusCode> {
    let status = StatusCode::from_u16(u16::try_from(number).ok()?).ok()?;
    (status.is_client_error() || status.is_server_error()).then_some(status)
}
