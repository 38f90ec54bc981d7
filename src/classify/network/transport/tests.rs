use rustls::{CertificateError, InvalidMessage};
use tokio::io::{AsyncWriteExt, duplex};

use super::*;

fn cause(look: impl FnOnce(&mut Facts)) -> Option<Cause> {
    let mut facts = Facts::default();
    look(&mut facts);
    facts.cause
}

#[test]
fn c_3_a_connector_is_known_by_what_it_says() {
    for (text, expected) in [
        ("certificate verify failed", Some(Cause::Certificate)),
        ("the certificate is not trusted", Some(Cause::Certificate)),
        ("dns error", Some(Cause::Dns)),
        ("invalid URL, scheme is missing", Some(Cause::Configuration)),
        ("unsupported scheme ftp", Some(Cause::Configuration)),
        ("missing scheme", Some(Cause::Configuration)),
        ("tcp connect error", None),
        ("a dns error", None),
    ] {
        assert_eq!(cause(|facts| connector(text, facts)), expected, "{text}");
        // Its words count only where there was no connection.
        let words = std::io::Error::other(text);
        let words = words.get_ref().unwrap();
        for unsent in [true, false] {
            let found = cause(|facts| {
                facts.unsent = unsent;
                inspect(words, facts);
            });
            assert_eq!(found, expected.filter(|_| unsent), "{text}");
        }
    }
    let name = rustls::pki_types::ServerName::try_from("").unwrap_err();
    let found = cause(|facts| inspect(&name, facts));
    assert_eq!(found, Some(Cause::Configuration));
}

#[test]
fn c_3_an_untrusted_certificate_is_told_from_other_failures_of_tls() {
    use rustls::Error;
    for error in [
        Error::InvalidCertificate(CertificateError::Expired),
        Error::NoCertificatesPresented,
        Error::UnsupportedNameType,
        Error::AlertReceived(AlertDescription::UnknownCA),
        Error::AlertReceived(AlertDescription::CertificateRequired),
    ] {
        let found = cause(|facts| inspect(&error, facts));
        assert_eq!(found, Some(Cause::Certificate), "{error}");
    }
    for error in [
        Error::AlertReceived(AlertDescription::HandshakeFailure),
        Error::InvalidMessage(InvalidMessage::InvalidContentType),
        Error::DecryptError,
    ] {
        let found = cause(|facts| inspect(&error, facts));
        assert_eq!(found, Some(Cause::Tls), "{error}");
    }
}

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
    // What h2 makes of a bare reason is nobody's word.
    for reason in [Reason::REFUSED_STREAM, Reason::NO_ERROR] {
        let found = cause(|facts| inspect(&h2::Error::from(reason), facts));
        assert_eq!(found, Some(Cause::Protocol), "{reason}");
    }
}
