//! How requests are read and replies are written: the seam between an engine that knows nothing
//! but operations, and what it is asked in.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{Request, Response, response};

use super::{
    engine::Operation,
    settings::{Scope, Settings},
};
use crate::http::{digest::Digest, reply::Reply};
use crate::{
    error::ConfigError,
    http::problem::Problem,
    store::{Fingerprint, Note},
};

/// What an [`IdempotencyLayer`](super::IdempotencyLayer) is spoken to in: plain [`Http`](super::Http),
/// or, with the `forrst` feature, `forrst::Forrst`. There are no others.
#[allow(private_bounds, reason = "it is sealed")]
pub trait Dialect: Speak {}

impl<D: Speak> Dialect for D {}

/// What a dialect has to say, in the order in which it is asked.
pub(crate) trait Speak: fmt::Debug + Send + Sync + 'static {
    /// What is remembered of a request until it is answered. One copy goes with its execution.
    type Asked: Clone + Send + Sync + 'static;

    /// Whether it is set up as it may be.
    fn check(&self) -> Result<(), ConfigError>;

    /// Meets a request by its head.
    fn meet(&self, common: Common<'_>, head: &Request<()>) -> Met<Self::Asked>;

    /// Reads what it asks for; `None` if it is to be passed on after all.
    fn read(
        &self,
        common: Common<'_>,
        head: &Request<()>,
        asked: &mut Self::Asked,
        body: &Bytes,
    ) -> Result<Option<Operation>, Problem>;

    /// The idempotency key, for logs.
    fn key<'a>(&self, head: &'a Request<()>, asked: Option<&'a Self::Asked>) -> Option<&'a str>;

    /// Says why there is no reply of a handler.
    fn refuse(asked: &Self::Asked, refusal: &Refusal) -> Response<Bytes>;

    /// Looks at the whole reply of a handler, before it is kept and sent.
    fn processed(
        &self,
        common: Common<'_>,
        asked: &Self::Asked,
        retention: Duration,
        head: &response::Parts,
        body: &Bytes,
    ) -> Made;

    /// Looks at a reply that was kept, before it is sent once more.
    fn replayed(&self, asked: &Self::Asked, note: &Note, reply: &mut Reply);
}

/// What a request is to a layer, by its head.
pub(crate) enum Met<A> {
    /// None of its business.
    Other,
    /// One that has a key, or may have one.
    Asked(A),
    /// One that is refused.
    Refused(Response<Bytes>),
}

/// What is the same in every dialect.
#[derive(Clone, Copy)]
pub(crate) struct Common<'a> {
    pub(crate) settings: &'a Settings,
    pub(super) scope: &'a Scope,
}

impl Common<'_> {
    /// Whose request it is: the beginning of its record's name.
    pub(crate) fn whose(&self, head: &Request<()>) -> Result<Digest, Problem> {
        let Settings {
            anonymous,
            namespace,
            ..
        } = self.settings;
        // Callers that are known and the one scope of those who are not never share a key.
        let mut digest = Digest::new("known");
        if !(self.scope)(head, &mut digest) {
            let Some(anonymous) = anonymous else {
                return Err(Problem::ANONYMOUS);
            };
            digest = Digest::new("anonymous");
            digest.part(anonymous.as_bytes());
        }
        digest.part(namespace.as_bytes());
        Ok(digest)
    }
}

/// Why there is no reply of a handler, and what is known of the request that has the key.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) problem: Problem,
    #[cfg_attr(not(feature = "forrst"), allow(dead_code))]
    pub(crate) note: Note,
    /// What that one asked for, if it is something else.
    #[cfg_attr(not(feature = "forrst"), allow(dead_code))]
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            note: Note::NONE,
            fingerprint: None,
        }
    }
}

/// What is made of the whole reply of a handler.
pub(crate) enum Made {
    /// It is kept and sent as it is.
    AsItIs,
    /// It says that nothing was done, so that a repeat is executed.
    #[cfg_attr(not(feature = "forrst"), allow(dead_code))]
    NoEffect,
    /// Another body is kept, and another one is sent.
    #[cfg_attr(not(feature = "forrst"), allow(dead_code))]
    Dressed { kept: Bytes, sent: Bytes },
}
