//! Second attempts of a reqwest client, as a service and as a middleware.

use std::time::Duration;

use tower_reprise::RetryOutcome;

use crate::{
    Form, client, get,
    support::{deps, quick, stragglers::Stragglers},
};

#[tokio::test]
async fn h_1_stragglers_are_overtaken_and_cancelled() {
    for form in Form::BOTH {
        let server = Stragglers::start().await;
        let delay = Duration::from_millis(20);
        let policy = quick().send_attempt_count().hedge_delay(delay, delay);
        // A chain of middlewares takes one attempt at a time, so that its stragglers are retried.
        let policy = match form {
            Form::Service => policy,
            Form::Middleware => policy.attempt_timeout(10 * delay),
        };
        let deps = deps(policy.hedge_quantile(0.75));
        let dependency = deps.get(&server.address.to_string());
        (0..2000).for_each(|_| dependency.deposit());
        for i in 0..20 {
            let mut request = get(&server.uri());
            if i % 5 == 0 {
                request.headers_mut().insert("x-straggler", i.into());
            }
            let response = form.call(&deps, &client(), request).await.unwrap();
            let retried = response.extensions().get::<RetryOutcome>().is_some();
            let expected = i % 5 == 0 && matches!(form, Form::Middleware);
            assert!(retried || !expected, "{form:?}, call {i}");
            assert_eq!(response.text().await.unwrap(), "ok", "{form:?}");
        }
        server.cancelled(4).await;
        let retries = dependency.status().retries;
        assert!(retries >= 4, "{form:?}: {retries}");
        assert!(server.requests() <= 20 + retries, "{form:?}");
    }
}
