use std::io;

use deadpool_postgres::{HookError, PoolError, TimeoutType};
use tokio_postgres::{Error, error::SqlState};

use crate::{
    error::find,
    store::{StoreError, StoreErrorKind},
};

/// Maps an error from before a statement was sent.
pub(super) fn of_pool(error: PoolError) -> StoreError {
    match error {
        PoolError::Timeout(TimeoutType::Wait) => StoreError::new(
            StoreErrorKind::PoolExhausted,
            "no connection became free in time",
        ),
        PoolError::Timeout(_) => {
            StoreError::new(StoreErrorKind::Timeout, "could not connect in time")
        }
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            of_connect(error)
        }
        other => StoreError::new(StoreErrorKind::Other, "could not connect").because(other),
    }
}

fn of_connect(error: Error) -> StoreError {
    let kind = match error.as_db_error() {
        Some(error) => kind_of(error.code()),
        None => StoreErrorKind::Unavailable,
    };
    StoreError::new(kind, "could not connect").because(error)
}

/// Maps an error of a statement that may have been sent.
pub(super) fn of_statement(error: Error) -> StoreError {
    let Some(code) = error.code().cloned() else {
        let lost = error.is_closed() || find::<io::Error>(&error).is_some();
        return if lost {
            StoreError::new(StoreErrorKind::Unavailable, "the connection was lost")
                .because(error)
                .in_doubt()
        } else {
            StoreError::new(StoreErrorKind::Corrupt, "a response could not be read")
                .because(error)
                .in_doubt()
        };
    };
    let kind = kind_of(&code);
    let foreign = [
        SqlState::INVALID_SQL_STATEMENT_NAME,
        SqlState::DUPLICATE_PSTATEMENT,
    ];
    let message = match foreign.contains(&code) {
        true => {
            "the server's session is another one: a pooler in transaction mode needs the builder's \
             transaction_pooling"
        }
        false => "the server refused a statement",
    };
    let failed = StoreError::new(kind, message).because(error);
    // A server that is stopped while it waits for a standby has committed already.
    if kind == StoreErrorKind::Unavailable {
        failed.in_doubt()
    } else {
        failed
    }
}

/// Tells trouble of the server from trouble with the statement.
fn kind_of(code: &SqlState) -> StoreErrorKind {
    match code {
        code if *code == SqlState::QUERY_CANCELED || *code == SqlState::LOCK_NOT_AVAILABLE => {
            StoreErrorKind::Timeout
        }
        // Nothing was made, and the same is made once the other transaction has ended.
        code if *code == SqlState::T_R_DEADLOCK_DETECTED => StoreErrorKind::Unavailable,
        code if *code == SqlState::TOO_MANY_CONNECTIONS => StoreErrorKind::PoolExhausted,
        code if *code == SqlState::DISK_FULL => StoreErrorKind::Full,
        // Connection trouble, operator intervention, and a standby that can only be read.
        code if code.code().starts_with("08")
            || code.code().starts_with("57P")
            || *code == SqlState::READ_ONLY_SQL_TRANSACTION =>
        {
            StoreErrorKind::Unavailable
        }
        _ => StoreErrorKind::Other,
    }
}
