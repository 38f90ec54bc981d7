use std::{
    collections::VecDeque,
    error, fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, Request, header::AUTHORIZATION};
use tokio::{sync::Mutex, time::Instant};

use super::PrepareAttempt;
use crate::call::Attempt;
use crate::error::BoxError;

/// Tokens that have been replaced and that a request may still carry, since each of its attempts
/// begins as the first did.
const REMEMBERED: usize = 16;

/// A bearer token, and the function that gets another.
///
/// As a hook of [`with_refresh`](crate::client::retry::RetryLayer::with_refresh) it keeps the token of every retry
/// fresh: it gets a new one if the one that was sent has expired, or if the dependency refused it
/// with a 401 or UNAUTHENTICATED. However many calls find out at the same time, one of them gets
/// the new token and the others wait for it; if it can't, they all fail with it. A request that
/// carries no bearer token, or one that is not from here, keeps what it has.
///
/// ```
/// use std::time::Duration;
/// use tower_reprise::{Dependencies, Policy, RetryLayer, client::retry::{BearerToken, Token}};
///
/// let token = BearerToken::new(|| async {
///     // ask the authorization server
///     Ok(Token::new("eyJhbGciOi")?.expires_in(Duration::from_secs(300)))
/// });
/// let deps = Dependencies::new(Policy::http().build()?);
/// let layer = RetryLayer::new(deps).with_refresh(token.clone());
///
/// // On the first attempt it is up to the caller to send it:
/// // request.headers_mut().insert(AUTHORIZATION, token.current().await?);
/// # drop(layer);
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
///
/// # Clone
///
/// Clones share the token.
pub struct BearerToken<F> {
    shared: Arc<Shared<F>>,
}

struct Shared<F> {
    get: F,
    /// The number of requests for a token that have ended.
    asked: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// Earlier tokens, the latest last, which requests under way may carry.
    previous: VecDeque<HeaderValue>,
    /// The last error, if the last request failed.
    failed: Option<Arc<str>>,
}

/// A token, as the authorization server gave it.
#[derive(Clone)]
pub struct Token {
    header: HeaderValue,
    until: Option<Instant>,
}

impl Token {
    /// A token that is good until the dependency refuses it.
    ///
    /// # Errors
    ///
    /// It has characters that a header can't.
    pub fn new(token: &str) -> Result<Self, BoxError> {
        let mut header = HeaderValue::try_from(format!("Bearer {token}"))?;
        header.set_sensitive(true);
        Ok(Self {
            header,
            until: None,
        })
    }

    /// The same token, good for this long.
    #[must_use]
    pub fn expires_in(mut self, life: Duration) -> Self {
        self.until = Instant::now().checked_add(life);
        self
    }

    fn is_good(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

opaque_debug! { Token }

impl<F, Fut> BearerToken<F>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Token, BoxError>>,
{
    /// A token that is got by this function, for the first time when it is first needed.
    pub fn new(get: F) -> Self {
        Self {
            shared: Arc::new(Shared {
                get,
                asked: AtomicU64::new(0),
                state: Mutex::default(),
            }),
        }
    }

    /// Returns the value for an `Authorization` header, with a token that has not expired.
    ///
    /// # Errors
    ///
    /// No token could be got.
    pub async fn current(&self) -> Result<HeaderValue, BoxError> {
        let before = self.shared.asked.load(Ordering::Acquire);
        let mut state = self.shared.state.lock().await;
        self.good(&mut state, before, None).await
    }

    /// Returns the token to send in the place of this one; `None` if it is not from here.
    async fn renewed(
        &self,
        sent: &HeaderValue,
        refused: bool,
    ) -> Result<Option<HeaderValue>, BoxError> {
        let before = self.shared.asked.load(Ordering::Acquire);
        let mut state = self.shared.state.lock().await;
        if !state.knows(sent) {
            return Ok(None);
        }
        let good = self.good(&mut state, before, refused.then_some(sent));
        good.await.map(Some)
    }

    /// Returns a token that is good, and not the one that was refused. `before` is the count of
    /// requests when the caller began to wait.
    async fn good(
        &self,
        state: &mut State,
        before: u64,
        refused: Option<&HeaderValue>,
    ) -> Result<HeaderValue, BoxError> {
        let Shared { get, asked, .. } = &*self.shared;
        let good = |token: &&Token| token.is_good() && Some(&token.header) != refused;
        if let Some(token) = state.token.as_ref().filter(good) {
            return Ok(token.header.clone());
        }
        // Shares the result of a request that ended while this call waited.
        if asked.load(Ordering::Acquire) != before {
            match (&state.failed, &state.token) {
                (Some(why), _) => return Err(NoToken(Arc::clone(why)).into()),
                (None, Some(token)) => return Ok(token.header.clone()),
                (None, None) => {}
            }
        }
        let got = get().await;
        asked.fetch_add(1, Ordering::Release);
        match got {
            Ok(token) => {
                state.failed = None;
                let header = token.header.clone();
                if let Some(before) = state.token.replace(token) {
                    if state.previous.len() == REMEMBERED {
                        state.previous.pop_front();
                    }
                    state.previous.push_back(before.header);
                }
                Ok(header)
            }
            Err(error) => {
                state.failed = Some(error.to_string().into());
                Err(error)
            }
        }
    }
}

impl State {
    /// Returns whether a request with this token can get another one from here. Before there was
    /// any, the caller had its first one from elsewhere.
    fn knows(&self, sent: &HeaderValue) -> bool {
        let bearer = sent.as_bytes().get(..7);
        let current = self.token.as_ref().map(|token| &token.header);
        bearer.is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "))
            && (current.is_none() || current == Some(sent) || self.previous.contains(sent))
    }
}

impl<F, Fut, B> PrepareAttempt<Request<B>> for BearerToken<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Token, BoxError>> + Send + 'static,
    B: Send + 'static,
{
    type Future = Pin<Box<dyn Future<Output = Result<Request<B>, BoxError>> + Send>>;

    fn prepare(&self, mut request: Request<B>, attempt: Attempt) -> Self::Future {
        let token = self.clone();
        Box::pin(async move {
            let refused = attempt.wants_credentials();
            if let Some(sent) = request.headers_mut().get_mut(AUTHORIZATION)
                && let Some(renewed) = token.renewed(sent, refused).await?
            {
                *sent = renewed;
                return Ok(request);
            }
            // A caller that sent no token from here did not mean to.
            match refused {
                true => Err(NoToken("the request carried none from here".into()).into()),
                false => Ok(request),
            }
        })
    }
}

impl<F> Clone for BearerToken<F> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

opaque_debug! { BearerToken<F> }

/// No token could be got.
#[derive(Debug)]
struct NoToken(Arc<str>);

impl fmt::Display for NoToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no bearer token: {}", self.0)
    }
}

impl error::Error for NoToken {}
