//! Whatever comes in, there is an answer; and what nobody knows survives.

use proptest::prelude::*;
use serde_json::{Map, Value, from_slice, json};
use tokio::runtime::Builder;
use tower_reprise::forrst::Request;

use super::{Shop, URN, ask, call, data, post, replied, send};

/// Asserts that the reply is the handler's to an envelope, or an envelope with an error.
fn answered(body: &[u8]) {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let shop = Shop::new();
        let (status, reply) = send(&shop.app(), post(body.to_vec())).await;
        let text = String::from_utf8_lossy(body);
        let reply: Value = from_slice(reply.body()).expect("JSON");
        match shop.runs() {
            0 => {
                assert_eq!(
                    (status, super::code(&reply)),
                    (400, "VALIDATION_ERROR"),
                    "{text}"
                );
            }
            _ => {
                assert_eq!(status, 200, "{text}");
                let request = Request::parse(body).expect("an envelope");
                let asked = request.extensions.iter().any(|e| e.urn == *URN);
                assert_eq!(data(&reply).is_null(), !asked, "{text}");
            }
        }
    });
}

fn members() -> impl Strategy<Value = Map<String, Value>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("x_[a-z]{1,4}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    });
    prop::collection::hash_map("x_[a-z]{1,4}", value, 0..4)
        .prop_map(|members| members.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn s_3_any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..200)) {
        answered(&body);
    }

    #[test]
    fn s_3_any_text_of_envelopes_parts_is_answered(parts in prop::collection::vec(
        prop_oneof![
            Just("{"), Just("}"), Just("["), Just("]"), Just(":"), Just(","), Just("\""),
            Just("\"call\":{\"function\":\"f\"}"), Just("\"id\":\"r\""), Just("null"), Just("1e999"),
            Just("\"extensions\":["), Just("{\"urn\":\"urn:forrst:ext:idempotency\""),
            Just("\"options\":{\"key\":\"k\"}"), Just("\"ttl\":"), Just("\\u0000"), Just("\u{feff}"),
        ],
        0..24,
    )) {
        answered(parts.concat().as_bytes());
    }

    #[test]
    fn s_3_an_envelope_with_a_few_other_bytes_is_answered(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut body = call("req_1", "k", &json!({"a": [1, "b"]})).to_string().into_bytes();
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if cut {
            body.truncate(end.index(body.len()));
        }
        answered(&body);
    }

    /// I-8: on the way in and on the way out, the first time and every time.
    #[test]
    fn i_8_members_that_nobody_knows_survive(
        envelope in members(), of_call in members(), options in members(), reply in members(),
    ) {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let shop = Shop::new();
            let app = shop.app();
            let mut request = call("req_1", "k", &json!({}));
            request.as_object_mut().unwrap().extend(envelope);
            request["call"].as_object_mut().unwrap().extend(of_call);
            request["extensions"][0]["options"].as_object_mut().unwrap().extend(options);
            let mut expected = Map::from_iter([("result".to_owned(), json!(1.5))]);
            expected.extend(reply);
            let replying = expected.clone();
            shop.replies(move |_, id| {
                let mut envelope = replying.clone();
                envelope.insert("id".into(), id);
                replied(200, &envelope.into())
            });
            for id in ["req_1", "req_2"] {
                request["id"] = id.into();
                let (_, mut told) = ask(&app, &request).await;
                assert!(!data(&told).is_null());
                let told = told.as_object_mut().unwrap();
                assert_eq!(told.remove("id"), Some(id.into()));
                told.remove("extensions");
                assert_eq!(*told, expected);
            }
            let seen: Value = from_slice(&shop.seen.lock().unwrap()).unwrap();
            request["id"] = "req_1".into();
            assert_eq!((seen, shop.runs()), (request, 1));
        });
    }
}
