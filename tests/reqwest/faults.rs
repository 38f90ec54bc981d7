//! Faults between client and server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use reqwest::dns::{Name, Resolve, Resolving};
use tokio::sync::Notify;
use tower::{ServiceBuilder, ServiceExt};
use tower_reprise::{
    Dependencies, RetryOutcome,
    call::{Cause, Retryable, StopReason},
    classify::Codes,
    error::Elapsed,
    stacks::{
        self,
        reqwest::{HttpClient, TowerMiddleware},
    },
};

use crate::{
    Form, builder, cause, client, get, impatient, original, outcome, post,
    reader::Reader,
    support::{
        deps, find,
        http1::{Act, Server, reply},
        http2::{Act2, Server2},
        outcome_of,
        ports::{deaf_uri, listen},
        quick,
        telemetry::{Spans, keep_tests_apart},
        verdict,
    },
};

#[tokio::test]
async fn c_1_the_stack_mends_a_503() {
    for form in Form::BOTH {
        let server = Server::start(vec![reply(503, ""), reply(200, "x-served: here\r\n")]).await;
        let deps = deps(quick());
        let response = form
            .call(&deps, &client(), get(&server.uri()))
            .await
            .unwrap();
        assert_eq!(
            (response.status().as_u16(), outcome(&response)),
            (200, (2, None))
        );
        assert_eq!(response.headers()["x-served"], "here");
        assert_eq!(response.url().as_str(), server.uri());
        assert_eq!(response.text().await.unwrap(), "ok");
        let status = deps.get(&server.address.to_string()).status();
        assert_eq!((status.originals, status.retries), (1, 1), "counted once");
    }
}

