use std::{cell::Cell, iter};

use http::StatusCode;

use super::*;
use crate::{call::Health, error::Refusal};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The environment of a table's row. Nothing is random: a spread adds a millisecond.
struct Row {
    backoff: Duration,
    hold: Option<Hold>,
    now: Instant,
    left: Duration,
    breaker_refuses: bool,
    replayable: bool,
    in_budget: bool,
    charges: Cell<u32>,
}

impl Row {
    fn new() -> Self {
        Self {
            backoff: SECOND,
            hold: None,
            now: Instant::now(),
            left: 30 * SECOND,
            breaker_refuses: false,
            replayable: true,
            in_budget: true,
            charges: Cell::new(0),
        }
    }
}

impl Environment for Row {
    type Charge = ();

    fn backoff(&self, _retries: u32, _previous: Duration) -> Duration {
        self.backoff
    }

    fn spread(&self, least: Duration, asked: Duration) -> Duration {
        assert!(least >= asked, "a spread never shortens what was asked for");
        least + MS
    }

    fn hold(&self) -> Option<Hold> {
        self.hold
    }

    fn times(&mut self) -> (Instant, Instant) {
        (self.now, self.now + self.left)
    }

    fn breaker_refuses(&self, _at: Instant) -> bool {
        self.breaker_refuses
    }

    fn is_replayable(&self) -> bool {
        self.replayable
    }

    fn charge(&mut self, _: Duration) -> Result<(), StopReason> {
        self.charges.set(self.charges.get() + 1);
        self.in_budget.then_some(()).ok_or(StopReason::Budget)
    }
}

const LIMITS: Limits = Limits {
    max_retries: 3,
    chain_stop: false,
    repeatable: true,
    refreshes: false,
};

const UNAVAILABLE: Verdict =
    Verdict::transient(Cause::Status(StatusCode::SERVICE_UNAVAILABLE)).effect(Effect::Unavailable);

/// The history of a call whose attempts failed with these verdicts, and were all retried.
fn after(verdicts: impl IntoIterator<Item = Verdict>) -> FailureHistory {
    let mut history = FailureHistory::default();
    for verdict in verdicts {
        history.record(&verdict, SECOND);
        history.attempts += 1;
    }
    history
}

fn failures(times: usize) -> FailureHistory {
    after(iter::repeat_n(UNAVAILABLE, times))
}

#[test]
fn d_4_c_4_c_5_c_8_the_verdict_and_the_attempts_decide_first() {
    use Retryable::{AfterRefresh, FreshId, MaxPerCause, MaxRetries, Never};
    use StopReason::{Breaker, Budget, Exhausted, NotIdempotent, NotRetryable, Pushback, Throttle};

    let retries = |max_retries| Limits {
        max_retries,
        ..LIMITS
    };
    let (once, off) = (retries(1), retries(0));
    let effectful = Limits {
        repeatable: false,
        ..LIMITS
    };
    let hook = Limits {
        refreshes: true,
        ..LIMITS
    };
    let as_retry = |retry| UNAVAILABLE.retry(retry);
    let refused = |by| Verdict::refused(by);
    let (open, shed) = (refused(Refusal::Breaker), refused(Refusal::Throttle));
    let stop = as_retry(Never).guidance(Some(Guidance::Stop));
    let dns = Verdict::transient(Cause::Dns).retry(MaxPerCause(1));
    let early = Verdict::transient(Cause::Status(StatusCode::TOO_EARLY)).retry(MaxPerCause(1));
    let (refresh, fresh_id) = (as_retry(AfterRefresh), as_retry(FreshId));
    let busy = UNAVAILABLE.health(Health::Neutral);
    #[rustfmt::skip]
    let table = [
        ("R-2 the first", failures(0), UNAVAILABLE, LIMITS, Ok(())),
        ("R-2 the third", failures(2), UNAVAILABLE, LIMITS, Ok(())),
        ("R-2 one too many", failures(3), UNAVAILABLE, LIMITS, Err(Exhausted)),
        ("D-5 fewer", failures(1), UNAVAILABLE, once, Err(Exhausted)),
        ("D-5 off", failures(0), UNAVAILABLE, off, Err(Exhausted)),
        ("D-4 final", failures(0), as_retry(Never), LIMITS, Err(NotRetryable)),
        ("RA-8 told to stop", failures(0), stop, LIMITS, Err(Pushback)),
        ("CB-7 a second chance", failures(1), refused(Refusal::Breaker), effectful, Ok(())),
        ("CB-7 no third", after([open]), open, LIMITS, Err(Breaker)),
        ("CB-7 the last", failures(3), open, LIMITS, Err(Breaker)),
        ("CB-10", after([shed, shed]), shed, LIMITS, Err(Throttle)),
        ("G-4", failures(1), refused(Refusal::Budget), LIMITS, Err(Budget)),
        ("RA-9", failures(0), refused(Refusal::RetryAfter), LIMITS, Err(Pushback)),
        ("C-5 an effect", failures(0), UNAVAILABLE, effectful, Err(NotIdempotent)),
        ("C-4 never sent", failures(0), UNAVAILABLE.never_sent(), effectful, Ok(())),
        ("C-4 bounded", failures(3), UNAVAILABLE.never_sent(), effectful, Err(Exhausted)),
        ("S-1 no hook", failures(0), refresh, LIMITS, Err(NotRetryable)),
        ("S-1 a hook", failures(1), refresh, hook, Ok(())),
        ("S-1 once", after([refresh]), refresh, hook, Err(Exhausted)),
        ("S-1 whatever the method", failures(0), refresh, Limits { repeatable: false, ..hook }, Ok(())),
        ("C-3 in a row", after([dns]), dns, LIMITS, Err(Exhausted)),
        ("C-10 not in a row", after([dns, early]), dns, LIMITS, Err(Exhausted)),
        ("C-3 another cause", after([dns]), as_retry(MaxPerCause(1)), LIMITS, Ok(())),
        ("C-6 below the most", failures(1), as_retry(MaxRetries(2)), LIMITS, Ok(())),
        ("C-6 at the most", failures(2), as_retry(MaxRetries(2)), LIMITS, Err(Exhausted)),
        ("C-6 a fresh id", failures(1), fresh_id, LIMITS, Ok(())),
        ("C-6 only one", after([fresh_id]), fresh_id, LIMITS, Err(Exhausted)),
        ("C-8 health is another axis", failures(0), busy, LIMITS, Ok(())),
    ];
    for (rule, history, verdict, limits, expected) in table {
        let mut row = Row::new();
        let decision = decide(&history, &verdict, limits, &mut row);
        assert_eq!(decision.map(|granted| granted.charge), expected, "{rule}");
        let charges = u32::from(expected.is_ok());
        assert_eq!(row.charges.get(), charges, "G-3, {rule}");
    }
}

