//! The journal in Redis. The scripts of `journal/` make the transitions; `common.lua` documents the
//! keys.

use std::{borrow::Cow, collections::HashSet, time::Duration};

use redis::Value;

use super::{RedisStore, newer, script::StoreScript, unreadable};
use crate::store::{
    Fingerprint, Ownership, RecordKey, StoreError, StoreErrorKind,
    journal::{
        CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, Erased,
        EventKind, Journal, LeaseRequest, LeaseToken, NewEntry, Query, Settlement, SharedPayload,
        history,
    },
    remote,
};

mod answer;

use self::answer::{bytes, entries, entry, number, text};

/// The most entries that a script queues, and bytes of them: the server does nothing else meanwhile.
const SCRIPT: usize = 100;
const SCRIPT_BYTES: usize = 1 << 20;

impl RedisStore {
    /// Runs a script, and returns the number with which its answer begins and the rest.
    async fn act(
        &self,
        transition: &StoreScript,
        arguments: &[&[u8]],
    ) -> Result<(i64, Vec<Value>), StoreError> {
        if let Some(why) = self.inner.no_journal {
            return Err(StoreError::new(StoreErrorKind::Other, why));
        }
        let answer = remote::with_retries(self.inner.timeout, |deadline| {
            self.attempt_on(transition, &self.journal_key, arguments, deadline)
        });
        split(answer.await?)
    }

    async fn enqueued(
        &self,
        transition: &StoreScript,
        arguments: &[&[u8]],
    ) -> Result<Enqueued, StoreError> {
        enqueued(self.act(transition, arguments).await?)
    }

    /// Queues entries in one transition, which the server makes without a break.
    async fn enqueue_few(&self, entries: &[NewEntry]) -> Result<Vec<Enqueued>, StoreError> {
        let mut arguments = Vec::new();
        for (new, encoded) in entries.iter().zip(encode(entries)) {
            let bounds = new.bounds.map(|bounds| [bounds.in_all, bounds.per_owner]);
            let bounds = bounds.map_or_else(Default::default, |bounds| bounds.map(digits));
            arguments.extend(encoded.into_iter().chain(bounds.map(Cow::Owned)));
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| &**argument).collect();
        let (_, mut rest) = self.act(&self.inner.journal.enqueue, &arguments).await?;
        match rest.pop() {
            Some(Value::Array(answers)) if answers.len() == entries.len() => {
                let answers = answers.into_iter();
                answers.map(|answer| enqueued(split(answer)?)).collect()
            }
            _ => Err(unreadable()),
        }
    }

    async fn own(
        &self,
        transition: &StoreScript,
        arguments: &[&[u8]],
    ) -> Result<Ownership, StoreError> {
        match self.act(transition, arguments).await? {
            (0, _) => Ok(Ownership::Lost),
            (1, _) => Ok(Ownership::Held),
            _ => Err(unreadable()),
        }
    }
}

/// Returns how many of these entries a script queues, of which there is one at least. The end that the
/// first one shares does not count: each of the scripts that it would be split into carries it whole.
fn of_one_script(entries: &[NewEntry]) -> usize {
    let (mut bytes, mut ends) = (0, HashSet::new());
    let first = entries.first().and_then(|first| first.parts().1);
    ends.extend(first.map(|shared| *shared.id()));
    let fits = |new: &&NewEntry| {
        let (own, shared) = new.parts();
        let end = shared.filter(|shared| ends.insert(*shared.id()));
        bytes += own.len() + end.map_or(0, |end| end.bytes().len());
        bytes <= SCRIPT_BYTES
    };
    let fit = entries.iter().take(SCRIPT).take_while(fits).count();
    fit.max(1)
}

/// Reads what became of an entry.
fn enqueued((number, mut rest): (i64, Vec<Value>)) -> Result<Enqueued, StoreError> {
    match (number, rest.pop()) {
        (0, Some(found)) => Ok(Enqueued::New(entry(found)?)),
        (1, Some(found)) => Ok(Enqueued::Existing(entry(found)?)),
        (2, None) => Ok(Enqueued::Mismatch),
        (3, None) => Ok(Enqueued::Full),
        _ => Err(unreadable()),
    }
}

