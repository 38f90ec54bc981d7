use std::{cell::Cell, iter};

use http::StatusCode;

use super::*;
use crate::error::Refusal;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Facts of a table's row. Nothing is random: backoff and spread are what the row says.
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

    fn breaker_refuses(&self, at: Instant) -> bool {
        assert!(at >= self.now);
        self.breaker_refuses
    }

    fn is_replayable(&self) -> bool {
        self.replayable
    }

    fn charge(&self) -> Result<(), StopReason> {
        self.charges.set(self.charges.get() + 1);
        match self.in_budget {
            true => Ok(()),
            false => Err(StopReason::Budget),
        }
    }
}

const LIMITS: Limits = Limits {
    max_retries: 3,
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
    use Retryable::{AfterRefresh, FreshId, MaxConsecutive, MaxRetries, Never};
    use StopReason::{Breaker, Budget, Exhausted, NotIdempotent, NotRetryable, Pushback};

    let once = Limits {
        max_retries: 1,
        ..LIMITS
    };
    let off = Limits {
        max_retries: 0,
        ..LIMITS
    };
    let unsafe_ = Limits {
        repeatable: false,
        ..LIMITS
    };
    let refreshing = Limits {
        refreshes: true,
        ..LIMITS
    };
    let as_retry = |retry| UNAVAILABLE.retry(retry);
    let stop = as_retry(Never).guidance(Some(Guidance::Stop));
    let other = Verdict::transient(Cause::Dns).retry(MaxConsecutive(1));
    let refused = Verdict::refused;
    let table: Vec<(
        &str,
        FailureHistory,
        Verdict,
        Limits,
        Result<(), StopReason>,
    )> = vec![
        ("R-2 the first", failures(0), UNAVAILABLE, LIMITS, Ok(())),
        ("R-2 the third", failures(2), UNAVAILABLE, LIMITS, Ok(())),
        (
            "R-2 one too many",
            failures(3),
            UNAVAILABLE,
            LIMITS,
            Err(Exhausted),
        ),
        ("D-5 fewer", failures(1), UNAVAILABLE, once, Err(Exhausted)),
        ("D-5 off", failures(0), UNAVAILABLE, off, Err(Exhausted)),
        (
            "D-4 final",
            failures(0),
            as_retry(Never),
            LIMITS,
            Err(NotRetryable),
        ),
        (
            "RA-8 told to stop",
            failures(0),
            stop,
            LIMITS,
            Err(Pushback),
        ),
        (
            "CB-7",
            failures(1),
            refused(Refusal::Breaker),
            LIMITS,
            Err(Breaker),
        ),
        (
            "G-4",
            failures(1),
            refused(Refusal::Budget),
            LIMITS,
            Err(Budget),
        ),
        (
            "RA-9",
            failures(0),
            refused(Refusal::RetryAfter),
            LIMITS,
            Err(Pushback),
        ),
        (
            "C-5 an effect",
            failures(0),
            UNAVAILABLE,
            unsafe_,
            Err(NotIdempotent),
        ),
        (
            "C-4 never sent",
            failures(0),
            UNAVAILABLE.never_sent(),
            unsafe_,
            Ok(()),
        ),
        (
            "C-4 is bounded",
            failures(3),
            UNAVAILABLE.never_sent(),
            unsafe_,
            Err(Exhausted),
        ),
        (
            "S-1 no hook",
            failures(0),
            as_retry(AfterRefresh),
            LIMITS,
            Err(NotRetryable),
        ),
        (
            "S-1 a hook",
            failures(1),
            as_retry(AfterRefresh),
            refreshing,
            Ok(()),
        ),
        (
            "S-1 once",
            after([as_retry(AfterRefresh)]),
            as_retry(AfterRefresh),
            refreshing,
            Err(Exhausted),
        ),
        (
            "C-3 in a row",
            after([other]),
            other,
            LIMITS,
            Err(Exhausted),
        ),
        (
            "C-3 another cause",
            after([other]),
            as_retry(MaxConsecutive(1)),
            LIMITS,
            Ok(()),
        ),
        (
            "C-6 below",
            failures(1),
            as_retry(MaxRetries(2)),
            LIMITS,
            Ok(()),
        ),
        (
            "C-6 at the most",
            failures(2),
            as_retry(MaxRetries(2)),
            LIMITS,
            Err(Exhausted),
        ),
        (
            "C-6 a fresh id",
            failures(1),
            as_retry(FreshId),
            LIMITS,
            Ok(()),
        ),
        (
            "C-6 only one",
            after([as_retry(FreshId)]),
            as_retry(FreshId),
            LIMITS,
            Err(Exhausted),
        ),
        (
            "C-8 health is another axis",
            failures(0),
            UNAVAILABLE.health(crate::call::Health::Neutral),
            LIMITS,
            Ok(()),
        ),
    ];
    for (rule, history, verdict, limits, expected) in table {
        let mut row = Row::new();
        let decision = decide(&history, &verdict, limits, &mut row);
        assert_eq!(decision.map(|granted| granted.charge), expected, "{rule}");
        assert_eq!(
            row.charges.get(),
            u32::from(expected.is_ok()),
            "G-3, {rule}"
        );
    }
}

