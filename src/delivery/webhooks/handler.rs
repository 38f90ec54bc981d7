use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;

use super::{
    Delivery, DeliveryFailure, DeliveryOutcome, Endpoint, MessageId, UserHeaders, endpoint,
    queue::Settings,
    webhook::{DAY, Meta},
};
use crate::{
    delivery::{
        dead_letter::reason,
        guard::Target,
        redact::correlation_id,
        stored_message::{self, StoredMessage},
        worker::{AttemptLabels, Handler, LaneAdmission},
    },
    store::journal::{Entry, Journal, Settlement},
};

/// The handler of [`Webhooks::worker`](super::Webhooks::worker), which delivers webhooks.
pub struct WebhookHandler<J> {
    settings: Arc<Settings>,
    journal: J,
}

opaque_debug! { WebhookHandler<J> }

impl<J: Journal> Handler for WebhookHandler<J> {
    async fn handle(&self, entry: Entry) -> Settlement {
        let Settings {
            sender,
            signers,
            schedule,
            keep,
            keep_delivered,
            health,
            rates,
            ..
        } = &*self.settings;
        if entry.is_past() {
            return reason::failed(reason::NOT_WITHIN_A_DAY, *keep);
        }
        if entry.attempts > schedule.deliveries() {
            return reason::failed(reason::WORKERS_DIED, *keep);
        }
        let Some(signer) = signers(&entry.owner) else {
            return reason::failed(reason::NO_SIGNER, *keep);
        };
        let (delivery, endpoint) = match self.delivery(&entry) {
            Ok(delivery) => delivery,
            Err(why) => return reason::failed(why, *keep),
        };
        if health.is_disabled(&self.journal, &endpoint).await {
            return reason::failed(reason::ENDPOINT_DISABLED, *keep);
        }
        rates.take(endpoint::target_of(&entry.lane).0);
        match sender.send(&delivery, &signer).await {
            DeliveryOutcome::Delivered(status) => {
                health.delivered(&self.journal, &endpoint).await;
                Settlement {
                    note: status.as_u16().to_string(),
                    ..Settlement::completed(Bytes::new(), *keep_delivered)
                }
            }
            DeliveryOutcome::Failed(failure) => {
                let settlement = self.after_failure(&entry, &failure);
                if settlement.outcome.is_failed() {
                    let target = delivery.target();
                    health
                        .failed(&self.journal, &endpoint, target, &entry)
                        .await;
                }
                settlement
            }
        }
    }

    fn target<'a>(&self, entry: &'a Entry) -> Option<Cow<'a, str>> {
        Some(Cow::Borrowed(endpoint::target_of(&entry.lane).0))
    }

    fn lane(&self, lane: &str) -> LaneAdmission {
        let (target, in_order) = endpoint::target_of(lane);
        LaneAdmission {
            in_order,
            at_most: self.settings.rates.left(target),
            target: None,
        }
    }

    fn labels(&self, entry: &Entry) -> AttemptLabels {
        let headers = stored_message::contents(entry.payload.clone()).map(|(headers, _)| headers);
        AttemptLabels {
            max_attempts: self.settings.schedule.deliveries(),
            correlation_id: headers.as_ref().and_then(correlation_id),
            idempotency_key: Some(entry.id.to_string()),
        }
    }
}

impl<J: Journal> WebhookHandler<J> {
    pub(super) fn new(settings: Arc<Settings>, journal: J) -> Self {
        Self { settings, journal }
    }

    /// Returns the delivery of an entry and its endpoint, or the reason why there is none.
    fn delivery(&self, entry: &Entry) -> Result<(Delivery, Endpoint), &'static str> {
        let message: StoredMessage<Meta> =
            StoredMessage::decode(entry.payload.clone()).ok_or(reason::UNREADABLE)?;
        let endpoint = Endpoint::new(&*message.meta.url).owner(&*entry.owner);
        // The guard may be another one than when the event was queued.
        let target = Target::parse(&message.meta.url, &self.settings.guard)
            .map_err(|_| reason::BAD_TARGET)?;
        let id = MessageId::new(entry.id.to_string()).map_err(|_| reason::UNREADABLE)?;
        let headers = UserHeaders::new(
            message
                .headers
                .iter()
                .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))),
        );
        let delivery = Delivery::new(target, id, message.body)
            .headers(headers.map_err(|_| reason::BAD_HEADERS)?);
        let delivery = match &message.meta.content_type {
            None => delivery,
            Some(content_type) => delivery
                .content_type(content_type)
                .map_err(|_| reason::BAD_TYPE)?,
        };
        Ok((delivery, endpoint))
    }

    /// Schedules the next delivery, or dead-letters the event.
    fn after_failure(&self, entry: &Entry, failure: &DeliveryFailure) -> Settlement {
        let Settings {
            schedule,
            keep,
            jitter,
            ..
        } = &*self.settings;
        let (why, cause) = (failure.to_string(), failure.cause().to_string());
        if failure.is_retryable(entry.repeats_of(&cause)) {
            // A redrive starts a new day.
            let since_first = DAY.saturating_sub(entry.expires_at.since(entry.changed_at));
            let asked = failure.retry_after();
            let next = schedule.next(entry.attempts, since_first, asked, jitter.draw());
            if let Some(delay) = next {
                return Settlement::retry(why, delay).cause(cause);
            }
        }
        Settlement::failed(why, *keep).cause(cause)
    }
}
