//! All upstreams and the routes to them, as the configuration has them now; and the services that
//! send requests on.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use arc_swap::ArcSwap;
use axum::body::Body;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::ResponseFuture;
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
    /// By their names. Those that a reload took away stay, for calls that are under way.
    upstreams: HashMap<Box<str>, Arc<Upstream>>,
    /// The names of those that the configuration has.
    current: Vec<Box<str>>,
}

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

    /// Lists those that the configuration has.
    pub(crate) fn list(&self) -> Vec<Arc<Upstream>> {
        let known = self.0.load();
        let current = known.current.iter();
        current
            .filter_map(|name| known.upstreams.get(name).cloned())
            .collect()
    }

    /// Finds the upstream of a request that can be sent to it.
    pub(crate) fn find<B>(&self, request: &Request<B>) -> Result<Arc<Upstream>, Misses> {
        let uri = request.uri();
        let known = self.0.load();
        let upstream = known
            .routes
            .find(host(uri, request.headers()), uri.path())?;
        upstream.takes(uri)?;
        Ok(Arc::clone(upstream))
    }

    /// Makes a request one for its upstream, or refuses it: it goes nowhere else.
    pub(crate) fn aim(&self, mut request: Request<Body>) -> Result<Request<Body>, BoxError> {
        self.find(&request)?.claim(&mut request)?;
        Ok(request)
    }

    /// Returns what an idempotency key of a request is unique for: its path, at its upstream if
    /// there are several.
    pub(crate) fn operation(&self, head: &Request<()>) -> String {
        let path = head.uri().path();
        let upstream = match self.of(head.uri()) {
            Some(upstream) => Some(upstream),
            None => self.find(head).ok(),
        };
        match upstream.filter(|upstream| upstream.settings.is_named) {
            Some(upstream) => format!("{}{path}", upstream.name()),
            None => path.to_owned(),
        }
    }

    /// Returns the upstream that has claimed a request.
    fn of(&self, uri: &Uri) -> Option<Arc<Upstream>> {
        let name = uri.authority()?.as_str();
        self.0.load().upstreams.get(name).cloned()
    }

    /// Chooses the endpoint of an attempt.
    pub(crate) fn choose(&self, deps: &Dependencies, mut request: Request<Body>) -> Request<Body> {
        // Upstreams with one endpoint leave nothing on requests.
        let Some(tried) = request.extensions().get::<Tried>() else {
            return request;
        };
        if let Some(upstream) = self.of(request.uri()) {
            let chosen = upstream.choose(deps, Some(tried));
            let dependency = Arc::clone(&upstream.endpoints[chosen].dependency);
            let extensions = request.extensions_mut();
            extensions.insert(RetryOverride::new().dependency(dependency));
            extensions.insert(Chosen(upstream, chosen));
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
        let mut all = self.upstreams.clone();
        for settings in upstreams {
            let same = all.get(&settings.name);
            if same.is_none_or(|same| same.settings != *settings) {
                let upstream = Upstream::new(settings.clone())?;
                all.insert(settings.name.clone(), Arc::new(upstream));
            }
        }
        let routes = routes.iter().map(|route| {
            let upstream = all.get(&route.upstream).ok_or("a route leads nowhere")?;
            Ok::<_, BoxError>(Route {
                hosts: route.hosts.clone(),
                path: route.path.clone(),
                upstream: Arc::clone(upstream),
            })
        });
        Ok(Self {
            routes: Routes::new(routes.collect::<Result<_, _>>()?),
            upstreams: all,
            current: upstreams.iter().map(|it| it.name.clone()).collect(),
        })
    }
}

/// On a request: the endpoint that was chosen.
#[derive(Debug, Clone)]
struct Chosen(Arc<Upstream>, usize);

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
        let chosen = request.extensions_mut().remove::<Chosen>();
        let chosen = chosen.or_else(|| Some(Chosen(self.0.of(request.uri())?, 0)));
        let sent = match chosen {
            Some(Chosen(upstream, endpoint)) => upstream.send(request, endpoint),
            None => Err(Misses::Unknown.into()),
        };
        match sent {
            Ok(response) => Sending::Sent(response),
            Err(error) => Sending::Failed(Some(error)),
        }
    }
}

/// The future of a [`Sender`].
pub(crate) enum Sending {
    Sent(ResponseFuture),
    Failed(Option<BoxError>),
}

impl Future for Sending {
    type Output = Result<Response<Incoming>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Sent(response) => Poll::Ready(Ok(ready!(Pin::new(response).poll(cx))?)),
            Self::Failed(error) => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => unreachable!("the future was polled after it was ready"),
            },
        }
    }
}
