use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Dependency,
    breaker::{CALLS_A_PROBE, Report, Since, Ticket},
    budget::{Source, Tokens},
};
use crate::{
    call::{Cause, Health, Verdict},
    telemetry,
};

/// A retry that the budget granted. Dropped before it is sent, it is given back.
#[derive(Debug)]
pub(crate) struct Charge {
    dependency: Arc<Dependency>,
    state: ChargeState,
    tokens: Tokens,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChargeState {
    Granted(Source),
    /// With the slot of the budget that it was counted in.
    Sent(u64, Source),
    Void,
}

impl Charge {
    pub(super) fn new(dependency: Arc<Dependency>, source: Source, tokens: Tokens) -> Self {
        Self {
            dependency,
            state: ChargeState::Granted(source),
            tokens,
        }
    }

    /// The charge of a hedge that was counted in this slot as it went out.
    pub(super) fn of_hedge(dependency: Arc<Dependency>, slot: u64, tokens: Tokens) -> Self {
        Self {
            dependency,
            state: ChargeState::Sent(slot, Source::Share),
            tokens,
        }
    }

    /// Commits the charge of a retry that goes out now. Returns whether it still may.
    pub(crate) fn send(&mut self) -> bool {
        if let ChargeState::Granted(source) = self.state {
            let sent = self.dependency.budget.commit(self.dependency.now(), source);
            self.state = match sent {
                Some((slot, source)) => ChargeState::Sent(slot, source),
                None => ChargeState::Void,
            };
            if sent.is_none() {
                self.give_tokens();
                telemetry::suppressed(self.dependency.target());
            }
        }
        self.state != ChargeState::Void
    }

    /// Takes back the charge of a retry that a layer below refused.
    pub(crate) fn take_back(mut self) {
        if let ChargeState::Sent(slot, source) = self.state {
            self.dependency.budget.take_back(slot, source);
            self.give_tokens();
            self.state = ChargeState::Void;
        }
    }

    /// Gives the tokens of a retry back that succeeded.
    pub(crate) fn succeeded(mut self) {
        self.give_tokens();
    }

    /// The same, while the charge is still needed.
    pub(crate) fn give_tokens(&mut self) {
        let tokens = mem::take(&mut self.tokens);
        self.dependency.budget.give_tokens(tokens);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let ChargeState::Granted(source) = self.state {
            self.dependency.budget.refund(source);
            self.give_tokens();
        }
    }
}

/// The longest time for which a refused call waits for the next probe of a breaker, and for its end.
/// Where probes are less frequent, it fails at once.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The pause between two looks at a probe that is out.
const LOOK: Duration = Duration::from_millis(100);
/// So few calls that wait are no herd.
const FEW: usize = CALLS_A_PROBE as usize / 4;

/// A place among the calls that wait for a dependency, whose number is bounded.
#[derive(Debug)]
pub(crate) struct Place {
    dependency: Arc<Dependency>,
    /// The time at which a breaker refused the call that waits for it, and how long that was to wait.
    refused: Option<(u64, Duration)>,
}

impl Place {
    /// Takes a place, if fewer than `most` calls wait, and no more than the policy allows.
    pub(super) fn take(dependency: &Arc<Dependency>, most: usize) -> Option<Self> {
        let most = most.min(dependency.policy.retry_after().max_held);
        let more = |held: usize| (held < most).then_some(held + 1);
        let relaxed = Ordering::Relaxed;
        let taken = dependency.held.fetch_update(relaxed, relaxed, more);
        taken.is_ok().then(|| Self {
            dependency: Arc::clone(dependency),
            refused: None,
        })
    }

    /// The same, of a call that a breaker refuses now, and that waits so long for its next probe.
    pub(super) fn behind_breaker(mut self, pause: Duration) -> Self {
        self.refused = Some((self.dependency.now(), pause));
        self
    }

