use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, header::CONTENT_TYPE};

use crate::http::headers::{first, may_have};

/// The header of a failed call that says when, or whether, to call again.
pub(crate) const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// A gRPC status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // the names are gRPC's own
pub enum GrpcCode {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl GrpcCode {
    const ALL: [(Self, &'static str); 17] = [
        (Self::Ok, "OK"),
        (Self::Cancelled, "CANCELLED"),
        (Self::Unknown, "UNKNOWN"),
        (Self::InvalidArgument, "INVALID_ARGUMENT"),
        (Self::DeadlineExceeded, "DEADLINE_EXCEEDED"),
        (Self::NotFound, "NOT_FOUND"),
        (Self::AlreadyExists, "ALREADY_EXISTS"),
        (Self::PermissionDenied, "PERMISSION_DENIED"),
        (Self::ResourceExhausted, "RESOURCE_EXHAUSTED"),
        (Self::FailedPrecondition, "FAILED_PRECONDITION"),
        (Self::Aborted, "ABORTED"),
        (Self::OutOfRange, "OUT_OF_RANGE"),
        (Self::Unimplemented, "UNIMPLEMENTED"),
        (Self::Internal, "INTERNAL"),
        (Self::Unavailable, "UNAVAILABLE"),
        (Self::DataLoss, "DATA_LOSS"),
        (Self::Unauthenticated, "UNAUTHENTICATED"),
    ];

    /// Returns the code's name, as the gRPC specification spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns the code of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(_, n)| *n == name)
            .map(|(code, _)| *code)
    }

    /// Returns the code of that number; an unknown one is [`GrpcCode::Unknown`].
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        usize::try_from(number)
            .ok()
            .and_then(|number| Self::ALL.get(number))
            .map_or(Self::Unknown, |(code, _)| *code)
    }

    /// Returns the status in response headers or trailers.
    #[must_use]
    #[inline]
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        first(headers, &GRPC_STATUS).map(Self::from_value)
    }

    /// Returns whether headers may hold a status.
    #[inline]
    pub(crate) fn may_be_in(headers: &HeaderMap) -> bool {
        may_have(headers, &GRPC_STATUS)
    }

    #[cold]
    fn from_value(value: &HeaderValue) -> Self {
        let value = value.as_bytes();
        let digits = str::from_utf8(value).ok().filter(|v| !v.starts_with('+'));
        digits
            .and_then(|v| v.parse().ok())
            .map_or(Self::Unknown, Self::from_number)
    }
}

/// Parses a `grpc-timeout`: at most eight digits and a unit.
pub(crate) fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(number * 3600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Returns whether the headers are those of a gRPC message.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    first(headers, &CONTENT_TYPE)
        .and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"))
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// Returns whether the request calls one of these gRPC methods, or a method of one of these
/// services.
pub(crate) fn is_one_of<B>(methods: &[String], request: &Request<B>) -> bool {
    if methods.is_empty() || !is_grpc(request.headers()) {
        return false;
    }
    let Some(path) = request.uri().path().strip_prefix('/') else {
        return false;
    };
    // Most methods are ruled out, or found, by their first letters.
    methods.iter().any(|method| {
        let rest = path.strip_prefix(method.as_str());
        let name = |rest: &str| {
            rest.strip_prefix('/')
                .is_some_and(|name| !name.contains('/'))
        };
        rest.is_some_and(|rest| rest.is_empty() || name(rest))
    })
}

/// The extension that tonic puts on each request.
#[cfg(feature = "tonic")]
pub(crate) type GrpcMethod = tonic::GrpcMethod<'static>;
/// Without tonic, a type that no request carries.
#[cfg(not(feature = "tonic"))]
pub(crate) type GrpcMethod = Vec<std::convert::Infallible>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_5_a_method_is_declared_by_its_own_name_or_its_services() {
        let declared = ["a.B/Get", "a.C"].map(str::to_owned);
        for (path, expected) in [
            ("/a.B/Get", true),
            ("/a.B/GetAll", false),
            ("/a.B/Get/x", true),
            ("/a.B", false),
            ("/a.C/Get", true),
            ("/a.C/Get/x", false),
            ("/a.C", true),
            ("/a.C/", true),
            ("/a.Cd/Get", false),
            ("/x/a.C/Get", false),
            ("/", false),
        ] {
            let request = Request::builder().uri(path);
            let request = request.header("content-type", "application/grpc");
            let request = request.body(()).unwrap();
            assert_eq!(is_one_of(&declared, &request), expected, "{path}");
        }
    }

    #[test]
    fn d_1_a_grpc_timeout_is_up_to_eight_digits_and_a_unit() {
        for (value, expected) in [
            ("2H", Some(Duration::from_secs(7200))),
            ("3M", Some(Duration::from_secs(180))),
            ("4S", Some(Duration::from_secs(4))),
            ("5m", Some(Duration::from_millis(5))),
            ("6u", Some(Duration::from_micros(6))),
            ("7n", Some(Duration::from_nanos(7))),
            ("0S", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("100000000S", None),
            ("", None),
            ("S", None),
            ("4", None),
            ("4s", None),
            ("+4S", None),
            ("4.5S", None),
            ("é4S", None),
        ] {
            assert_eq!(grpc_timeout(value.as_bytes()), expected, "{value:?}");
        }
    }
}
