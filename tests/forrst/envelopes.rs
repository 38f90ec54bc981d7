//! Envelopes: what the specifications show, what nobody knows, and what is wrong.

use std::{fs, path::Path, time::Duration};

use proptest::prelude::*;
use serde_json::{Map, Value, from_slice, from_str, json, to_value};
use tower_reprise::{
    forrst::{
        Extension, IdempotencyData, IdempotencyOptions, RateLimit, Request, Response, Retry,
        Strategy as Growth, Urn, arguments_hash, canonical,
    },
    http::{Span, Unit},
};

/// The examples of the specifications. Those of the retry extension have commas before closing
/// braces there, which JSON has not, so that they are left out here; and of a callback only the
/// body is here.
fn vectors() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forrst/vectors");
    let mut vectors: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, fs::read(file.path()).unwrap())
        })
        .collect();
    vectors.sort();
    vectors
}

pub(crate) fn vector(name: &str) -> Vec<u8> {
    let found = vectors().into_iter().find(|(n, _)| n.starts_with(name));
    found.unwrap_or_else(|| panic!("no vector {name}")).1
}

#[test]
fn c_6_every_example_of_the_specifications_is_read_and_written() {
    let vectors = vectors();
    let (mut requests, mut responses, mut extensions) = (0, 0, 0);
    for (name, json) in vectors {
        let value: Value = from_slice(&json).unwrap();
        let again = if value.get("call").is_some() {
            requests += 1;
            to_value(Request::parse(&json).expect(&name))
        } else if value.get("urn").is_some() {
            extensions += 1;
            to_value(from_slice::<Extension>(&json).expect(&name))
        } else {
            responses += 1;
            to_value(Response::parse(&json).expect(&name))
        };
        assert_eq!(again.unwrap(), value, "{name}");
    }
    assert_eq!((requests, responses, extensions), (6, 19, 1));
}

#[test]
fn c_6_what_an_example_says_can_be_asked_for() {
    let response = Response::parse(&vector("retry-02")).unwrap();
    assert_eq!(response.id.as_deref(), Some("req_123"));
    assert_eq!(response.result, Some(Value::Null));
    assert_eq!(response.errors[0].code, "UNAVAILABLE");
    let retry: Retry = response.data_of(Retry::URN).unwrap().unwrap();
    assert_eq!(
        retry,
        Retry::exponential(Duration::from_secs(1)).max_attempts(5)
    );

    let response = Response::parse(&vector("retry-07")).unwrap();
    let limit: RateLimit = response.data_of(RateLimit::URN).unwrap().unwrap();
    assert_eq!((limit.limit, limit.remaining), (Some(100), Some(0)));
    assert_eq!(limit.reset, Some(Span::new(45, Unit::Second)));

    let request = Request::parse(&vector("idempotency-01")).unwrap();
    assert_eq!(request.call.function, "payments.charge");
    assert_eq!(request.call.version.as_deref(), Some("1.0.0"));
    let options: IdempotencyOptions = request
        .options_of(IdempotencyOptions::URN)
        .unwrap()
        .unwrap();
    assert_eq!(options, IdempotencyOptions::new("charge_order456_v1"));

    let cached = Response::parse(&vector("idempotency-03")).unwrap();
    let data: IdempotencyData = cached.data_of(IdempotencyData::URN).unwrap().unwrap();
    assert!(data.is_cached());
    assert_eq!(data.original_request_id.as_deref(), Some("req_001"));
    assert_eq!(cached.data_of::<Retry>(Retry::URN), Ok(None));
}

