use std::{error::Error, fmt};

use crate::{delivery::guard::Forbidden, error::ConfigError, store::StoreError};

/// The reason why [`Webhooks::send`](super::Webhooks::send) queued nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendError {
    /// The guard refuses the target.
    Target(Forbidden),
    /// Another part of the webhook is not allowed.
    Invalid(ConfigError),
    /// The journal failed.
    Journal(StoreError),
}

impl SendError {
    fn inner(&self) -> &(dyn Error + 'static) {
        match self {
            Self::Target(error) => error,
            Self::Invalid(error) => error,
            Self::Journal(error) => error,
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "webhook not sent: {}", self.inner())
    }
}

impl Error for SendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.inner())
    }
}
