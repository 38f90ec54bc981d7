use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::ConfigError;

/// A network: the addresses with a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network {
    first: IpAddr,
    prefix: u8,
}

impl Network {
    const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Self {
        let first = IpAddr::V4(Ipv4Addr::new(a, b, c, d));
        Self { first, prefix }
    }

    /// Takes the first three groups; the tables need no more.
    const fn v6(a: u16, b: u16, c: u16, prefix: u8) -> Self {
        let first = IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0));
        Self { first, prefix }
    }

    /// Reads `10.0.0.0/8`, or one address.
    pub(super) fn parse(field: &'static str, text: &str) -> Result<Self, ConfigError> {
        let refused = || {
            let shown: String = text.chars().take(64).collect();
            ConfigError::new(
                None,
                field,
                format_args!("{shown:?}"),
                "an address, or the first address of a network and how many bits it has in \
                 common: 10.0.0.0/8, fd00::/8",
            )
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| refused())?;
        let longest = if first.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => longest,
            Some(prefix) => {
                let plain = prefix.bytes().all(|byte| byte.is_ascii_digit());
                prefix.parse().ok().filter(|_| plain).ok_or_else(refused)?
            }
        };
        let network = Self { first, prefix };
        // Bits behind the prefix are a mistake: they would be ignored.
        if prefix > longest || network.masked(first) != bits(first) {
            return Err(refused());
        }
        Ok(network)
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.masked(address) == self.masked(self.first)
    }

    /// Returns the bits of an address within the prefix.
    fn masked(&self, address: IpAddr) -> u128 {
        let mask = u128::MAX
            .checked_shl(128 - u32::from(self.prefix.min(128)))
            .unwrap_or(0);
        bits(address) & mask
    }
}

/// Returns the bits of an address, left-aligned.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The public part of IPv6. All else is loopback, mapped, compatible, NAT64, discarded, unique
/// local, link-local, site-local, multicast or not assigned.
pub(super) const PUBLIC_V6: Network = Network::v6(0x2000, 0, 0, 3);

/// The networks that are not public, by IANA's registries of special-purpose addresses.
pub(super) const NOT_PUBLIC: [Network; 23] = [
    // This network; private; shared; loopback; link-local.
    Network::v4(0, 0, 0, 0, 8),
    Network::v4(10, 0, 0, 0, 8),
    Network::v4(100, 64, 0, 0, 10),
    Network::v4(127, 0, 0, 0, 8),
    Network::v4(169, 254, 0, 0, 16),
    Network::v4(172, 16, 0, 0, 12),
    Network::v4(192, 168, 0, 0, 16),
    // Protocol assignments; documentation; relays of 6to4; benchmarks; documentation.
    Network::v4(192, 0, 0, 0, 24),
    Network::v4(192, 0, 2, 0, 24),
    Network::v4(192, 88, 99, 0, 24),
    Network::v4(198, 18, 0, 0, 15),
    Network::v4(198, 51, 100, 0, 24),
    Network::v4(203, 0, 113, 0, 24),
    // Multicast; reserved, and broadcast.
    Network::v4(224, 0, 0, 0, 4),
    Network::v4(240, 0, 0, 0, 4),
    // The host agent of machines in Azure.
    Network::v4(168, 63, 129, 16, 32),
    // Protocol assignments, Teredo and benchmarks among them; documentation; 6to4; documentation.
    Network::v6(0x2001, 0, 0, 23),
    Network::v6(0x2001, 0x0db8, 0, 32),
    Network::v6(0x2002, 0, 0, 16),
    Network::v6(0x3fff, 0, 0, 20),
    // The former 6bone.
    Network::v6(0x3ffe, 0, 0, 16),
    // NAT64, outside of the public part already.
    Network::v6(0x0064, 0xff9b, 0, 96),
    Network::v6(0x0064, 0xff9b, 1, 48),
];
