use proptest::prelude::*;
use tower_reprise::delivery::UserHeaders;

#[test]
fn w_5_what_is_the_deliverys_own_is_refused() {
    for name in [
        "webhook-id",
        "Webhook-Signature",
        "WEBHOOK-TIMESTAMP",
        "webhook-anything",
        "Host",
        "content-length",
        "Content-Type",
        "Transfer-Encoding",
        "connection",
        "Keep-Alive",
        "proxy-authorization",
        "Proxy-Connection",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "http2-settings",
        "idempotency-key",
        // Not even names.
        "",
        ":authority",
        "x y",
        "x\r\ny",
        "x:",
        "é",
    ] {
        let error = UserHeaders::new([("x-fine", "a"), (name, "s3cret")]).unwrap_err();
        assert_eq!(error.field(), "webhook.headers", "{name}");
        assert_eq!(error.value(), format!("{name:?}"));
        assert!(!format!("{error:?}").contains("s3cret"));
    }
}

#[test]
fn w_5_a_value_stays_on_its_line() {
    for value in [
        "a\r\nhost: b",
        "a\nb",
        "a\rb",
        "a\0b",
        "a\tb",
        "\u{7f}",
        "é",
        "\u{85}",
    ] {
        let error = UserHeaders::new([("x-a", value)]).unwrap_err();
        assert!(error.to_string().contains("visible ASCII"), "{error}");
        assert!(!error.to_string().contains(value));
    }
    let headers = UserHeaders::new([("X-A", "one"), ("x-a", "two"), ("x-b", "")]).unwrap();
    let all: Vec<_> = headers.iter().collect();
    assert_eq!(all, [("x-a", "one"), ("x-a", "two"), ("x-b", "")]);
}

/// S-3.
#[test]
fn w_5_count_and_size_are_bounded() {
    let many = |count: usize| (0..count).map(|n| (format!("x-{n}"), "v"));
    assert_eq!(UserHeaders::new(many(32)).unwrap().iter().count(), 32);
    assert!(UserHeaders::new(many(33)).is_err());
    let same = std::iter::repeat_n(("x-a", "v"), 33);
    assert!(UserHeaders::new(same).is_err());
    assert!(UserHeaders::new([("x-a", "v".repeat(8 * 1024 - 3))]).is_ok());
    let error = UserHeaders::new([("x-a", "v".repeat(8 * 1024 - 2))]).unwrap_err();
    assert!(error.to_string().contains("8 KiB"));
    let long = UserHeaders::new([("n".repeat(100_000), "v")]).unwrap_err();
    assert!(long.to_string().len() < 200);
}

/// S-2.
#[test]
fn w_5_values_are_not_shown() {
    let headers = UserHeaders::new([("authorization", "Bearer s3cret")]).unwrap();
    assert!(!format!("{headers:?} {headers:#?}").contains("s3cret"));
}

proptest! {
    #[test]
    fn w_5_no_header_panics_and_none_breaks_out(
        headers in proptest::collection::vec((any::<String>(), any::<String>()), 0..4),
        plain in proptest::collection::vec(("[a-zA-Z-]{1,20}", "\\PC{0,20}"), 0..4),
    ) {
        for headers in [headers, plain] {
            if let Ok(headers) = UserHeaders::new(headers) {
                for (name, value) in headers.iter() {
                    prop_assert!(!name.starts_with("webhook-") && name != "host");
                    prop_assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
                }
            }
        }
    }
}