#[tokio::test]
async fn c_1_a_success_is_left_alone() {
    for form in Form::BOTH {
        let server = Server::start(vec![reply(200, "")]).await;
        let response = form
            .call(&deps(quick()), &client(), get(&server.uri()))
            .await
            .unwrap();
        assert_eq!(response.extensions().get::<RetryOutcome>(), None);
        assert_eq!(response.text().await.unwrap(), "ok");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn k_1_a_retried_post_carries_the_same_key_and_body() {
    for form in Form::BOTH {
        let server = Server::start(vec![reply(503, ""), reply(201, "")]).await;
        let response = form
            .call(&deps(quick()), &client(), post(&server.uri()))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (2, None));
        let requests = server.requests();
        let lines = |n: usize| requests[n].lines().map(str::to_owned);
        let key = |n| lines(n).find(|line| line.starts_with("idempotency-key: "));
        assert!(key(0).is_some() && key(0) == key(1), "{requests:?}");
        assert!(
            requests
                .iter()
                .all(|request| request.ends_with("\r\n\r\npay"))
        );
    }
}

#[tokio::test]
async fn c_3_a_refused_connection_is_retried_until_exhausted() {
    for form in Form::BOTH {
        let (_socket, uri) = deaf_uri();
        // For any method: C-4.
        let error = form
            .call(&deps(quick()), &client(), post(&uri))
            .await
            .unwrap_err();
        assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
        let verdict = verdict(&error);
        assert_eq!((verdict.cause, verdict.never_sent), (Cause::Connect, true));
        assert!(original(&error).is_connect());
        assert_eq!(original(&error).url().unwrap().as_str(), uri);
    }
}

#[tokio::test]
async fn c_3_connections_that_break_are_retried() {
    let half_a_head = Act::Say("HTTP/1.1 200 OK\r\ncontent-le".to_owned());
    for act in [Act::Close, Act::ReadAndClose, Act::Reset, half_a_head] {
        for form in Form::BOTH {
            let server = Server::start(vec![act.clone(), reply(200, "")]).await;
            let response = form
                .call(&deps(quick()), &client(), get(&server.uri()))
                .await
                .unwrap();
            assert_eq!(outcome(&response), (2, None));
            assert_eq!(server.connections(), 2);
        }
    }
}

#[tokio::test]
async fn c_5_a_post_that_may_have_been_processed_is_not_sent_again_without_a_key() {
    // All layers but the one that stamps keys.
    use tower_reprise::{PeekLayer, RetryLayer};
    for act in [Act::ReadAndClose, Act::Reset, reply(503, "")] {
        let server = Server::start(vec![act, reply(200, "")]).await;
        let deps = deps(quick());
        let stack = ServiceBuilder::new()
            .layer(RetryLayer::new(deps.clone()))
            .layer(PeekLayer::new(deps))
            .service(HttpClient::new(client()));
        let told = match stack.oneshot(post(&server.uri())).await {
            Ok(response) => outcome(&response),
            Err(error) => outcome_of(&error),
        };
        assert_eq!(told, (1, Some(StopReason::NotIdempotent)));
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn d_4_half_a_body_is_the_callers_error() {
    for form in Form::BOTH {
        let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_owned();
        let server = Server::start(vec![Act::Say(half)]).await;
        let response = form
            .call(&deps(quick()), &client(), get(&server.uri()))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (1, None));
        assert!(response.text().await.unwrap_err().is_decode());
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn d_4_half_the_body_of_a_failure_is_whole_until_it_breaks() {
    for form in Form::BOTH {
        let half = "HTTP/1.1 503 No\r\ncontent-length: 10\r\n\r\nhalf".to_owned();
        let server = Server::start(vec![Act::Say(half)]).await;
        let mut response = form
            .call(&deps(quick()), &client(), get(&server.uri()))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (4, Some(StopReason::Exhausted)));
        assert_eq!(response.content_length(), Some(10), "as it was announced");
        assert_eq!(response.chunk().await.unwrap().unwrap(), "half");
        let error = response.chunk().await.unwrap_err().into();
        assert_eq!(cause(&error), Cause::Reset, "{error:?}");
    }
}

#[tokio::test]
async fn d_3_an_attempt_that_stalls_is_given_up_and_retried() {
    for form in Form::BOTH {
        let server = Server::start(vec![Act::Stall, reply(200, "")]).await;
        let response = form
            .call(&impatient(), &client(), get(&server.uri()))
            .await
            .unwrap();
        // The second may take its time as well.
        assert!(outcome(&response).0 >= 2);

        let server = Server::start(vec![Act::Stall]).await;
        let error = form
            .call(&impatient(), &client(), get(&server.uri()))
            .await
            .unwrap_err();
        assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
        assert!(!find::<Elapsed>(&*error).unwrap().is_whole_call());
        assert_eq!(cause(&error), Cause::Timeout);
    }
}

#[tokio::test]
async fn ra_7_retry_after_is_kept_to_or_ends_the_call() {
    for form in Form::BOTH {
        let server = Server::start(vec![reply(503, "retry-after: 0\r\n"), reply(200, "")]).await;
        let response = form
            .call(&deps(quick()), &client(), get(&server.uri()))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (2, None));

        let server = Server::start(vec![reply(503, "retry-after: 3600\r\n")]).await;
        let response = form
            .call(&deps(quick()), &client(), get(&server.uri()))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (1, Some(StopReason::Deadline)));
        assert_eq!(response.headers()["retry-after"], "3600");
        assert_eq!(response.text().await.unwrap(), "ok", "the original");
    }
}

#[tokio::test]
async fn d_1_a_body_that_trickles_is_passed_on_as_it_comes() {
    for form in Form::BOTH {
        let rest = Arc::new(Notify::new());
        let first = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsome".to_owned();
        let later = Act::SayLater(first, rest.clone(), "more".to_owned());
        let server = Server::start(vec![later]).await;
        let mut response = form
            .call(&deps(quick()), &client(), get(&server.uri()))
            .await
            .unwrap();
        assert_eq!(response.content_length(), Some(8));
        assert_eq!(response.chunk().await.unwrap().unwrap(), "some");
        rest.notify_one();
        assert_eq!(response.chunk().await.unwrap().unwrap(), "more");
        assert_eq!(response.chunk().await.unwrap(), None);
    }
}

#[tokio::test]
async fn c_1_a_failure_that_trickles_does_not_hold_up_its_retry() {
    let codes = Codes::standard().time(Duration::from_millis(20));
    let policy = quick().codes(codes).build().unwrap();
    let deps = Dependencies::new(policy);
    for form in Form::BOTH {
        let never = Arc::new(Notify::new());
        let first = "HTTP/1.1 503 No\r\ncontent-length: 8\r\n\r\nsome".to_owned();
        let stalls = Act::SayLater(first, never, "more".to_owned());
        let server = Server::start(vec![stalls, reply(200, "")]).await;
        let response = form
            .call(&deps, &client(), get(&server.uri()))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (2, None));
    }
}

// ---- redirects

