//! A journaled request as it is attempted, and the meaning of its replies.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};

use super::{
    Replay, ReplayId, Replayed,
    dialect::ReplayFormat,
    request::Stored,
    served::{cannot_call, cannot_serve, replay_key},
};
use crate::{
    call::{AttemptedAgain, Cause, ReplayAttempt, Retryable, Suspended, Verdict},
    classify::{Classify, Rules, Standard},
    store::journal::{Entry, Journal},
};

impl<J: Journal + Clone> Replay<J> {
    /// Rebuilds the request, without its credentials. One without a key gets one, so that a worker
    /// that dies does not make it happen twice. A redrive gets a key of its own; `None` if the
    /// request can't be changed.
    pub(super) fn request(
        &self,
        entry: &Entry,
        stored: &Stored,
        redrive: u32,
    ) -> Option<Request<Bytes>> {
        let mut request = stored.request()?;
        let dialect = &self.state.settings.dialect;
        let (headers, body) = (request.headers_mut(), stored.body.clone());
        let body = match redrive {
            0 => dialect.with_key(headers, body, &entry.id.to_string()),
            n => dialect.with_new_key(headers, body, &format!("{}-{n}", entry.id))?,
        };
        let extensions = request.extensions_mut();
        extensions.insert(Replayed {
            id: ReplayId(entry.id),
            owner: entry.owner.clone(),
            attempt: entry.attempts,
        });
        extensions.insert(self.replay_attempt(entry, stored));
        Some(request.map(|()| body))
    }

    /// Tells the idempotency layer which replies will be attempted again: up to the last attempt
    /// those that may be transient, and always those that say that nothing was served.
    fn replay_attempt(&self, entry: &Entry, stored: &Stored) -> ReplayAttempt {
        let settings = &self.state.settings;
        let head = stored.request();
        let key =
            head.and_then(|head| replay_key(&*settings.dialect, &head, &stored.body, &entry.owner));
        let key = key.unwrap_or(*entry.id.as_bytes());
        let is_last = entry.attempts >= settings.attempts;
        let dialect = Arc::clone(&settings.dialect);
        let attempted_again: AttemptedAgain = Arc::new(move |reply| {
            let again = cannot_serve(reply).is_some()
                || (!is_last && matches!(judge_reply(&*dialect, reply), Judged::Transient(_)));
            again.then_some(key)
        });
        ReplayAttempt {
            owner: Some(entry.owner.as_str().into()),
            resumes: Some(key),
            attempted_again,
            not_served: |error| cannot_call(error).is_some(),
            hold: Some(entry.expires_at.since(entry.changed_at)),
            suspended: Suspended::default(),
        }
    }

    /// Leaves the records that a replay holds to the crash policy, since no further attempt comes.
    pub(super) async fn abandon(&self, entry: &Entry, stored: &Stored) {
        let Some(abandon) = &self.state.settings.abandon else {
            return;
        };
        let requests = (0..=entry.redrives).map_while(|n| self.request(entry, stored, n));
        for request in requests {
            abandon(request).await;
        }
    }
}

pub(super) fn judge<R>(response: &Response<R>) -> Verdict {
    Classify::<Request<()>, _>::classify(&Standard, &Rules::standard(), Ok(response))
}

/// The meaning of a reply for its replay.
pub(super) enum Judged {
    Success,
    /// Another execution is running; with the time to come back, if the reply says so.
    Processing(Option<Duration>),
    Transient(Cause),
    Final,
}

pub(super) fn judge_reply(dialect: &dyn ReplayFormat, reply: &Response<Bytes>) -> Judged {
    let verdict = match dialect.signal(reply) {
        None => judge(reply),
        Some(signal) => {
            let mut read = reply.clone();
            read.extensions_mut().insert(signal);
            judge(&read)
        }
    };
    match verdict.retry {
        _ if dialect.is_processing(reply) => Judged::Processing(verdict.repeat_after()),
        _ if verdict.is_success() => Judged::Success,
        Retryable::Never => Judged::Final,
        _ => Judged::Transient(verdict.cause),
    }
}
