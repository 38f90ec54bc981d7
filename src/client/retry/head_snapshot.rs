//! A request's head, copied into one recycled buffer, and made into a request again only if there
//! is a retry. A call that succeeds pays for a few copies of bytes and allocates nothing.

use std::{cell::RefCell, pin::Pin, thread::LocalKey};

use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION},
    request::Parts,
    uri,
};
use tower_http::request_id::RequestId;

use crate::{
    call::{
        attempt_headers::AttemptHeaders,
        budget_mark::{BudgetMark, ExtensionsKind},
    },
    client::pool::{Pool, Pooled, Reuse},
    http::{grpc::GrpcMethod, headers::printable},
};

/// Marks a value as sensitive in its stored length.
const SENSITIVE: u64 = 1 << 31;

/// The copy of a head. It is written in place: moving it would cost more than writing it. Its box goes
/// back to a pool, without which a call costs two allocations more.
pub(super) struct HeadSnapshot {
    method: Method,
    version: Version,
    scheme: u32,
    authority: u32,
    path: u32,
    headers: u32,
    pub(super) attempt: AttemptHeaders,
    extensions: KeptExtensions,
    bytes: Vec<u8>,
}

opaque_debug! {
    /// Shows no headers, as credentials are among them.
    HeadSnapshot, self, method = self.method
}

/// The copy of a request's extensions. Cloning them all takes several allocations.
#[derive(Debug, Clone)]
enum KeptExtensions {
    /// None, or none but our own mark.
    Nothing,
    /// Tonic's, and no other.
    Method(GrpcMethod),
    All(Extensions),
}

impl KeptExtensions {
    fn of(extensions: &Extensions) -> Self {
        let marks = usize::from(extensions.get::<BudgetMark>().is_some());
        match extensions.get::<GrpcMethod>() {
            Some(method) if extensions.len() == marks + 1 => Self::Method(method.clone()),
            _ => Self::All(extensions.clone()),
        }
    }

    fn get<T: Clone + Send + Sync + 'static>(&self) -> Option<&T> {
        match self {
            Self::All(extensions) => extensions.get(),
            _ => None,
        }
    }
}

impl From<KeptExtensions> for Extensions {
    fn from(kept: KeptExtensions) -> Self {
        let mut extensions = Self::new();
        match kept {
            KeptExtensions::Nothing => {}
            KeptExtensions::Method(method) => {
                extensions.insert(method);
            }
            KeptExtensions::All(all) => extensions = all,
        }
        extensions
    }
}

thread_local! {
    static POOL: Pool<HeadSnapshot> = const { RefCell::new(Vec::new()) };
}

impl Reuse for HeadSnapshot {
    fn pool() -> &'static LocalKey<Pool<Self>> {
        &POOL
    }

    #[inline]
    fn clear(self: Pin<&mut Self>) {
        let kept = self.get_mut();
        if !matches!(kept.extensions, KeptExtensions::Nothing) || kept.bytes.len() > Self::LARGEST {
            kept.clean();
        }
    }
}

impl Default for HeadSnapshot {
    fn default() -> Self {
        Self {
            method: Method::GET,
            version: Version::HTTP_11,
            scheme: 0,
            authority: 0,
            path: 0,
            headers: 0,
            attempt: AttemptHeaders::default(),
            extensions: KeptExtensions::Nothing,
            bytes: vec![0; Self::SMALLEST],
        }
    }
}

impl HeadSnapshot {
    /// The most bytes of a head that is kept. Servers take far less.
    const LIMIT: usize = 64 * 1024;
    /// The most bytes that a pooled snapshot has, and the fewest.
    const LARGEST: usize = 16 * 1024;
    const SMALLEST: usize = 1024;

    /// Copies the head of a request, unless it is too large.
    #[inline]
    pub(super) fn of<B>(request: &Request<B>, kind: ExtensionsKind) -> Option<Pooled<Self>> {
        let mut copied = Pooled::<Self>::take();
        let parts = (request.method(), request.uri(), request.headers());
        copied.copy(parts, request.version())?;
        if kind == ExtensionsKind::Other {
            copied.extensions = KeptExtensions::of(request.extensions());
        }
        Some(copied)
    }

