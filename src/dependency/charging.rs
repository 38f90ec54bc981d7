//! The counting of calls, and their charges.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::Instant;

use super::{Charge, Dependency, Kind, LastSlot};
use crate::{
    call::Cause,
    error::{Refusal, Refused},
    telemetry,
};

impl Dependency {
    /// Counts an original request that bypassed the layers, so that it enlarges the retry budget.
    pub fn deposit(&self) {
        self.budget.deposit(self.now());
    }

    /// Charges the budget for one retry that goes out now, of a loop of your own.
    ///
    /// ```
    /// # async fn call() -> bool { false }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_reprise::{Dependencies, Policy};
    ///
    /// let stock = Dependencies::new(Policy::http().build()?).get("stock.example");
    /// stock.deposit();
    /// while !call().await && stock.charge_retry().is_ok() {
    ///     // Wait, and call again.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns a refusal if the budget is used up.
    pub fn charge_retry(self: &Arc<Self>) -> Result<(), Refused> {
        self.charge_now().map(drop)
    }

    /// Counts an original request. Returns the slot that it is counted in.
    #[inline]
    pub(crate) fn count_original(&self, now: Instant, last: &mut LastSlot) -> u64 {
        self.budget.deposit_in(last.at(now, self.origin))
    }

    /// Takes an original back that was refused before it went out.
    pub(crate) fn uncount_original(&self, slot: u64) {
        self.budget.uncount(slot);
    }

    /// Records a success of a call, which earns a part of a retry.
    #[inline]
    pub(crate) fn earn(&self) {
        self.budget.earn();
        if self.raised_at.load(Ordering::Relaxed) != 0 {
            self.lower_gauge();
        }
    }

    /// Reports how much of the budget is used.
    pub(super) fn report_budget(&self, now: u64, usage: Option<(u64, u64)>) {
        telemetry::budget(self.target(), usage);
        let raised = usage.is_some_and(|(used, allowed)| used > 0 || allowed == 0);
        let at = if raised { now.max(1) } else { 0 };
        self.raised_at.store(at, Ordering::Relaxed);
    }

    /// Reports it once more where no retry was made meanwhile. A budget that has nothing saved is not
    /// used up before a retry is refused.
    pub(crate) fn refresh_budget(&self) {
        let now = self.now();
        let usage = self.budget.usage(now);
        let usage = usage.map(|(used, allowed)| (used, allowed.max(u64::from(used == 0))));
        self.report_budget(now, usage);
    }

    /// Charges the budget for one retry of a call that began at that time, and failed for this cause.
    pub(crate) fn charge(
        self: &Arc<Self>,
        began: Instant,
        cause: Option<Cause>,
        kind: Kind,
    ) -> Result<Charge, Refused> {
        let now = self.now();
        let granted = self.budget.charge(now, self.at(began));
        let granted = granted.and_then(|source| {
            let tokens = self.budget.take_tokens(kind);
            if tokens.is_none() {
                self.budget.refund(source);
            }
            Some((source, tokens?))
        });
        self.report_budget(now, self.budget.usage(now));
        if let Some((source, tokens)) = granted {
            return Ok(Charge::new(Arc::clone(self), source, tokens));
        }
        telemetry::suppressed(self.target());
        if let Some(change) = self.breaker.budget_exhausted(now, self.draw()) {
            self.breaker_changed(change, cause);
        }
        Err(self.refused(Refusal::Budget, None))
    }

    /// Charges the budget for one retry that is sent at once.
    pub(crate) fn charge_now(self: &Arc<Self>) -> Result<Charge, Refused> {
        let mut charge = self.charge(Instant::now(), None, Kind::Failure)?;
        match charge.send() {
            true => Ok(charge),
            false => Err(self.refused(Refusal::Budget, None)),
        }
    }

    /// Charges the budget for a request that another retry loop sent again.
    pub(crate) fn charge_repeat(self: &Arc<Self>) -> Result<Charge, Refused> {
        let charge = self.charge_now();
        charge.inspect_err(|refused| self.tell_refused(refused.kind()))
    }
}
