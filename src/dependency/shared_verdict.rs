//! Verdicts that the layers of one stack share.
//!
//! A failed response passes several layers that need its verdict. The innermost one classifies it
//! and leaves the verdict in the response's extensions; the others read it there. Errors have no
//! place for it: a wrapper would change the type that a caller downcasts to, and no layer knows
//! that it is the outermost one, which would have to unwrap it. So each layer classifies an error.

use std::{error::Error, sync::Arc};

use http::{Extensions, StatusCode};

use super::{Dependency, permit::LONGEST_WAIT};
use crate::{
    call::{
        Cause, Guidance, Health, RetryError, RetryOutcome, Retryable, Verdict, hedged::unmarked,
    },
    classify::Classify,
    error::{BoxError, Elapsed, Refusal, Refused, find},
    http::ResponseHead,
};

/// On the extensions of a failed response: its verdict.
#[derive(Debug, Clone)]
struct SharedVerdict {
    verdict: Verdict,
    /// The dependency, with the policy, that it was classified for. A registry has one classifier,
    /// so this tells classifiers apart too.
    dependency: Arc<Dependency>,
    /// The status and the number of headers: a response that a layer in between gave another status
    /// or another header is classified anew.
    status: StatusCode,
    headers: usize,
}

/// Removes the verdict on a response about which a layer learned more.
pub(crate) fn forget_verdict(extensions: &mut Extensions) {
    extensions.remove::<SharedVerdict>();
}

impl Dependency {
    /// Classifies the result of a call to this dependency, unless a layer below did.
    #[inline(always)]
    pub(crate) fn classify<C, Req, Res>(
        self: &Arc<Self>,
        classifier: &C,
        result: Result<&mut Res, &mut BoxError>,
    ) -> Verdict
    where
        C: Classify<Req, Res>,
    {
        match result {
            Ok(response) => {
                let head = classifier.response_head(response);
                if let Some(verdict) = head.and_then(|head| self.shared_verdict(head)) {
                    return verdict;
                }
                classifier.classify(self.policy.rules(), Ok(response))
            }
            Err(error) => self.classify_error(classifier, &**error),
        }
    }

    /// Classifies the result of a call to this dependency, and leaves the verdict on a failed
    /// response to the layers above.
    #[inline(always)]
    pub(crate) fn classify_for_all<C, Req, Res>(
        self: &Arc<Self>,
        classifier: &C,
        result: Result<&mut Res, &mut BoxError>,
    ) -> Verdict
    where
        C: Classify<Req, Res>,
    {
        let Ok(response) = result else {
            return self.classify(classifier, result);
        };
        let verdict = self.classify(classifier, Ok(&mut *response));
        if !verdict.is_success()
            && let Some(head) = classifier.response_head(response)
        {
            self.share_verdict(head, verdict);
        }
        verdict
    }

    #[inline(always)]
    fn shared_verdict(self: &Arc<Self>, head: &dyn ResponseHead) -> Option<Verdict> {
        match head.extensions().is_empty() {
            true => None,
            false => self.read_verdict(head),
        }
    }

    #[inline(never)]
    fn read_verdict(self: &Arc<Self>, head: &dyn ResponseHead) -> Option<Verdict> {
        let shared = head.extensions().get::<SharedVerdict>()?;
        let same = Arc::ptr_eq(&shared.dependency, self)
            && shared.status == head.status()
            && shared.headers == head.headers().len();
        same.then_some(shared.verdict)
    }

    #[cold]
    fn share_verdict(self: &Arc<Self>, head: &mut dyn ResponseHead, verdict: Verdict) {
        if self.shared_verdict(head).is_some() {
            return;
        }
        let shared = SharedVerdict {
            verdict,
            dependency: Arc::clone(self),
            status: head.status(),
            headers: head.headers().len(),
        };
        head.extensions_mut().insert(shared);
    }