    /// Drops what is not worth pooling.
    #[cold]
    fn clean(&mut self) {
        self.extensions = KeptExtensions::Nothing;
        if self.bytes.len() > Self::LARGEST {
            self.bytes = vec![0; Self::SMALLEST];
        }
    }

    #[cold]
    fn grow(&mut self) {
        self.bytes.resize(self.bytes.len() * 4, 0);
    }

    fn copy(
        &mut self,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
        version: Version,
    ) -> Option<()> {
        let scheme = uri.scheme_str().unwrap_or_default();
        let authority = uri.authority().map_or("", uri::Authority::as_str);
        let path = uri.path_and_query().map_or("", uri::PathAndQuery::as_str);
        self.method.clone_from(method);
        self.version = version;
        self.scheme = scheme.len() as u32;
        self.authority = authority.len() as u32;
        self.path = path.len() as u32;
        self.headers = headers.len() as u32;
        loop {
            self.attempt = AttemptHeaders::default();
            let size = self.bytes.len();
            let room = self.bytes.get_mut(..Self::LIMIT.min(size))?;
            match write([scheme, authority, path], headers, room, &mut self.attempt) {
                Some(()) => return Some(()),
                None if size >= Self::LIMIT => return None,
                None => self.grow(),
            }
        }
    }

    /// Rebuilds the head.
    pub(super) fn rebuild(&self) -> Option<Parts> {
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = self.method.clone();
        parts.version = self.version;
        parts.uri = self.uri()?;
        parts.headers = self.header_map()?;
        parts.extensions = self.extensions.clone().into();
        Some(parts)
    }

    /// Returns whether a request is still the same operation, with all the credentials of this one,
    /// of the same schemes, and over a connection that is as safe.
    pub(super) fn is_as_trusted<B>(&self, request: &Request<B>, key_header: &HeaderName) -> bool {
        let headers = request.headers();
        let encrypted = self.bytes.get(..self.scheme as usize) == Some(b"https");
        if encrypted && request.uri().scheme_str() != Some("https") {
            return false;
        }
        let same = |name: &HeaderName, same: fn(&[u8], &[u8]) -> bool| {
            let after = headers.get(name).map(HeaderValue::as_bytes);
            self.get(name.as_str())
                .is_none_or(|before| after.is_some_and(|after| same(before, after)))
        };
        let sensitive = self.fields().filter(|(_, _, sensitive)| *sensitive);
        request.method() == self.method
            && sensitive
                .map(|(name, ..)| name)
                .all(|name| headers.keys().any(|key| key.as_str().as_bytes() == name))
            && same(key_header, |before, after| before == after)
            && same(&COOKIE, |before, after| {
                before.is_empty() || !after.is_empty()
            })
            && same(&AUTHORIZATION, as_strong)
            && same(&PROXY_AUTHORIZATION, as_strong)
    }

    /// Returns the id that ties this call to others in the logs.
    pub(super) fn correlation_id(&self) -> Option<&str> {
        let id = |name| self.get(name).and_then(printable);
        let extension = || {
            printable(
                self.extensions
                    .get::<RequestId>()?
                    .header_value()
                    .as_bytes(),
            )
        };
        id("x-request-id")
            .or_else(|| id("traceparent"))
            .or_else(extension)
    }

    /// Returns a header's value, if it is fit for a log.
    pub(super) fn text(&self, name: &HeaderName) -> Option<&str> {
        self.get(name.as_str()).and_then(printable)
    }

    fn uri(&self) -> Option<Uri> {
        let bytes = self.bytes.as_slice();
        let (scheme, bytes) = bytes.split_at_checked(self.scheme as usize)?;
        let (authority, bytes) = bytes.split_at_checked(self.authority as usize)?;
        let path = bytes.get(..self.path as usize)?;
        let mut parts = uri::Parts::default();
        if !scheme.is_empty() {
            parts.scheme = Some(scheme.try_into().ok()?);
        }
        if !authority.is_empty() {
            parts.authority = Some(authority.try_into().ok()?);
        }
        if !path.is_empty() {
            parts.path_and_query = Some(path.try_into().ok()?);
        }
        Uri::from_parts(parts).ok()
    }

