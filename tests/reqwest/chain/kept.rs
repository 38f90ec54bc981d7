//! The data that a request and a response keep on their way.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Uri};
use reqwest::Body;
use reqwest_middleware::ClientBuilder;
use tower::util::MapRequestLayer;
use tower_reprise::{
    RetryLayer,
    call::StopReason,
    stacks::{self, reqwest::TowerMiddleware},
};

use super::{answering, failed, get, said};
use crate::{
    client, original, outcome,
    support::{
        deps,
        http1::{Act, Server, reply},
        outcome_of, quick,
    },
};

#[tokio::test]
async fn d_4_a_timeout_of_the_request_holds_for_every_attempt() {
    let server = Server::start(vec![Act::Stall]).await;
    let client = ClientBuilder::new(client())
        .with(TowerMiddleware::new(stacks::client(deps(quick()))))
        .build();
    let limit = Duration::from_millis(40);
    let error = failed(client.get(server.uri()).timeout(limit)).await;
    assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
    assert!(original(&error).is_timeout());
    assert!(server.connections() <= 4);
}

#[tokio::test(start_paused = true)]
async fn d_4_each_attempt_is_the_request_that_was_made() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let wrote = seen.clone();
    let client = answering(RetryLayer::new(deps(quick())), move |request, n| {
        let body = request
            .body()
            .map(|body| body.as_bytes().unwrap().as_ptr() as usize);
        let (url, timeout) = (request.url().clone(), request.timeout().copied());
        let headers = request.headers().get_all("x-many").iter().cloned();
        let headers: Vec<_> = headers.collect();
        let head = (request.method().clone(), request.version(), url, timeout);
        wrote.lock().unwrap().push((head, headers, body));
        async move { Ok(said(if n < 2 { 503 } else { 200 })) }
    });
    let limit = Some(Duration::from_secs(7));
    let url = "http://user@stock.example:81/a%20b/?q=%7B1%7D#the%20part";
    for body in [None, Some(Bytes::from(vec![7; 100_000]))] {
        for timeout in [None, limit] {
            let mut request = client.put(url).header("x-many", "1").header("x-many", "2");
            request = request.version(http::Version::HTTP_2);
            if let Some(timeout) = timeout {
                request = request.timeout(timeout);
            }
            if let Some(body) = &body {
                request = request.body(body.clone());
            }
            request.send().await.unwrap();
            let sent = body.as_ref().map(|body| body.as_ptr() as usize);
            let seen = std::mem::take(&mut *seen.lock().unwrap());
            assert_eq!(seen.len(), 3);
            for ((method, version, at, limit), headers, body) in seen {
                assert_eq!(
                    (method, version),
                    (http::Method::PUT, http::Version::HTTP_2)
                );
                // reqwest makes a header of the user's name.
                assert_eq!(at.as_str(), url.replace("user@", ""));
                assert_eq!((limit, headers.len()), (timeout, 2));
                assert_eq!(body, sent, "not even copied");
            }
        }
    }
}

#[tokio::test]
async fn d_4_the_url_of_a_response_is_kept() {
    // A success, one after a retry, and a failure whose body was looked into.
    for (script, attempts) in [
        (vec![reply(200, "")], 1),
        (vec![reply(503, ""), reply(200, "")], 2),
        (vec![reply(503, "")], 4),
    ] {
        let server = Server::start(script).await;
        let client = ClientBuilder::new(client())
            .with(TowerMiddleware::new(stacks::client(deps(quick()))))
            .build();
        let url = format!("{}items?x=1#part", server.uri());
        let response = client.get(&url).send().await.unwrap();
        assert_eq!(outcome(&response).0, attempts);
        let alone = self::client().get(&url).send().await.unwrap();
        assert_eq!(response.url(), alone.url(), "as without layers");
        assert_eq!(response.url().query(), Some("x=1"));
        assert_eq!(response.remote_addr(), Some(server.address));
        assert_eq!(response.text().await.unwrap(), "ok");
    }
}

#[tokio::test(start_paused = true)]
async fn g_2_each_authority_is_a_dependency() {
    let deps = deps(quick());
    let client = answering(RetryLayer::new(deps.clone()), |request, _| async move {
        Ok(said(if request.url().path() == "/x" {
            200
        } else {
            400
        }))
    });
    let authorities = [
        "a.example",
        "a.example.evil",
        "a.example:81",
        "a.examplé",
        "b.example",
    ];
    for authority in authorities {
        for _ in 0..2 {
            let response = client.get(format!("http://{authority}/x#y")).send().await;
            assert_eq!(response.unwrap().status(), 200);
        }
    }
    let counted = [
        "a.example",
        "a.example.evil",
        "a.example:81",
        "a.xn--exampl-gva",
        "b.example",
    ];
    for authority in counted {
        assert_eq!(deps.get(authority).status().originals, 2, "{authority}");
    }
}

#[tokio::test(start_paused = true)]
async fn d_4_a_layer_may_send_it_elsewhere() {
    let elsewhere = MapRequestLayer::new(|mut request: Request<Body>| {
        *request.uri_mut() = Uri::from_static("http://other.example/?b=2");
        request
    });
    let client = answering(elsewhere, |request, _| async move {
        assert_eq!(request.url().as_str(), "http://other.example/?b=2#part");
        Ok(said(200))
    });
    let response = client
        .get("http://stock.example/#part")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);

    // Nowhere at all is an error like others.
    let nowhere = MapRequestLayer::new(|mut request: Request<Body>| {
        *request.uri_mut() = Uri::from_static("/nowhere");
        request
    });
    let layers = (RetryLayer::new(deps(quick())), nowhere);
    let client = answering(layers, |_, _| async { unreachable!() });
    let error = failed(get(&client)).await;
    assert!(original(&error).is_builder());
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
}

#[tokio::test(start_paused = true)]
async fn d_4_a_url_that_is_no_uri_is_reqwests_to_refuse() {
    let client = ClientBuilder::new(client())
        .with(TowerMiddleware::new(stacks::client(deps(quick()))))
        .build();
    let error = client.get("http://{{host}}/").send().await.unwrap_err();
    assert!(error.is_builder(), "{error:?}");
}
