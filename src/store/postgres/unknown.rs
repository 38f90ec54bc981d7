//! Unknown outcomes, for the people who resolve them.

use std::time::Duration;

use tokio_postgres::Row;

use super::{
    PostgresStore,
    row::{columns, micros, note_at, number},
};
use crate::{
    error::BoxError,
    store::{
        FencingToken, OutcomeCursor, OutcomePage, RecordKey, Resolution, Resolved, StoreError,
        StoreErrorKind, UnknownOutcome,
    },
};

impl PostgresStore {
    /// Goes on behind the mark and the key of a row.
    pub(super) async fn list_unknown(
        &self,
        after: Option<OutcomeCursor>,
        limit: u32,
    ) -> Result<OutcomePage, StoreError> {
        let after = after.map(|after| after.split::<8>()).transpose()?;
        let (watched, key) = match &after {
            Some((watched, key)) => (i64::from_be_bytes(*watched), key.as_bytes().as_slice()),
            None => (i64::MIN, &[][..]),
        };
        let list = &self.inner.statements.unknown_outcomes;
        let rows = self
            .rows(list, &[&watched, &key, &i64::from(limit)])
            .await?;
        let outcomes = rows.iter().map(unknown).collect::<Result<Vec<_>, _>>()?;
        let is_full = rows.len() == limit as usize;
        let last = rows.last().zip(outcomes.last()).filter(|_| is_full);
        let next = last.map(|(row, last)| {
            let watched: i64 = row.try_get(3).map_err(unreadable)?;
            Ok::<_, StoreError>(OutcomeCursor::join(&watched.to_be_bytes(), &last.key))
        });
        Ok(OutcomePage {
            next: next.transpose()?,
            outcomes,
        })
    }

    pub(super) async fn find_unknown(
        &self,
        key: RecordKey,
    ) -> Result<Option<UnknownOutcome>, StoreError> {
        let find = &self.inner.statements.unknown_outcome;
        let rows = self.rows(find, &[&key.as_bytes().as_slice()]).await?;
        rows.first().map(unknown).transpose()
    }

    pub(super) async fn resolve_unknown(
        &self,
        key: RecordKey,
        token: FencingToken,
        resolution: Resolution,
    ) -> Result<Resolved, StoreError> {
        let statements = &self.inner.statements;
        let (key, token) = (key.as_bytes().as_slice(), number(token));
        let made = match &resolution {
            Resolution::NoEffect => self.rows(&statements.set_free, &[&key, &token]).await?,
            Resolution::Executed(stored, retention) => {
                let (state, reply) = columns(stored);
                let retention = micros(*retention);
                let resolve = &statements.resolve;
                let made = self
                    .rows(resolve, &[&key, &token, &state, &reply, &retention])
                    .await?;
                match made.is_empty() {
                    false => made,
                    // A repeat, perhaps, whose first response was lost.
                    true => {
                        self.rows(&statements.resolved, &[&key, &token, &state, &reply])
                            .await?
                    }
                }
            }
        };
        Ok(match made.is_empty() {
            true => Resolved::Conflict,
            false => Resolved::Made,
        })
    }

    /// Takes the mark away from up to `limit` records that ended. Returns their number.
    pub(super) async fn unwatch(&self, limit: u32) -> Result<u32, StoreError> {
        let unwatch = &self.inner.statements.unwatch;
        let rows = self.rows(unwatch, &[&i64::from(limit)]).await?;
        Ok(u32::try_from(rows.len()).unwrap_or(u32::MAX))
    }
}

fn unreadable(error: impl Into<BoxError>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, "a record can't be read").because(error)
}

fn unknown(row: &Row) -> Result<UnknownOutcome, StoreError> {
    let read = || -> Result<UnknownOutcome, BoxError> {
        let span = |column| -> Result<Duration, BoxError> {
            let micros: i64 = row.try_get(column)?;
            Ok(Duration::from_micros(
                u64::try_from(micros).unwrap_or_default(),
            ))
        };
        Ok(UnknownOutcome {
            key: RecordKey::new(row.try_get::<_, &[u8]>(0)?.try_into()?),
            token: FencingToken::new(u64::try_from(row.try_get::<_, i64>(1)?)?),
            note: note_at(row, 2)?,
            unknown_for: span(4)?,
            expires_in: span(5)?,
        })
    };
    read().map_err(unreadable)
}
