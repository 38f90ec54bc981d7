/// The most in a piece.
const PIECE: usize = 64;

/// A list in pieces, so that growing moves no more than one of them and leaves little room unused.
/// What is often looked through is apart from the rest.
pub(super) struct Slab<S, E> {
    /// All of them full, but for the last, which is not empty.
    pieces: Vec<Piece<S, E>>,
}

struct Piece<S, E> {
    slots: Vec<S>,
    /// One for each slot.
    entries: Vec<E>,
}

impl<S, E> Default for Slab<S, E> {
    fn default() -> Self {
        Self { pieces: Vec::new() }
    }
}

impl<S, E> Slab<S, E> {
    pub(super) fn len(&self) -> usize {
        self.pieces.last().map_or(0, |piece| {
            (self.pieces.len() - 1) * PIECE + piece.slots.len()
        })
    }

    pub(super) fn slot(&self, at: usize) -> &S {
        &self.pieces[at / PIECE].slots[at % PIECE]
    }

    pub(super) fn entry(&self, at: usize) -> &E {
        &self.pieces[at / PIECE].entries[at % PIECE]
    }

    pub(super) fn both(&mut self, at: usize) -> (&mut S, &mut E) {
        let piece = &mut self.pieces[at / PIECE];
        (&mut piece.slots[at % PIECE], &mut piece.entries[at % PIECE])
    }

    pub(super) fn push(&mut self, slot: S, entry: E) {
        match self.pieces.last_mut() {
            Some(piece) if piece.slots.len() < PIECE => {
                piece.slots.push(slot);
                piece.entries.push(entry);
            }
            _ => self.pieces.push(Piece {
                slots: vec![slot],
                entries: vec![entry],
            }),
        }
    }

    /// Takes an entry out, and its slot. The last takes its place.
    pub(super) fn swap_remove(&mut self, at: usize) -> Option<E> {
        let piece = self.pieces.last_mut()?;
        let (slot, entry) = (piece.slots.pop()?, piece.entries.pop()?);
        if piece.slots.is_empty() {
            self.pieces.pop();
        }
        if at == self.len() {
            return Some(entry);
        }
        let (gap, gone) = self.both(at);
        *gap = slot;
        Some(std::mem::replace(gone, entry))
    }

    /// Keeps no more room than for that many, or for those that there are.
    pub(super) fn shrink_to(&mut self, len: usize) {
        self.pieces.shrink_to(len.div_ceil(PIECE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is taken out, at the edges of pieces too, it is a list without order.
    #[test]
    fn t_1_the_last_takes_the_place_of_what_goes() {
        for len in [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1] {
            for at in [0, len / 2, len - 1] {
                let (mut slab, mut plain) = (Slab::default(), Vec::new());
                for n in 0..len {
                    slab.push(n, n);
                    plain.push(n);
                }
                assert_eq!(slab.swap_remove(at), Some(plain.swap_remove(at)));
                slab.push(len, len);
                plain.push(len);
                assert_eq!(slab.len(), plain.len());
                for (at, n) in plain.iter().enumerate() {
                    assert_eq!((slab.slot(at), slab.entry(at)), (n, n));
                }
                while !plain.is_empty() {
                    assert_eq!(slab.swap_remove(0), Some(plain.swap_remove(0)));
                    assert_eq!(slab.len(), plain.len());
                }
                assert_eq!(slab.swap_remove(0), None);
                slab.shrink_to(0);
                assert_eq!(slab.pieces.capacity(), 0);
            }
        }
    }
}
