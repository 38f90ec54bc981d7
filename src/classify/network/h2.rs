//! The error type of h2.

use std::error::Error;

use h2::Reason;

use super::Facts;
use crate::call::Cause;

pub(super) fn inspect(error: &(dyn Error + 'static), facts: &mut Facts) {
    let Some(error) = error.downcast_ref::<h2::Error>() else {
        return;
    };
    let sent = (error.is_reset() || error.is_go_away()) && !error.is_remote();
    let cause = match error.reason() {
        // By the user of h2, or by h2 for a stream that its user dropped. What h2 detects for itself
        // is a fault of the peer's.
        Some(reason) if sent && (!error.is_library() || reason == Reason::CANCEL) => {
            facts.ours = true;
            return;
        }
        Some(Reason::REFUSED_STREAM) if error.is_reset() && error.is_remote() => {
            Cause::StreamRefused
        }
        // A graceful shutdown fails only the streams above the last one it will process.
        Some(Reason::NO_ERROR) if error.is_go_away() && error.is_remote() => Cause::GoAway,
        Some(
            Reason::PROTOCOL_ERROR
            | Reason::COMPRESSION_ERROR
            | Reason::FRAME_SIZE_ERROR
            | Reason::FLOW_CONTROL_ERROR,
        ) => match error.is_remote() {
            // The peer could not read what we sent.
            true => Cause::Configuration,
            false => Cause::Serialization,
        },
        Some(Reason::HTTP_1_1_REQUIRED | Reason::INADEQUATE_SECURITY) => Cause::Configuration,
        Some(_) => Cause::Protocol,
        None => {
            // Neither the peer's word nor the socket's: h2 was used wrongly.
            facts.ours = !error.is_io();
            return;
        }
    };
    facts.note(cause);
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::{super::cause, *};

    /// Makes a stream over HTTP/2 fail.
    #[derive(Debug, Clone, Copy)]
    enum Fault {
        /// By a reset of the server's.
        Reset,
        /// By one of the client's own.
        OwnReset,
        /// With its connection, which the server closes.
        GoAway,
        /// By what the server says, which is no HTTP/2.
        Garbage,
    }

    /// The error of a stream that fails so, between a real client and a real server.
    async fn failed(fault: Fault, reason: Reason) -> h2::Error {
        let (near, far) = duplex(4096);
        tokio::spawn(async move {
            if let Fault::Garbage = fault {
                let mut far = far;
                far.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await?;
                return std::future::pending().await;
            }
            let mut server = h2::server::handshake(far).await.unwrap();
            if let Fault::GoAway = fault {
                // Before it takes the stream, which is then above the last one that it took.
                server.abrupt_shutdown(reason);
            } else {
                let (_request, mut reply) = server.accept().await.unwrap().unwrap();
                if let Fault::Reset = fault {
                    reply.send_reset(reason);
                }
            }
            std::future::poll_fn(|cx| server.poll_closed(cx))
                .await
                .map_err(std::io::Error::other)
        });
        let (client, connection) = h2::client::handshake(near).await.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let request = http::Request::get("http://a.example/").body(()).unwrap();
        let (reply, mut stream) = client.send_request(request, false).unwrap();
        if let Fault::OwnReset = fault {
            stream.send_reset(reason);
        }
        reply.await.unwrap_err()
    }

    /// C-4: only a server can say that it never began, and only in these two ways.
    #[tokio::test]
    async fn c_4_c_10_who_fails_a_stream_and_how_tells_whether_it_was_begun() {
        for (fault, reason, expected) in [
            (Fault::Reset, Reason::REFUSED_STREAM, Cause::StreamRefused),
            (Fault::GoAway, Reason::REFUSED_STREAM, Cause::Protocol),
            (Fault::Reset, Reason::NO_ERROR, Cause::Protocol),
            (Fault::GoAway, Reason::NO_ERROR, Cause::GoAway),
            (Fault::GoAway, Reason::ENHANCE_YOUR_CALM, Cause::Protocol),
            (Fault::Reset, Reason::CANCEL, Cause::Protocol),
            (Fault::Reset, Reason::PROTOCOL_ERROR, Cause::Configuration),
            (
                Fault::Garbage,
                Reason::FRAME_SIZE_ERROR,
                Cause::Serialization,
            ),
            (
                Fault::Reset,
                Reason::HTTP_1_1_REQUIRED,
                Cause::Configuration,
            ),
        ] {
            let error = failed(fault, reason).await;
            assert_eq!(error.reason(), Some(reason), "{fault:?}: {error}");
            let found = cause(|facts| inspect(&error, facts));
            assert_eq!(found, Some(expected), "{fault:?} {reason}");
        }
        // C-10: what we reset ourselves is nobody else's fault.
        for reason in [
            Reason::REFUSED_STREAM,
            Reason::NO_ERROR,
            Reason::INTERNAL_ERROR,
            Reason::PROTOCOL_ERROR,
        ] {
            let mut facts = Facts::default();
            inspect(&failed(Fault::OwnReset, reason).await, &mut facts);
            assert_eq!((facts.ours, facts.cause), (true, None), "{reason}");
        }
        // An `h2::Error` from a bare reason does not say that the peer sent it.
        for reason in [Reason::REFUSED_STREAM, Reason::NO_ERROR] {
            let found = cause(|facts| inspect(&h2::Error::from(reason), facts));
            assert_eq!(found, Some(Cause::Protocol), "{reason}");
        }
    }
}