fn split(answer: Value) -> Result<(i64, Vec<Value>), StoreError> {
    let Value::Array(mut rest) = answer else {
        return Err(unreadable());
    };
    match rest.first() {
        Some(Value::Int(-1)) => Err(newer()),
        Some(&Value::Int(number)) => {
            rest.remove(0);
            Ok((number, rest))
        }
        _ => Err(unreadable()),
    }
}

impl Journal for RedisStore {
    async fn enqueue(&self, new: NewEntry) -> Result<Enqueued, StoreError> {
        let mut enqueued = self.enqueue_few(&[new]).await?;
        enqueued.pop().ok_or_else(unreadable)
    }

    async fn enqueue_many(&self, entries: Vec<NewEntry>) -> Result<Vec<Enqueued>, StoreError> {
        let mut enqueued = Vec::with_capacity(entries.len());
        let mut left = &entries[..];
        while !left.is_empty() {
            let (some, rest) = left.split_at(of_one_script(left));
            enqueued.extend(self.enqueue_few(some).await?);
            left = rest;
        }
        Ok(enqueued)
    }

    async fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let from = after.map_or("-".to_owned(), |after| format!("({after}"));
        let arguments = [queue.as_bytes(), from.as_bytes(), &digits(limit)];
        match &mut *self.act(&self.inner.journal.lanes, &arguments).await?.1 {
            [Value::Array(names)] => names.drain(..).map(text).collect(),
            _ => Err(unreadable()),
        }
    }

    async fn lease(&self, request: LeaseRequest) -> Result<Vec<Entry>, StoreError> {
        // Makes a lease repeatable like the other verbs: a cluster's client repeats by itself.
        let ticket = EntryId::random().to_string();
        let arguments = [
            request.queue.as_bytes(),
            request.lane.as_bytes(),
            &digits(request.limit),
            &digits(request.through as u8),
            &span(request.lease),
            ticket.as_bytes(),
            flag(request.in_order),
        ];
        let transition = &self.inner.journal.lease;
        entries(self.act(transition, &arguments).await?.1)
    }

    async fn extend(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        lease: Duration,
    ) -> Result<Ownership, StoreError> {
        let id = id.to_string();
        let arguments = [id.as_bytes(), &digits(lease_token.get()), &span(lease)];
        self.own(&self.inner.journal.extend, &arguments).await
    }

    async fn settle(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        settlement: Settlement,
    ) -> Result<Ownership, StoreError> {
        let outbox: Vec<_> = encode(&settlement.outbox).flatten().collect();
        let (status, time) = settlement.outcome.transition();
        let released = settlement.outcome.is_release();
        let (lease_token, status, time) = (
            digits(lease_token.get()),
            digits(status.number()),
            span(time),
        );
        let note = history::frame(EventKind::Settlement, &settlement.note).unwrap_or_default();
        let cause = settlement.stored_cause().unwrap_or_default();
        let id = id.to_string();
        let mut arguments: Vec<&[u8]> = outbox.iter().map(|argument| &**argument).collect();
        arguments.extend([id.as_bytes(), &lease_token, &status, flag(released)]);
        arguments.extend([&time, note.as_bytes(), cause.as_bytes()]);
        arguments.push(flag(settlement.result.is_some()));
        arguments.push(settlement.result.as_deref().unwrap_or_default());
        arguments.push(flag(settlement.keeps_place));
        let remainder = settlement.stored_remainder();
        arguments.push(flag(remainder.is_some()));
        arguments.push(remainder.map(|bytes| &**bytes).unwrap_or_default());
        self.own(&self.inner.journal.settle, &arguments).await
    }

    async fn bury(
        &self,
        entry: NewEntry,
        attempts: u32,
        settlement: Settlement,
    ) -> Result<Enqueued, StoreError> {
        let new: Vec<_> = [&entry].into_iter().chain(&settlement.outbox).collect();
        let new: Vec<_> = encode(new).flatten().collect();
        let (_, keep) = settlement.outcome.transition();
        let (keep, attempts) = (span(keep), digits(attempts));
        let note = history::frame(EventKind::Settlement, &settlement.note).unwrap_or_default();
        let cause = settlement.stored_cause().unwrap_or_default();
        let mut arguments: Vec<&[u8]> = new.iter().map(|argument| &**argument).collect();
        arguments.extend([&*keep, &attempts, note.as_bytes(), cause.as_bytes()]);
        arguments.push(flag(settlement.result.is_some()));
        arguments.push(settlement.result.as_deref().unwrap_or_default());
        self.enqueued(&self.inner.journal.bury, &arguments).await
    }

    async fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> Result<Option<CommandResult>, StoreError> {
        let what: &[u8] = match command {
            EntryCommand::Cancel(_) => b"0",
            EntryCommand::Trigger => b"1",
            EntryCommand::Redrive(_) => b"2",
            EntryCommand::Purge => b"3",
        };
        let (time, note) = command.time_and_note();
        let (id, note) = (id.to_string(), history::frame(EventKind::Command, note));
        let note = note.unwrap_or_default();
        let arguments = [id.as_bytes(), what, &span(time), note.as_bytes()];
        let (number, mut rest) = self.act(&self.inner.journal.command, &arguments).await?;
        match (number, rest.pop()) {
            (0, None) => Ok(None),
            (1 | 2, Some(found)) => Ok(Some(CommandResult {
                applied: number == 2,
                entry: entry(found)?,
            })),
            _ => Err(unreadable()),
        }
    }

    async fn erase(&self, queue: &str, owner: &str, limit: u32) -> Result<Erased, StoreError> {
        let mut erased = Erased::default();
        let mut after = digits(0_u64);
        // A script looks at a bounded number of entries, so that it does not block the server.
        loop {
            let most = digits(limit - erased.removed);
            let arguments = [queue.as_bytes(), owner.as_bytes(), &most, &after];
            let (_, counts) = self.act(&self.inner.journal.erase, &arguments).await?;
            let [removed, left, last @ ..] = &*counts else {
                return Err(unreadable());
            };
            let count = |count| number(count).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
            erased.removed += count(removed)?.min(limit - erased.removed);
            erased.left = count(left)?.min(limit);
            match last.first() {
                Some(last) => after = digits(number(last)?),
                None => return Ok(erased),
            }
        }
    }

    async fn find(&self, id: EntryId) -> Result<Option<Entry>, StoreError> {
        let transition = &self.inner.journal.find;
        let (_, mut rest) = self.act(transition, &[id.to_string().as_bytes()]).await?;
        rest.pop().map(entry).transpose()
    }

    async fn find_duplicate(
        &self,
        queue: &str,
        key: RecordKey,
    ) -> Result<Option<Duplicate>, StoreError> {
        let transition = &self.inner.journal.find_duplicate;
        let arguments = [queue.as_bytes(), key.as_bytes().as_slice()];
        let (_, mut rest) = self.act(transition, &arguments).await?;
        let Some(fingerprint) = rest.pop() else {
            return Ok(None);
        };
        let fingerprint: [u8; 32] = bytes(fingerprint)?
            .as_slice()
            .try_into()
            .map_err(|_| unreadable())?;
        let found = rest.pop().ok_or_else(unreadable)?;
        Ok(Some(Duplicate {
            entry: entry(found)?,
            fingerprint: Fingerprint::new(fingerprint),
        }))
    }

    async fn list(&self, query: Query) -> Result<Vec<Entry>, StoreError> {
        let owner = query.owner.as_deref().unwrap_or_default();
        let label = query.label.as_deref().unwrap_or_default();
        let status = query
            .status
            .map(|status| digits(status.number()))
            .unwrap_or_default();
        let mut after = digits(query.after);
        let mut found = Vec::new();
        // A script reads a bounded number of entries, so that it does not block the server.
        loop {
            let left = u64::from(query.limit).saturating_sub(found.len() as u64);
            let arguments = [
                query.queue.as_bytes(),
                flag(query.owner.is_some()),
                owner.as_bytes(),
                flag(query.label.is_some()),
                label.as_bytes(),
                &status,
                &after,
                &digits(left),
            ];
            let (more, mut rest) = self.act(&self.inner.journal.list, &arguments).await?;
            let last = if more == 1 { rest.pop() } else { None };
            found.extend(entries(rest)?);
            match last {
                Some(last) => after = digits(number(&last)?),
                None => return Ok(found),
            }
        }
    }

    async fn counts(&self, queue: &str) -> Result<Counts, StoreError> {
        let transition = &self.inner.journal.counts;
        let (_, rest) = self.act(transition, &[queue.as_bytes()]).await?;
        let [Value::Array(counted), oldest, now] = &*rest else {
            return Err(unreadable());
        };
        let mut counts = Counts::default();
        for (count, counted) in counts.by_status.iter_mut().zip(counted) {
            *count = number(counted)?;
        }
        let nothing = matches!(oldest, Value::BulkString(since) if since.is_empty());
        if !nothing {
            let age = number(now)?.saturating_sub(number(oldest)?);
            counts.oldest = Some(Duration::from_micros(age));
        }
        Ok(counts)
    }

    async fn position(&self, id: EntryId, limit: u32) -> Result<Option<u32>, StoreError> {
        let transition = &self.inner.journal.position;
        let (_, rest) = self.act(transition, &[id.to_string().as_bytes()]).await?;
        let before = rest.first().map(number).transpose()?;
        Ok(before.map(|before| u32::try_from(before).map_or(limit, |before| before.min(limit))))
    }

    async fn secret(&self) -> Result<[u8; 32], StoreError> {
        let drawn = rand::random::<[u8; 32]>();
        let transition = &self.inner.journal.secret;
        let (_, mut rest) = self.act(transition, &[&drawn]).await?;
        let secret = rest.pop().ok_or_else(unreadable).and_then(bytes)?;
        secret.try_into().map_err(|_| unreadable())
    }
}

