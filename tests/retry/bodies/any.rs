//! Any body, any reader.

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

/// Whether a body can be sent again after it was read so, by what the rules say.
fn comes_back(pieces: &[Piece], announces: bool, limit: usize, reader: Reader) -> Back {
    let waits = |piece: &Piece| matches!(piece, Piece::Wait(_));
    let frames: Vec<_> = (0..pieces.len()).filter(|n| !waits(&pieces[*n])).collect();
    let read = match reader {
        Reader::Nothing | Reader::Hints => 0,
        Reader::Frames(most) | Reader::Holds(most) => most,
        Reader::Announced if announces => frames.len(),
        Reader::Announced | Reader::All => frames.len() + 1,
        Reader::Bytes(_) => unreachable!(),
    };
    if announces && frames.is_empty() {
        return Back::Whole;
    }
    if read == 0 {
        return Back::Unread;
    }
    let rest = match frames.get(read - 1) {
        Some(last) => &pieces[last + 1..],
        None => &[],
    };
    // Trailers are the end, and so is what is said to be; else the end has to be asked for too.
    let tells_end = announces || matches!(pieces.last(), Some(Piece::Trailers(_)));
    let needed = match tells_end {
        true => rest
            .iter()
            .rposition(|piece| !waits(piece))
            .map_or(0, |last| last + 1),
        false => rest.len(),
    };
    let at_hand = !rest[..needed].iter().any(waits);
    let size = |piece: &Piece| match piece {
        Piece::Data(data) => data.len(),
        Piece::Trailers(map) => map
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum(),
        _ => 0,
    };
    let fits = pieces.iter().map(size).sum::<usize>() <= limit;
    match at_hand && fits && !pieces.contains(&Piece::Fail) {
        true => Back::Whole,
        false => Back::Lost,
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Back {
    Unread,
    Whole,
    Lost,
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
        let mut back = Back::Unread;
        for reader in &readers {
            if back == Back::Unread {
                back = comes_back(&pieces, announces, limit, *reader);
            }
            if back == Back::Lost {
                break;
            }
            expected += 1;
        }

        let body = Pieces::new(pieces).sized(sized).announces_end(announces);
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
