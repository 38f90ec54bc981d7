use std::time::Duration;

/// The calls that a breaker admits in the first step after it closed. Each further step admits twice
/// as many.
const FIRST_STEP: u64 = 8;
/// The length of a step, in nanoseconds.
pub(super) const STEP: u64 = 50_000_000;
/// The steps after which all calls are admitted.
pub(super) const STEPS: u64 = 10;

/// The steps of a breaker that closed.
#[derive(Debug, Default)]
pub(super) struct Ramp {
    began: u64,
    step: u64,
    admitted: u64,
}

/// The answer to a call in the ramp.
pub(super) enum Admitted {
    /// It passes.
    This,
    /// It passes, and so do all after it.
    All,
    /// It is one too many for this much longer.
    None(Duration),
}

impl Ramp {
    pub(super) fn new(now: u64) -> Self {
        Self {
            began: now,
            ..Self::default()
        }
    }

    /// Admits a call, unless its step has admitted enough. The ramp ends with a step that was not
    /// used up.
    pub(super) fn admit(&mut self, now: u64) -> Admitted {
        let step = now.saturating_sub(self.began) / STEP;
        let most = |step: u64| FIRST_STEP << step.min(STEPS);
        let unused = step > self.step && self.admitted < most(self.step);
        if unused || step >= STEPS {
            return Admitted::All;
        }
        if step > self.step {
            (self.step, self.admitted) = (step, 0);
        }
        if self.admitted >= most(step) {
            let left = self.began + (step + 1) * STEP - now;
            return Admitted::None(Duration::from_nanos(left));
        }
        self.admitted += 1;
        Admitted::This
    }
}
