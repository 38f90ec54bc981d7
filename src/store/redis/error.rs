use std::error::Error;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::{StoreError, StoreErrorKind};

pub(super) fn of_address(error: RedisError) -> StoreError {
    StoreError::new(StoreErrorKind::Other, "redis.url can't be read").because(error)
}

/// Maps an error from before a command was sent. An attempt to connect has a limit of its own: the verb
/// that waits for it may have time for another one.
pub(super) fn of_connect(error: RedisError) -> StoreError {
    let kind = match error.kind() {
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => StoreErrorKind::Unavailable,
        _ => kind_of(&error),
    };
    StoreError::new(kind, "could not connect").because(error)
}

/// Maps an error of a command that may have been sent.
pub(super) fn of_command(error: RedisError) -> StoreError {
    if error.is_timeout() {
        return StoreError::new(StoreErrorKind::Timeout, "no response in time")
            .because(error)
            .in_doubt();
    }
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::ClusterConnectionNotFound => {
            StoreError::new(StoreErrorKind::Unavailable, "the connection was lost")
                .because(error)
                .in_doubt()
        }
        _ => StoreError::new(kind_of(&error), "the server refused a command").because(error),
    }
}

pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether the connection is of no more use: broken, or to a server that became a replica.
pub(super) fn is_of_connection(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::Server(ServerErrorKind::ReadOnly)
    )
}

/// Whether the user may not send the command, or the server has none of that name.
pub(super) fn is_not_permitted(error: &StoreError) -> bool {
    let cause = error.source();
    let cause = cause.and_then(<dyn Error>::downcast_ref::<RedisError>);
    cause.is_some_and(|cause| {
        cause.kind() == ErrorKind::Server(ServerErrorKind::ResponseError)
            || cause.code() == Some("NOPERM")
    })
}

/// Tells trouble of the server from trouble with the command.
fn kind_of(error: &RedisError) -> StoreErrorKind {
    match error.kind() {
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::TryAgain,
        ) => StoreErrorKind::Unavailable,
        _ => match error.code() {
            // Its disk failed, its replicas are lost, or a script blocks it.
            Some("MISCONF" | "NOREPLICAS" | "BUSY") => StoreErrorKind::Unavailable,
            Some("OOM") => StoreErrorKind::Full,
            // Older servers wrap it when it happens in a script.
            _ if says(error, "-OOM ") => StoreErrorKind::Full,
            // The cluster is moving the journal's slot.
            _ if says(error, "non local key in a cluster node") => StoreErrorKind::Unavailable,
            _ => StoreErrorKind::Other,
        },
    }
}

fn says(error: &RedisError, part: &str) -> bool {
    error.detail().is_some_and(|text| text.contains(part))
}