#[tokio::test]
async fn c_1_a_redirect_is_followed_anew_by_each_attempt() {
    for form in Form::BOTH {
        let moved = reply(307, "location: /b\r\n");
        let server =
            Server::start(vec![moved.clone(), reply(503, ""), moved, reply(200, "")]).await;
        let response = form
            .call(&deps(quick()), &client(), post(&server.uri()))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (2, None));
        assert_eq!(response.url().path(), "/b", "where it came from");
        let requests = server.requests();
        let to = |path| format!("POST {path} HTTP/1.1\r\n");
        for (request, path) in requests.iter().zip(["/", "/b", "/", "/b"]) {
            assert!(
                request.starts_with(&to(path)) && request.ends_with("pay"),
                "{request}"
            );
        }
        assert_eq!(requests.len(), 4);
    }
}

#[tokio::test]
async fn c_3_redirects_without_an_end_are_never_retried() {
    for form in Form::BOTH {
        let server = Server::start(vec![reply(302, "location: /\r\n")]).await;
        let policy = reqwest::redirect::Policy::limited(2);
        let client = builder().redirect(policy).build().unwrap();
        let error = form
            .call(&deps(quick()), &client, get(&server.uri()))
            .await
            .unwrap_err();
        assert!(original(&error).is_redirect());
        assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
        assert_eq!(cause(&error), Cause::Configuration);
        assert_eq!(server.connections(), 3);
    }
}

// ---- never sent, and never to be

struct NoSuchName(Arc<AtomicUsize>);

impl Resolve for NoSuchName {
    fn resolve(&self, _name: Name) -> Resolving {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Err("there is no such name".into()) })
    }
}

#[tokio::test]
async fn c_3_a_name_that_does_not_resolve_is_looked_up_twice_at_most() {
    for form in Form::BOTH {
        let lookups = Arc::new(AtomicUsize::new(0));
        let client = builder()
            .dns_resolver(NoSuchName(lookups.clone()))
            .build()
            .unwrap();
        let uri = "http://nowhere.example/";
        let error = form
            .call(&deps(quick()), &client, post(uri))
            .await
            .unwrap_err();
        assert_eq!(outcome_of(&error), (2, Some(StopReason::Exhausted)));
        assert_eq!(lookups.load(Ordering::SeqCst), 2);
        let verdict = verdict(&error);
        assert_eq!(verdict.cause, Cause::Dns);
        assert_eq!(
            (verdict.retry, verdict.never_sent),
            (Retryable::MaxPerCause(1), true)
        );
        assert!(original(&error).is_dns());
    }
}

#[tokio::test]
async fn c_3_a_request_that_reqwest_can_not_send_is_never_retried() {
    for uri in ["ftp://files.example/", "/no/host"] {
        let error = Form::Service
            .call(&deps(quick()), &client(), get(uri))
            .await
            .unwrap_err();
        assert!(original(&error).is_builder(), "{uri}: {error:?}");
        assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
        assert_eq!(cause(&error), Cause::Configuration);
    }
    let uri = "ftp://files.example/";
    let error = Form::Middleware
        .call(&deps(quick()), &client(), get(uri))
        .await
        .unwrap_err();
    assert!(original(&error).is_builder());
    assert_eq!(outcome_of(&error), (1, Some(StopReason::NotRetryable)));
}

#[tokio::test]
async fn c_3_a_body_of_the_callers_that_fails_is_never_retried() {
    for form in Form::BOTH {
        let server = Reader::start(vec![]).await;
        let chunks = [
            Ok(Bytes::from("a")),
            Err(std::io::Error::other("the disk is gone")),
        ];
        let body = reqwest::Body::wrap_stream(tokio_stream::iter(chunks));
        let request = http::Request::put(&server.uri).body(body).unwrap();
        let error = form
            .call(&deps(quick()), &client(), request)
            .await
            .unwrap_err();
        assert_eq!(outcome_of(&error).0, 1, "{error:?}");
        assert!(server.requests().is_empty());
    }
}

#[tokio::test]
async fn c_3_a_connect_timeout_is_retried_for_any_method() {
    for form in Form::BOTH {
        // Nobody accepts, and the backlog of one is full.
        let listener = tokio::net::TcpSocket::new_v4().unwrap();
        listener.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = listener.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut full = Vec::new();
        while let Ok(connected) = tokio::time::timeout(
            Duration::from_millis(200),
            tokio::net::TcpStream::connect(address),
        )
        .await
        {
            full.push(connected.unwrap());
        }
        let client = builder()
            .connect_timeout(Duration::from_millis(20))
            .build()
            .unwrap();
        let error = form
            .call(&deps(quick()), &client, post(&format!("http://{address}/")))
            .await;
        let error = error.unwrap_err();
        assert_eq!(outcome_of(&error), (4, Some(StopReason::Exhausted)));
        let verdict = verdict(&error);
        assert_eq!((verdict.cause, verdict.never_sent), (Cause::Timeout, true));
    }
}