    /// Returns how much longer a call waits, now that its wait is over, if a breaker refused it: no
    /// more than half of the time that it has left.
    ///
    /// While a probe is out, it waits for that. If the breaker has closed, it waits for twice the time
    /// since then: so the calls that wait come back in order, and at a third of the pace at which they
    /// were refused, beside new ones.
    pub(crate) fn wait_on(&mut self, left: Duration) -> Option<Duration> {
        let (refused_at, pause) = self.refused?;
        let dependency = &*self.dependency;
        let now = dependency.now();
        let waited = Duration::from_nanos(now.saturating_sub(refused_at));
        let many = dependency.held.load(Ordering::Relaxed) >= FEW;
        let more = match dependency.breaker.since(refused_at, now) {
            Since::Nothing if waited < LONGEST_WAIT && left > LOOK * 2 => return Some(LOOK),
            // A call that waited for something else, too, is behind the others.
            Since::Closed(since) if many && since <= pause => Some(left.min(since * 4) / 2),
            _ => None,
        };
        self.refused = None;
        more
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.dependency.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The right to make one call. Dropped before the result is known, it says nothing about the
/// dependency and frees a probe's place, unless the call was out for as long as the policy gives it:
/// then the dependency hangs, which is a failure. A caller that gives up sooner says nothing.
#[derive(Debug)]
#[must_use]
pub(crate) struct Permit {
    dependency: Arc<Dependency>,
    ticket: Option<Ticket>,
    pending_since: Option<Instant>,
    /// The call has less time than the policy gives it.
    is_cut: bool,
}

impl Permit {
    pub(super) fn new(dependency: Arc<Dependency>, ticket: Ticket) -> Self {
        Self {
            dependency,
            ticket: Some(ticket),
            pending_since: None,
            is_cut: false,
        }
    }

    /// Notes whether the call has less time than the policy gives it. Then running out of it says
    /// nothing about the dependency, also where the dependency is the one to say so.
    pub(crate) fn cut(mut self, is_cut: bool) -> Self {
        self.is_cut = is_cut;
        self
    }

    pub(crate) fn dependency(&self) -> &Arc<Dependency> {
        &self.dependency
    }

    /// Notes that the call is not ready at once.
    pub(crate) fn pending(&mut self) {
        self.pending_since.get_or_insert_with(Instant::now);
    }

    /// Reports the verdict on the call to the breaker.
    #[inline(always)]
    pub(crate) fn report(&mut self, verdict: &Verdict) {
        if self.is_cut
            && verdict.is_timeout()
            && !self.is_out_for(self.dependency.longest_attempt())
        {
            let report = Report {
                health: Health::Neutral,
                overload: false,
            };
            return self.end(report, verdict.cause);
        }
        let slow = self.dependency.policy.breaker().slow_call;
        let (health, cause) = match (verdict.health, slow) {
            (Health::Success, Some(slow)) if self.is_out_for(slow) => {
                (Health::Failure, Cause::Other("slow_call"))
            }
            (health, _) => (health, verdict.cause),
        };
        let report = Report {
            health,
            overload: health != Health::Success && verdict.is_overload(),
        };
        self.end(report, cause);
    }

    #[inline(always)]
    fn end(&mut self, report: Report, cause: Cause) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let dependency = &*self.dependency;
        let now = || dependency.now();
        let seen_at = self.pending_since.map(|since| dependency.at(since));
        let draw = || dependency.draw();
        let changed = dependency
            .breaker
            .report(ticket, report, seen_at, now, draw);
        if let Some(change) = changed {
            dependency.breaker_changed(change, Some(cause));
        }
    }

    fn is_out_for(&self, time: Duration) -> bool {
        self.pending_since
            .is_some_and(|since| since.elapsed() >= time)
    }
}

impl Permit {
    /// Reports a call whose result is not known.
    #[cold]
    fn end_unknown(&mut self) {
        let hangs = self.is_out_for(self.dependency.longest_attempt());
        let report = Report {
            health: if hangs {
                Health::Failure
            } else {
                Health::Neutral
            },
            overload: hangs,
        };
        self.end(report, Cause::Timeout);
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.end_unknown();
        }
    }
}

#[cfg(all(test, not(reprise_loom)))]
mod tests {
    use std::time::Duration;

    use crate::{
        call::{Cause, Health, Verdict},
        dependency::{BreakerState, Dependencies},
        policy::Policy,
    };

    use super::{FEW, LOOK, Place};

    const SECOND: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(60);

    /// CB-9: what a call does that a breaker refused, and that has waited: so long after the refusal,
    /// with so much time left, after so long a pause, among so many.
    #[tokio::test(start_paused = true)]
    async fn cb_9_a_refused_call_waits_for_a_probe_and_then_for_its_turn() {
        // The breaker is open, with a probe after 4 to 5 s, and closes 2 s after the refusal, if it does.
        let cases = [
            ("no probe is out", None, 3, LONG, 3, FEW, Some(LOOK)),
            ("a probe is due", None, 5, LONG, 3, FEW, None),
            ("no time is left", None, 3, LOOK, 3, FEW, None),
            ("closed", Some(2), 3, LONG, 3, FEW, Some(2 * SECOND)),
            (
                "half of what is left",
                Some(2),
                3,
                SECOND,
                3,
                FEW,
                Some(SECOND / 2),
            ),
            (
                "it waited longer, for something else",
                Some(2),
                6,
                LONG,
                3,
                FEW,
                None,
            ),
            ("few are no herd", Some(2), 3, LONG, 3, FEW - 1, None),
        ];
        for (name, closes, waited, left, pause, many, expected) in cases {
            let five = 5 * SECOND;
            let policy = Policy::http().consecutive_failures(1).cooldown(five, five);
            let dependency = Dependencies::new(policy.build().expect("a policy")).get("a");
            let end = |health| {
                let mut permit = dependency.admit(|| false).expect("a permit");
                permit.report(&Verdict::transient(Cause::Unknown).health(health));
            };
            end(Health::Failure);
            if let Some(after) = closes {
                tokio::time::advance((5 - after) * SECOND).await;
            }
            let places: Vec<_> = (0..many)
                .filter_map(|_| Place::take(&dependency, 64))
                .collect();
            let mut places = places.into_iter();
            let place = places.next().expect("a place");
            let mut place = place.behind_breaker(pause * SECOND);
            if let Some(after) = closes {
                tokio::time::advance(after * SECOND).await;
                end(Health::Success);
            }
            tokio::time::advance((waited - closes.unwrap_or(0)) * SECOND).await;
            assert_eq!(place.wait_on(left), expected, "{name}");
            if expected != Some(LOOK) {
                assert_eq!(place.wait_on(left), None, "{name}: once");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn c_10_a_dropped_call_is_a_failure_only_if_it_was_out_for_the_policys_time() {
        for (rule, polled, out, opens) in [
            ("CB-5 cancelled", true, 29, false),
            ("CB-1 the policy's limit", true, 30, true),
            ("CB-5 never polled", false, 30, false),
        ] {
            let policy = Policy::http().consecutive_failures(1).build();
            let dependency = Dependencies::new(policy.expect("a policy")).get("a");
            let mut permit = dependency.admit(|| false).expect("a permit");
            if polled {
                permit.pending();
            }
            tokio::time::advance(out * SECOND).await;
            drop(permit);
            let opened = dependency.status().breaker != BreakerState::Closed;
            assert_eq!(opened, opens, "{rule}");
        }
    }
}
