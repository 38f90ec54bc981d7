//! All upstreams and the routes to them, as the configuration has them now; and the services that
//! send requests on.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use arc_swap::ArcSwap;
use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::client::legacy::ResponseFuture;
use tokio::time::Instant;
use tower::Service;
use tower_reprise::{Dependencies, RetryOverride, error::BoxError};

use super::{
    routes::{Hosts, Misses, Route, Routes, host},
    upstream::{Tried, Upstream, UpstreamSettings},
};

/// Where requests of some hosts and paths go.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RouteSettings {
    pub(crate) hosts: Hosts,
    pub(crate) path: Box<str>,
    pub(crate) upstream: Box<str>,
}

#[derive(Debug, Clone)]
pub(crate) struct Upstreams(Arc<ArcSwap<Known>>);

#[derive(Debug, Default)]
struct Known {
    routes: Routes,
    upstreams: Vec<Arc<Upstream>>,
    /// Those that a reload took away: calls that are under way keep to them, and keep them.
    removed: Vec<Weak<Upstream>>,
}

/// On a request: the route that it has taken.
#[derive(Debug, Clone)]
struct Taken(Arc<Route>);

impl Upstreams {
    pub(crate) fn new(
        upstreams: &[UpstreamSettings],
        routes: &[RouteSettings],
    ) -> Result<Self, BoxError> {
        let known = Known::default().with(upstreams, routes)?;
        Ok(Self(Arc::new(ArcSwap::from_pointee(known))))
    }

    /// Takes others. An upstream that did not change keeps its connections.
    pub(crate) fn reload(
        &self,
        upstreams: &[UpstreamSettings],
        routes: &[RouteSettings],
    ) -> Result<(), BoxError> {
        let known = self.0.load().with(upstreams, routes)?;
        self.0.store(Arc::new(known));
        Ok(())
    }

    /// Lists them.
    pub(crate) fn list(&self) -> Vec<Arc<Upstream>> {
        self.0.load().upstreams.clone()
    }

    /// Finds the route of a request that can be sent to its upstream.
    pub(crate) fn find<B>(&self, request: &Request<B>) -> Result<Arc<Route>, Misses> {
        if let Some(Taken(route)) = request.extensions().get() {
            return Ok(Arc::clone(route));
        }
        let uri = request.uri();
        let known = self.0.load();
        let host = || host(uri, request.headers());
        let route = known.routes.find(host, uri.path())?;
        route.upstream.takes(uri)?;
        Ok(Arc::clone(route))
    }

    /// Lets a request take a route.
    pub(crate) fn take(request: &mut Request<Body>, route: &Arc<Route>) {
        request.extensions_mut().insert(Taken(Arc::clone(route)));
    }

    /// Makes a request one for its upstream, or refuses it: it goes nowhere else.
    pub(crate) fn aim(&self, mut request: Request<Body>) -> Result<Request<Body>, BoxError> {
        let route = self.find(&request)?;
        if request.extensions().get::<Taken>().is_none() {
            Self::take(&mut request, &route);
        }
        route.upstream.claim(&mut request)?;
        Ok(request)
    }

    /// Returns the name of the upstream of a request; nothing if it has none.
    pub(crate) fn name(&self, head: &Request<()>) -> String {
        let route = self.find(head);
        route.map_or_else(|_| String::new(), |route| route.upstream.name().to_owned())
    }

    /// Returns what an idempotency key of a request is unique for.
    pub(crate) fn operation(&self, head: &Request<()>) -> String {
        let path = head.uri().path();
        match self.find(head) {
            Ok(route) => route.operation(path),
            Err(_) => path.to_owned(),
        }
    }

    /// Takes the route off a request whose authority is enough: without extensions the copy for retries
    /// takes 900 instructions less (callgrind).
    pub(crate) fn go_by_authority(mut request: Request<Body>) -> Request<Body> {
        // Which endpoints were tried goes with the route.
        if request.extensions().get::<Tried>().is_none() {
            request.extensions_mut().remove::<Taken>();
        }
        request
    }

