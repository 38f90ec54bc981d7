use crate::store::RecordKey;

/// Where keys belong. Keys are hashes already: they are mixed with what nobody outside knows, so
/// that nobody can choose keys that meet.
pub(super) struct Hashes {
    secret: u64,
}

/// Where a key belongs.
#[derive(Clone, Copy)]
pub(super) struct Hash {
    /// Among the shards.
    pub(super) shard: u32,
    /// Within its shard.
    pub(super) place: u32,
}

impl Hashes {
    pub(super) fn new() -> Self {
        // A model has to take the same way each time.
        let secret = match cfg!(reprise_loom) {
            true => 0,
            false => rand::random(),
        };
        Self { secret }
    }

    pub(super) fn of(&self, key: &RecordKey) -> Hash {
        let (pieces, _) = key.as_bytes().as_chunks::<8>();
        let hash = pieces.iter().fold(self.secret, |hash, piece| {
            let mixed = u128::from(hash ^ u64::from_le_bytes(*piece)) * 0x9e37_79b9_7f4a_7c15;
            let [low, high] = [mixed as u64, (mixed >> 64) as u64];
            low ^ high
        });
        Hash {
            shard: (hash >> 32) as u32,
            place: hash as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Keys as somebody would make them who wants them all in one place.
    fn chosen() -> impl Iterator<Item = RecordKey> {
        (0..4).flat_map(|piece| {
            (0..=255).map(move |n| {
                let mut bytes = [7; 32];
                bytes[piece * 8 + 3] = n;
                RecordKey::new(bytes)
            })
        })
    }

    #[test]
    fn t_1_keys_that_are_alike_are_spread() {
        let hashes = Hashes::new();
        let places: HashSet<_> = chosen().map(|key| hashes.of(&key).place % 1024).collect();
        let shards: HashSet<_> = chosen().map(|key| hashes.of(&key).shard % 256).collect();
        // Of 1,021 keys thrown at random: about 646 of 1,024, and 251 of 256.
        assert!(places.len() > 450, "{}", places.len());
        assert!(shards.len() > 200, "{}", shards.len());
    }

    #[test]
    fn t_1_no_two_stores_put_keys_in_the_same_places() {
        let [one, other] = [Hashes::new(), Hashes::new()];
        let same = |key: &RecordKey| one.of(key).place == other.of(key).place;
        assert!(chosen().filter(same).count() < 4);
    }
}
