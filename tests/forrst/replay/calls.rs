//! The replay options of calls, and refusals.

use tower_reprise::server::dialect::Scope;
use tower_reprise::store::journal::NewEntry;

use super::*;

#[tokio::test(start_paused = true)]
async fn j_15_options_that_can_t_be_read_are_refused_by_name() {
    let shop = Shop::new();
    let url = "https://shop.example/hook";
    for (options, field) in [
        (json!([]), "options"),
        (json!("yes"), "options"),
        (json!({ "enabled": "yes" }), "options.enabled"),
        (json!({ "ttl": 60 }), "options.ttl"),
        (json!({ "ttl": { "value": 60 } }), "options.ttl"),
        (
            json!({ "ttl": { "value": -1, "unit": "hour" } }),
            "options.ttl.value",
        ),
        (
            json!({ "ttl": { "value": 1.5, "unit": "hour" } }),
            "options.ttl.value",
        ),
        (
            json!({ "ttl": { "value": 1, "unit": "fortnight" } }),
            "options.ttl.unit",
        ),
        (
            json!({ "ttl": { "value": 0, "unit": "hour" } }),
            "options.ttl",
        ),
        (json!({ "priority": "urgent" }), "options.priority"),
        (json!({ "priority": 1 }), "options.priority"),
        (json!({ "callback": url }), "options.callback"),
        (json!({ "callback": {} }), "options.callback"),
        (json!({ "callback": { "url": 7 } }), "options.callback.url"),
        (
            json!({ "callback": { "url": url, "headers": [] } }),
            "options.callback.headers",
        ),
        (
            json!({ "callback": { "url": url, "headers": { "a": 1 } } }),
            "options.callback.headers.a",
        ),
        (
            json!({ "callback": { "url": url, "headers": { "host": "a" } } }),
            "options.callback.headers",
        ),
        (
            json!({ "callback": { "url": url, "headers": { "x": "a\r\nb" } } }),
            "options.callback.headers",
        ),
    ] {
        let (status, reply) = shop
            .call(&asking("req_7", Some("1"), options.clone()))
            .await;
        let error = &reply["errors"][0];
        assert_eq!(
            (status, &error["code"]),
            (400, &json!("VALIDATION_ERROR")),
            "{options}"
        );
        assert_eq!(
            error["details"]["field"],
            format!("extensions[0].{field}"),
            "{options}"
        );
        assert_eq!(reply["id"], "req_7");
    }
    let mut twice = order("1", "1");
    let again = json!({ "urn": "urn:cline:forrst:ext:replay", "options": { "enabled": false } });
    twice["extensions"].as_array_mut().unwrap().push(again);
    let (status, reply) = shop.call(&twice).await;
    assert_eq!((status, code_of(&reply)), (400, "VALIDATION_ERROR"));
    assert_eq!(reply["errors"][0]["details"]["field"], "extensions[2]");
    // W-6: where a callback must not go. Its place is in the message.
    for url in [
        "ftp://shop.example/",
        "https://10.0.0.1/",
        "https://u:s3cret@shop.example/",
        "",
    ] {
        let options = json!({ "callback": { "url": url } });
        let (status, reply) = shop.call(&asking("1", Some("1"), options)).await;
        assert_eq!(
            (status, code_of(&reply)),
            (400, "VALIDATION_ERROR"),
            "{url}"
        );
        assert!(!reply.to_string().contains("s3cret"));
    }
    // A key that no idempotency layer takes would be a replay that fails.
    let long = "k".repeat(256);
    for (options, field) in [
        (json!({ "key": 7 }), "extensions[1].options.key"),
        (json!({ "key": "" }), "extensions[1].options.key"),
        (json!({ "key": "a\0" }), "extensions[1].options.key"),
        (json!({ "key": long }), "extensions[1].options.key"),
        (json!({}), "extensions[1].options"),
        (Value::Null, "extensions[1].options"),
    ] {
        let mut keyless = order("1", "1");
        keyless["extensions"][1]["options"] = options;
        shop.replay.maintenance().on(None);
        let (status, reply) = shop.call(&keyless).await;
        assert_eq!((status, code_of(&reply)), (400, "VALIDATION_ERROR"));
        assert_eq!(reply["errors"][0]["details"]["field"], field);
    }
    assert_eq!(
        shop.handler.seen().len(),
        0,
        "whether or not it could be served"
    );
}

