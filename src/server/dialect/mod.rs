//! The wire formats of server layers, and the owners of keys and entries.
//!
//! An [`IdempotencyLayer`](super::idempotency::IdempotencyLayer) and a `ReplayLayer` take the same
//! two values: a [`Dialect`], which reads the operation and the idempotency key of a request and
//! writes the answers, and a [`Scope`], which tells whose request it is. Give both layers the same
//! ones, and they can't disagree.
//!
//! ```
//! use http::HeaderName;
//! use tower_reprise::{
//!     IdempotencyLayer,
//!     server::dialect::{HttpDialect, Scope},
//!     store::{CrashPolicy, MemoryStore},
//! };
//!
//! #[derive(Clone)]
//! struct Principal { id: String }
//!
//! # fn main() -> Result<(), tower_reprise::error::ConfigError> {
//! let scope = Scope::new(|req| req.extensions().get::<Principal>().map(|p| p.id.clone()));
//! let dialect = HttpDialect::new().header(HeaderName::from_static("x-idempotency-key"));
//! let store = MemoryStore::new();
//! # #[cfg(feature = "delivery")]
//! let replay = tower_reprise::delivery::replay::Replay::builder(store.clone(), scope.clone())
//!     .dialect(dialect.clone())
//!     .build()?;
//! let idempotency = IdempotencyLayer::builder(store)
//!     .scope(scope)
//!     .with_dialect(dialect)
//!     .crash_policy(CrashPolicy::Reexecute)
//!     .build()?;
//! # Ok(())
//! # }
//! ```

mod http;
mod key;
mod scope;

use std::{fmt, time::Duration};

use ::http::{HeaderName, Request, Response, response};
use bytes::Bytes;

pub use self::{
    http::{HttpDialect, Requirement},
    scope::Scope,
};
use crate::{
    call::Effect,
    error::ConfigError,
    http::{digest::Digest, problem::Problem, reply::Reply},
    store::{Fingerprint, Note, RecordKey},
};

/// The wire format of a server layer: [`HttpDialect`] or, with the `forrst` feature,
/// `forrst::Forrst`. It is sealed.
#[allow(private_bounds, reason = "it is sealed")]
pub trait Dialect: WireFormat {}

impl<D: WireFormat> Dialect for D {}

/// The reading and writing of a dialect, in the order in which a layer asks for it.
pub(crate) trait WireFormat: fmt::Debug + Send + Sync + 'static {
    /// The part of a request that its answers need. A copy goes with its execution.
    type Asked: Clone + Send + Sync + 'static
    where
        Self: Sized;

    /// Checks the settings.
    fn check(&self) -> Result<(), ConfigError>;

    /// Returns the header that carries a key, in requests that carry it in a header.
    #[cfg_attr(not(feature = "delivery"), allow(dead_code))]
    fn key_header(&self) -> HeaderName;

    /// Identifies the operation of a request among those of its owner, whose digest is given;
    /// `None` if it has no key.
    #[cfg_attr(not(feature = "delivery"), allow(dead_code))]
    fn identify(
        &self,
        head: &Request<()>,
        body: &[u8],
        max_key_len: usize,
        owner: Digest,
    ) -> Result<Option<OperationId>, Problem>;

    /// Admits a request by its head.
    fn admit(&self, context: Context<'_>, head: &Request<()>) -> Admission<Self::Asked>
    where
        Self: Sized;

    /// Reads the operation of an admitted request; `None` if it is to be passed on after all.
    fn operation(
        &self,
        context: Context<'_>,
        head: &Request<()>,
        asked: &mut Self::Asked,
        body: &Bytes,
    ) -> Result<Option<Operation>, Problem>
    where
        Self: Sized;

    /// Returns the idempotency key, for logs.
    fn printable_key<'a>(
        &self,
        head: &'a Request<()>,
        asked: Option<&'a Self::Asked>,
    ) -> Option<&'a str>
    where
        Self: Sized;

    /// Answers a request for which no handler's reply is sent.
    fn reject(asked: &Self::Asked, rejection: &Rejection) -> Response<Bytes>
    where
        Self: Sized;

    /// Rewrites the whole reply of a handler, before it is stored and sent.
    fn rewrite(
        &self,
        _context: Context<'_>,
        _asked: &Self::Asked,
        _retention: Duration,
        _head: &response::Parts,
        _body: &Bytes,
    ) -> Rewrite
    where
        Self: Sized,
    {
        Rewrite::Unchanged
    }

    /// Rewrites a stored reply, before it is sent once more.
    fn rewrite_replayed(&self, _asked: &Self::Asked, _note: &Note, _reply: &mut Reply)
    where
        Self: Sized,
    {
    }
}

/// A layer's decision about a request, by its head.
pub(crate) enum Admission<A> {
    /// The request is passed on untouched.
    Passed,
    /// The request has a key, or may have one in its body.
    Admitted(A),
    Rejected(Response<Bytes>),
}

/// The settings of a layer that every dialect needs.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) max_key_len: usize,
    pub(crate) retention: Duration,
    /// The strongest effect of a failure that counts as none.
    #[cfg_attr(not(feature = "forrst"), allow(dead_code))]
    pub(crate) no_effect: Effect,
    pub(crate) scope: &'a Scope,
    pub(crate) namespace: &'a str,
}

impl Context<'_> {
    /// Returns the digest of a request's owner and of the namespace: the beginning of its record
    /// key.
    pub(crate) fn scope_digest(&self, head: &Request<()>) -> Result<Digest, Problem> {
        let mut digest = self.scope.digest(head).ok_or(Problem::ANONYMOUS)?;
        digest.part(self.namespace);
        Ok(digest)
    }
}

/// The identity of an operation: its owner, function and key, and a digest of what was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationId {
    pub(crate) key: RecordKey,
    pub(crate) fingerprint: Fingerprint,
}

/// An operation that is executed once.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) id: OperationId,
    /// A note for requests that find the key taken.
    pub(crate) note: Note,
    /// The time for which its record is kept.
    pub(crate) retention: Duration,
}

/// The reason why no handler's reply is sent, and what is known of the request that holds the key.
#[derive(Debug)]
pub(crate) struct Rejection {
    pub(crate) problem: Problem,
    #[cfg_attr(not(feature = "forrst"), allow(dead_code))]
    pub(crate) note: Note,
    /// The fingerprint of that request, if it differs.
    #[cfg_attr(not(feature = "forrst"), allow(dead_code))]
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl From<Problem> for Rejection {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            note: Note::NONE,
            fingerprint: None,
        }
    }
}

/// The result of rewriting a handler's reply.
pub(crate) enum Rewrite {
    /// The reply is stored and sent as it is.
    Unchanged,
    /// The reply says that nothing was done: a repeat is executed.
    #[cfg_attr(not(feature = "forrst"), allow(dead_code))]
    NoEffect,
    #[cfg_attr(not(feature = "forrst"), allow(dead_code))]
    Rewritten { stored: Bytes, sent: Bytes },
}
