//! C-6 and forrst's envelopes: what is read is written and read again, and guidance changes nothing
//! else.

use std::convert::Infallible;

use http::{HeaderMap, Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_reprise::forrst::{self, Retry, RetryGuidanceLayer};

use crate::support::{Dice, Pieces, block_on, read, whole};

/// A line that decides how it comes, and an envelope.
pub(crate) fn run(input: &[u8]) {
    let line = input.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (how, envelope) = input.split_at(line);
    let envelope = envelope.strip_prefix(b"\n").unwrap_or(envelope);

    if let Ok(request) = forrst::Request::parse(envelope) {
        let hash = request.call.arguments_hash();
        let written = serde_json::to_vec(&request).expect("it was JSON");
        let again = forrst::Request::parse(&written).expect("it was read before");
        assert_eq!(again.call.arguments_hash(), hash);
        assert_eq!(again, request);
    }
    if let Ok(response) = forrst::Response::parse(envelope) {
        let written = serde_json::to_vec(&response).expect("it was JSON");
        let again = forrst::Response::parse(&written).expect("it was read before");
        assert_eq!(again, response);
    }
    block_on(guide(Dice(how), envelope));
}

async fn guide(mut dice: Dice<'_>, envelope: &[u8]) {
    let status = [200, 400, 409, 429, 500, 503][usize::from(dice.byte() % 6)];
    let announced = dice.byte() % 2 == 0;
    let mut body = Pieces::cut(envelope, &mut dice);
    body.sized = announced;
    let before = whole(&body.left);
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    let headers = response.headers_mut();
    headers.insert("content-type", "application/json".parse().expect("a type"));
    if announced {
        headers.insert("content-length", envelope.len().into());
    }
    let mut response = Some(response);
    let handler = service_fn(move |_: Request<()>| {
        let response = response.take();
        async move { Ok::<_, Infallible>(response.expect("one call")) }
    });
    let server = RetryGuidanceLayer::new().any_errors().layer(handler);
    let Ok(response) = server.oneshot(Request::new(())).await;
    let told = length(response.headers());
    let hint = http_body::Body::size_hint(response.body());
    let (ended, after) = read(&mut response.into_body(), usize::MAX).await;
    assert!(ended && !after.failed);
    let length = after.data.len() as u64;
    assert!(told.is_none_or(|told| told == length), "{told:?} {length}");
    assert!(hint.lower() <= length && hint.upper().is_none_or(|upper| upper >= length));
    if after.data == before.data {
        return;
    }
    // A changed body is an envelope, and now has one more extension.
    let old: serde_json::Value = serde_json::from_slice(&before.data).expect("JSON");
    let new: serde_json::Value = serde_json::from_slice(&after.data).expect("JSON");
    assert_ne!(new["extensions"], old["extensions"]);
    let guided = forrst::Response::parse(&after.data).expect("an envelope");
    let retry = guided.data_of::<Retry>(Retry::URN).expect("guidance");
    assert!(retry.is_some());
    let without = |mut value: serde_json::Value| {
        value
            .as_object_mut()
            .map(|members| members.remove("extensions"));
        value
    };
    assert_eq!(without(old), without(new));
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get("content-length")?.to_str().ok()?.parse().ok()
}