/// Returns the arguments of new entries: the bytes of an end that several share with the first of them.
fn encode<'a>(
    new: impl IntoIterator<Item = &'a NewEntry>,
) -> impl Iterator<Item = [Cow<'a, [u8]>; 14]> {
    let mut ends = HashSet::new();
    new.into_iter().map(move |new| {
        let (own, shared) = new.parts();
        let first = shared.filter(|shared| ends.insert(*shared.id()));
        encode_one(new, own, shared, first)
    })
}

fn encode_one<'a>(
    new: &'a NewEntry,
    own: &'a [u8],
    shared: Option<&'a SharedPayload>,
    first: Option<&'a SharedPayload>,
) -> [Cow<'a, [u8]>; 14] {
    let (key, fingerprint): (&[u8], &[u8]) = match &new.dedup {
        Some(dedup) => (dedup.key.as_bytes(), dedup.fingerprint.as_bytes()),
        None => (b"", b""),
    };
    [
        new.id.to_string().into_bytes().into(),
        new.queue.as_bytes().into(),
        new.lane.as_bytes().into(),
        new.owner.as_bytes().into(),
        new.label.as_bytes().into(),
        key.into(),
        fingerprint.into(),
        digits(new.priority as u8).into(),
        span(new.delay).into(),
        span(new.ttl).into(),
        own.into(),
        new.reason.as_deref().unwrap_or_default().as_bytes().into(),
        shared
            .map(|shared| EntryId::new(*shared.id()).to_string().into_bytes())
            .unwrap_or_default()
            .into(),
        first
            .map(|shared| &**shared.bytes())
            .unwrap_or_default()
            .into(),
    ]
}

