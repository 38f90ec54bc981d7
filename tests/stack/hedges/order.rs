//! Hedges under retries, and in any order of layers.

use tokio::time::{Instant, sleep};
use tower_reprise::{call::Attempt, stacks};

use super::{funded, ms, policy, retries};
use crate::{
    setup::{PARTS, Part, arrangements, counted, get, lenient, numbered, stack},
    support::{
        call, code, deps, outcome,
        scripted::{Server, Step, status},
        secs,
    },
};

const HEDGED: [Part; 2] = [Part::Retry, Part::Hedge];

#[tokio::test(start_paused = true)]
async fn h_3_in_every_order_of_the_layers_a_hedge_is_charged_once() {
    let parts: Vec<_> = PARTS.into_iter().chain([Part::Hedge]).collect();
    let all = arrangements(&parts);
    let with_hedge = all.iter().filter(|parts| parts.contains(&Part::Hedge));
    let mut checked = 0;
    for parts in with_hedge {
        let server = Server::steps(|n| match n {
            0 => Step::Never,
            _ => Step::status(200),
        });
        let deps = deps(lenient().hedge_delay(ms(10), ms(10)));
        (0..10).for_each(|_| deps.get(crate::setup::HOST).deposit());
        let start = Instant::now();
        let result = call(&mut stack(parts, &deps, &server), get()).await;
        assert_eq!((code(&result), start.elapsed()), (200, ms(10)), "{parts:?}");
        assert_eq!((server.calls(), counted(&deps)), (2, (11, 1)), "{parts:?}");
        assert!(
            server.requests()[1]
                .extensions()
                .get::<Attempt>()
                .unwrap()
                .is_hedge()
        );
        checked += 1;
    }
    assert_eq!(checked, 1957 - 326);
}

/// A retry is an attempt as any other: it is hedged when it is late.
#[tokio::test(start_paused = true)]
async fn h_1_a_retry_is_hedged_too() {
    let server = Server::steps(|n| match n {
        0 => Step::status(503),
        1 => Step::Never,
        _ => Step::status(200),
    });
    let deps = funded(policy());
    let start = Instant::now();
    let result = call(&mut stack(&HEDGED, &deps, &server), get()).await;
    assert_eq!((code(&result), start.elapsed()), (200, secs(1) + ms(10)));
    assert_eq!((server.calls(), retries(&deps)), (3, 2));
    let attempts = server.requests();
    let number = |n: usize| {
        attempts[n]
            .extensions()
            .get::<Attempt>()
            .map(Attempt::number)
    };
    assert_eq!([number(0), number(1), number(2)], [None, Some(2), Some(3)]);
}

/// When both attempts are out for too long, both are given up, and the call is retried.
#[tokio::test(start_paused = true)]
async fn h_1_an_attempts_time_is_that_of_both() {
    let server = Server::steps(|n| match n {
        0 | 1 => Step::Never,
        _ => Step::status(200),
    });
    let deps = funded(policy().attempt_timeout(secs(2)));
    let start = Instant::now();
    let result = call(&mut stack(&HEDGED, &deps, &server), get()).await;
    assert_eq!((code(&result), start.elapsed()), (200, secs(3)));
    assert_eq!(outcome(&result), Some((2, None)));
    assert_eq!((server.calls(), retries(&deps)), (3, 2));
}

/// H-6: a policy that does not hedge leaves calls alone, and one that does costs nothing of the
/// budget while calls are in time.
#[tokio::test(start_paused = true)]
async fn h_6_a_call_in_time_is_left_alone() {
    for policy in [lenient(), lenient().hedge_delay(ms(10), ms(10))] {
        let server = Server::new(|_, _| async {
            sleep(ms(5)).await;
            Ok(status(200))
        });
        let deps = deps(policy);
        let mut client = stack(&HEDGED, &deps, &server);
        for i in 0..100 {
            let result = call(&mut client, numbered(get(), i)).await;
            assert_eq!((code(&result), outcome(&result)), (200, None));
        }
        assert_eq!((server.calls(), counted(&deps)), (100, (100, 0)));
    }
}

#[tokio::test(start_paused = true)]
async fn h_6_a_reload_turns_hedges_on_and_off() {
    let server = Server::steps(|_| Step::status(200).after(ms(50)));
    let deps = funded(lenient());
    let mut client = stack(&HEDGED, &deps, &server);
    for (hedges, expected) in [(false, 1), (true, 2), (false, 1)] {
        let policy = if hedges { policy() } else { lenient() };
        deps.reload(policy.build().unwrap());
        let before = server.calls();
        call(&mut client, get()).await.unwrap();
        assert_eq!(server.calls() - before, expected, "{hedges}");
    }
}

#[test]
fn h_1_the_stack_has_a_place_for_it() {
    let (_, _, _, hedge, _) = stacks::client(deps(policy()));
    assert!(format!("{hedge:?}").starts_with("HedgeLayer"));
}
