use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tower_reprise::delivery::verify::{Verifier, VerifyError};

use super::{
    SECRET, id,
    sign::{PUBLIC, SEED},
    signer,
};

const SECONDS: u64 = 1_614_265_330;
const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn signed() -> HeaderMap {
    let mut headers = HeaderMap::new();
    signer()
        .sign(&id(), at(SECONDS), b"paid")
        .apply(&mut headers);
    headers
}

fn verifier() -> Verifier {
    Verifier::new(SECRET).unwrap()
}

fn verify(headers: &HeaderMap) -> Result<(), VerifyError> {
    let verified = verifier().verify_at(headers, b"paid", at(SECONDS));
    verified.map(|_| ())
}

#[test]
fn w_4_five_minutes_either_way() {
    let headers = signed();
    let late = Duration::from_millis(500);
    for (now, expected) in [
        (at(SECONDS - 301), Err(VerifyError::TooNew)),
        // Half a second into that second.
        (at(SECONDS - 300) + late, Ok(())),
        (at(SECONDS - 300), Ok(())),
        (at(SECONDS), Ok(())),
        (at(SECONDS + 300), Ok(())),
        (at(SECONDS + 300) + late, Err(VerifyError::TooOld)),
        (at(SECONDS + 301), Err(VerifyError::TooOld)),
        (UNIX_EPOCH - late, Err(VerifyError::TooNew)),
    ] {
        let verified = verifier().verify_at(&headers, b"paid", now);
        assert_eq!(verified.map(|_| ()), expected, "{now:?}");
    }
    let strict = verifier().tolerance(Duration::from_secs(1)).unwrap();
    let verified = strict.verify_at(&headers, b"paid", at(SECONDS + 2));
    assert_eq!(verified, Err(VerifyError::TooOld));
    for bad in [Duration::ZERO, Duration::from_secs(3601), Duration::MAX] {
        let error = verifier().tolerance(bad).unwrap_err();
        assert_eq!(error.field(), "verifier.tolerance");
    }
}

#[test]
fn w_4_each_header_is_needed_once_and_well_formed() {
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let mut headers = signed();
        headers.remove(name);
        assert_eq!(verify(&headers), Err(VerifyError::Missing(name)));
    }
    for (name, value) in [
        ("webhook-id", ""),
        ("webhook-id", "a.b"),
        ("webhook-id", "a b"),
        ("webhook-timestamp", ""),
        ("webhook-timestamp", "+1614265330"),
        ("webhook-timestamp", "-1"),
        ("webhook-timestamp", " 1614265330"),
        ("webhook-timestamp", "1614265330.0"),
        ("webhook-timestamp", "99999999999999999999"),
    ] {
        let mut headers = signed();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        assert_eq!(
            verify(&headers),
            Err(VerifyError::Malformed(name)),
            "{value}"
        );
    }
    for name in ["webhook-id", "webhook-timestamp"] {
        let mut headers = signed();
        let twice = headers[name].clone();
        headers.append(name, twice);
        assert_eq!(verify(&headers), Err(VerifyError::Malformed(name)));
        headers.insert(name, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(verify(&headers), Err(VerifyError::Malformed(name)));
    }
}

#[test]
fn w_4_a_signature_of_another_key_id_time_or_body_does_not_match() {
    let changes: [(&'static str, &'static str); 5] = [
        ("webhook-id", "msg_2"),
        ("webhook-timestamp", "1614265331"),
        ("webhook-signature", "v1,"),
        ("webhook-signature", ""),
        // The right one, said to be of another version.
        (
            "webhook-signature",
            "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        ),
    ];
    assert_eq!(verify(&signed()), Ok(()));
    for (name, value) in changes {
        let mut headers = signed();
        headers.insert(name, HeaderValue::from_static(value));
        assert_eq!(
            verify(&headers),
            Err(VerifyError::NoMatch),
            "{name}: {value}"
        );
    }
    let verified = verifier().verify_at(&signed(), b"paie", at(SECONDS));
    assert_eq!(verified, Err(VerifyError::NoMatch));
    let other = Verifier::new(OTHER).unwrap();
    let verified = other.verify_at(&signed(), b"paid", at(SECONDS));
    assert_eq!(verified, Err(VerifyError::NoMatch));
    // A secret is no public key, and a public key no secret.
    let public = Verifier::new(PUBLIC).unwrap();
    let verified = public.verify_at(&signed(), b"paid", at(SECONDS));
    assert_eq!(verified, Err(VerifyError::NoMatch));
}

#[test]
fn w_4_a_rotation_on_either_side() {
    let mut headers = HeaderMap::new();
    let rotating = tower_reprise::delivery::sign::Signer::new(OTHER).unwrap();
    let rotating = rotating.also(SECRET).unwrap().also(SEED).unwrap();
    rotating
        .sign(&id(), at(SECONDS), b"paid")
        .apply(&mut headers);
    for key in [SECRET, OTHER, PUBLIC] {
        let verifier = Verifier::new(key).unwrap();
        assert!(verifier.verify_at(&headers, b"paid", at(SECONDS)).is_ok());
    }
    let both = Verifier::new(OTHER).unwrap().also(SECRET).unwrap();
    assert!(both.verify_at(&signed(), b"paid", at(SECONDS)).is_ok());
}

/// S-3: sixteen are looked at, and not one more.
#[test]
fn w_4_the_signatures_that_are_looked_at_are_bounded() {
    let right = signed()["webhook-signature"].to_str().unwrap().to_owned();
    let wrong = "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= ";
    for (before, expected) in [(15, Ok(())), (16, Err(VerifyError::NoMatch))] {
        let mut headers = signed();
        let all = wrong.repeat(before) + &right;
        headers.insert("webhook-signature", HeaderValue::try_from(all).unwrap());
        assert_eq!(verify(&headers), expected);

        // The same in lines of their own.
        headers.remove("webhook-signature");
        for line in std::iter::repeat_n(wrong.trim_end(), before).chain([&*right]) {
            headers.append("webhook-signature", HeaderValue::from_str(line).unwrap());
        }
        assert_eq!(verify(&headers), expected);
    }
}

proptest! {
    /// S-3.
    #[test]
    fn w_4_no_headers_panic(
        values in proptest::collection::vec(
            (0..3_usize, prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..80),
                "(v1|v1a|v2),[A-Za-z0-9+/=]{0,90}( v1,[a-z=]{0,50})?".prop_map(String::into_bytes),
                "[0-9]{0,25}".prop_map(String::into_bytes),
            ]),
            0..8,
        ),
        now in any::<u32>(),
    ) {
        let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(HeaderName::from_static(names[name]), value);
            }
        }
        let verifier = verifier().also(PUBLIC).unwrap();
        prop_assert!(verifier.verify_at(&headers, b"", at(now.into())).is_err());
    }
}