fn flag(is: bool) -> &'static [u8] {
    if is { b"1" } else { b"0" }
}

fn digits(number: impl Into<u64>) -> Vec<u8> {
    number.into().to_string().into_bytes()
}

/// Returns microseconds below 2⁵³, up to where the server's numbers are exact: it adds the time.
fn span(duration: Duration) -> Vec<u8> {
    const FOREVER: u128 = (1 << 53) - 1;
    duration.as_micros().min(FOREVER).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_bounded_in_entries_and_bytes() {
        let new = |bytes: usize| NewEntry::new("mails", vec![0; bytes]);
        let end = |bytes: usize| SharedPayload::new(vec![0; bytes]);
        let many = |new: &dyn Fn() -> NewEntry| (0..2 * SCRIPT).map(|_| new()).collect::<Vec<_>>();
        let (half, whole) = (SCRIPT_BYTES / 2, end(SCRIPT_BYTES));
        for (entries, expected) in [
            (many(&|| new(1)), SCRIPT),
            (many(&|| new(half)), 2),
            (many(&|| new(2 * SCRIPT_BYTES)), 1),
            (many(&|| new(1).ending_in(&whole)), SCRIPT),
            // The first end is free.
            (many(&|| new(0).ending_in(&end(half))), 3),
        ] {
            assert_eq!(of_one_script(&entries), expected);
        }
    }
}