#[test]
fn ra_7_ra_8_the_wait_is_the_backoff_or_the_time_that_was_asked_for() {
    let at_least = |wait| Some(Guidance::AtLeast(wait));
    let in_body = |floor, doubles, everybody| {
        Some(Guidance::InBody {
            floor,
            doubles,
            everybody,
        })
    };
    let held = |left| {
        Some(Hold {
            left,
            asked: SECOND,
        })
    };
    #[rustfmt::skip]
    let table = [
        ("backoff", 0, None, None, SECOND),
        ("RA-7 less", 0, at_least(MS), None, SECOND + MS),
        ("RA-7 more", 0, at_least(5 * SECOND), None, 5 * SECOND + MS),
        ("RA-1 zero", 0, at_least(Duration::ZERO), None, SECOND + MS),
        ("RA-8 exactly", 0, Some(Guidance::Exactly(10 * MS)), None, 11 * MS),
        ("a floor", 2, in_body(5 * SECOND, false, None), None, 5 * SECOND + MS),
        ("that doubles", 2, in_body(2 * SECOND, true, None), None, 8 * SECOND + MS),
        ("for everybody", 0, in_body(SECOND, false, Some(4 * SECOND)), None, 4 * SECOND + MS),
        ("RA-9 held for less", 0, None, held(MS), SECOND),
        ("RA-9 held for more", 0, None, held(3 * SECOND), 3 * SECOND + MS),
    ];
    for (rule, retries, guidance, hold, expected) in table {
        let mut row = Row { hold, ..Row::new() };
        let verdict = UNAVAILABLE.guidance(guidance);
        let granted = decide(&failures(retries), &verdict, LIMITS, &mut row);
        let wait = granted.map(|granted| (granted.wait, granted.at - row.now, granted.backoff));
        assert_eq!(wait, Ok((expected, expected, SECOND)), "{rule}");
    }
    // S-1: only what was asked for delays new credentials.
    let hook = Limits {
        refreshes: true,
        ..LIMITS
    };
    for (guidance, expected) in [(None, Duration::ZERO), (at_least(MS), 2 * MS)] {
        let verdict = UNAVAILABLE
            .retry(Retryable::AfterRefresh)
            .guidance(guidance);
        let granted = decide(&failures(0), &verdict, hook, &mut Row::new());
        assert_eq!(granted.map(|granted| granted.wait), Ok(expected));
    }
    let endless = wait(40, in_body(SECOND, true, None), SECOND, &Row::new());
    assert!(endless > 1_000_000_000 * SECOND, "doubling saturates");
}

