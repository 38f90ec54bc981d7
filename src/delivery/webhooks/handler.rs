use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{DAY, Meta, Shared};
use crate::{
    delivery::{
        Delivery, Failure, Outcome, UserHeaders, dead_letter::reason, guard::Target,
        parcel::Parcel, sign::MessageId, worker::Handler,
    },
    store::journal::{Entry, Settlement},
};

/// Delivers webhooks.
pub struct Deliveries {
    pub(super) shared: Arc<Shared>,
}

impl fmt::Debug for Deliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deliveries")
    }
}

impl Handler for Deliveries {
    async fn handle(&self, entry: Entry) -> Settlement {
        let Shared {
            sender,
            signers,
            schedule,
            keep,
            ..
        } = &*self.shared;
        if entry.is_past() {
            return reason::failed(reason::NOT_WITHIN_A_DAY, *keep);
        }
        if entry.attempts > schedule.deliveries() {
            return reason::failed(reason::WORKERS_DIED, *keep);
        }
        let Some(signer) = signers(&entry.owner) else {
            return reason::failed(reason::NO_SIGNER, *keep);
        };
        let delivery = match self.delivery(&entry) {
            Ok(delivery) => delivery,
            Err(why) => return reason::failed(why, *keep),
        };
        match sender.send(&delivery, &signer).await {
            Outcome::Delivered(status) => Settlement {
                note: status.as_u16().to_string(),
                ..Settlement::completed(Bytes::new(), *keep)
            },
            Outcome::Failed(failure) => self.again(&entry, &failure),
        }
    }
}

impl Deliveries {
    fn delivery(&self, entry: &Entry) -> Result<Delivery, &'static str> {
        let parcel: Parcel<Meta> =
            Parcel::decode(entry.payload.clone()).ok_or(reason::UNREADABLE)?;
        // The guard may have changed its mind.
        let target =
            Target::parse(&parcel.meta.url, &self.shared.guard).map_err(|_| reason::BAD_TARGET)?;
        let id = MessageId::new(entry.id.to_string()).map_err(|_| reason::UNREADABLE)?;
        let headers = UserHeaders::new(
            parcel
                .headers
                .iter()
                .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))),
        );
        let delivery = Delivery::new(target, id, parcel.body)
            .headers(headers.map_err(|_| reason::BAD_HEADERS)?);
        match &parcel.meta.content_type {
            None => Ok(delivery),
            Some(content_type) => delivery
                .content_type(content_type)
                .map_err(|_| reason::BAD_TYPE),
        }
    }

    /// When to deliver it again, if at all.
    fn again(&self, entry: &Entry, failure: &Failure) -> Settlement {
        let Shared { schedule, keep, .. } = &*self.shared;
        let (why, cause) = (failure.to_string(), failure.cause().to_string());
        if failure.is_retryable(entry.repeats_of(&cause)) {
            // A redrive begins a new day.
            let since_first = DAY.saturating_sub(entry.expires_at.since(entry.changed_at));
            let asked = failure.retry_after();
            let next = schedule.next(entry.attempts, since_first, asked, rand::random());
            if let Some(delay) = next {
                return Settlement::retry(why, delay).cause(cause);
            }
        }
        Settlement::failed(why, *keep).cause(cause)
    }
}
