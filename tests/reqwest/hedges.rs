//! Second attempts of a reqwest client, as a service and as a middleware.

use std::time::Duration;

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
        let deps = deps(policy.hedge_quantile(0.75));
        let dependency = deps.get(&server.address.to_string());
        (0..2000).for_each(|_| dependency.deposit());
        for i in 0..20 {
            let mut request = get(&server.uri());
            if i % 5 == 0 {
                request.headers_mut().insert("x-straggler", i.into());
            }
            let response = form.call(&deps, &client(), request).await.unwrap();
            assert_eq!(response.text().await.unwrap(), "ok", "{form:?}");
        }
        server.cancelled(4).await;
        let retries = dependency.status().retries;
        assert!(retries >= 4, "{form:?}: {retries}");
        assert!(server.requests() <= 20 + retries, "{form:?}");
    }
}
