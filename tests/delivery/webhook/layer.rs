use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use axum::{Router, body::Body, extract::Extension, routing::post};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::time::timeout;
use tower::{ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_reprise::delivery::webhooks::verify::{Verified, Verifier, WebhookVerifyLayer};

use super::{SECRET, id, signer};

fn layer() -> WebhookVerifyLayer {
    WebhookVerifyLayer::new(Verifier::new(SECRET).unwrap())
}

fn signed(body: impl AsRef<[u8]>, at: SystemTime) -> Request<Body> {
    let body = body.as_ref();
    let mut request = Request::post("/hook")
        .body(Body::from(body.to_vec()))
        .unwrap();
    signer().sign(&id(), at, body).apply(request.headers_mut());
    request
}

/// Echoes what reaches it, and counts.
fn router(layer: WebhookVerifyLayer) -> (Router, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = async move |Extension(message): Extension<Verified>, body: Bytes| {
        counted.fetch_add(1, Ordering::SeqCst);
        format!("{} {}", message.id(), body.len())
    };
    let router = Router::new().route("/hook", post(handler)).layer(layer);
    (router, calls)
}

async fn answer(router: &Router, request: Request<Body>) -> (u16, String) {
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn w_4_a_router_sees_signed_messages_whole_and_no_others() {
    let (router, calls) = router(layer());
    let now = SystemTime::now();
    let body = vec![b'x'; 300_000];
    let (status, text) = answer(&router, signed(&body, now)).await;
    assert_eq!(
        (status, &*text),
        (200, "msg_p5jXN8AQM9LWM0D4loKWxJek 300000")
    );

    let unsigned = Request::post("/hook").body(Body::from("paid")).unwrap();
    let mut changed = signed("paid", now);
    *changed.body_mut() = Body::from("paie");
    let hour = Duration::from_secs(3600);
    for (request, detail) in [
        (unsigned, "header webhook-id is missing"),
        (changed, "no signature of the message is valid"),
        (
            signed("paid", now - hour),
            "the message was sent too long ago",
        ),
        (signed("paid", now + hour), "the message is from the future"),
    ] {
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 401);
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json"
        );
        assert_eq!(response.headers()["cache-control"], "no-store");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            problem["type"],
            "urn:tower-reprise:problem:webhook-unverified"
        );
        assert_eq!(problem["status"], 401);
        assert_eq!(problem["detail"], detail);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// S-3.
#[tokio::test]
async fn w_4_a_body_is_read_up_to_a_limit() {
    let (router, calls) = router(layer());
    let now = SystemTime::now();
    let mebibyte = vec![b'x'; 1 << 20];
    assert_eq!(answer(&router, signed(&mebibyte, now)).await.0, 200);
    let more = [&mebibyte[..], b"x"].concat();
    let (status, problem) = answer(&router, signed(&more, now)).await;
    assert_eq!(status, 413);
    assert!(problem.contains("At most 1048576 bytes"), "{problem}");

    // One that does not say how long it is.
    let endless = futures(std::iter::repeat_with(|| Ok(Bytes::from(vec![b'x'; 4096]))));
    let mut request = signed("paid", now);
    *request.body_mut() = endless;
    assert_eq!(answer(&router, request).await.0, 413);
    assert_eq!(calls.load(Ordering::SeqCst), 1);

    let (small, _) = self::router(layer().body_limit(3));
    assert_eq!(answer(&small, signed("paid", now)).await.0, 413);
    assert_eq!(answer(&small, signed("pay", now)).await.0, 200);
}

#[tokio::test]
async fn w_4_a_body_that_breaks_off_is_no_message() {
    let (router, calls) = router(layer());
    let mut request = signed("paid", SystemTime::now());
    let broken = [Ok(Bytes::from("paid")), Err(io::Error::other("gone"))];
    *request.body_mut() = futures(broken.into_iter());
    let (status, problem) = answer(&router, request).await;
    assert_eq!(status, 400, "{problem}");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

/// The layer does not read the body of a request that it refuses by its headers alone.
#[tokio::test]
async fn w_4_an_unsigned_body_is_left_unread() {
    let (router, _) = router(layer());
    let untouched = futures(std::iter::from_fn(|| panic!("it was read")));
    let request = Request::post("/hook").body(untouched).unwrap();
    assert_eq!(answer(&router, request).await.0, 401);
}

fn futures<I>(pieces: I) -> Body
where
    I: Iterator<Item = io::Result<Bytes>> + Send + 'static,
{
    Body::from_stream(tokio_stream::iter(pieces))
}

/// D-7: a refusal gives its place back, and what was made ready is what is called.
#[tokio::test(start_paused = true)]
async fn w_4_a_refused_message_keeps_no_place_in_a_limit() {
    let handler = service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let mut service = ServiceBuilder::new()
        .layer(layer())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(handler);
    let mut other = service.clone();
    for _ in 0..3 {
        let forged = Request::new(Full::from("paid"));
        let refused = (&mut service).oneshot(forged).await.unwrap();
        assert_eq!(refused.status(), 401);
        let mut request = Request::new(Full::from("paid"));
        let signed = signer().sign(&id(), SystemTime::now(), b"paid");
        signed.apply(request.headers_mut());
        let taken = timeout(Duration::from_secs(9), (&mut other).oneshot(request)).await;
        let taken = taken.expect("a place").unwrap();
        assert_eq!(taken.status(), 200);
    }
}
