use std::sync::Arc;

use http::Request;

use crate::{call::ReplayAttempt, http::digest::Digest};

/// Calls back with the owner of a request, if it is known.
type Visit = dyn Fn(&Request<()>, &mut dyn FnMut(Option<&[u8]>)) + Send + Sync;

/// The owner of idempotency keys and replay entries: a tenant or a principal.
///
/// Two owners with the same key have nothing to do with each other, so a scope must tell callers
/// apart that may not see each other's replies. It is read from what an authentication layer
/// outside of this one put on the request. A request that is replayed is its owner's, whatever is
/// on it.
///
/// Requests of unknown callers are rejected, unless there is one scope for
/// [all of them](Self::or_anonymous).
///
/// ```
/// use tower_reprise::server::dialect::Scope;
///
/// #[derive(Clone)]
/// struct Principal { id: String }
///
/// let scope = Scope::new(|req| req.extensions().get::<Principal>().map(|p| p.id.clone()));
/// let open = Scope::anonymous("everybody");
/// ```
#[derive(Clone)]
pub struct Scope {
    visit: Arc<Visit>,
    anonymous: Option<Arc<str>>,
}

impl Scope {
    /// Reads the owner from the head of a request; `None` is an unknown caller, and so is an empty
    /// name.
    pub fn new<F, T>(owner: F) -> Self
    where
        F: Fn(&Request<()>) -> Option<T> + Send + Sync + 'static,
        T: AsRef<[u8]>,
    {
        Self {
            visit: Arc::new(move |head, found| {
                match head.extensions().get::<ReplayAttempt>() {
                    // Its credentials are gone, and its owner was known when it came.
                    Some(ReplayAttempt {
                        owner: Some(owner), ..
                    }) => found(Some(owner.as_bytes())),
                    _ => found(owner(head).as_ref().map(T::as_ref)),
                }
            }),
            anonymous: None,
        }
    }

    /// One scope for everybody, where callers are not told apart.
    pub fn anonymous(name: impl Into<Arc<str>>) -> Self {
        Self::new(|_| None::<&str>).or_anonymous(name)
    }

    /// Puts all unknown callers into one scope, which no known caller shares. They can get each
    /// other's replies, if they guess each other's keys.
    ///
    /// Replay entries can be listed by their owner, so requests of unknown callers, or of those
    /// whose name is not UTF-8, are never journaled.
    #[must_use]
    pub fn or_anonymous(mut self, name: impl Into<Arc<str>>) -> Self {
        self.anonymous = Some(name.into());
        self
    }

    /// Returns a digest of the scope that a request is in.
    pub(super) fn digest(&self, head: &Request<()>) -> Option<Digest> {
        let mut digest = None;
        (self.visit)(head, &mut |owner| {
            let scope = named(owner).map(|owner| ("known", owner));
            let anonymous = || {
                let name = self.anonymous.as_deref().map(str::as_bytes);
                named(name).map(|name| ("anonymous", name))
            };
            digest = scope.or_else(anonymous).map(|(kind, name)| {
                let mut digest = Digest::new(kind);
                digest.part(name);
                digest
            });
        });
        digest
    }

    /// Returns the known owner of a request, if its name is text: entries are read by people.
    #[cfg(feature = "delivery")]
    pub(crate) fn owner(&self, head: &Request<()>) -> Option<String> {
        let mut found = None;
        (self.visit)(head, &mut |owner| {
            found = named(owner).and_then(|owner| str::from_utf8(owner).ok().map(str::to_owned));
        });
        found
    }
}

/// Returns a name that is one: all callers without would share an empty one.
fn named(name: Option<&[u8]>) -> Option<&[u8]> {
    name.filter(|name| !name.is_empty())
}

opaque_debug! { Scope, self, anonymous = self.anonymous }

#[cfg(test)]
mod tests {
    use super::*;

    /// I-19: the bytes of record keys are those of earlier versions.
    #[test]
    fn i_19_a_scope_is_a_digest_of_its_kind_and_name() {
        let head = Request::new(());
        let expected = |kind| {
            let mut digest = Digest::new(kind);
            digest.part("ada");
            digest.finish()
        };
        let known = Scope::new(|_| Some("ada")).or_anonymous("x");
        assert_eq!(known.digest(&head).unwrap().finish(), expected("known"));
        let nobody = Scope::anonymous("ada").digest(&head).unwrap();
        assert_eq!(nobody.finish(), expected("anonymous"));
        assert!(Scope::new(|_| None::<String>).digest(&head).is_none());
        assert!(Scope::anonymous("").digest(&head).is_none());
    }
}
