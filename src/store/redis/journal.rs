//! The journal in Redis. The scripts of `journal/` do the work; how they keep it is said in
//! `common.lua`.

use std::time::Duration;

use redis::Value;

use super::{RedisStore, newer, script::StoreScript, unreadable};
use crate::store::{
    Ownership, StoreError,
    journal::{
        CommandResult, Counts, Enqueued, Entry, EntryCommand, EntryId, Journal, LeaseRequest,
        LeaseToken, NewEntry, Outcome, Query, Settlement, Status, columns,
    },
    remote,
};

mod answer;

use self::answer::{bytes, entries, entry, number, text};

impl RedisStore {
    /// What is between the braces decides which server of a cluster has it: one for all of it.
    fn journal_key(&self) -> String {
        format!("{{{}:journal}}", self.inner.prefix)
    }

    /// The number with which an answer begins, and the rest of it.
    async fn act(
        &self,
        transition: &StoreScript,
        arguments: &[&[u8]],
    ) -> Result<(i64, Vec<Value>), StoreError> {
        let key = self.journal_key();
        let answer = remote::with_retries(self.inner.timeout, |deadline| {
            self.attempt(transition, &key, arguments, deadline)
        });
        split(answer.await?)
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
        let written = Written::of(&new);
        let transition = &self.inner.journal.enqueue;
        let (number, mut rest) = self.act(transition, &written.arguments(&new)).await?;
        match (number, rest.pop()) {
            (0, Some(found)) => Ok(Enqueued::New(entry(found)?)),
            (1, Some(found)) => Ok(Enqueued::Existing(entry(found)?)),
            (2, None) => Ok(Enqueued::Mismatch),
            _ => Err(unreadable()),
        }
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

    async fn lease(&self, want: LeaseRequest) -> Result<Vec<Entry>, StoreError> {
        // So that it can be repeated like the others. A cluster's client would do so by itself.
        let ticket = EntryId::random().to_string();
        let arguments = [
            want.queue.as_bytes(),
            want.lane.as_bytes(),
            &digits(want.limit),
            &digits(want.through as u8),
            &span(want.lease),
            ticket.as_bytes(),
        ];
        let transition = &self.inner.journal.lease;
        entries(self.act(transition, &arguments).await?.1)
    }

    async fn extend(
        &self,
        id: EntryId,
        turn: LeaseToken,
        lease: Duration,
    ) -> Result<Ownership, StoreError> {
        let id = id.to_string();
        let arguments = [id.as_bytes(), &digits(turn.get()), &span(lease)];
        self.own(&self.inner.journal.extend, &arguments).await
    }

    async fn settle(
        &self,
        id: EntryId,
        turn: LeaseToken,
        settle: Settlement,
    ) -> Result<Ownership, StoreError> {
        let follows: Vec<_> = settle.outbox.iter().map(Written::of).collect();
        let (status, time) = match settle.outcome {
            Outcome::Completed(keep) => (Status::Completed, keep),
            Outcome::Failed(keep) => (Status::Failed, keep),
            Outcome::Expired(keep) => (Status::Expired, keep),
            Outcome::Retry(delay) | Outcome::Release(delay) => (Status::Queued, delay),
        };
        let released = matches!(settle.outcome, Outcome::Release(_));
        let (turn, status, time) = (digits(turn.get()), digits(status.number()), span(time));
        let note = note(&settle.note);
        let id = id.to_string();
        let mut arguments = Vec::new();
        for (written, new) in follows.iter().zip(&settle.outbox) {
            arguments.extend(written.arguments(new));
        }
        arguments.extend([id.as_bytes(), &turn, &status, flag(released)]);
        arguments.extend([&time, note.as_bytes(), flag(settle.result.is_some())]);
        arguments.push(settle.result.as_deref().unwrap_or_default());
        self.own(&self.inner.journal.settle, &arguments).await
    }

    async fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> Result<Option<CommandResult>, StoreError> {
        let (what, time, said): (&[u8], _, _) = match command {
            EntryCommand::Cancel(keep) => (b"0", keep, "cancelled"),
            EntryCommand::Trigger => (b"1", Duration::ZERO, ""),
            EntryCommand::Redrive(ttl) => (b"2", ttl, "redriven"),
        };
        let (id, note) = (id.to_string(), note(said));
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

    async fn find(&self, id: EntryId) -> Result<Option<Entry>, StoreError> {
        let transition = &self.inner.journal.find;
        let (_, mut rest) = self.act(transition, &[id.to_string().as_bytes()]).await?;
        rest.pop().map(entry).transpose()
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
        // A script looks at so many at a time, so that nobody has to wait for it.
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

/// What of a new entry is not bytes yet.
struct Written {
    id: Vec<u8>,
    priority: Vec<u8>,
    delay: Vec<u8>,
    ttl: Vec<u8>,
}

impl Written {
    fn of(new: &NewEntry) -> Self {
        Self {
            id: new.id.to_string().into_bytes(),
            priority: digits(new.priority as u8),
            delay: span(new.delay),
            ttl: span(new.ttl),
        }
    }

    fn arguments<'a>(&'a self, new: &'a NewEntry) -> [&'a [u8]; 11] {
        let (key, fingerprint): (&[u8], &[u8]) = match &new.dedup {
            Some(dedup) => (dedup.key.as_bytes(), dedup.fingerprint.as_bytes()),
            None => (b"", b""),
        };
        [
            &self.id,
            new.queue.as_bytes(),
            new.lane.as_bytes(),
            new.owner.as_bytes(),
            new.label.as_bytes(),
            key,
            fingerprint,
            &self.priority,
            &self.delay,
            &self.ttl,
            &new.payload,
        ]
    }
}

/// With its length in front, or nothing.
fn note(note: &str) -> String {
    if note.is_empty() {
        return String::new();
    }
    columns::framed(note)
}

fn flag(is: bool) -> &'static [u8] {
    if is { b"1" } else { b"0" }
}

fn digits(number: impl Into<u64>) -> Vec<u8> {
    number.into().to_string().into_bytes()
}

/// Below 2⁵³, up to where the server's numbers are exact: the time it is now is added there.
fn span(duration: Duration) -> Vec<u8> {
    const FOREVER: u128 = (1 << 53) - 1;
    duration.as_micros().min(FOREVER).to_string().into_bytes()
}
