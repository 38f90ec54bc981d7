//! HTTP/2 servers on loopback that misbehave on purpose, and remember what reached them.

use std::{
    io::{self, Write},
    net::SocketAddr,
};

use tokio::{io::AsyncReadExt, net::TcpStream, sync::mpsc};

use super::{
    arrivals::{Arrival, Log},
    ports::listen,
};

/// An HTTP/2 server's action on a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Act2 {
    /// Answers.
    Answer(u16),
    /// Resets the stream.
    Reset(h2::Reason),
    /// Goes away and says that nothing was processed.
    GoAway(h2::Reason),
    /// Says that it will finish this stream before it goes away, and breaks its word.
    GoAwayAndBreak,
    /// Closes the connection.
    Close,
    /// Never says anything.
    Stall,
}

impl Act2 {
    /// Whether it is a promise that the request was not processed.
    fn refuses(self) -> bool {
        matches!(
            self,
            Self::Reset(h2::Reason::REFUSED_STREAM) | Self::GoAway(h2::Reason::NO_ERROR)
        )
    }
}

/// A server that does one thing per request, over however many connections, and answers 200 after
/// that.
pub(crate) struct Server2 {
    pub(crate) address: SocketAddr,
    log: Log,
}

impl Server2 {
    /// `early` requests are not read beyond their heads.
    pub(crate) async fn start(script: Vec<(Act2, bool)>) -> Self {
        let listener = listen().await;
        let server = Self {
            address: listener.local_addr().unwrap(),
            log: Log::default(),
        };
        let log = server.log.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(converse(stream, script.clone(), log.clone()));
            }
        });
        server
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.log.all()
    }

    /// Returns the number of requests that came whole.
    pub(crate) fn requests(&self) -> usize {
        self.arrivals()
            .iter()
            .filter(|arrival| arrival.whole)
            .count()
    }
}

async fn converse(stream: TcpStream, script: Vec<(Act2, bool)>, log: Log) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    let mut raw = stream.try_clone()?;
    let stream = TcpStream::from_std(stream)?;
    let mut connection = h2::server::handshake(stream)
        .await
        .map_err(io::Error::other)?;
    let (ends, mut end) = mpsc::channel(1);
    loop {
        let (request, respond) = tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(accepted) => accepted.map_err(io::Error::other)?,
                None => return Ok(()),
            },
            last_words = end.recv() => {
                let last_words: Vec<u8> = last_words.unwrap_or_default();
                raw.write_all(&last_words)?;
                drop(connection);
                raw.shutdown(std::net::Shutdown::Write)?;
                // Closed in order: what is still on its way is read, not answered by a reset.
                let mut rest = TcpStream::from_std(raw)?;
                rest.read_to_end(&mut Vec::new()).await?;
                return Ok(());
            }
        };
        let (head, body) = request.into_parts();
        let index = log.begin(Arrival {
            headers: head.headers,
            ..Arrival::default()
        });
        let (act, early) = script
            .get(index)
            .copied()
            .unwrap_or((Act2::Answer(200), false));
        let (log, ends) = (log.clone(), ends.clone());
        tokio::spawn(async move {
            if !early {
                read_stream(body, &log, index).await?;
            }
            log.note(index, |arrival| arrival.refused = act.refuses());
            let _ = answer(act, respond, ends).await;
            Ok::<_, h2::Error>(())
        });
    }
}

async fn read_stream(mut body: h2::RecvStream, log: &Log, index: usize) -> Result<(), h2::Error> {
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        log.note(index, |arrival| arrival.body.extend(&data));
    }
    let trailers = body.trailers().await?;
    log.note(index, |arrival| {
        arrival.trailers = trailers.unwrap_or_default();
        arrival.whole = true;
    });
    Ok(())
}

async fn answer(
    act: Act2,
    mut respond: h2::server::SendResponse<bytes::Bytes>,
    ends: mpsc::Sender<Vec<u8>>,
) -> Result<(), h2::Error> {
    let go_away = |last: u32, reason: h2::Reason| {
        let payload = [last.to_be_bytes(), u32::from(reason).to_be_bytes()].concat();
        [vec![0, 0, 8, 7, 0, 0, 0, 0, 0], payload].concat()
    };
    let end = match act {
        Act2::Answer(status) => {
            let response = http::Response::builder().status(status).body(());
            respond.send_response(response.unwrap(), true)?;
            return Ok(());
        }
        Act2::Reset(reason) => {
            respond.send_reset(reason);
            return Ok(());
        }
        Act2::Stall => std::future::pending().await,
        Act2::GoAway(reason) => go_away(0, reason),
        Act2::GoAwayAndBreak => go_away(respond.stream_id().as_u32(), h2::Reason::NO_ERROR),
        Act2::Close => Vec::new(),
    };
    let _ = ends.send(end).await;
    // The stream stays as it is until the connection is gone.
    std::future::pending().await
}
