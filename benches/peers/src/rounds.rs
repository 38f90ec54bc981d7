//! The order of turns.

/// Where the orders of a run begin.
pub(crate) const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Another order, and the same ones in every run.
pub(crate) fn shuffle(order: &mut [usize], random: &mut u64) {
    for last in (1..order.len()).rev() {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        order.swap(last, (*random % (last as u64 + 1)) as usize);
    }
}
