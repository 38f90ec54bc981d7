//! Everything random, from one printed seed.

use std::f64::consts::TAU;

use tower::util::rng::Rng;

/// A stream of random numbers of its own.
#[derive(Debug, Clone)]
pub(crate) struct Dice {
    seed: u64,
    drawn: u64,
}

impl Rng for Dice {
    fn next_u64(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.seed, self.drawn)
    }
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// Of [0, 1).
    pub(crate) fn uniform(&mut self) -> f64 {
        self.next_f64()
    }

    /// The time to the next of so many events a second that come as they like.
    pub(crate) fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.uniform()).ln() / rate
    }

    pub(crate) fn normal(&mut self, mean: f64, deviation: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        mean + deviation * radius * (TAU * self.uniform()).cos()
    }
}

/// The seed of a part of something that has a seed (the finaliser of splitmix64).
pub(crate) fn mix(seed: u64, part: u64) -> u64 {
    let mut z = seed ^ part.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The seed of a part that has a name.
pub(crate) fn named(seed: u64, name: &str) -> u64 {
    name.bytes()
        .fold(seed, |seed, letter| mix(seed, u64::from(letter)))
}
