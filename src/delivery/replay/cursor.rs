//! Cursors: where a page of a list ended, with a MAC so that they can't be made up.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::store::journal::{Query, Status};

/// The length of the MAC that is sent along.
const TAG: usize = 16;

/// Writes a cursor behind the entry of that sequence, for this very query.
pub(super) fn write(secret: &[u8; 32], query: &Query, sequence: u64) -> String {
    let mut bytes = sequence.to_be_bytes().to_vec();
    bytes.extend_from_slice(&tag(secret, query, sequence)[..TAG]);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the sequence behind which to go on; `None` if the cursor is not of this query.
pub(super) fn read(secret: &[u8; 32], query: &Query, cursor: &str) -> Option<u64> {
    // Nothing is allocated for a cursor of another length.
    if cursor.len() != (8 + TAG) / 3 * 4 {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let (sequence, sent) = bytes.split_first_chunk()?;
    let sequence = u64::from_be_bytes(*sequence);
    let mac = mac(secret, query, sequence)?;
    mac.verify_truncated_left(sent).ok()?;
    Some(sequence)
}

fn tag(secret: &[u8; 32], query: &Query, sequence: u64) -> [u8; 32] {
    mac(secret, query, sequence).map_or([0; 32], |mac| mac.finalize().into_bytes().into())
}

fn mac(secret: &[u8; 32], query: &Query, sequence: u64) -> Option<Hmac<Sha256>> {
    // A key of any length will do.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    let status = query.status.map(Status::as_str);
    for part in [
        Some("cursor"),
        Some(&*query.queue),
        query.owner.as_deref(),
        query.label.as_deref(),
        status,
    ] {
        let part = part.map(str::as_bytes);
        mac.update(
            &part
                .map_or(u64::MAX, |part| part.len() as u64)
                .to_be_bytes(),
        );
        mac.update(part.unwrap_or_default());
    }
    mac.update(&sequence.to_be_bytes());
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j_10_a_cursor_is_of_its_query_alone() {
        let query = Query {
            owner: Some("ada".to_owned()),
            ..Query::new("replay", 10)
        };
        let secret = [7; 32];
        let cursor = write(&secret, &query, 42);
        assert_eq!(read(&secret, &query, &cursor), Some(42));
        let others = [
            Query {
                owner: Some("bob".to_owned()),
                ..query.clone()
            },
            Query {
                owner: None,
                label: Some("ada".to_owned()),
                ..query.clone()
            },
            Query {
                status: Some(Status::Queued),
                ..query.clone()
            },
            Query {
                queue: "webhooks".into(),
                ..query.clone()
            },
        ];
        for other in others {
            assert_eq!(read(&secret, &other, &cursor), None, "{other:?}");
        }
        assert_eq!(read(&[8; 32], &query, &cursor), None);
        for at in 0..cursor.len() {
            let mut changed = cursor.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(read(&secret, &query, &changed), None, "{changed}");
        }
        assert_eq!(read(&secret, &query, ""), None);
        assert_eq!(read(&secret, &query, &"A".repeat(1000)), None);
    }
}