#[test]
fn ra_7_ra_8_the_wait_is_the_backoff_or_what_was_asked_for() {
    let in_body = |floor, doubles, everybody| Guidance::InBody {
        floor,
        doubles,
        everybody,
    };
    let hold = |left| {
        Some(Hold {
            left,
            asked: SECOND,
        })
    };
    let table = [
        ("backoff", 0, None, None, SECOND),
        (
            "RA-7 less",
            0,
            Some(Guidance::AtLeast(MS)),
            None,
            SECOND + MS,
        ),
        (
            "RA-7 more",
            0,
            Some(Guidance::AtLeast(5 * SECOND)),
            None,
            5 * SECOND + MS,
        ),
        (
            "RA-1 zero",
            0,
            Some(Guidance::AtLeast(Duration::ZERO)),
            None,
            SECOND + MS,
        ),
        (
            "RA-8 exactly",
            0,
            Some(Guidance::Exactly(10 * MS)),
            None,
            11 * MS,
        ),
        (
            "a floor",
            2,
            Some(in_body(5 * SECOND, false, None)),
            None,
            5 * SECOND + MS,
        ),
        (
            "that doubles",
            2,
            Some(in_body(2 * SECOND, true, None)),
            None,
            8 * SECOND + MS,
        ),
        (
            "below everybody's",
            0,
            Some(in_body(SECOND, false, Some(4 * SECOND))),
            None,
            4 * SECOND + MS,
        ),
        ("RA-9 held for less", 0, None, hold(MS), SECOND),
        (
            "RA-9 held for more",
            0,
            None,
            hold(3 * SECOND),
            3 * SECOND + MS,
        ),
    ];
    for (rule, retries, guidance, hold, expected) in table {
        let mut row = Row { hold, ..Row::new() };
        let verdict = UNAVAILABLE.guidance(guidance);
        let granted = decide(&failures(retries), &verdict, LIMITS, &mut row);
        let wait = granted.map(|granted| (granted.wait, granted.at - row.now, granted.backoff));
        assert_eq!(wait, Ok((expected, expected, SECOND)), "{rule}");
    }
    let endless = wait(40, Some(in_body(SECOND, true, None)), SECOND, &Row::new());
    assert!(endless > 1_000_000_000 * SECOND, "doubling saturates");
}

#[test]
fn g_3_d_2_a_retry_is_charged_after_every_other_veto() {
    let row = Row::new;
    type Change = fn(&mut Row);
    let table: [(&str, Change, Result<(), StopReason>, u32); 7] = [
        ("D-1 in time", |_| {}, Ok(()), 1),
        (
            "D-2 on time",
            |row| row.left = SECOND,
            Err(StopReason::Deadline),
            0,
        ),
        ("D-2 just in time", |row| row.left = SECOND + MS, Ok(()), 1),
        (
            "D-2 never",
            |row| row.backoff = Duration::MAX,
            Err(StopReason::Deadline),
            0,
        ),
        (
            "CB-7",
            |row| row.breaker_refuses = true,
            Err(StopReason::Breaker),
            0,
        ),
        (
            "S-3",
            |row| row.replayable = false,
            Err(StopReason::NotReplayable),
            0,
        ),
        (
            "G-4",
            |row| row.in_budget = false,
            Err(StopReason::Budget),
            1,
        ),
    ];
    for (rule, change, expected, charges) in table {
        let mut row = row();
        change(&mut row);
        let decision = decide(&failures(0), &UNAVAILABLE, LIMITS, &mut row);
        assert_eq!(decision.map(|granted| granted.charge), expected, "{rule}");
        assert_eq!(row.charges.get(), charges, "G-3, {rule}");
    }
}

#[test]
fn g_3_d_1_a_charge_is_committed_by_an_attempt_that_goes_out() {
    let now = Instant::now();
    for (rule, left, refuses, commits, expected) in [
        (
            "D-1",
            Duration::ZERO,
            false,
            true,
            Err(StopReason::Deadline),
        ),
        ("CB-7", SECOND, true, true, Err(StopReason::Breaker)),
        ("G-1", SECOND, false, false, Err(StopReason::Budget)),
        ("G-3", SECOND, false, true, Ok(())),
    ] {
        let asked = Cell::new(false);
        let commit = || {
            asked.set(true);
            commits
        };
        let sent = may_send(now, now + left, |_| refuses, commit);
        assert_eq!(sent, expected, "{rule}");
        assert_eq!(asked.get(), !left.is_zero() && !refuses, "{rule}");
    }
}

#[test]
fn cb_7_d_4_the_caller_gets_the_last_real_result() {
    let refused = Verdict::refused(Refusal::Breaker);
    let in_doubt = UNAVAILABLE.effect(Effect::Possible);
    for (rule, history, verdict, has_earlier, expected) in [
        (
            "D-4 the only one",
            failures(0),
            UNAVAILABLE,
            false,
            (Reported::Last, Effect::None),
        ),
        (
            "D-4 the last",
            failures(1),
            UNAVAILABLE,
            true,
            (Reported::Last, Effect::Unavailable),
        ),
        (
            "CB-7 refused at once",
            failures(0),
            refused,
            false,
            (Reported::Last, Effect::None),
        ),
        (
            "CB-7 an earlier one",
            failures(1),
            refused,
            true,
            (Reported::Earlier, Effect::None),
        ),
        (
            "C-4 beside others",
            after([in_doubt, UNAVAILABLE]),
            refused,
            true,
            (Reported::Earlier, Effect::Possible),
        ),
    ] {
        assert_eq!(report(&history, &verdict, has_earlier), expected, "{rule}");
    }
}
