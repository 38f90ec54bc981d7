use std::{fmt, sync::Arc};

use rusqlite::ErrorCode;

use crate::store::{StoreError, StoreErrorKind};

/// The error of a batch or of one job. Unlike a [`StoreError`] it can be cloned: every job of a
/// batch gets it.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    kind: StoreErrorKind,
    message: Arc<str>,
    in_doubt: bool,
    source: Option<Arc<rusqlite::Error>>,
}

impl Failure {
    pub(super) fn new(kind: StoreErrorKind, message: impl fmt::Display) -> Self {
        Self {
            kind,
            message: message.to_string().into(),
            in_doubt: false,
            source: None,
        }
    }

    pub(super) fn in_doubt(mut self) -> Self {
        self.in_doubt = true;
        self
    }

    pub(super) fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Puts what was tried in front of the message.
    pub(super) fn while_trying(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message).into();
        self
    }

    pub(super) fn to_error(&self) -> StoreError {
        let mut error = StoreError::new(self.kind, self.message.to_string());
        if self.in_doubt {
            error = error.in_doubt();
        }
        match &self.source {
            Some(source) => error.because(Arc::clone(source)),
            None => error,
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let mut failure = Self::new(kind(&error), &error);
        failure.source = Some(Arc::new(error));
        failure
    }
}

/// Whether another process, or another handle, has the lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

fn kind(error: &rusqlite::Error) -> StoreErrorKind {
    use rusqlite::Error;

    let Some(code) = error.sqlite_error_code() else {
        return match error {
            // A column holds a value that this crate never writes.
            Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..) => StoreErrorKind::Corrupt,
            _ => StoreErrorKind::Other,
        };
    };
    match code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreErrorKind::Timeout,
        ErrorCode::DiskFull => StoreErrorKind::Full,
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreErrorKind::Corrupt,
        ErrorCode::CannotOpen
        | ErrorCode::ReadOnly
        | ErrorCode::PermissionDenied
        | ErrorCode::SystemIoFailure
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::OutOfMemory => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    }
}
