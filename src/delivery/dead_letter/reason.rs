//! Reasons of this crate's own to give an entry up.

use std::time::Duration;

use crate::store::journal::Settlement;

pub(crate) const WORKERS_DIED: &str = "its workers died of it";
pub(crate) const UNREADABLE: &str = "it can't be read";
pub(crate) const UNPREPARED: &str = "it could not be prepared";
pub(crate) const NOT_IN_TIME: &str = "not delivered in time";
pub(crate) const NOT_WITHIN_A_DAY: &str = "not delivered within a day";
pub(crate) const NO_SIGNER: &str = "its owner has no signer";
pub(crate) const BAD_TARGET: &str = "its target is not allowed";
pub(crate) const BAD_HEADERS: &str = "its headers are not allowed";
pub(crate) const BAD_TYPE: &str = "its content type is not allowed";
pub(crate) const ENDPOINT_DISABLED: &str = "its endpoint is disabled";
pub(crate) const NO_CALLBACKS: &str = "callbacks are not offered any more";

/// Settles an entry as failed for a reason of this crate's own, which is the cause as well.
pub(crate) fn failed(reason: &'static str, keep: Duration) -> Settlement {
    Settlement::failed(reason, keep).cause(reason)
}