#[test]
fn ra_8_s_1_a_pushback_begins_the_backoff_anew_and_a_refresh_is_none() {
    let pushback = UNAVAILABLE.guidance(Some(Guidance::Exactly(MS)));
    let refresh = UNAVAILABLE.retry(Retryable::AfterRefresh);
    for (verdicts, backoffs) in [
        (&[UNAVAILABLE, UNAVAILABLE][..], (2, SECOND)),
        (&[UNAVAILABLE, pushback], (0, Duration::ZERO)),
        (&[UNAVAILABLE, pushback, UNAVAILABLE], (1, SECOND)),
        (&[UNAVAILABLE, refresh], (1, SECOND)),
        (&[refresh], (0, Duration::ZERO)),
    ] {
        let history = after(verdicts.iter().copied());
        assert_eq!((history.backoffs, history.previous_backoff), backoffs);
        assert_eq!(history.retries as usize, verdicts.len());
    }
}

#[test]
fn c_10_more_causes_than_are_counted_share_a_count() {
    let status = |code| Verdict::transient(Cause::Status(StatusCode::from_u16(code).unwrap()));
    let once = |code| status(code).retry(Retryable::MaxPerCause(1));
    let history = after([500, 502, 503, 504, 507].map(once));
    let repeats = [500, 502, 503, 504, 507, 508].map(|code| history.repeats_of(status(code).cause));
    assert_eq!(repeats, [1, 1, 1, 2, 2, 2]);
}

#[test]
fn g_3_d_2_a_retry_is_charged_after_every_other_veto() {
    use StopReason::{Breaker, Budget, Deadline, NotReplayable};

    type Change = fn(&mut Row);
    #[rustfmt::skip]
    let table: [(&str, Change, Result<(), StopReason>, u32); 7] = [
        ("D-1 in time", |_| {}, Ok(()), 1),
        ("D-2 on time", |row| row.left = SECOND, Err(Deadline), 0),
        ("D-2 just in time", |row| row.left = SECOND + MS, Ok(()), 1),
        ("D-2 never", |row| row.backoff = Duration::MAX, Err(Deadline), 0),
        ("CB-7", |row| row.breaker_refuses = true, Err(Breaker), 0),
        ("S-3", |row| row.replayable = false, Err(NotReplayable), 0),
        ("G-4", |row| row.in_budget = false, Err(Budget), 1),
    ];
    for (rule, change, expected, charges) in table {
        let mut row = Row::new();
        change(&mut row);
        let decision = decide(&failures(0), &UNAVAILABLE, LIMITS, &mut row);
        assert_eq!(decision.map(|granted| granted.charge), expected, "{rule}");
        assert_eq!(row.charges.get(), charges, "G-3, {rule}");
    }
}

#[test]
fn g_3_d_1_a_charge_is_committed_by_an_attempt_that_goes_out() {
    use StopReason::{Breaker, Budget, Deadline};

    let now = Instant::now();
    for (rule, left, refuses, in_budget, expected) in [
        ("D-1", Duration::ZERO, false, true, Err(Deadline)),
        ("CB-7", SECOND, true, true, Err(Breaker)),
        ("G-1", SECOND, false, false, Err(Budget)),
        ("G-3", SECOND, false, true, Ok(())),
    ] {
        let committed = Cell::new(false);
        let commit = || {
            committed.set(true);
            in_budget
        };
        let sent = may_send(now, now + left, |_| refuses, commit);
        assert_eq!(sent, expected, "{rule}");
        assert_eq!(committed.get(), !left.is_zero() && !refuses, "{rule}");
    }
}

#[test]
fn cb_7_d_4_the_caller_gets_the_last_real_result() {
    use Reported::{Earlier, Last};

    let refused = Verdict::refused(Refusal::Breaker);
    let in_doubt = UNAVAILABLE.effect(Effect::Possible);
    let two = after([in_doubt, UNAVAILABLE]);
    #[rustfmt::skip]
    let table = [
        ("D-4 the only one", failures(0), UNAVAILABLE, false, (Last, Effect::None)),
        ("D-4 the last", failures(1), UNAVAILABLE, true, (Last, Effect::Unavailable)),
        ("CB-7 refused at once", failures(0), refused, false, (Last, Effect::None)),
        ("CB-7 an earlier one", failures(1), refused, true, (Earlier, Effect::None)),
        ("C-4 beside others", two, refused, true, (Earlier, Effect::Possible)),
    ];
    for (rule, history, verdict, has_earlier, expected) in table {
        assert_eq!(report(&history, &verdict, has_earlier), expected, "{rule}");
    }
}

#[test]
fn cb_7_a_refusal_is_the_cause_only_of_a_call_that_never_went_out() {
    let refused = Verdict::refused(Refusal::Breaker);
    for (attempts, expected) in [(0, refused.cause), (1, Cause::Timeout)] {
        let mut history = failures(0);
        history.attempts = attempts;
        history.record(&refused, SECOND);
        assert_eq!(history.last_cause, expected, "after {attempts}");
    }
}