#[test]
fn section_0_both_spellings_of_urns_are_read_and_one_is_written() {
    for urn in ["urn:forrst:ext:retry", "urn:cline:forrst:ext:retry"] {
        let json = format!(r#"{{"extensions":[{{"urn":"{urn}","data":{{"allowed":false}}}}]}}"#);
        let response = Response::parse(json.as_bytes()).unwrap();
        let retry: Retry = response.data_of(urn).unwrap().unwrap();
        assert_eq!(retry, Retry::never());
        let written = to_value(&response).unwrap();
        assert_eq!(written["extensions"][0]["urn"], "urn:forrst:ext:retry");
    }
    assert_eq!(
        Urn::from("urn:acme:ext:retry").as_str(),
        "urn:acme:ext:retry"
    );
}

#[test]
fn s_3_spans_are_bounded() {
    let read = |json: &str| from_str::<Span>(json).map(Span::duration);
    for (json, seconds) in [
        (r#"{"value":0,"unit":"second"}"#, 0),
        (r#"{"value":45,"unit":"second"}"#, 45),
        (r#"{"value":2,"unit":"minute"}"#, 120),
        (r#"{"value":2.0,"unit":"hour"}"#, 7200),
        (r#"{"unit":"day","value":1}"#, 86_400),
    ] {
        assert_eq!(read(json).unwrap(), Duration::from_secs(seconds), "{json}");
    }
    for digits in ["18446744073709551615", "99999999999999999999999", "1e300"] {
        for unit in ["second", "minute", "hour", "day"] {
            let json = format!(r#"{{"value":{digits},"unit":"{unit}"}}"#);
            assert_eq!(read(&json).unwrap(), Span::LONGEST, "{json}");
        }
    }
    for json in [
        r#"{"value":-1,"unit":"second"}"#,
        r#"{"value":1.5,"unit":"second"}"#,
        r#"{"value":"1","unit":"second"}"#,
        r#"{"value":1,"unit":"fortnight"}"#,
        r#"{"value":1}"#,
        r#"{"unit":"second"}"#,
        "5",
    ] {
        assert!(read(json).is_err(), "{json}");
    }
    assert_eq!(Span::from(Duration::MAX).duration(), Span::LONGEST);
    assert_eq!(
        Span::from(Duration::from_nanos(1)),
        Span::new(1, Unit::Second)
    );
}

#[test]
fn section_0_floors_of_the_strategies() {
    let floors = |retry: Retry| [0, 1, 2, 40, u32::MAX].map(|n| retry.floor(n).as_secs());
    let two = Duration::from_secs(2);
    let longest = Span::LONGEST.as_secs();
    assert_eq!(floors(Retry::immediate()), [0; 5]);
    assert_eq!(floors(Retry::fixed(two)), [2; 5]);
    assert_eq!(floors(Retry::exponential(two)), [2, 4, 8, longest, longest]);
    // `Immediate` overrides the other fields, and a missing strategy means a fixed wait.
    let mut retry = Retry::fixed(two);
    retry.strategy = Some(Growth::Immediate);
    assert_eq!(floors(retry.clone()), [0; 5]);
    retry.strategy = None;
    assert_eq!(floors(retry), [2; 5]);
}

#[test]
fn s_3_errors_name_what_is_wrong() {
    let request = |json: &str| Request::parse(json.as_bytes()).unwrap_err();
    let response = |json: &str| Response::parse(json.as_bytes()).unwrap_err();
    for (error, at, what) in [
        (request(""), "", "EOF"),
        (request("{}"), "", "missing field `call`"),
        (
            request(r#"{"call":{}}"#),
            "call",
            "missing field `function`",
        ),
        (
            request(r#"{"call":{"function":7}}"#),
            "call.function",
            "a string",
        ),
        (
            request(r#"{"id":7,"call":{"function":"f"}}"#),
            "id",
            "a string",
        ),
        (
            request(r#"{"call":{"function":"f"},"extensions":[{"urn":"u"},{}]}"#),
            "extensions[1]",
            "missing field `urn`",
        ),
        (
            request(r#"{"protocol":{"name":"soap","version":"1"},"call":{"function":"f"}}"#),
            "protocol.name",
            r#"is "soap", allowed: "forrst""#,
        ),
        (
            response(r#"{"errors":[{}]}"#),
            "errors[0]",
            "missing field `code`",
        ),
        (response(r#"{"errors":{}}"#), "errors", "a sequence"),
        (response("{} {}"), "", "trailing"),
        (response("[]"), "", "expected"),
    ] {
        assert_eq!(error.at(), at, "{error}");
        assert!(error.what().contains(what), "{error}");
        assert!(error.to_string().contains(at), "{error}");
    }
    let json = r#"{"extensions":[{"urn":"x"},{"urn":"urn:forrst:ext:retry","data":{"allowed":true,"after":{"value":-1,"unit":"second"}}}]}"#;
    let error = Response::parse(json.as_bytes())
        .unwrap()
        .data_of::<Retry>(Retry::URN)
        .unwrap_err();
    assert_eq!(error.at(), "extensions[1].data.after.value");
    assert!(error.what().contains("an integer from 0"), "{error}");
    // However much a peer writes.
    let long = format!(
        r#"{{"protocol":{{"name":"{}","version":"1"}}}}"#,
        "é".repeat(5000)
    );
    assert!(response(&long).to_string().len() < 600);
}

#[test]
fn c_6_null_is_nothing_where_it_is_not_a_result() {
    let json = br#"{"id":null,"result":null,"errors":null,"extensions":null,"meta":null}"#;
    let response = Response::parse(json).unwrap();
    assert!(response.errors.is_empty() && response.extensions.is_empty());
    assert_eq!(to_value(&response).unwrap(), json!({ "result": null }));
}

// ---- hashes

#[test]
fn i_7_arguments_have_one_hash_however_they_are_written() {
    let hash = |json: &str| arguments_hash(&from_str(json).unwrap());
    // As `sha256sum` says of {"a":1,"b":[true,null,"x"]}.
    assert_eq!(
        hash(r#"{ "b": [true, null, "x"], "a": 1.0 }"#),
        "sha256:eca8cfb31ab74533e1eb2f4c74d2d55dfe3c79ac704787e54be8647ea7777eb1"
    );
    for [one, other] in [
        [r#"{"a":1,"b":2}"#, r#"{ "b" : 2.0, "a" : 1e0 }"#],
        ["[1]", "[1.0]"],
        ["100", "1E2"],
        ["0", "-0.0"],
        ["0.1", "1e-1"],
        ["18446744073709551615", "18446744073709551615"],
        [r#""\u0041\/""#, r#""A/""#],
    ] {
        assert_eq!(hash(one), hash(other), "{one} {other}");
    }
    for [one, other] in [
        ["1", "2"],
        ["1", r#""1""#],
        ["[1,2]", "[2,1]"],
        ["9007199254740993", "9007199254740992"],
        ["null", "{}"],
        ["0.1", "0.10000000000000002"],
    ] {
        assert_ne!(hash(one), hash(other), "{one} {other}");
    }
}

/// The examples of RFC 8785, sections 3.2.2 and 3.2.3 and appendix B.
#[test]
fn i_7_canonical_form_is_that_of_rfc_8785() {
    let text = |json: &str| canonical(&from_str(json).unwrap());
    assert_eq!(
        text(
            r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
                "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#
        ),
        r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
    );
    assert_eq!(
        text(
            r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#
        ),
        "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}"
    );
    // Section 3.2.2.2: what has an escape of its own, and what has none.
    assert_eq!(
        canonical(&json!("\u{8}\t\n\u{c}\r\0\u{1f}\"\\ /\u{7f}é\u{2028}")),
        "\"\\b\\t\\n\\f\\r\\u0000\\u001f\\\"\\\\ /\u{7f}é\u{2028}\""
    );
    for (bits, shown) in [
        (0x0000_0000_0000_0000, "0"),
        (0x8000_0000_0000_0000, "0"),
        (0x0000_0000_0000_0001, "5e-324"),
        (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
        (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
        (0x4340_0000_0000_0000, "9007199254740992"),
        (0x4430_0000_0000_0000, "295147905179352830000"),
        (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
        (0x44b5_2d02_c7e1_4af6, "1e+23"),
        (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
        (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
        (0x444b_1ae4_d6e2_ef50, "1e+21"),
        (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
        (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
        (0x41b3_de43_5555_5553, "333333333.3333332"),
        (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
    ] {
        assert_eq!(canonical(&json!(f64::from_bits(bits))), shown, "{bits:x}");
    }
}

// ---- whatever a peer sends

pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e15..1e15).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            any_members(inner).prop_map(Value::Object),
        ]
    })
}

fn any_members(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::vec((".{0,6}", value), 0..4).prop_map(|members| members.into_iter().collect())
}

/// Members of names that no envelope knows.
pub(crate) fn unknown() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::vec(("x[a-z_\"é]{0,6}", any_value()), 0..4)
        .prop_map(|members| members.into_iter().collect())
}

pub(crate) fn with(mut value: Value, more: &Map<String, Value>) -> Value {
    value.as_object_mut().unwrap().extend(more.clone());
    value
}

proptest! {
    #[test]
    fn c_6_unknown_members_survive_at_every_level(
        more in prop::collection::vec(unknown(), 5),
        arguments in any_value(),
        result in any_value(),
    ) {
        let protocol = with(json!({"name": "forrst", "version": "0.1.0"}), &more[0]);
        let options = with(json!({"urn": "urn:acme:x", "options": arguments}), &more[1]);
        let data = with(json!({"urn": "urn:forrst:ext:retry", "data": result}), &more[1]);
        let call = with(json!({"function": "f", "version": "1", "arguments": arguments}), &more[2]);
        let request = with(
            json!({"protocol": protocol, "id": "1", "call": call, "extensions": [options]}),
            &more[3],
        );
        let read = Request::parse(request.to_string().as_bytes()).unwrap();
        prop_assert_eq!(to_value(&read).unwrap(), request);

        let fault = with(json!({"code": "C", "message": "m", "details": {"a": result}}), &more[4]);
        let response = with(
            json!({"protocol": protocol, "id": "1", "result": result, "errors": [fault], "extensions": [data]}),
            &more[3],
        );
        let read = Response::parse(response.to_string().as_bytes()).unwrap();
        prop_assert_eq!(to_value(&read).unwrap(), response);
    }

    #[test]
    fn s_3_no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Request::parse(&bytes);
        let _ = Response::parse(&bytes);
    }

    #[test]
    fn s_3_no_json_makes_it_panic(value in any_value(), cut in any::<prop::sample::Index>()) {
        let json = value.to_string();
        let _ = Request::parse(json.as_bytes());
        let _ = Response::parse(json.as_bytes());
        let _ = Response::parse(&json.as_bytes()[..cut.index(json.len() + 1)]);
        for member in ["protocol", "id", "call", "errors", "extensions", "meta"] {
            let envelope = json!({ member: value });
            let _ = Request::parse(envelope.to_string().as_bytes());
            if let Ok(response) = Response::parse(envelope.to_string().as_bytes()) {
                let _ = response.data_of::<Retry>(Retry::URN);
            }
        }
    }

    #[test]
    fn i_7_the_canonical_form_means_the_same_and_is_its_own(value in any_value()) {
        let text = canonical(&value);
        let read: Value = from_str(&text).unwrap();
        prop_assert_eq!(canonical(&read), text);
        prop_assert_eq!(arguments_hash(&read), arguments_hash(&value));
    }
}