    fn header_map(&self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::try_with_capacity(self.headers as usize).ok()?;
        for (name, value, sensitive) in self.fields() {
            let mut value = HeaderValue::from_bytes(value).ok()?;
            value.set_sensitive(sensitive);
            headers
                .try_append(HeaderName::from_bytes(name).ok()?, value)
                .ok()?;
        }
        (headers.len() == self.headers as usize).then_some(headers)
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.fields();
        fields
            .find(|(field, ..)| *field == name.as_bytes())
            .map(|(_, value, _)| value)
    }

    fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8], bool)> {
        let mut rest = self
            .bytes
            .get((self.scheme + self.authority + self.path) as usize..);
        let next = move || {
            let (lengths, after) = rest?.split_first_chunk()?;
            let lengths = u64::from_ne_bytes(*lengths);
            let sensitive = lengths & SENSITIVE != 0;
            let value = usize::try_from(lengths & (SENSITIVE - 1)).ok()?;
            let (name, after) = after.split_at_checked(usize::try_from(lengths >> 32).ok()?)?;
            let (value, after) = after.split_at_checked(value)?;
            rest = Some(after);
            Some((name, value, sensitive))
        };
        std::iter::from_fn(next).take(self.headers as usize)
    }
}

/// Packs the lengths of a header's name and value, and whether it is sensitive, into one word. No
/// policy allows a head so long that they would not fit.
fn lengths(name: &str, value: &[u8], sensitive: bool) -> u64 {
    (name.len() as u64) << 32 | u64::from(sensitive) << 31 | value.len() as u64
}

/// Returns whether credentials are of the same scheme, and not empty where the others were not.
fn as_strong(before: &[u8], after: &[u8]) -> bool {
    fn parts(credentials: &[u8]) -> (&[u8], bool) {
        let mut parts = credentials.splitn(2, |byte| *byte == b' ');
        (
            parts.next().unwrap_or_default(),
            parts
                .next()
                .is_some_and(|rest| !rest.trim_ascii().is_empty()),
        )
    }
    let ((scheme, full), (after, after_full)) = (parts(before), parts(after));
    // A token without a scheme is renewed by another one without.
    let bare = !full && !after_full && !scheme.is_empty() && !after.is_empty();
    bare || (scheme.eq_ignore_ascii_case(after) && full == after_full)
}

/// Writes a head and reads its headers about attempts, unless there is not enough room.
fn write(
    uri: [&str; 3],
    headers: &HeaderMap,
    mut room: &mut [u8],
    attempt: &mut AttemptHeaders,
) -> Option<()> {
    for piece in uri {
        let (to, rest) = room.split_at_mut_checked(piece.len())?;
        to.copy_from_slice(piece.as_bytes());
        room = rest;
    }
    for (name, value) in headers {
        let (name, sensitive) = (name.as_str(), value.is_sensitive());
        let value = value.as_bytes();
        // Room for all of it is checked once.
        let (to, rest) = room.split_at_mut_checked(8 + name.len() + value.len())?;
        let (to, pieces) = to.split_first_chunk_mut()?;
        *to = lengths(name, value, sensitive).to_ne_bytes();
        let (to_name, to_value) = pieces.split_at_mut_checked(name.len())?;
        put(to_name, name.as_bytes())?;
        put(to_value, value)?;
        room = rest;
        attempt.note(name, value);
    }
    Some(())
}

/// Writes a piece into room of its size.
///
/// Pieces are short. Moves of fixed size, the last of which overlaps the one before, spare a call of
/// `memcpy`, which costs 4 to 6 % of the instructions that a retry layer adds (`peers client`).
#[inline(always)]
fn put(to: &mut [u8], piece: &[u8]) -> Option<()> {
    match piece.len() {
        8..=16 => ends::<8>(to, piece)?,
        17..=32 => ends::<16>(to, piece)?,
        33..=64 => ends::<32>(to, piece)?,
        4..=7 => ends::<4>(to, piece)?,
        _ => to.copy_from_slice(piece),
    }
    Some(())
}

#[inline(always)]
fn ends<const N: usize>(to: &mut [u8], from: &[u8]) -> Option<()> {
    *to.first_chunk_mut::<N>()? = *from.first_chunk()?;
    *to.last_chunk_mut::<N>()? = *from.last_chunk()?;
    Some(())
}
