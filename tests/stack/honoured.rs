//! Keys that a server honours, and keys that nobody promised to honour: section 0, C-5, K-4.

use std::{error::Error, io};

use bytes::Bytes;
use http::{HeaderName, Method, Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceBuilder, util::BoxCloneService};
use tower_reprise::{
    Dependencies, IdempotencyKey, IdempotencyKeyLayer, Policy, RetryLayer, RetryOverride,
    call::{Cause, StopReason, Verdict},
    error::BoxError,
    policy::{Policies, PolicyBuilder},
    stacks,
};

use crate::{
    setup::{Client, HOST, get, grpc, lenient, post, request, with, with_header},
    support::{
        call, deps,
        scripted::{Server, Step, status},
        stop_reason,
    },
};

const KEY: &str = "idempotency-key";

/// The whole stack.
pub(crate) fn stacked(deps: Dependencies, server: &Server) -> Client {
    let client = ServiceBuilder::new()
        .map_response(|reply: Response<_>| reply.map(|_| Bytes::new()))
        .layer(stacks::client(deps))
        .map_response(|reply: Response<Bytes>| reply.map(Full::new))
        .service(server.clone());
    BoxCloneService::new(client)
}

/// A server that is unavailable, and the requests that it saw.
async fn attempts(policies: impl Into<Policies>, request: Request<()>) -> Server {
    let server = Server::replies(|_, _| status(503));
    let _ = call(&mut stacked(Dependencies::new(policies), &server), request).await;
    server
}

