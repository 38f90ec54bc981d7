/// The most in a piece.
const PIECE: usize = 64;

/// A list in pieces, so that growing moves no more than one of them, and has little room to spare.
pub(super) struct Slab<T> {
    /// All of them full, but for the last, which is not empty.
    pieces: Vec<Vec<T>>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { pieces: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn get(&self, at: usize) -> &T {
        &self.pieces[at / PIECE][at % PIECE]
    }

    pub(super) fn get_mut(&mut self, at: usize) -> &mut T {
        &mut self.pieces[at / PIECE][at % PIECE]
    }

    pub(super) fn push(&mut self, item: T) {
        match self.pieces.last_mut() {
            Some(piece) if piece.len() < PIECE => piece.push(item),
            _ => self.pieces.push(vec![item]),
        }
    }

    /// Takes one out. The last takes its place.
    pub(super) fn swap_remove(&mut self, at: usize) -> Option<T> {
        let piece = self.pieces.last_mut()?;
        let last = piece.pop()?;
        if piece.is_empty() {
            self.pieces.pop();
        }
        match self
            .pieces
            .get_mut(at / PIECE)
            .and_then(|piece| piece.get_mut(at % PIECE))
        {
            Some(item) => Some(std::mem::replace(item, last)),
            None => Some(last),
        }
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
                    slab.push(n);
                    plain.push(n);
                }
                assert_eq!(slab.swap_remove(at), Some(plain.swap_remove(at)));
                slab.push(len);
                plain.push(len);
                for (at, n) in plain.iter().enumerate() {
                    assert_eq!(slab.get(at), n);
                }
                while !plain.is_empty() {
                    assert_eq!(slab.swap_remove(0), Some(plain.swap_remove(0)));
                }
                assert_eq!(slab.swap_remove(0), None);
                slab.shrink_to(0);
                assert_eq!(slab.pieces.capacity(), 0);
            }
        }
    }
}