    /// Returns the upstream that has claimed a request.
    fn claimed<B>(&self, request: &mut Request<B>) -> Option<Arc<Upstream>> {
        if let Some(Taken(route)) = request.extensions_mut().remove() {
            return Some(Arc::clone(&route.upstream));
        }
        let name = request.uri().authority()?.as_str();
        let known = self.0.load();
        let named = known.upstreams.iter().find(|it| it.name() == name);
        named.cloned().or_else(|| {
            let mut removed = known.removed.iter().filter_map(Weak::upgrade);
            removed.find(|it| it.name() == name)
        })
    }

    /// Chooses the endpoint of an attempt.
    pub(crate) fn choose(&self, deps: &Dependencies, mut request: Request<Body>) -> Request<Body> {
        // Upstreams with one endpoint leave nothing on requests.
        let Some(tried) = request.extensions().get::<Tried>() else {
            return request;
        };
        if let Some(Taken(route)) = request.extensions().get() {
            let upstream = Arc::clone(&route.upstream);
            let chosen = upstream.choose(deps, Some(tried));
            let dependency = Arc::clone(&upstream.endpoints[chosen].dependency);
            let extensions = request.extensions_mut();
            extensions.insert(RetryOverride::new().dependency(dependency));
            extensions.insert(Chosen(chosen));
        }
        request
    }
}

impl Known {
    fn with(
        &self,
        upstreams: &[UpstreamSettings],
        routes: &[RouteSettings],
    ) -> Result<Self, BoxError> {
        let known = |settings: &UpstreamSettings| {
            let same = self.upstreams.iter().find(|it| it.settings == *settings);
            match same {
                Some(same) => Ok(Arc::clone(same)),
                None => Upstream::new(settings.clone()).map(Arc::new),
            }
        };
        let upstreams = upstreams.iter().map(known);
        let upstreams: Vec<_> = upstreams.collect::<Result<_, _>>()?;
        let routes = routes.iter().map(|route| {
            let upstream = upstreams.iter().find(|it| it.name() == &*route.upstream);
            Ok::<_, BoxError>(Route {
                hosts: route.hosts.clone(),
                path: route.path.clone(),
                upstream: Arc::clone(upstream.ok_or("a route leads nowhere")?),
            })
        });
        let routes = Routes::new(routes.collect::<Result<_, _>>()?);
        let is_removed = |it: &&Arc<Upstream>| !upstreams.iter().any(|new| Arc::ptr_eq(new, it));
        let removed = self.upstreams.iter().filter(is_removed).map(Arc::downgrade);
        let before = self.removed.iter().filter(|it| it.strong_count() > 0);
        Ok(Self {
            routes,
            removed: removed.chain(before.cloned()).collect(),
            upstreams,
        })
    }
}

/// On a request: the endpoint that was chosen.
#[derive(Debug, Clone, Copy)]
struct Chosen(usize);

/// Sends requests to the upstreams that have claimed them.
#[derive(Debug, Clone)]
pub(crate) struct Sender(pub(crate) Upstreams);

impl Service<Request<Body>> for Sender {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Sending;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Sending {
        let endpoint = request.extensions_mut().remove::<Chosen>();
        let endpoint = endpoint.map_or(0, |Chosen(endpoint)| endpoint);
        let Some(upstream) = self.0.claimed(&mut request) else {
            return Sending::Failed(Some(Misses::Unknown.into()));
        };
        match upstream.send(request, endpoint) {
            Ok(response) => Sending::Sent {
                response,
                started: Instant::now(),
                upstream,
                endpoint,
            },
            Err(error) => Sending::Failed(Some(error)),
        }
    }
}

/// The future of a [`Sender`].
pub(crate) enum Sending {
    Sent {
        response: ResponseFuture,
        started: Instant,
        upstream: Arc<Upstream>,
        endpoint: usize,
    },
    Failed(Option<BoxError>),
}

impl Future for Sending {
    type Output = Result<Response<Incoming>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Sent {
                response,
                started,
                upstream,
                endpoint,
            } => {
                let result = ready!(Pin::new(response).poll(cx));
                let status = result.as_ref().map(Response::status);
                let failed = !status.is_ok_and(|status| !status.is_server_error());
                let attempts = &upstream.endpoints[*endpoint].attempts;
                attempts.count(failed, started.elapsed());
                Poll::Ready(Ok(result?))
            }
            Self::Failed(error) => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => unreachable!("the future was polled after it was ready"),
            },
        }
    }
}
