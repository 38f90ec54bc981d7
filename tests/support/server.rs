//! Servers on loopback that misbehave on purpose, and remember what reached them.
#![allow(dead_code, reason = "no test file needs all of it")]

use std::{
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{HeaderMap, HeaderName};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
};

/// What reached a server of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrival {
    /// The head as it came, of HTTP/1.
    pub(crate) head: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: HeaderMap,
    /// All of it came.
    pub(crate) whole: bool,
    /// The server said that it will not process it, before it did.
    pub(crate) refused: bool,
}

impl Arrival {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Requests in the order in which they came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Arrival>>>);

impl Log {
    pub(crate) fn all(&self) -> Vec<Arrival> {
        self.0.lock().unwrap().clone()
    }

    fn begin(&self, arrival: Arrival) -> usize {
        let mut all = self.0.lock().unwrap();
        all.push(arrival);
        all.len() - 1
    }

    fn note(&self, index: usize, note: impl FnOnce(&mut Arrival)) {
        note(&mut self.0.lock().unwrap()[index]);
    }
}

async fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

// HTTP/1

/// What an HTTP/1 server does with a connection.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Reads the request and says this.
    Say(String),
    /// Reads the request, says this, and when notified the rest.
    SayLater(String, Arc<Notify>, String),
    /// Closes without reading.
    Close,
    /// Reads the request and closes.
    ReadAndClose,
    /// Reads the request and resets the connection.
    Reset,
    /// Reads the request, keeps the connection and never says anything.
    Stall,
    /// Reads the head and no more than so many bytes of the body, and then does this.
    Part(usize, Box<Act>),
}

impl Act {
    pub(crate) fn part(self, most: usize) -> Self {
        Self::Part(most, Box::new(self))
    }
}

pub(crate) fn reply(status: u16, headers: &str) -> Act {
    Act::Say(format!(
        "HTTP/1.1 {status} Whatever\r\ncontent-length: 2\r\nconnection: close\r\n{headers}\r\nok"
    ))
}

/// A server that does one thing per connection, and the last thing for all that follow.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    log: Log,
}

impl Server {
    pub(crate) async fn start(script: Vec<Act>) -> Self {
        Self::on(listen().await, script)
    }

    pub(crate) fn on(listener: TcpListener, script: Vec<Act>) -> Self {
        let server = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            log: Log::default(),
        };
        let (connections, log) = (server.connections.clone(), server.log.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let number = connections.fetch_add(1, Ordering::SeqCst);
                let act = script[number.min(script.len() - 1)].clone();
                tokio::spawn(perform(BufReader::new(stream), act, log.clone()));
            }
        });
        server
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// All requests whose heads came.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.log.all()
    }

    /// The heads and bodies of all requests that came whole.
    pub(crate) fn requests(&self) -> Vec<String> {
        let text =
            |arrival: &Arrival| arrival.head.clone() + &String::from_utf8_lossy(&arrival.body);
        let whole = self.arrivals().into_iter().filter(|arrival| arrival.whole);
        whole.map(|arrival| text(&arrival)).collect()
    }

    pub(crate) fn keys(&self) -> Vec<Option<String>> {
        let key = |arrival: &Arrival| arrival.header("idempotency-key").map(str::to_owned);
        self.arrivals().iter().map(key).collect()
    }
}

async fn perform(mut stream: BufReader<TcpStream>, act: Act, log: Log) -> io::Result<()> {
    let (most, act) = match act {
        Act::Close => return Ok(()),
        Act::Part(most, act) => (most, *act),
        act => (usize::MAX, act),
    };
    let arrival = read_head(&mut stream).await?;
    let length = arrival.header("content-length").map_or(Ok(0), str::parse);
    let length: usize = length.map_err(io::Error::other)?;
    let chunked = arrival.header("transfer-encoding") == Some("chunked");
    let index = log.begin(arrival);
    match chunked {
        true => read_chunks(&mut stream, most, &log, index).await?,
        false => {
            let mut body = vec![0; length.min(most)];
            stream.read_exact(&mut body).await?;
            log.note(index, |arrival| {
                arrival.whole = body.len() == length;
                arrival.body = body;
            });
        }
    }
    match act {
        Act::Say(text) => say(&mut stream, &text).await,
        Act::SayLater(first, notify, rest) => {
            say(&mut stream, &first).await;
            notify.notified().await;
            say(&mut stream, &rest).await;
        }
        Act::Reset => return stream.get_ref().set_zero_linger(),
        Act::Stall => std::future::pending().await,
        Act::Close | Act::ReadAndClose | Act::Part(..) => return Ok(()),
    }
    if most < usize::MAX {
        // Closed with something unread, a connection would be reset and the reply might be lost.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    }
    Ok(())
}

pub(crate) async fn say(stream: &mut (impl AsyncWrite + Unpin), text: &str) {
    // The client may be gone by now.
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.flush().await;
}

async fn read_line(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = String::new();
    match stream.read_line(&mut line).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line),
    }
}

async fn read_fields(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<(String, HeaderMap)> {
    let (mut text, mut fields) = (String::new(), HeaderMap::new());
    loop {
        let line = read_line(stream).await?;
        text += &line;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            return Ok((text, fields));
        };
        let name: HeaderName = name.parse().map_err(io::Error::other)?;
        fields.append(name, value.parse().map_err(io::Error::other)?);
    }
}

async fn read_head(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Arrival> {
    let line = read_line(stream).await?;
    let (fields, headers) = read_fields(stream).await?;
    Ok(Arrival {
        head: line + &fields,
        headers,
        ..Arrival::default()
    })
}

/// A whole request, of a client that tells the length.
pub(crate) async fn read_request(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Arrival> {
    let mut arrival = read_head(stream).await?;
    let length = arrival.header("content-length").map_or(Ok(0), str::parse);
    arrival.body = vec![0; length.map_err(io::Error::other)?];
    stream.read_exact(&mut arrival.body).await?;
    arrival.whole = true;
    Ok(arrival)
}

async fn read_chunks(
    stream: &mut (impl AsyncBufRead + Unpin),
    most: usize,
    log: &Log,
    index: usize,
) -> io::Result<()> {
    let mut read = 0;
    while read < most {
        let line = read_line(stream).await?;
        let length = usize::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
        if length == 0 {
            let (_, trailers) = read_fields(stream).await?;
            log.note(index, |arrival| {
                arrival.trailers = trailers;
                arrival.whole = true;
            });
            return Ok(());
        }
        let mut chunk = vec![0; length + 2];
        stream.read_exact(&mut chunk).await?;
        read += length;
        log.note(index, |arrival| arrival.body.extend(&chunk[..length]));
    }
    Ok(())
}

// HTTP/2

/// What an HTTP/2 server does with a request.
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

    /// How many requests came whole.
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
