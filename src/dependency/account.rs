use crate::{
    call::{
        Attempt,
        attempt_headers::{Origin, origin},
        budget_mark::BudgetMark,
    },
    dependency::{Dependencies, Dependency, LastSlot},
    error::Refused,
    telemetry,
};

/// Counts an original, charges a repeat, and says no to one too many.
pub(crate) fn account<C, L, B>(
    deps: &Dependencies<C, L>,
    dependency: &std::sync::Arc<Dependency>,
    slot: &mut LastSlot,
    request: &mut http::Request<B>,
) -> Result<(), Refused> {
    match origin(request) {
        Origin::Counted | Origin::Charged => {}
        Origin::Original => {
            dependency.count_original(tokio::time::Instant::now(), slot);
            if deps.must_mark() {
                BudgetMark::put(request.extensions_mut());
            }
        }
        Origin::Repeated(previous) => match dependency.charge_now() {
            Ok(()) => {
                if deps.must_mark() {
                    request
                        .extensions_mut()
                        .insert(Attempt::charged_elsewhere(previous));
                }
            }
            Err(refused) => {
                telemetry::refused(dependency.target(), refused.kind().as_str());
                return Err(refused);
            }
        },
    }
    Ok(())
}