#[tokio::test(start_paused = true)]
async fn s_3_what_is_no_envelope_is_refused() {
    let shop = Shop::new();
    for body in [
        "",
        "7",
        "{}",
        r#"{"id":"r""#,
        r#"{"id":"r","call":{}}"#,
        r#"{"id":"r","protocol":{"name":"soap","version":"1"},"call":{"function":"f"}}"#,
        r#"{"id":"r","call":{"function":"f"},"extensions":{}}"#,
    ] {
        let (status, reply) = shop.send(of("ada"), body).await;
        assert_eq!(
            (status, code_of(&reply)),
            (400, "VALIDATION_ERROR"),
            "{body}"
        );
        assert_eq!(reply["protocol"]["name"], "forrst");
        let readable = body.ends_with('}') && body.contains("id");
        assert_eq!(reply["id"] == "r", readable, "{body}");
    }
    assert_eq!(shop.handler.seen().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn j_15_what_is_not_forrst_passes() {
    let shop = Shop::new();
    let asks = order("1", "1").to_string();
    for (name, value) in [("content-type", "text/plain"), ("content-encoding", "gzip")] {
        let mut request = of("ada");
        request
            .headers_mut()
            .unwrap()
            .insert(name, value.parse().unwrap());
        shop.handler.fails(503, "UNAVAILABLE");
        assert_eq!(shop.send(request, asks.clone()).await.0, 503, "{name}");
    }
    assert_eq!(shop.handler.seen().len(), 2, "it is not journaled");
    // A request without a content type may be an envelope.
    shop.handler.fails(503, "UNAVAILABLE");
    let unsaid = Request::post("/forrst").header("x-user", "ada");
    assert_eq!(shop.send(unsaid, asks).await.0, 202);
}

#[tokio::test(start_paused = true)]
async fn j_1_only_what_asks_for_it_is_journaled() {
    let shop = Shop::closed();
    let mut plain = order("1", "1");
    plain["extensions"].as_array_mut().unwrap().remove(0);
    for envelope in [
        plain.clone(),
        asking("1", Some("1"), json!({ "enabled": false })),
    ] {
        let (status, reply) = shop.call(&envelope).await;
        assert_eq!((status, code_of(&reply)), (503, "SERVER_MAINTENANCE"));
        assert_eq!(reply["id"], "1");
        shop.replay.maintenance().off();
        let (status, reply) = shop.call(&envelope).await;
        assert_eq!(
            (status, data_of(&reply)),
            (200, &Value::Null),
            "served, and not marked"
        );
        shop.replay.maintenance().on(None);
    }
    for options in [json!({}), json!({ "enabled": true }), Value::Null] {
        assert_eq!(shop.call(&asking("1", None, options)).await.0, 202);
    }
    let mut without = order("1", "1");
    without["extensions"][0] = json!({ "urn": "urn:cline:forrst:ext:replay" });
    assert_eq!(
        shop.call(&without).await.0,
        202,
        "section 0: either spelling"
    );

    let shop = Shop::with(MemoryStore::new(), ReplayBuilder::replay_by_default);
    shop.replay.maintenance().on(None);
    assert_eq!(shop.call(&plain).await.0, 202);
}

#[tokio::test(start_paused = true)]
async fn j_1_what_can_t_be_served_is_journaled() {
    let shop = Shop::new();
    shop.handler.fails(503, "UNAVAILABLE");
    let (status, reply) = shop.call(&order("1", "1")).await;
    assert_eq!(
        (status, &data_of(&reply)["status"]),
        (202, &json!("queued"))
    );
    assert_eq!(data_of(&reply)["reason"], "UNAVAILABLE");
    assert_eq!(
        reply["extensions"].as_array().unwrap().len(),
        1,
        "no maintenance"
    );
    // A function that is in maintenance says so itself.
    let maintenance =
        json!({ "urn": "urn:forrst:ext:maintenance", "data": { "scope": "function" } });
    let errors = json!([{ "code": "FUNCTION_MAINTENANCE" }]);
    let closed = json!({ "errors": errors, "extensions": [maintenance] });
    shop.handler.will(503, closed);
    let (status, reply) = shop.call(&order("3", "3")).await;
    assert_eq!(status, 202);
    assert_eq!(data_of(&reply)["reason"], "FUNCTION_MAINTENANCE");
    assert_eq!(reply["extensions"][1], maintenance);
    shop.handler.will(503, json!("closed"));
    let (_, reply) = shop.call(&order("4", "4")).await;
    assert_eq!(data_of(&reply)["reason"], "SERVICE_UNAVAILABLE");
    // A call that was served is not journaled, whatever its outcome.
    for (status, code) in [
        (400, "INVALID_ARGUMENTS"),
        (500, "INTERNAL_ERROR"),
        (200, "FORBIDDEN"),
    ] {
        shop.handler.fails(status, code);
        let (got, reply) = shop.call(&order("2", code)).await;
        assert_eq!((got, code_of(&reply)), (status, code));
        assert_eq!(data_of(&reply), &Value::Null);
    }
    assert_eq!(shop.counts().await.of(Status::Queued), 3);
}

#[tokio::test(start_paused = true)]
async fn j_2_what_can_t_be_written_down_is_not_accepted() {
    let store = MemoryStore::builder().max_entries(1).build().unwrap();
    store.enqueue(NewEntry::new("other", "")).await.unwrap();
    let shop = Shop::with(store, |builder| builder);
    shop.replay.maintenance().on(None);
    let (status, reply) = shop.call(&order("1", "1")).await;
    assert_eq!((status, code_of(&reply)), (503, "UNAVAILABLE"));
    let nobody = Request::post("/forrst").header("content-type", "application/json");
    let (status, reply) = shop.send(nobody, order("1", "1").to_string()).await;
    assert_eq!((status, code_of(&reply)), (403, "FORBIDDEN"));
}

#[tokio::test(start_paused = true)]
async fn j_3_a_key_is_of_a_caller_a_function_a_version_and_its_arguments() {
    let shop = Shop::closed();
    let first = shop.queue(&order("1", "k")).await;
    // Neither the order of members nor the spelling of numbers makes it another one.
    let same = r#"{"id":"2","extensions":[{"urn":"urn:forrst:ext:idempotency","options":{"key":"k"}},
        {"urn":"urn:forrst:ext:replay"}],"call":{"version":"1.0.0","arguments":{"items":
        [{"quantity":2.0,"sku":"W"}],"customer_id":"cust_456"},"function":"orders.create"}}"#;
    let (status, reply) = shop.send(of("ada"), same).await;
    assert_eq!((status, id_of(&reply)), (202, first.clone()));
    let mut other = order("3", "k");
    other["call"]["arguments"]["customer_id"] = json!("cust_457");
    let (status, reply) = shop.call(&other).await;
    assert_eq!((status, code_of(&reply)), (422, "IDEMPOTENCY_CONFLICT"));
    let details = &reply["errors"][0]["details"];
    assert_eq!(details["key"], "k");
    let original =
        tower_reprise::forrst::Request::parse(order("1", "k").to_string().as_bytes()).unwrap();
    let hash = original.call.arguments_hash();
    assert_eq!(details["original_arguments_hash"], hash);
    let data = json!({ "key": "k", "status": "conflict", "original_request_id": "1" });
    let told = json!([{ "urn": IDEMPOTENCY, "data": data }]);
    assert_eq!(reply["extensions"], told);
    assert!(
        !reply.to_string().contains(&first),
        "nothing else is revealed"
    );

    let mut ids = vec![first];
    for (member, value) in [("function", "orders.cancel"), ("version", "2.0.0")] {
        let mut other = other.clone();
        other["call"][member] = json!(value);
        ids.push(shop.queue(&other).await);
    }
    let (_, reply) = shop.send(of("bob"), other.to_string()).await;
    ids.push(id_of(&reply));
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn j_13_credentials_of_a_callback_need_a_sealed_journal() {
    let store = MemoryStore::new();
    let webhooks = Webhooks::builder(store.clone(), Signer::new(SECRET).unwrap());
    let replay = Replay::builder(store, Scope::new(principal))
        .dialect(Forrst::new())
        .callbacks(webhooks.build().unwrap())
        .build()
        .unwrap();
    replay.maintenance().on(None);
    let app = Router::new()
        .route("/forrst", post(async || ()))
        .layer(replay.layer());
    for (headers, status) in [
        (json!({ "Authorization": "Bearer s3cret" }), 400),
        (json!({ "X-Api-Key": "s3cret" }), 400),
        // The example of the specification, with a header that names no secret.
        (json!({ "X-Source": "orders" }), 202),
        (json!({}), 202),
    ] {
        let url = "https://api.example.com/webhooks/replay";
        let callback = json!({ "url": url, "headers": headers });
        let options = json!({
            "ttl": { "value": 24, "unit": "hour" }, "priority": "high", "callback": callback,
        });
        let call = asking("1", None, options);
        let request = of("ada").body(Body::from(call.to_string())).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{headers}");
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        let refused = body.contains("VALIDATION_ERROR") && !body.contains("s3cret");
        assert_eq!(refused, status == 400, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn s_3_options_and_bodies_are_kept_within_bounds() {
    let shop = Shop::with(MemoryStore::new(), |builder| builder.request_limit(2000));
    shop.replay.maintenance().on(None);
    let long = json!({ "ttl": { "value": 1e300, "unit": "day" } });
    let entry = shop
        .entry(&shop.queue(&asking("1", None, long)).await)
        .await;
    assert_eq!(
        entry.expires_at.since(entry.queued_at),
        7 * 24 * 3600 * SECOND
    );
    let long = "i".repeat(300);
    let id = shop.queue(&order(&long, "2")).await;
    let (_, reply) = shop
        .function("ada", "status", json!({ "replay_id": id }))
        .await;
    assert_eq!(reply["result"].get("original_request_id"), None);

    let mut large = order("3", "3");
    large["context"] = json!("c".repeat(3000));
    let large = large.to_string();
    let (status, reply) = shop.send(of("ada"), large.clone()).await;
    assert_eq!((status, code_of(&reply)), (413, "VALIDATION_ERROR"));
    shop.replay.maintenance().off();
    assert_eq!(
        shop.send(of("ada"), large).await.0,
        200,
        "served as long as it can be"
    );
}