fn built(policy: PolicyBuilder) -> Policy {
    policy.build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn c_5_the_stack_repeats_writes_only_where_the_policy_says_that_keys_are_honoured() {
    let patch = request(Method::PATCH, HOST);
    let chosen = with(post(), IdempotencyKey::new("order-42").unwrap());
    for request in [post(), patch, with_header(post(), KEY, "mine"), chosen] {
        let server = attempts(built(lenient()), request.clone()).await;
        assert_eq!(server.calls(), 1, "{request:?}");
        assert!(server.header(KEY)[0].is_some(), "stamped all the same");
        let server = attempts(built(lenient().honours_keys()), request).await;
        assert_eq!(server.calls(), 4);
    }
    assert_eq!(attempts(built(lenient()), get()).await.calls(), 4);
    // The bank publishes that it does.
    assert_eq!(attempts(built(Policy::bank()), post()).await.calls(), 4);
}

#[cfg(feature = "forrst")]
#[tokio::test(start_paused = true)]
async fn c_5_servers_that_speak_forrst_honour_keys() {
    let policy = lenient().codes(tower_reprise::classify::Codes::forrst());
    assert_eq!(attempts(built(policy), post()).await.calls(), 4);
}

/// C-4: what was never sent is sent again, whatever is honoured.
#[tokio::test(start_paused = true)]
async fn c_4_the_stack_repeats_a_write_that_was_never_sent() {
    for (kind, calls) in [
        (io::ErrorKind::ConnectionRefused, 4),
        (io::ErrorKind::ConnectionReset, 1),
    ] {
        let server = Server::steps(move |_| Step::Fail(io::Error::from(kind).into()));
        let result = call(&mut stacked(deps(lenient()), &server), post()).await;
        assert_eq!(server.calls(), calls, "{kind:?}");
        if calls == 1 {
            assert_eq!(stop_reason(&result), Some(StopReason::NotIdempotent));
        }
    }
}

/// K-4: each dependency's own header, also after a reload.
#[tokio::test(start_paused = true)]
async fn k_4_the_stack_stamps_the_header_of_the_policy() {
    let other = HeaderName::from_static("x-operation-id");
    let named = || built(lenient().honours_keys().key_header(other.clone()));
    let server = attempts(named(), post()).await;
    assert_eq!((server.calls(), server.header(KEY)[0].clone()), (4, None));
    let keys = server.header(other.as_str());
    assert!(keys[0].is_some() && keys.iter().all(|key| *key == keys[0]));

    let server = Server::replies(|_, _| status(200));
    let policies = Policies::new(built(lenient())).policy_for(HOST, named());
    let deps = Dependencies::new(policies);
    let mut client = stacked(deps.clone(), &server);
    call(&mut client, post()).await.unwrap();
    call(&mut client, request(Method::POST, "b.example"))
        .await
        .unwrap();
    deps.reload(built(lenient()));
    call(&mut client, post()).await.unwrap();
    let keyed = |name| {
        server
            .header(name)
            .iter()
            .map(Option::is_some)
            .collect::<Vec<_>>()
    };
    assert_eq!(keyed(KEY), [false, true, true]);
    assert_eq!(keyed(other.as_str()), [true, false, false]);
}

/// K-1: a stream never ends, and a server that honours keys reads the whole request.
#[tokio::test(start_paused = true)]
async fn k_1_grpc_methods_that_may_stream_get_no_key() {
    let ledger = || lenient().honours_keys().unary_methods(["a.Ledger/Book"]);
    for (path, keyed) in [("a.Ledger/Book", true), ("a.Ledger/Watch", false)] {
        let mut request = grpc();
        *request.uri_mut() = format!("http://{HOST}/{path}").parse().unwrap();
        let server = attempts(built(ledger()), request).await;
        assert_eq!(server.header(KEY)[0].is_some(), keyed, "{path}");
        assert_eq!(server.calls(), if keyed { 4 } else { 1 }, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn c_5_a_call_that_is_declared_idempotent_is_repeated_without_a_key() {
    let search = || with(post(), RetryOverride::new().idempotent());
    let server = attempts(built(lenient()), search()).await;
    assert_eq!(server.header(KEY), vec![None; 4]);

    let server = Server::replies(|_, _| status(503));
    let by_hand = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new())
        .layer(RetryLayer::new(deps(lenient())))
        .service(server.clone());
    let _ = call(&mut BoxCloneService::new(by_hand), search()).await;
    assert_eq!(server.header(KEY), vec![None; 4]);
}

/// C-5: a classifier of the user's own changes verdicts, and nothing else.
#[tokio::test(start_paused = true)]
async fn c_5_a_closure_that_classifies_makes_no_write_repeatable() {
    let run = async |policy: PolicyBuilder, request: Request<()>| {
        let server = Server::replies(|_, _| status(418));
        let deps = Dependencies::builder(built(policy))
            .with_classifier(
                |outcome: Result<&Response<Bytes>, &(dyn Error + 'static)>| match outcome {
                    Ok(reply) if reply.status() == 418 => {
                        Verdict::transient(Cause::Other("teapot"))
                    }
                    Ok(_) => Verdict::SUCCESS,
                    Err(_) => Verdict::transient(Cause::Unknown),
                },
            )
            .build();
        let mut client = RetryLayer::new(deps.clone()).layer(server.clone());
        let _: Result<_, BoxError> = call(&mut client, request.clone()).await;
        let calls = server.calls();
        // Cloning knows no methods; where requests are HTTP's, the registry does.
        let mut cloning = RetryLayer::new(deps.clone())
            .cloning()
            .layer(server.clone());
        let _: Result<_, BoxError> = call(&mut cloning, request).await;
        assert_eq!(server.calls(), 2 * calls, "cloning");
        (calls, deps.audit().is_compliant())
    };
    let plain = || Policy::http().budget_floor(10);
    assert_eq!(run(plain(), get()).await, (4, true));
    assert_eq!(run(plain(), post()).await, (1, true));
    assert_eq!(run(plain(), with_header(post(), KEY, "k")).await, (4, true));
    // It takes the policy's word, which the audit reports.
    let reason = (tower_reprise::error::Rule::R6, "the teapot is idempotent");
    let approved = plain().retry_without_key().approve(reason.0, reason.1);
    assert_eq!(run(approved, post()).await.0, 4);
}
