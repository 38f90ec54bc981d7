//! The verdicts on outcomes, by the tables.

use std::{
    error::Error,
    io::{self, ErrorKind},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tower_http::classify::{ClassifiedResponse, ClassifyEos, ClassifyResponse, MakeClassifier};
use tower_reprise::{
    call::{Cause, Guidance, Health, Retryable, Verdict},
    classify::{Classify, Codes, Rules, Standard, TraceClassifier, TraceEos},
    error::{BoxError, Refusal, Refused},
    http::GrpcCode,
};

fn judge(error: &(dyn Error + 'static)) -> Verdict {
    Classify::<Request<()>, Response<()>>::classify(&Standard, &Rules::standard(), Err(error))
}

fn judge_reply(rules: &Rules, reply: &Response<()>) -> Verdict {
    Classify::<Request<()>, _>::classify(&Standard, rules, Ok(reply))
}

fn reply(status: u16, headers: &[(&'static str, &[u8])]) -> Response<()> {
    let mut reply = Response::builder().status(status).body(()).unwrap();
    for (name, value) in headers {
        let value = HeaderValue::from_bytes(value).unwrap();
        reply.headers_mut().append(*name, value);
    }
    reply
}

#[test]
fn c_1_c_8_every_status_has_its_meaning() {
    for number in 100..1000 {
        let verdict = judge_reply(&Rules::standard(), &reply(number, &[]));
        let expected = match number {
            408 | 429 => (Retryable::Yes, Health::Neutral),
            425 => (Retryable::MaxPerCause(1), Health::Neutral),
            500 | 502 | 503 | 504 => (Retryable::Yes, Health::Failure),
            401 => (Retryable::AfterRefresh, Health::Success),
            506..=599 => (Retryable::Never, Health::Failure),
            _ => (Retryable::Never, Health::Success),
        };
        assert_eq!((verdict.retry, verdict.health), expected, "{number}");
        let failed = (400..600).contains(&number);
        assert_eq!(verdict.is_success(), !failed, "{number}");
        let status = StatusCode::from_u16(number).unwrap();
        if failed {
            assert_eq!(verdict.cause, Cause::Status(status));
        }
        let listed = expected.0 == Retryable::Yes;
        assert_eq!(Rules::allows_status(status), listed, "{number}");
    }
}

#[test]
fn c_2_c_8_every_grpc_status_has_its_meaning() {
    for number in 1..=16_u64 {
        let code = GrpcCode::from_number(number);
        let expected = match code {
            GrpcCode::Unavailable | GrpcCode::DeadlineExceeded => (Retryable::Yes, Health::Failure),
            GrpcCode::ResourceExhausted | GrpcCode::Aborted => (Retryable::Yes, Health::Neutral),
            GrpcCode::Internal | GrpcCode::Unknown | GrpcCode::DataLoss => {
                (Retryable::Never, Health::Failure)
            }
            GrpcCode::Cancelled => (Retryable::Never, Health::Neutral),
            GrpcCode::Unauthenticated => (Retryable::AfterRefresh, Health::Success),
            _ => (Retryable::Never, Health::Success),
        };
        let reply = reply(200, &[("grpc-status", number.to_string().as_bytes())]);
        let verdict = judge_reply(&Rules::standard(), &reply);
        assert_eq!((verdict.retry, verdict.health), expected, "{code:?}");
        assert_eq!(verdict.cause, Cause::Grpc(code));
        let listed = expected.0 == Retryable::Yes;
        assert_eq!(Rules::allows_grpc(code), listed, "{code:?}");
    }
}

#[test]
fn c_2_a_grpc_status_is_digits_and_anything_else_is_unknown() {
    let table: [(&[u8], GrpcCode); 9] = [
        (b"0", GrpcCode::Ok),
        (b"14", GrpcCode::Unavailable),
        (b"16", GrpcCode::Unauthenticated),
        (b"17", GrpcCode::Unknown),
        (b"99999999999999999999999", GrpcCode::Unknown),
        (b"+14", GrpcCode::Unknown),
        (b"-1", GrpcCode::Unknown),
        (b"", GrpcCode::Unknown),
        (b"\xff", GrpcCode::Unknown),
    ];
    for (value, code) in table {
        let reply = reply(200, &[("grpc-status", value)]);
        let read = GrpcCode::from_headers(reply.headers());
        assert_eq!(read, Some(code), "{value:?}");
        let verdict = judge_reply(&Rules::standard(), &reply);
        assert_eq!(verdict.is_success(), code == GrpcCode::Ok, "{value:?}");
    }
    assert_eq!(GrpcCode::from_headers(&HeaderMap::new()), None);
}

#[test]
fn c_1_an_http_failure_comes_before_a_grpc_status() {
    for status in [404, 503] {
        let reply = reply(status, &[("grpc-status", b"0")]);
        let verdict = judge_reply(&Rules::standard(), &reply);
        assert_eq!(verdict.cause, Cause::Status(reply.status()));
    }
}

#[test]
fn c_7_what_a_store_answered_is_final_and_says_nothing_bad() {
    for (value, replayed) in [(&b"true"[..], true), (b" True ", true), (b"no", false)] {
        for (status, grpc) in [(503, "0"), (200, "14")] {
            let headers = [
                ("idempotent-replayed", value),
                ("grpc-status", grpc.as_bytes()),
                ("retry-after", b"9"),
            ];
            let verdict = judge_reply(&Rules::standard(), &reply(status, &headers));
            let asked = Some(Guidance::AtLeast(Duration::from_secs(9)));
            let expected = match replayed {
                true => (Retryable::Never, Health::Success, None),
                false => (Retryable::Yes, Health::Failure, asked),
            };
            let found = (verdict.retry, verdict.health, verdict.guidance);
            assert_eq!(found, expected, "{value:?} {status}");
        }
    }
}

/// Many servers send their limits with every reply; only a busy one fails for them.
#[test]
fn ra_6_limits_are_read_where_the_failure_may_be_for_want_of_capacity() {
    let limits: [(&str, &[u8]); 2] = [("ratelimit-remaining", b"0"), ("ratelimit-reset", b"7")];
    let busy = Some(Guidance::AtLeast(Duration::from_secs(7)));
    for (status, grpc, expected) in [
        (429, "0", busy),
        (503, "0", busy),
        (500, "0", None),
        (404, "0", None),
        (200, "8", busy),
        (200, "14", busy),
        (200, "10", None),
    ] {
        let mut reply = reply(status, &limits);
        let grpc_status = HeaderValue::from_static(grpc);
        reply.headers_mut().insert("grpc-status", grpc_status);
        let verdict = judge_reply(&Rules::standard(), &reply);
        assert_eq!(verdict.guidance, expected, "{status} {grpc}");
    }
}

/// No word of a vendor's makes a final failure retryable, or touches a success.
#[test]
fn ra_10_true_makes_nothing_retryable_and_a_success_is_not_read() {
    let yes: [(&str, &[u8]); 2] = [
        ("x-should-retry", b"true"),
        ("stripe-should-retry", b"true"),
    ];
    for status in [400, 409, 422, 501] {
        let verdict = judge_reply(&Rules::standard(), &reply(status, &yes));
        assert_eq!(verdict.retry, Retryable::Never, "{status}");
    }
    let no: [(&str, &[u8]); 3] = [
        ("x-should-retry", b"false"),
        ("retry-after-ms", b"9"),
        ("x-ratelimit-reset-tokens", b"9s"),
    ];
    let verdict = judge_reply(&Rules::standard(), &reply(200, &no));
    assert_eq!(verdict, Verdict::SUCCESS);
    let verdict = judge_reply(&Rules::standard(), &reply(503, &no));
    assert_eq!(verdict.retry, Retryable::Never);
}

#[test]
fn ra_8_who_says_stop_is_not_called_again() {
    let stopped = reply(503, &[("grpc-retry-pushback-ms", b"-1")]);
    let verdict = judge_reply(&Rules::standard(), &stopped);
    assert_eq!(verdict.retry, Retryable::Never);
    assert_eq!(verdict.guidance, Some(Guidance::Stop));
    assert_eq!(verdict.health, Health::Failure);
}

#[test]
fn c_1_c_2_the_banks_table_has_no_internal_error() {
    let (standard, bank) = (Rules::standard(), Rules::bank());
    let missing = |of: &Rules| {
        let statuses = standard
            .statuses
            .iter()
            .filter(|s| !of.statuses.contains(s));
        let grpc = standard.grpc.iter().filter(|c| !of.grpc.contains(c));
        (statuses.copied().collect(), grpc.copied().collect())
    };
    let without: (Vec<_>, Vec<_>) = missing(&bank);
    assert_eq!(without.0, [StatusCode::INTERNAL_SERVER_ERROR]);
    assert_eq!(without.1, [GrpcCode::DeadlineExceeded, GrpcCode::Aborted]);
    assert_eq!(bank.codes, Codes::bank());
    assert_eq!(Rules::default(), standard);
}

#[test]
fn c_5_methods_keys_and_declarations_make_a_request_repeatable() {
    let repeatable = |rules: &Rules, request: &Request<()>| {
        Classify::<_, Response<()>>::repeatable(&Standard, rules, request)
    };
    let ask = |method: &Method, key: Option<&'static str>, kind: Option<&'static str>| {
        let uri = "http://a.example/bank.Ledger/Balance";
        let mut request = Request::builder().method(method).uri(uri).body(()).unwrap();
        let headers = [("idempotency-key", key), ("content-type", kind)];
        for (name, value) in headers {
            if let Some(value) = value {
                let value = HeaderValue::from_static(value);
                request.headers_mut().insert(name, value);
            }
        }
        request
    };
    let standard = Rules::standard();
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        assert!(repeatable(&standard, &ask(&method, None, None)), "{method}");
    }
    let mut unkeyed = Rules::standard();
    unkeyed.unkeyed_writes = true;
    for method in ["POST", "PATCH", "CONNECT", "PURGE"] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        for (key, keyed) in [
            (None, false),
            (Some(""), false),
            (Some(" "), false),
            (Some("k"), true),
        ] {
            let request = ask(&method, key, None);
            assert_eq!(repeatable(&standard, &request), keyed, "{method} {key:?}");
            assert!(repeatable(&unkeyed, &request), "{method} {key:?}");
        }
    }
    for (declared, kind, safe) in [
        ("bank.Ledger/Balance", Some("application/grpc"), true),
        ("bank.Ledger", Some("application/grpc+proto"), true),
        ("bank.Ledger", Some("application/grpc;v=1"), true),
        ("bank.Ledger", Some("application/grpc-web"), false),
        ("bank.Ledger", Some("application/json"), false),
        ("bank.Ledger", None, false),
        ("bank.Ledger/Pay", Some("application/grpc"), false),
        ("bank", Some("application/grpc"), false),
    ] {
        let mut rules = Rules::standard();
        rules.idempotent_methods = vec![declared.to_owned()];
        let request = ask(&Method::POST, None, kind);
        assert_eq!(repeatable(&rules, &request), safe, "{declared} {kind:?}");
    }
}

#[test]
fn c_5_what_a_closure_judges_is_safe_to_repeat_and_judged_by_it_alone() {
    let mine = |outcome: Result<&u8, &(dyn Error + 'static)>| match outcome {
        Ok(7) => Verdict::transient(Cause::Other("seven")),
        _ => Verdict::SUCCESS,
    };
    let rules = Rules::standard();
    assert!(Classify::<(), u8>::repeatable(&mine, &rules, &()));
    let verdict = Classify::<(), u8>::classify(&mine, &rules, Ok(&7));
    assert_eq!(verdict.cause, Cause::Other("seven"));
    let failed = io::Error::from(ErrorKind::TimedOut);
    assert!(Classify::<(), u8>::classify(&mine, &rules, Err(&failed)).is_success());
}

#[test]
fn c_8_a_verdict_is_made_part_by_part() {
    let transient = Verdict::transient(Cause::Reset);
    let parts = |v: Verdict| (v.cause, v.retry, v.health, v.never_sent);
    let expected = (Cause::Reset, Retryable::Yes, Health::Failure, false);
    assert_eq!(parts(transient), expected);
    let expected = (Cause::Dns, Retryable::Never, Health::Neutral, false);
    assert_eq!(parts(Verdict::terminal(Cause::Dns)), expected);
    let changed = transient
        .retry(Retryable::MaxPerCause(2))
        .health(Health::Success)
        .guidance(Some(Guidance::Stop))
        .never_sent();
    let expected = (
        Cause::Reset,
        Retryable::MaxPerCause(2),
        Health::Success,
        true,
    );
    assert_eq!(parts(changed), expected);
    assert_eq!(changed.guidance, Some(Guidance::Stop));
    assert!(!changed.is_success() && Verdict::SUCCESS.is_success());
}

fn trace() -> TraceClassifier {
    TraceClassifier::new(Rules::standard())
}

fn traced(rules: Rules, reply: &Response<()>) -> ClassifiedResponse<Cause, TraceEos> {
    let made = TraceClassifier::new(rules).make_classifier(&Request::new(()));
    made.classify_response(reply)
}

#[test]
fn c_9_a_trace_calls_a_failure_what_is_worth_a_retry_or_bad_for_the_dependency() {
    for (rules, status, failed) in [
        (Rules::standard(), 200, false),
        (Rules::standard(), 404, false),
        (Rules::standard(), 501, false),
        (Rules::standard(), 401, false),
        (Rules::standard(), 429, true),
        (Rules::standard(), 425, true),
        (Rules::standard(), 500, true),
        // Not retried, yet a failure.
        (Rules::bank(), 500, true),
        (Rules::standard(), 507, true),
    ] {
        let reply = reply(status, &[]);
        let expected = match failed {
            true => Err(Cause::Status(reply.status())),
            false => Ok(()),
        };
        match traced(rules, &reply) {
            ClassifiedResponse::Ready(found) => assert_eq!(found, expected, "{status}"),
            ClassifiedResponse::RequiresEos(_) => panic!("{status}: it is no gRPC"),
        }
    }
}

#[test]
fn c_9_a_trace_waits_for_the_trailers_of_a_grpc_reply_only() {
    let grpc = ("content-type", &b"application/grpc"[..]);
    let ClassifiedResponse::RequiresEos(eos) = traced(Rules::standard(), &reply(200, &[grpc]))
    else {
        panic!("its status is in its trailers");
    };
    for (status, expected) in [
        (None, Ok(())),
        (Some("0"), Ok(())),
        (Some("5"), Ok(())),
        (Some("14"), Err(Cause::Grpc(GrpcCode::Unavailable))),
        (Some("13"), Err(Cause::Grpc(GrpcCode::Internal))),
    ] {
        let mut trailers = HeaderMap::new();
        if let Some(status) = status {
            trailers.insert("grpc-status", HeaderValue::from_static(status));
        }
        let found = eos.clone().classify_eos(Some(&trailers));
        assert_eq!(found, expected, "{status:?}");
    }
    assert_eq!(eos.clone().classify_eos(None), Ok(()));
    let reset = io::Error::from(ErrorKind::ConnectionReset);
    assert_eq!(eos.classify_error(&reset), Cause::Reset);

    let down = [grpc, ("grpc-status", b"14")];
    let told = traced(Rules::standard(), &reply(200, &down));
    assert!(matches!(told, ClassifiedResponse::Ready(Err(_))));
}

#[test]
fn c_9_a_trace_knows_errors_by_their_types() {
    let refused = || io::Error::from(ErrorKind::ConnectionRefused);
    assert_eq!(trace().classify_error(&refused()), Cause::Connect);
    let boxed: BoxError = refused().into();
    assert_eq!(trace().classify_error(&boxed), Cause::Connect);
    assert_eq!(trace().classify_error(&"text"), Cause::Unknown);
}

#[test]
fn c_3_a_refusal_of_ours_is_known_wherever_it_stands() {
    let refused = Refused::new(Refusal::Breaker, "a", None);
    let wrapped = io::Error::new(ErrorKind::TimedOut, refused);
    let verdict = judge(&wrapped);
    assert_eq!(verdict.cause, Cause::Refused(Refusal::Breaker));
    let parts = (verdict.retry, verdict.health, verdict.never_sent);
    let chances = Retryable::MaxPerCause(1);
    assert_eq!(parts, (chances, Health::Neutral, true));
}

#[tokio::test(start_paused = true)]
async fn c_3_timeouts_of_tokio_and_tower_are_timeouts() {
    let never = std::future::pending::<()>();
    let elapsed = tokio::time::timeout(Duration::from_secs(1), never).await;
    assert_eq!(judge(&elapsed.unwrap_err()).cause, Cause::Timeout);
    let elapsed = tower::timeout::error::Elapsed::new();
    assert_eq!(judge(&elapsed).cause, Cause::Timeout);
    let unknown = judge(&std::fmt::Error);
    assert_eq!(
        (unknown.cause, unknown.retry),
        (Cause::Unknown, Retryable::Never)
    );
    assert_eq!(unknown.health, Health::Failure);
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
