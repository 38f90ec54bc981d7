//! Which addresses a webhook may go to, checked when the connection is made.
//!
//! A service that calls URLs of its users can be sent where its users can't go: to its own
//! loopback, to a database next door, to the cloud's metadata. A look at the URL does not help,
//! since its name may resolve to anything, and to something else the next time. So the check is
//! where it can't be evaded: a [`GuardedConnector`] resolves a name once, looks at every address
//! of the answer, and connects to exactly those that it looked at.
//!
//! | refused | because |
//! | --- | --- |
//! | `http` (unless [allowed](Guard::allow_http)), user names, passwords, fragments | nothing a webhook needs |
//! | hosts that end in a number but are no plain address: `2130706433`, `0x7f.1`, `127.1`, `0177.0.0.1` | each resolver reads them as it likes |
//! | ports of mail, shells, files, databases | a webhook there is somebody else's trouble |
//! | addresses that are not of the public internet | see [`Guard::check`] |
//! | a whole answer, if one of its addresses is refused | nobody publishes an internal address next to a public one for a good reason |
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
//! Redirects are not followed by the client here, nor by any plain hyper client; one that follows
//! them is as safe with this connector, since it has to connect anew. A proxy is not: it would
//! resolve the names itself. None is ever taken from the environment.

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

/// Which targets are allowed. See the [module docs](self).
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Guard {
    http: bool,
    /// Empty for all but those of other protocols.
    ports: Vec<u16>,
    allowed: Vec<Network>,
    refused: Vec<Network>,
}

impl Guard {
    /// The public internet, by https.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows a network that is not public, or one address of it: `10.1.0.0/16`, `::1`.
    ///
    /// An IPv4 network does not include the IPv6 forms of its addresses.
    ///
    /// # Errors
    ///
    /// What is no network: no address, a prefix that is too long, or bits behind the prefix.
    pub fn allow(mut self, network: &str) -> Result<Self, ConfigError> {
        self.allowed.push(Network::parse("guard.allow", network)?);
        Ok(self)
    }

    /// Refuses a network that is public, or one address of it: your own, say. This wins over
    /// [`allow`](Self::allow).
    ///
    /// # Errors
    ///
    /// As [`allow`](Self::allow).
    pub fn refuse(mut self, network: &str) -> Result<Self, ConfigError> {
        self.refused.push(Network::parse("guard.refuse", network)?);
        Ok(self)
    }

    /// Allows `http`, whose messages anybody on the way can read and change.
    pub fn allow_http(mut self) -> Self {
        self.http = true;
        self
    }

    /// Allows these ports and no others. Unless told so, any port will do but those of mail,
    /// remote shells, files, name services, directories and databases.
    pub fn ports(mut self, ports: impl IntoIterator<Item = u16>) -> Self {
        self.ports = ports.into_iter().collect();
        self
    }

    /// Whether an address may be connected to.
    ///
    /// Refused are private, loopback, link-local, shared (CGNAT), unique local, multicast,
    /// broadcast, documentation, benchmarking, reserved and unspecified addresses; IPv6 addresses
    /// that hold an IPv4 address (mapped, compatible, 6to4, NAT64, Teredo), whatever that is; and
    /// the one public address that a cloud keeps its host agent on.
    ///
    /// # Errors
    ///
    /// Why it may not.
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
        if allowed {
            Ok(())
        } else {
            Err(Forbidden::Port)
        }
    }
}

/// Why a target is refused. It says nothing of what was found there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forbidden {
    /// It is no URL, or longer than 2048 characters.
    Url,
    /// Its scheme is not `https`, nor `http` where that is allowed.
    Scheme,
    /// It holds a user name or a password.
    UserInfo,
    /// It holds a fragment, which is never sent.
    Fragment,
    /// Its host is neither a plain name nor a plain address.
    Host,
    /// Its port is not allowed.
    Port,
    /// Its address, or one of its addresses, is not allowed.
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
