use std::{
    any::Any,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::Response;

/// The id by which the attempts of one journaled request know each other.
pub(crate) type ReplayKey = [u8; 16];

/// On a request's extensions: a journal executes it, or will if its reply says that it can't be
/// served now. Nobody outside of this crate can put it there.
#[derive(Clone)]
pub(crate) struct ReplayAttempt {
    /// The owner of a request that is replayed: its credentials were not kept.
    pub(crate) owner: Option<Arc<str>>,
    /// The request whose failed attempt this one goes on with.
    pub(crate) resumes: Option<ReplayKey>,
    /// Returns the request to go on with if this reply is a failure that the journal attempts
    /// again.
    pub(crate) attempted_again: AttemptedAgain,
    /// Returns whether an error of the service says that the request was not served, so that the
    /// journal takes it.
    pub(crate) not_served: fn(&dyn Any) -> bool,
    /// The time for which duplicates have to wait for that attempt. It is not known before the journal
    /// has the request: until then it is a lease, and `suspended` holds it for longer.
    pub(crate) hold: Option<Duration>,
    pub(crate) suspended: Suspended,
}

/// The execution that was suspended for a further attempt, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Suspended(Arc<Mutex<Option<HoldFor>>>);

/// Makes duplicates of a suspended execution wait for this long from now.
pub(crate) type HoldFor =
    Box<dyn FnOnce(Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

impl Suspended {
    pub(crate) fn set(&self, hold_for: HoldFor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(hold_for);
    }

    /// Makes duplicates wait for this long, if there is such an execution.
    #[cfg(feature = "delivery")]
    pub(crate) async fn hold_for(&self, time: Duration) {
        let hold_for = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hold_for) = hold_for {
            hold_for(time).await;
        }
    }
}

pub(crate) type AttemptedAgain = Arc<dyn Fn(&Response<Bytes>) -> Option<ReplayKey> + Send + Sync>;

opaque_debug! { ReplayAttempt }