    /// Classifies an error. A refusal by one of our layers is known as such, whatever the
    /// classifier says.
    #[cold]
    fn classify_error<C, Req, Res>(&self, classifier: &C, error: &(dyn Error + 'static)) -> Verdict
    where
        C: Classify<Req, Res>,
    {
        let error = unmarked(error);
        match Refused::find(error) {
            // A refusal by another dependency is the failure of a service that calls it in turn:
            // this one was called.
            Some(refused) if refused.dependency() == self.name() => {
                let before = RetryOutcome::of_error(error).map(RetryOutcome::before);
                if let Some(before) = before.filter(|before| before.in_doubt()) {
                    // A nested retry loop was refused after it had sent the request.
                    return Verdict::terminal(Cause::Refused(refused.kind())).effect(before);
                }
                let verdict = Verdict::refused(refused.kind());
                let wait = match refused.kind() {
                    Refusal::Breaker => {
                        let pause = self.breaker.pause(self.now());
                        pause.filter(|pause| *pause <= LONGEST_WAIT)
                    }
                    Refusal::Throttle => Some(self.breaker.pause_of_shed(self.draw())),
                    _ => return verdict,
                };
                match wait {
                    Some(wait) => verdict.guidance(Some(Guidance::AtLeast(wait))),
                    None => verdict.retry(Retryable::Never),
                }
            }
            _ => {
                let verdict = classifier.classify(self.policy.rules(), Err(error));
                match self.hangs(error) {
                    true => verdict.health(Health::Failure),
                    false => verdict,
                }
            }
        }
    }

    /// Returns whether a retry loop below gave up on this dependency after all the time that the
    /// policy gives it. To a classifier that is a timeout of a nested call, which is neutral.
    fn hangs(&self, error: &(dyn Error + 'static)) -> bool {
        find::<Elapsed>(error).is_some_and(|elapsed| elapsed.limit() >= self.longest_attempt())
            && RetryError::is_of(error, &self.name)
    }
}

#[cfg(all(test, not(reprise_loom)))]
#[allow(clippy::expect_used, reason = "the helpers are tests too")]
mod tests {
    use std::cell::Cell;

    use http::{Request, Response};

    use super::*;

    use crate::{
        call::Effect,
        classify::{Rules, Standard},
        dependency::Dependencies,
        error::Refusal,
        policy::Policy,
    };

    fn dependency() -> Arc<Dependency> {
        let policy = Policy::http().build().expect("a policy");
        Dependencies::new(policy).get("a")
    }

    /// The standard classifier, which counts.
    #[derive(Default)]
    struct Counting(Cell<u32>);

    impl Classify<Request<()>, Response<()>> for Counting {
        fn repeatable(&self, _: &Rules, _: &Request<()>) -> bool {
            true
        }

        fn classify(
            &self,
            rules: &Rules,
            outcome: Result<&Response<()>, &(dyn Error + 'static)>,
        ) -> Verdict {
            self.0.set(self.0.get() + 1);
            Classify::<Request<()>, _>::classify(&Standard, rules, outcome)
        }

        fn response_head<'a>(
            &self,
            response: &'a mut Response<()>,
        ) -> Option<&'a mut dyn ResponseHead> {
            Some(response)
        }
    }

    #[test]
    fn c_3_a_refusal_is_known_whoever_classifies() {
        let all_well = |_: Result<&(), &(dyn Error + 'static)>| Verdict::SUCCESS;
        let dependency = dependency();
        let classify =
            |error: BoxError| dependency.classify::<_, (), ()>(&all_well, Err(&mut { error }));
        let verdict = classify(Refused::new(Refusal::Breaker, "a", None).into());
        assert_eq!(verdict.cause, Cause::Refused(Refusal::Breaker));
        assert_eq!(
            verdict.retry,
            Retryable::MaxPerCause(1),
            "it has closed since"
        );
        let shed = classify(Refused::new(Refusal::Throttle, "a", None).into());
        let later =
            |guidance| matches!(guidance, Some(Guidance::AtLeast(wait)) if wait.as_secs() > 0);
        assert!(later(shed.guidance), "CB-10: {shed:?}");
        for (before, refused) in [
            (Effect::None, Some(Refusal::Budget)),
            (Effect::Possible, None),
        ] {
            let error = Refused::new(Refusal::Budget, "a", None);
            let outcome = RetryOutcome::new(1, None, before);
            let verdict = classify(RetryError::new(outcome, error.into()).into());
            assert_eq!((verdict.effect, verdict.refusal()), (before, refused));
        }
        let elsewhere = Refused::new(Refusal::Breaker, "b", None);
        for other in [elsewhere.into(), BoxError::from("other")] {
            assert_eq!(classify(other), Verdict::SUCCESS);
        }
    }

    #[test]
    fn c_8_a_verdict_is_for_its_dependency_and_for_an_unchanged_response() {
        type Change = fn(&mut Response<()>);
        let changes: [(&str, Change, u32); 4] = [
            ("unchanged", |_| {}, 0),
            ("another status", |r| *r.status_mut() = StatusCode::OK, 1),
            (
                "another header",
                |r| {
                    let value = http::HeaderValue::from_static("false");
                    r.headers_mut().insert("x-should-retry", value);
                },
                1,
            ),
            (
                "more was learned",
                |r| forget_verdict(r.extensions_mut()),
                1,
            ),
        ];
        for (what, change, expected) in changes {
            let (ours, other, counting) = (dependency(), dependency(), Counting::default());
            let mut result = Ok(Response::builder()
                .status(503)
                .body(())
                .expect("a response"));
            let first = ours.classify_for_all(&counting, result.as_mut());
            assert_eq!(first.cause, Cause::Status(StatusCode::SERVICE_UNAVAILABLE));
            if let Ok(response) = &mut result {
                change(response);
            }
            counting.0.set(0);
            ours.classify(&counting, result.as_mut());
            assert_eq!(counting.0.get(), expected, "{what}");
            other.classify(&counting, result.as_mut());
            assert_eq!(counting.0.get(), expected + 1, "{what}, for another");
        }
    }

    #[test]
    fn c_8_a_success_gets_no_extension() {
        let mut result = Ok(Response::new(()));
        dependency().classify_for_all(&Counting::default(), result.as_mut());
        assert!(result.is_ok_and(|response| response.extensions().is_empty()));
    }
}
