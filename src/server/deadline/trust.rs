//! Reads what a request says about its caller. All of it may be made up.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::{
    call::{
        CallerContext,
        attempt_headers::{ATTEMPT_COUNT, previous_attempts},
        hop::{EXPECTED_TIMEOUT, GRPC_ATTEMPTS, GRPC_TIMEOUT},
    },
    http::{
        grpc::{grpc_timeout, is_grpc},
        headers::{digits, may_have},
    },
};

/// The limits within which a request's word is believed.
#[derive(Debug, Clone)]
pub(super) struct Trust {
    pub(super) callers: bool,
    pub(super) max_deadline: Duration,
    pub(super) max_attempts: u32,
    pub(super) header: HeaderName,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            callers: false,
            max_deadline: Duration::from_secs(60),
            max_attempts: 10,
            header: EXPECTED_TIMEOUT,
        }
    }
}

impl Trust {
    /// Reads the caller of a request, who has `default` if it does not say. What is not believed is
    /// removed, so that nothing behind believes it; a gRPC call keeps its timeout, which can only
    /// shorten it.
    pub(super) fn read(&self, headers: &mut HeaderMap, default: Option<Duration>) -> CallerContext {
        let (mut named, mut previous) = (None, 0);
        if self.callers {
            named = time_left(headers, &self.header).map(|left| left.min(self.max_deadline));
            let most = self.max_attempts.saturating_sub(1);
            previous = previous_attempts(headers).min(most);
        } else {
            for name in [&self.header, &ATTEMPT_COUNT, &GRPC_ATTEMPTS] {
                if may_have(headers, name) {
                    headers.remove(name);
                }
            }
        }
        let caller = named.or(default).map(CallerContext::within);
        caller.unwrap_or_default().retry(previous)
    }
}

/// Returns the least time that a request's headers name. Lines that are not well-formed name none.
fn time_left(headers: &HeaderMap, header: &HeaderName) -> Option<Duration> {
    let plain = headers.get_all(header).iter();
    let plain = plain.filter_map(|value| digits(value.as_bytes().trim_ascii()));
    let least = plain.map(Duration::from_millis).min();
    if !is_grpc(headers) {
        return least;
    }
    let timeouts = headers.get_all(GRPC_TIMEOUT).iter();
    let timeouts = timeouts.filter_map(|value| grpc_timeout(value.as_bytes().trim_ascii()));
    timeouts.chain(least).min()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn trust() -> Trust {
        Trust {
            callers: true,
            ..Trust::default()
        }
    }

    type Line = (&'static str, &'static str);

    fn headers(lines: &[Line]) -> HeaderMap {
        let line = |(name, value): &Line| {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            (HeaderName::from_static(name), value)
        };
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().map(line) {
            headers.append(name, value);
        }
        headers
    }

    const PLAIN: &str = "x-envoy-expected-rq-timeout-ms";
    const TIMEOUT: &str = "grpc-timeout";
    const COUNT: &str = "x-envoy-attempt-count";
    const PREVIOUS: &str = "grpc-previous-rpc-attempts";
    const GRPC: Line = ("content-type", "application/grpc");

    #[tokio::test(start_paused = true)]
    async fn x_1_a_deadline_and_an_attempt_number_are_read() {
        let table: [(&[Line], Option<u64>, u32); 13] = [
            (&[], None, 0),
            (&[(PLAIN, "300")], Some(300), 0),
            (&[(PLAIN, " 300 ")], Some(300), 0),
            (&[(PLAIN, "0")], Some(0), 0),
            (&[(PLAIN, "300"), (PLAIN, "200")], Some(200), 0),
            (&[(PLAIN, "300"), (PLAIN, "soon")], Some(300), 0),
            (&[(TIMEOUT, "300m")], None, 0),
            (&[GRPC, (TIMEOUT, "300m")], Some(300), 0),
            (&[GRPC, (TIMEOUT, "300m"), (PLAIN, "200")], Some(200), 0),
            (&[(COUNT, "1")], None, 0),
            (&[(COUNT, "3")], None, 2),
            (&[GRPC, (PREVIOUS, "2")], None, 2),
            (&[(COUNT, "2"), (COUNT, "4")], None, 3),
        ];
        for (lines, left, previous) in table {
            let caller = trust().read(&mut headers(lines), None);
            let left = left.map(Duration::from_millis);
            assert_eq!(caller.remaining(), left, "{lines:?}");
            assert_eq!(caller.previous_attempts(), previous, "{lines:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn x_5_nothing_is_believed_beyond_its_cap() {
        let mut all = headers(&[(PLAIN, "99999999999999999999999"), (COUNT, "4294967296")]);
        let caller = trust().read(&mut all, None);
        assert_eq!(caller.remaining(), Some(MINUTE));
        assert_eq!(caller.previous_attempts(), 9);
    }

    #[tokio::test(start_paused = true)]
    async fn x_5_without_the_word_nothing_is_believed_or_passed_on() {
        let second = Duration::from_secs(1);
        let lines = [(PLAIN, "300"), (COUNT, "3"), (PREVIOUS, "2"), GRPC];
        let mut all = headers(&[&lines[..], &[(TIMEOUT, "300m")]].concat());
        let caller = Trust::default().read(&mut all, Some(second));
        assert_eq!(caller.remaining(), Some(second));
        assert_eq!(caller.previous_attempts(), 0);
        let mut left: Vec<_> = all.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-type", TIMEOUT]);
    }

    proptest! {
        /// Whatever a peer sends, nothing panics, and the caps hold.
        #[test]
        fn x_5_any_bytes_are_read_within_the_caps(
            lines in vec((0_usize..4, vec(prop_oneof![b'0'..=b'9', b' '..=b'~', 128_u8..=255], 0..24)), 0..6),
            grpc: bool,
            trusts: bool,
        ) {
            let mut headers = HeaderMap::new();
            if grpc {
                headers.insert("content-type", HeaderValue::from_static("application/grpc"));
            }
            for (name, value) in lines {
                let name = [PLAIN, TIMEOUT, COUNT, PREVIOUS][name];
                headers.append(name, HeaderValue::from_bytes(&value).unwrap());
            }
            let trust = Trust { callers: trusts, ..Trust::default() };
            let caller = trust.read(&mut headers, None);
            prop_assert!(caller.previous_attempts() < 10);
            prop_assert!(caller.remaining().is_none_or(|left| left <= MINUTE));
            prop_assert!(trusts || (caller.deadline().is_none() && caller.previous_attempts() == 0));
        }

        /// A deadline that is well-formed is read to the millisecond, and the least line counts.
        #[test]
        fn x_1_the_least_of_several_lines_counts(lines in vec(0_u64..100_000, 1..5)) {
            let mut headers = HeaderMap::new();
            for line in &lines {
                headers.append(PLAIN, (*line).into());
            }
            let least = lines.iter().min().copied().map(Duration::from_millis);
            prop_assert_eq!(time_left(&headers, &EXPECTED_TIMEOUT), least);
        }
    }
}
