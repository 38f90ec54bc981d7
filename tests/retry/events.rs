//! Protocols other than HTTP.

use std::{
    error::Error,
    fmt,
    sync::{Arc, Mutex},
};

use tower::{Layer, service_fn};
use tower_reprise::{
    Dependencies, Policy, RetryLayer, RetryOutcome,
    call::{Attempt, Cause, StopReason, Verdict},
    error::BoxError,
};

use crate::{setup::policy, support::call};

#[derive(Debug, Clone, PartialEq)]
struct Event(u32);

/// Handles an event, failing so many times first.
#[derive(Clone)]
struct Consumer {
    failures: usize,
    poison: bool,
    seen: Arc<Mutex<Vec<Event>>>,
}

impl Consumer {
    fn new(failures: usize, poison: bool) -> Self {
        let seen = Arc::default();
        Self {
            failures,
            poison,
            seen,
        }
    }

    fn seen(&self) -> Vec<Event> {
        self.seen.lock().unwrap().clone()
    }

    async fn consume(&self, event: Event) -> Result<u32, BoxError> {
        let policy = Policy::events().dead_letters("orders.dlq").build()?;
        let deps = Dependencies::builder(policy)
            .with_locate_message(|_: &Event| "orders".into())
            .with_classifier(
                |outcome: Result<&u32, &(dyn Error + 'static)>| match outcome {
                    Ok(_) => Verdict::SUCCESS,
                    Err(error) if error.is::<fmt::Error>() => {
                        Verdict::terminal(Cause::Other("poison"))
                    }
                    Err(_) => Verdict::transient(Cause::Other("handler")),
                },
            )
            .build();
        let this = self.clone();
        let handler = service_fn(move |event: Event| {
            let mut seen = this.seen.lock().unwrap();
            seen.push(event.clone());
            let result = match (seen.len() <= this.failures, this.poison) {
                (false, _) => Ok(event.0),
                (true, false) => Err(BoxError::from("busy")),
                (true, true) => Err(fmt::Error.into()),
            };
            async move { result }
        });
        let mut consumer = RetryLayer::new(deps.clone()).cloning().layer(handler);
        let result = call(&mut consumer, event).await;
        let status = deps.get("orders").status();
        assert_eq!(status.originals, 1);
        assert_eq!(status.retries as usize, self.seen().len() - 1);
        result
    }
}

#[tokio::test(start_paused = true)]
async fn events_that_are_cloned_are_retried_by_a_closure() {
    let consumer = Consumer::new(2, false);
    assert_eq!(consumer.consume(Event(7)).await.unwrap(), 7);
    assert_eq!(consumer.seen(), vec![Event(7); 3]);

    let consumer = Consumer::new(5, false);
    assert_eq!(consumer.consume(Event(7)).await.unwrap(), 7);
    assert_eq!(consumer.seen(), vec![Event(7); 6]);

    let consumer = Consumer::new(usize::MAX, false);
    let error = consumer.consume(Event(7)).await.unwrap_err();
    let outcome = RetryOutcome::of_error(&*error).unwrap();
    assert_eq!(
        (outcome.attempts(), outcome.stop_reason()),
        (6, Some(StopReason::Exhausted))
    );
    assert_eq!(error.source().unwrap().to_string(), "busy");
}

#[tokio::test(start_paused = true)]
async fn poison_is_not_retried() {
    let consumer = Consumer::new(usize::MAX, true);
    let error = consumer.consume(Event(7)).await.unwrap_err();
    let outcome = RetryOutcome::of_error(&*error).unwrap();
    assert_eq!(
        (outcome.attempts(), outcome.stop_reason()),
        (1, Some(StopReason::NotRetryable))
    );
    assert!(error.source().unwrap().is::<fmt::Error>());
}

#[tokio::test(start_paused = true)]
async fn a_hook_works_on_events_too() {
    let deps = Dependencies::builder(policy().build().unwrap())
        .with_locate_message(|_: &Event| "orders".into())
        .with_classifier(
            |outcome: Result<&u32, &(dyn Error + 'static)>| match outcome {
                Ok(_) => Verdict::SUCCESS,
                Err(_) => Verdict::transient(Cause::Unknown),
            },
        )
        .build();
    let handler = service_fn(|event: Event| async move {
        match event.0 {
            0..3 => Err(BoxError::from("too few")),
            enough => Ok(enough),
        }
    });
    let hook = |event: Event, attempt: Attempt| async move {
        Ok::<_, BoxError>(Event(event.0 + attempt.previous()))
    };
    let layer = RetryLayer::new(deps).cloning().with_prepare(hook);
    assert_eq!(call(&mut layer.layer(handler), Event(0)).await.unwrap(), 3);
}