// ---- HTTP/2

#[tokio::test]
async fn c_1_over_http_2() {
    for form in Form::BOTH {
        let server = Reader::start(vec![503]).await;
        let client = builder().http2_prior_knowledge().build().unwrap();
        let response = form
            .call(&deps(quick()), &client, post(&server.uri))
            .await
            .unwrap();
        assert_eq!(outcome(&response), (2, None));
        assert_eq!(response.version(), http::Version::HTTP_2);
        assert_eq!(server.bodies(), ["pay", "pay"]);
        assert!(
            server
                .requests()
                .iter()
                .all(|r| r.version() == http::Version::HTTP_2)
        );
    }
}

#[tokio::test]
async fn c_4_a_refused_stream_is_repeated_for_any_method() {
    use tower::{ServiceBuilder, ServiceExt};
    use tower_reprise::{RetryLayer, stacks::reqwest::HttpClient};
    let listener = listen().await;
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut refused = false;
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((_request, mut respond))) = connection.accept().await {
                match std::mem::replace(&mut refused, true) {
                    false => respond.send_reset(h2::Reason::REFUSED_STREAM),
                    true => drop(
                        respond
                            .send_response(http::Response::new(()), true)
                            .unwrap(),
                    ),
                }
            }
        }
    });
    let client = builder().http2_prior_knowledge().build().unwrap();
    let stack = ServiceBuilder::new()
        .layer(RetryLayer::new(deps(quick())))
        .service(HttpClient::new(client));
    let response = stack.oneshot(post(&uri)).await.unwrap();
    assert_eq!(outcome(&response), (2, None));
}

/// a repeat that reqwest makes by itself is one that no budget and no metric knows.
#[tokio::test]
async fn g_1_a_client_that_the_crate_builds_repeats_nothing_by_itself() {
    let refusals = vec![(Act2::Reset(h2::Reason::REFUSED_STREAM), false); 20];
    let attempts = async |client: HttpClient, server: &Server2| {
        let stack = ServiceBuilder::new()
            .layer(stacks::client(deps(quick())))
            .service(client);
        let error = stack.oneshot(get(&server.uri())).await.unwrap_err();
        outcome_of(&error).0
    };
    // `builder` switches the repeats off, so this one is made anew.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let plain = || {
        reqwest::Client::builder()
            .no_proxy()
            .http2_prior_knowledge()
    };
    let server = Server2::start(refusals.clone()).await;
    let built = HttpClient::build(plain()).unwrap();
    assert_eq!(attempts(built, &server).await, 4);
    assert_eq!(server.arrivals().len(), 4, "all of them are ours");

    let server = Server2::start(refusals).await;
    let client = HttpClient::new(plain().build().unwrap());
    assert_eq!(attempts(client, &server).await, 4);
    assert_eq!(
        server.arrivals().len(),
        12,
        "two of reqwest's for each of ours"
    );
}

/// O-5: as a service and as a middleware.
#[tokio::test]
async fn o_5_attempts_of_reqwest_are_spans() {
    for form in Form::BOTH {
        let (spans, _guard) = Spans::listen();
        keep_tests_apart();
        let server = Server::start(vec![reply(503, ""), Act::Close, reply(200, "")]).await;
        let layers = stacks::traced(deps(quick()), ());
        let response = match form {
            Form::Service => {
                let client = HttpClient::new(client());
                let stack = ServiceBuilder::new().layer(layers).service(client);
                stack.oneshot(get(&server.uri())).await.unwrap()
            }
            Form::Middleware => {
                let client = reqwest_middleware::ClientBuilder::new(client());
                let client = client.with(TowerMiddleware::new(layers)).build();
                let request = get(&server.uri()).try_into().unwrap();
                client.execute(request).await.unwrap()
            }
        };
        assert_eq!(RetryOutcome::of(&response).unwrap().attempts(), 3);
        let status = ["503", "", "200"];
        assert_eq!(spans.field("http.response.status_code"), status, "{form:?}");
        assert_eq!(spans.field("http.request.resend_count"), ["", "1", "2"]);
        let errors = spans.field("error.type");
        assert_eq!((&*errors[0], &*errors[2]), ("503", ""));
        assert!(["incomplete", "reset"].contains(&&*errors[1]), "{errors:?}");
    }
}
