//! D-4, C-2, C-6: bodies that stream are sent again whole or not at all, and what was peeked into
//! is handed on whole.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, combinators::BoxBody};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{
    Dependencies, PeekLayer, Policy, RetryLayer, RetryOutcome, classify::Codes, error::BoxError,
};

use crate::support::{Broken, Dice, Piece, Pieces, Whole, block_on, read, whole};

type Boxed = BoxBody<Bytes, Broken>;

/// A server's treatment of an attempt.
struct Treatment {
    /// The number of frames of the request that it reads.
    reads: usize,
    /// Whether the connection breaks then.
    breaks: bool,
    status: u16,
    content_type: Option<&'static str>,
    reply: Pieces,
}

fn pieces(dice: &mut Dice<'_>) -> Pieces {
    let mut left = VecDeque::new();
    let sized = dice.byte() % 2 == 0;
    for _ in 0..dice.byte() % 8 {
        left.push_back(match dice.byte() {
            0..=9 => Piece::Wait,
            10..=19 => {
                left.push_back(Piece::Fail);
                break;
            }
            20..=39 => {
                let value = HeaderValue::from(u16::from(dice.byte() % 20));
                left.push_back(Piece::Trailers(HeaderMap::from_iter([(
                    http::HeaderName::from_static("grpc-status"),
                    value,
                )])));
                break;
            }
            // More than is kept.
            40..=44 => Piece::Data(vec![dice.byte(); 70_000].into()),
            length => Piece::Data(Bytes::copy_from_slice(dice.bytes(length.into()))),
        });
    }
    Pieces { left, sized }
}

fn treatment(dice: &mut Dice<'_>) -> Treatment {
    let statuses = [200, 200, 408, 409, 425, 429, 500, 503];
    let types = [None, Some("application/json"), Some("application/grpc")];
    let reads = dice.byte();
    Treatment {
        reads: if reads > 9 { usize::MAX } else { reads.into() },
        breaks: dice.byte() % 4 == 1,
        status: statuses[usize::from(dice.byte() % 8)],
        content_type: types[usize::from(dice.byte() % 3)],
        reply: pieces(dice),
    }
}

pub(crate) fn run(input: &[u8]) {
    let mut dice = Dice(input);
    let body = pieces(&mut dice);
    let treatments: VecDeque<_> = (0..4).map(|_| treatment(&mut dice)).collect();
    block_on(check(body, treatments));
}

async fn check(body: Pieces, treatments: VecDeque<Treatment>) {
    let sent = whole(&body.left);
    let replies: Vec<_> = treatments
        .iter()
        .map(|one| whole(&one.reply.left))
        .collect();
    let treatments = Arc::new(Mutex::new(treatments));
    let seen: Arc<Mutex<Vec<(bool, Whole)>>> = Arc::default();
    let (script, sight) = (treatments, Arc::clone(&seen));
    let server = service_fn(move |request: Request<Boxed>| {
        let treatment = script.lock().expect("no panic").pop_front();
        let sight = Arc::clone(&sight);
        async move {
            let treatment = treatment.expect("no more than four attempts");
            let mut body = request.into_body();
            let read = read(&mut body, treatment.reads).await;
            let failed = read.1.failed;
            sight.lock().expect("no panic").push(read);
            if failed || treatment.breaks {
                let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                return Err(BoxError::from(error));
            }
            let mut response = Response::new(treatment.reply);
            *response.status_mut() = StatusCode::from_u16(treatment.status).expect("a status");
            if let Some(name) = treatment.content_type {
                let value = HeaderValue::from_static(name);
                response.headers_mut().insert("content-type", value);
            }
            Ok(response)
        }
    });
    let policy = Policy::http()
        .attempt_timeout(Duration::from_secs(1))
        .codes(Codes::standard().content_type("application/json"));
    let deps = Dependencies::new(policy.build().expect("a policy"));
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(deps.clone()))
        .layer(PeekLayer::new(deps))
        .service(server);
    let request = Request::put("http://a/")
        .body(BodyExt::boxed(body))
        .expect("a request");
    let result = client.oneshot(request).await;

    let seen = seen.lock().expect("no panic");
    assert!((1..=4).contains(&seen.len()));
    for (ended, one) in seen.iter() {
        match ended {
            true => assert_eq!(*one, sent),
            false => assert!(sent.data.starts_with(&one.data)),
        }
    }
    if let Ok(response) = result {
        let attempts = RetryOutcome::of(&response).map_or(1, RetryOutcome::attempts);
        assert_eq!(attempts as usize, seen.len());
        let (ended, reply) = read(&mut response.into_body(), usize::MAX).await;
        assert!(ended);
        assert_eq!(reply, replies[seen.len() - 1]);
    }
}
