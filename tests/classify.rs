//! What outcomes mean, by the tables.

use std::io::{self, ErrorKind};

use http::{Request, Response};
use tower_reprise::classify::{
    Cause, Classify, GrpcCode, Health, Retryable, Rules, Standard, Verdict,
};

fn judge(error: &(dyn std::error::Error + 'static)) -> Verdict {
    Classify::<Request<()>, Response<()>>::classify(&Standard, &Rules::standard(), Err(error))
}

#[test]
fn c_3_every_kind_of_io_error_has_its_meaning() {
    let table = [
        (ErrorKind::TimedOut, Cause::Timeout),
        (ErrorKind::ConnectionRefused, Cause::Connect),
        (ErrorKind::ConnectionReset, Cause::Reset),
        (ErrorKind::ConnectionAborted, Cause::Reset),
        (ErrorKind::NotConnected, Cause::Reset),
        (ErrorKind::BrokenPipe, Cause::Reset),
        (ErrorKind::UnexpectedEof, Cause::Reset),
        (ErrorKind::HostUnreachable, Cause::Reset),
        (ErrorKind::NetworkUnreachable, Cause::Reset),
        (ErrorKind::NetworkDown, Cause::Reset),
        (ErrorKind::AddrNotAvailable, Cause::Reset),
        (ErrorKind::InvalidInput, Cause::Configuration),
        (ErrorKind::PermissionDenied, Cause::Configuration),
        (ErrorKind::InvalidData, Cause::Serialization),
        (ErrorKind::OutOfMemory, Cause::Unknown),
    ];
    for (kind, cause) in table {
        let verdict = judge(&io::Error::from(kind));
        assert_eq!(verdict.cause, cause, "{kind:?}");
        let transient = matches!(cause, Cause::Timeout | Cause::Connect | Cause::Reset);
        let retry = match transient {
            true => Retryable::Yes,
            false => Retryable::Never,
        };
        assert_eq!(verdict.retry, retry, "{kind:?}");
        // C-4: only what was never connected was surely never sent.
        assert_eq!(verdict.never_sent, cause == Cause::Connect, "{kind:?}");
    }
}

#[test]
fn c_3_what_wraps_another_error_is_known_by_that() {
    let wrapped = io::Error::new(ErrorKind::InvalidData, "what TLS says");
    assert_eq!(judge(&wrapped).cause, Cause::Unknown);
    let refused = io::Error::from(ErrorKind::ConnectionRefused);
    let wrapped = io::Error::other(refused);
    let verdict = judge(&wrapped);
    assert_eq!(
        (verdict.cause, verdict.health, verdict.never_sent),
        (Cause::Connect, Health::Failure, true)
    );
}

#[test]
fn c_3_of_several_causes_in_a_chain_the_most_telling_counts_wherever_it_stands() {
    let telling = [
        (ErrorKind::InvalidInput, Cause::Configuration),
        (ErrorKind::TimedOut, Cause::Timeout),
        (ErrorKind::ConnectionReset, Cause::Reset),
        (ErrorKind::ConnectionRefused, Cause::Connect),
    ];
    for (place, (more, cause)) in telling.into_iter().enumerate() {
        for (less, _) in &telling[place..] {
            let around = io::Error::new(*less, io::Error::from(more));
            assert_eq!(judge(&around).cause, cause, "{less:?} around {more:?}");
            let within = io::Error::new(more, io::Error::from(*less));
            assert_eq!(judge(&within).cause, cause, "{more:?} around {less:?}");
        }
    }
}

#[test]
fn c_2_codes_have_the_names_and_numbers_of_grpc() {
    let names = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    for (number, name) in (0..).zip(names) {
        let code = GrpcCode::from_number(number);
        assert_eq!((code as u64, code.as_str()), (number, name));
        assert_eq!(GrpcCode::from_name(name), Some(code));
    }
    assert_eq!(GrpcCode::from_number(17), GrpcCode::Unknown);
    assert_eq!(GrpcCode::from_name("OKAY"), None);
}
