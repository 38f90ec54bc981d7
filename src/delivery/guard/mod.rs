//! A guard against server-side request forgery: the addresses that a call to a user's URL may reach,
//! checked when the connection is made.
//!
//! A service that calls URLs of its users can be led where its users can't go: to its own loopback,
//! to a database next door, to the cloud's metadata. Checking the URL does not help, since its name
//! may resolve to anything, and to another address the next time. A [`GuardedConnector`] resolves a
//! name once, checks every address of the answer, and connects to those addresses only.
//!
//! Use it for every client whose URLs come from users; [`webhooks`](super::webhooks) use it always.
//! It is of no use for a client that goes through a proxy, which resolves names itself. The
//! connector takes no proxy from the environment.
//!
//! | refused by default | reason |
//! | --- | --- |
//! | `http` (unless [allowed](Guard::allow_http)), user names, passwords, fragments | a webhook needs none of them |
//! | hosts that end in a number but are no plain address: `2130706433`, `0x7f.1`, `127.1`, `0177.0.0.1` | resolvers disagree about their meaning |
//! | ports of mail, shells, files, databases | an HTTP request there is an attack |
//! | addresses that are not public | see [`Guard::check`] |
//! | a whole answer, if one of its addresses is refused | an internal address next to a public one is a sign of rebinding |
//!
//! ```
//! use std::net::IpAddr;
//! use tower_reprise::delivery::guard::{Guard, Target};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let guard = Guard::new();
//! let target = Target::parse("https://hooks.example.com/orders?token=1234", &guard)?;
//! assert_eq!(target.to_string(), "https://hooks.example.com"); // no secrets in logs
//!
//! assert!(Target::parse("http://hooks.example.com/", &guard).is_err());
//! assert!(Target::parse("https://169.254.169.254/latest/meta-data", &guard).is_err());
//! assert!(Target::parse("https://[::ffff:10.0.0.1]/", &guard).is_err());
//!
//! // A receiver of your own, in your own network.
//! let inside = Guard::new().allow("10.1.0.0/16")?;
//! let address: IpAddr = "10.1.2.3".parse()?;
//! assert!(guard.check(address).is_err() && inside.check(address).is_ok());
//! # Ok(())
//! # }
//! ```
//!
//! A client that follows redirects is safe with this connector, since it has to connect anew.

mod connect;
mod network;
mod resolve;
mod target;

use std::{error::Error, fmt, net::IpAddr};

use self::network::{NOT_PUBLIC, Network, PUBLIC_V6};
pub use self::{
    connect::{GuardedConnector, GuardedConnectorFuture},
    resolve::{Resolve, Resolving, SystemResolver},
    target::Target,
};
use crate::error::ConfigError;

/// Ports of mail, remote shells, files, names, directories and databases.
const OTHER_PROTOCOLS: [u16; 38] = [
    0, 7, 9, 13, 19, 20, 21, 22, 23, 25, 53, 69, 110, 111, 119, 135, 137, 138, 139, 143, 161, 389,
    445, 465, 514, 587, 636, 993, 995, 1433, 1521, 2049, 3306, 3389, 5432, 6379, 11211, 27017,
];

/// The rule for allowed targets. See the [module docs](self).
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Guard {
    http: bool,
    /// Empty for all but [`OTHER_PROTOCOLS`].
    ports: Vec<u16>,
    allowed: Vec<Network>,
    refused: Vec<Network>,
}

impl Guard {
    /// Allows public addresses, by `https`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows a network that is not public, or one address of it: `10.1.0.0/16`, `::1`.
    ///
    /// An IPv4 network does not include the IPv6 forms of its addresses.
    ///
    /// # Errors
    ///
    /// The text is no network: no address, a prefix that is too long, or bits behind the prefix.
    pub fn allow(mut self, network: &str) -> Result<Self, ConfigError> {
        self.allowed.push(Network::parse("guard.allow", network)?);
        Ok(self)
    }

    /// Refuses a public network, or one address of it, such as your own. Takes precedence over
    /// [`allow`](Self::allow).
    ///
    /// # Errors
    ///
    /// As [`allow`](Self::allow).
    pub fn refuse(mut self, network: &str) -> Result<Self, ConfigError> {
        self.refused.push(Network::parse("guard.refuse", network)?);
        Ok(self)
    }

    /// Allows `http`, without protection of messages on the way.
    pub fn allow_http(mut self) -> Self {
        self.http = true;
        self
    }

    /// Allows these ports only. By default all ports are allowed but those of mail, remote shells,
    /// files, name services, directories and databases.
    pub fn ports(mut self, ports: impl IntoIterator<Item = u16>) -> Self {
        self.ports = ports.into_iter().collect();
        self
    }

    /// Checks whether an address may be connected to.
    ///
    /// Refused are private, loopback, link-local, shared (CGNAT), unique local, multicast,
    /// broadcast, documentation, benchmarking, reserved and unspecified addresses; IPv6 addresses
    /// that hold any IPv4 address (mapped, compatible, 6to4, NAT64, Teredo); and Azure's host agent,
    /// which has a public address.
    ///
    /// # Errors
    ///
    /// [`Forbidden::Address`].
    pub fn check(&self, address: IpAddr) -> Result<(), Forbidden> {
        let within = |networks: &[Network]| networks.iter().any(|net| net.contains(address));
        let public = match address {
            IpAddr::V4(_) => !within(&NOT_PUBLIC),
            IpAddr::V6(_) => PUBLIC_V6.contains(address) && !within(&NOT_PUBLIC),
        };
        if within(&self.refused) || !(public || within(&self.allowed)) {
            return Err(Forbidden::Address);
        }
        Ok(())
    }

    fn check_port(&self, port: u16) -> Result<(), Forbidden> {
        let allowed = match self.ports.is_empty() {
            true => !OTHER_PROTOCOLS.contains(&port),
            false => self.ports.contains(&port),
        };
        allowed.then_some(()).ok_or(Forbidden::Port)
    }
}

/// The reason why a target is refused. It reveals nothing about the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forbidden {
    /// The text is no URL, or longer than 2048 characters.
    Url,
    /// The scheme is neither `https` nor an allowed `http`.
    Scheme,
    /// The URL has a user name or a password.
    UserInfo,
    /// The URL has a fragment, which is never sent.
    Fragment,
    /// The host is neither a plain name nor a plain address.
    Host,
    /// The port is not allowed.
    Port,
    /// One of the addresses is not allowed.
    Address,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => "target is no URL of at most 2048 visible ASCII characters",
            Self::Scheme => "target's scheme is not allowed",
            Self::UserInfo => "target holds a user name",
            Self::Fragment => "target holds a fragment",
            Self::Host => {
                "target's host is neither a plain name (in ASCII) nor an address in its usual form"
            }
            Self::Port => "target's port is not allowed",
            Self::Address => "target's address is not allowed",
        })
    }
}

impl Error for Forbidden {}
