//! Any body, any reader.

use std::collections::VecDeque;

use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use proptest::prelude::*;
use tower_reprise::call::StopReason;

use super::{Reader, Server, Then, policy, put};
use crate::support::{
    call, outcome,
    pieces::{Broken, Piece, Pieces, all_data, any_pieces, data, paused},
};

fn readers() -> impl Strategy<Value = Reader> {
    prop_oneof![
        1 => Just(Reader::Nothing),
        1 => Just(Reader::Hints),
        2 => (0_usize..6).prop_map(Reader::Frames),
        3 => Just(Reader::Announced),
        3 => Just(Reader::All),
    ]
}

/// A body, and what was read of it, by what the rules say.
struct Model<'a> {
    /// The frames that no attempt has read, and whether the end can be told without asking for it.
    rest: VecDeque<&'a Piece>,
    announces: bool,
    /// The number of frames in which an attempt gets what was read by those before it.
    replayed: usize,
    /// The room that is left for what is read.
    limit: usize,
    ended: bool,
    lost: bool,
}

impl<'a> Model<'a> {
    fn new(pieces: &'a [Piece], sized: bool, announces: bool, limit: usize) -> Self {
        let rest: VecDeque<_> = pieces
            .iter()
            .filter(|piece| !matches!(piece, Piece::Wait(_)))
            .collect();
        let too_long = sized && all_data(pieces).len() > limit;
        Self {
            ended: announces && rest.is_empty(),
            rest,
            announces,
            replayed: 0,
            limit: if too_long { 0 } else { limit },
            lost: false,
        }
    }

    fn read(&mut self, reader: Reader) {
        let most = match reader {
            Reader::Nothing | Reader::Hints => 0,
            Reader::Frames(most) | Reader::Holds(most) => most,
            Reader::Announced | Reader::All => usize::MAX,
            Reader::Bytes(_) => unreachable!(),
        };
        let (mut data, mut fields) = (false, false);
        for _ in self.replayed..most {
            if self.ended {
                break;
            }
            let size = match self.rest.pop_front() {
                None => {
                    self.ended = true;
                    0
                }
                Some(Piece::Fail) => {
                    self.lost = true;
                    break;
                }
                Some(Piece::Trailers(map)) => {
                    (fields, self.ended) = (true, true);
                    map.iter()
                        .map(|(name, value)| name.as_str().len() + value.len())
                        .sum()
                }
                Some(piece) => {
                    let size = all_data([piece]).len();
                    data |= size > 0;
                    size
                }
            };
            self.ended |= self.announces && self.rest.is_empty();
            self.lost |= size > self.limit;
            self.limit = self.limit.saturating_sub(size);
        }
        self.replayed += usize::from(data) + usize::from(fields);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_body_is_replayed_exactly_or_not_at_all(
        pieces in any_pieces(),
        sized in any::<bool>(),
        announces in any::<bool>(),
        limit in prop_oneof![Just(64 * 1024), 256_usize..300],
        filler in prop_oneof![Just(0_usize), 200_usize..300],
        readers in prop::collection::vec(readers(), 3),
    ) {
        // The head takes part of a small limit, so bodies that reach it begin with a long frame.
        let mut pieces = pieces;
        if filler > 0 {
            pieces.insert(0, data(vec![7; filler]));
        }
        let fields = |piece: &Piece| match piece {
            Piece::Trailers(map) => Some(map.clone()),
            _ => None,
        };
        let all = (all_data(&pieces), pieces.last().and_then(fields));

        let mut expected = 1;
        let mut model = Model::new(&pieces, sized, announces, limit);
        for reader in &readers {
            model.read(*reader);
            if model.lost {
                break;
            }
            expected += 1;
        }

        let body = Pieces::new(pieces.clone()).sized(sized).announces_end(announces);
        let hint = body.size_hint();
        let server = Server::<UnsyncBoxBody<Bytes, Broken>>::new(
            readers.iter().map(|reader| (*reader, Then::Reset)),
        );
        let result = paused().block_on(async {
            call(&mut server.client(policy().replay_limit(limit)), put(body.boxed_unsync())).await
        });
        let stop_reason = (expected < 4).then_some(StopReason::NotReplayable);
        prop_assert_eq!(outcome(&result), Some((expected, stop_reason)));

        let seen = server.seen();
        prop_assert_eq!(seen.len(), expected as usize);
        for (n, seen) in seen.iter().enumerate() {
            // A body at its end has no size to compare.
            prop_assert!(seen.ended || seen.hint == (hint.lower(), hint.upper()));
            let reader = readers.get(n).unwrap_or(&Reader::All);
            if matches!(reader, Reader::All | Reader::Announced) {
                prop_assert_eq!((seen.data(), seen.trailers().cloned()), all.clone());
            } else {
                prop_assert!(all.0.starts_with(&seen.data()));
            }
        }
    }
}
