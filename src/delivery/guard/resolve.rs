use std::{future::Future, io, net::IpAddr, pin::Pin};

use crate::error::BoxError;

/// The future of a [`Resolve`].
pub type Resolving = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, BoxError>> + Send>>;

/// Finds the addresses of a host name.
///
/// The guard checks each address, so a resolver need not be trusted. Closures
/// `Fn(&str) -> Resolving` implement this trait.
pub trait Resolve: Send + Sync + 'static {
    /// Returns the addresses of a name, the preferred first.
    fn resolve(&self, name: &str) -> Resolving;
}

impl<F> Resolve for F
where
    F: Fn(&str) -> Resolving + Send + Sync + 'static,
{
    fn resolve(&self, name: &str) -> Resolving {
        self(name)
    }
}

/// The resolver of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: &str) -> Resolving {
        let name = name.to_owned();
        Box::pin(async move {
            let found: io::Result<Vec<_>> = tokio::net::lookup_host((name, 0))
                .await
                .map(|addresses| addresses.map(|address| address.ip()).collect());
            Ok(found?)
        })
    }
}
