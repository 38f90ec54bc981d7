//! Whatever comes in, there is an answer; and what nobody knows survives.

use proptest::prelude::*;

use super::*;

fn any_member() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let members = prop::collection::vec((".{0,6}", inner.clone()), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            members.prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn s_3_no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), closed: bool) {
        run(async {
            let shop = if closed { Shop::closed() } else { Shop::new() };
            let (status, reply) = shop.send(of("ada"), bytes).await;
            assert_eq!((status, code_of(&reply)), (400, "VALIDATION_ERROR"));
        });
    }

    #[test]
    fn s_3_no_json_makes_it_panic(value in any_member(), more in any_member()) {
        run(async {
            let shop = Shop::closed();
            let mut calls = vec![value.clone(), asking("1", Some("1"), value.clone())];
            for member in ["protocol", "id", "call", "extensions", "context", "meta"] {
                let mut call = order("1", "1");
                call[member] = value.clone();
                calls.push(call);
            }
            for member in ["enabled", "ttl", "priority", "callback"] {
                calls.push(asking("1", None, json!({ member: value })));
            }
            let span = json!({ "value": value, "unit": more });
            calls.push(asking("1", None, json!({ "ttl": span })));
            let callback = json!({ "url": value, "headers": more });
            calls.push(asking("1", None, json!({ "callback": callback })));
            for name in ["status", "cancel", "list", "trigger"] {
                let function = format!("forrst.replay.{name}");
                calls.push(json!({ "call": { "function": function, "arguments": value } }));
            }
            for call in calls {
                let (status, reply) = shop.call(&call).await;
                let refused = reply["errors"].is_array();
                assert!((status == 200 || status == 202) != refused, "{call} {reply}");
                let closed = status == 503 && code_of(&reply) == "SERVER_MAINTENANCE";
                assert!(status < 500 || closed, "{call} {reply}");
            }
        });
    }

    #[test]
    fn c_6_unknown_members_survive_into_the_replayed_request(
        value in any_member(),
        name in "x[a-z\"é]{0,6}",
        keyed: bool,
    ) {
        run(async {
            let shop = Shop::closed();
            let mut call = asking("1", keyed.then_some("k"), json!({ &name: value }));
            call[&name] = value.clone();
            call["call"][&name] = value.clone();
            call["protocol"][&name] = value.clone();
            call["extensions"][0][&name] = value.clone();
            call["context"] = json!({ &name: value });
            // Numbers are what they were, to the last digit.
            let sent = format!(r#"{{"xx":1.50e1,{}"#, &call.to_string()[1..]);
            let (status, reply) = shop.send(of("ada"), sent.clone()).await;
            assert_eq!(status, 202, "{reply}");
            let worker = shop.work();
            shop.replay.maintenance().off();
            assert_eq!(shop.ended(&id_of(&reply)).await, Status::Completed);
            let seen = String::from_utf8(shop.handler.seen()[0].to_vec()).unwrap();
            if keyed {
                assert_eq!(seen, sent);
            } else {
                // One without a key got one (J-4), and is else the same.
                assert!(seen.contains(r#""xx":1.50e1"#), "{seen}");
                let mut got: Value = serde_json::from_str(&seen).unwrap();
                let key = got["extensions"].as_array_mut().unwrap().pop().unwrap();
                assert_eq!(key["urn"], IDEMPOTENCY);
                assert_eq!(got, serde_json::from_str::<Value>(&sent).unwrap());
            }
            drop(worker);
        });
    }
}
