//! HTTP/1 servers on loopback that misbehave on purpose, and remember what reached them.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{HeaderMap, HeaderName};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use super::{
    arrivals::{Arrival, Log},
    ports::listen,
};

/// An HTTP/1 server's action on a connection.
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
