use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use tower_reprise::delivery::{
    sign::{MessageId, Signer},
    verify::Verifier,
};

use super::{SECRET, id, signer};

const BODY: &[u8] = br#"{"test": 2432232314}"#;
const LONGEST_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==";
/// The first key pair of RFC 8032's tests: the seed, the seed with the public key, the public key.
pub(crate) const SEED: &str = "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
const PAIR: &str =
    "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2DXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==";
pub(crate) const PUBLIC: &str = "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

fn at() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_614_265_330)
}

/// W-4: the example that implementations of the specification share.
#[test]
fn w_4_the_published_signature() {
    let signed = signer().sign(&id(), at(), BODY);
    assert_eq!(
        signed.signature(),
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    );
    let mut headers = HeaderMap::new();
    headers.insert("webhook-id", HeaderValue::from_static("another"));
    signed.apply(&mut headers);
    assert_eq!(headers.len(), 3);
    assert_eq!(headers["webhook-id"], "msg_p5jXN8AQM9LWM0D4loKWxJek");
    assert_eq!(headers["webhook-timestamp"], "1614265330");
    assert_eq!(headers["webhook-signature"], signed.signature());
}

/// W-4: values that were computed by other implementations of HMAC and Ed25519.
#[test]
fn w_4_during_a_rotation_there_are_several_signatures() {
    let signer = signer().also(LONGEST_SECRET).unwrap().also(SEED).unwrap();
    let signed = signer.sign(&id(), at(), BODY);
    assert_eq!(
        signed.signature(),
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= \
         v1,LZ5zuwHTqQH3VM8ERUusjzVQq1FXzemvpR8Mk7Ivp5c= \
         v1a,fldxM4gAKugP6nnt1hdz3sgGfZ6d99nzrMFnZOELIxbzEHoVmAb2ADpkJK7zgPePmPsle0zV9jSeGlHFG2NVAw=="
    );
    let pair = Signer::new(PAIR).unwrap().sign(&id(), at(), BODY);
    assert!(signed.signature().ends_with(pair.signature()));
}

#[test]
fn w_4_the_id_stays_and_the_timestamp_does_not() {
    let (first, second) = (
        signer().sign(&id(), at(), BODY),
        signer().sign(&id(), at() + Duration::from_secs(30), BODY),
    );
    assert_eq!(first.id(), second.id());
    assert_eq!(second.timestamp() - first.timestamp(), 30);
    assert_ne!(first.signature(), second.signature());
    let early = signer().sign(&id(), UNIX_EPOCH - Duration::from_secs(1), BODY);
    assert_eq!(early.timestamp(), 0);
}

