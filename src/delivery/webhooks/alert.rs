use serde::Serialize;

use super::{Webhook, Webhooks};
use crate::{
    delivery::dead_letter::{Alert, DeadLetter, LogAlert},
    error::BoxError,
    store::journal::Journal,
};

/// The label of alerts.
const LABEL: &str = "dead_letter";

/// Sends a webhook for each dead letter, with its id, queue, label and
/// [cause](DeadLetter::cause), and nothing of its content.
///
/// A dead letter that is itself such a webhook is only logged: one alert that can't be delivered
/// must not cause another.
#[derive(Debug, Clone)]
pub struct WebhookAlert<J> {
    webhooks: Webhooks<J>,
    url: String,
}

impl<J> WebhookAlert<J> {
    /// Sends alerts to this URL.
    pub fn new(webhooks: Webhooks<J>, url: impl Into<String>) -> Self {
        Self {
            webhooks,
            url: url.into(),
        }
    }
}

#[derive(Serialize)]
struct Event<'a> {
    event: &'static str,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    id: String,
    queue: &'a str,
    label: &'a str,
    cause: &'a str,
    attempts: u32,
}

impl<J: Journal + Clone> Alert for WebhookAlert<J> {
    async fn fire(&self, letter: &DeadLetter) -> Result<(), BoxError> {
        if letter.label == LABEL {
            return LogAlert.fire(letter).await;
        }
        let event = Event {
            event: LABEL,
            data: Data {
                id: letter.id.to_string(),
                queue: &letter.queue,
                label: &letter.label,
                cause: letter.cause(),
                attempts: letter.attempts,
            },
        };
        let webhook = Webhook::new(self.url.clone(), serde_json::to_vec(&event)?).label(LABEL);
        self.webhooks.send(webhook).await?;
        Ok(())
    }
}