#[test]
fn w_4_a_key_that_is_none_is_refused_and_never_shown() {
    let long = format!("whsec_{}", "QUFB".repeat(22));
    for (key, part) in [
        ("", "begins with"),
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "begins with"),
        ("WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "begins with"),
        ("whsec_", "24 to 64"),
        // One byte too few, 66 bytes, the other alphabet, no padding, something behind.
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaQ=", "24 to 64"),
        (&*long, "24 to 64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2La-_Sw", "24 to 64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMQ", "24 to 64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw!", "24 to 64"),
        ("whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "32 or 64"),
        // A pair whose halves do not belong together.
        (
            "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2CdYbGd7/1aYLqESvSS7CzEREnFaXsyaRlwO6wDHK5/YA==",
            "32 or 64",
        ),
        (PUBLIC, "can't sign"),
    ] {
        let error = Signer::new(key).unwrap_err();
        assert!(error.to_string().contains(part), "{key}: {error}");
        let shown = format!("{error} {error:?}");
        let secret = key.rsplit('_').next().unwrap();
        assert!(secret.is_empty() || !shown.contains(secret), "{shown}");
    }
    for (key, part) in [
        (SEED, "sender's"),
        ("whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "32 bytes"),
        // The neutral element, by which anything is signed.
        (
            "whpk_AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            "32 bytes",
        ),
    ] {
        let error = Verifier::new(key).unwrap_err();
        assert!(error.to_string().contains(part), "{key}: {error}");
    }
}

#[test]
fn w_4_a_secret_is_24_to_64_bytes() {
    for length in 0..=80 {
        let secret = format!("whsec_{}", BASE64.encode(vec![7; length]));
        assert_eq!(
            Signer::new(&secret).is_ok(),
            (24..=64).contains(&length),
            "{length}"
        );
        // As it is read from a file.
        let line = secret + "\n";
        assert_eq!(Verifier::new(&line).is_ok(), (24..=64).contains(&length));
    }
}

/// S-2.
#[test]
fn w_4_secrets_are_not_in_debug() {
    let signer = signer().also(SEED).unwrap();
    let verifier = Verifier::new(SECRET).unwrap().also(PUBLIC).unwrap();
    for shown in [
        format!("{signer:?} {signer:#?}"),
        format!("{verifier:?} {verifier:#?}"),
    ] {
        assert!(shown.contains("keys: 2"), "{shown}");
        assert!(!shown.contains("MfKQ") && !shown.contains("nWGx"));
        assert!(!shown.contains("[49, 242") && !shown.contains("157, 97"));
    }
}

#[test]
fn w_4_eight_keys_are_enough() {
    let mut signer = signer();
    let mut verifier = Verifier::new(SECRET).unwrap();
    for _ in 1..8 {
        signer = signer.also(SECRET).unwrap();
        verifier = verifier.also(SECRET).unwrap();
    }
    assert_eq!(signer.also(SECRET).unwrap_err().field(), "signer.keys");
    assert_eq!(verifier.also(SECRET).unwrap_err().field(), "verifier.keys");
}

#[test]
fn w_4_ids() {
    for good in ["a", "msg_1", &"x".repeat(255)] {
        assert_eq!(MessageId::new(good).unwrap().as_str(), good);
    }
    for bad in ["", "a.b", "a b", "a\r\nb", "é", "\u{7f}", &"x".repeat(256)] {
        let error = MessageId::new(bad).unwrap_err();
        assert_eq!(error.field(), "webhook.id", "{bad:?}");
    }
    let random = MessageId::random();
    assert_eq!(random.as_str().len(), 36);
    assert_eq!(MessageId::new(random.as_str()).unwrap(), random);
    assert_ne!(MessageId::random(), random);
}

proptest! {
    // Ed25519 is slow where it is not optimised.
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// S-3.
    #[test]
    fn w_4_no_key_panics(key in prop_oneof![any::<String>(), "wh(sec|sk|pk)_[A-Za-z0-9+/=]{0,100}"]) {
        let _ = Signer::new(&key);
        let _ = Verifier::new(&key);
    }

    #[test]
    fn w_4_what_is_signed_is_verified_and_nothing_else(
        id in "[!-~&&[^.]]{1,255}",
        seconds in 0..u64::from(u32::MAX),
        body in proptest::collection::vec(any::<u8>(), 0..300),
        flipped in any::<prop::sample::Index>(),
    ) {
        let signer = signer().also(SEED).unwrap();
        let at = UNIX_EPOCH + Duration::from_secs(seconds);
        let mut headers = HeaderMap::new();
        signer.sign(&MessageId::new(&id).unwrap(), at, &body).apply(&mut headers);
        for key in [SECRET, PUBLIC] {
            let verifier = Verifier::new(key).unwrap();
            let verified = verifier.verify_at(&headers, &body, at).unwrap();
            prop_assert_eq!((verified.id(), verified.timestamp()), (&*id, seconds));
            let mut other = body.clone();
            if other.is_empty() {
                other.push(0);
            } else {
                other[flipped.index(body.len())] ^= 1;
            }
            prop_assert!(verifier.verify_at(&headers, &other, at).is_err());
        }
    }
}
