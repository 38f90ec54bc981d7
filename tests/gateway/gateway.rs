//! A gateway that was started, as its operator and its callers see it.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use tower_reprise::store::{
    SqliteStore,
    journal::{Journal, NewEntry, Settlement},
};

use crate::support::database::eventually;

const BINARY: &str = env!("CARGO_BIN_EXE_reprise");

/// Runs a gateway to its end.
pub(crate) fn run(flags: &[&str]) -> (Option<i32>, String, String) {
    reprise(&[&["gateway"], flags].concat())
}

/// Runs the program to its end.
pub(crate) fn reprise(words: &[&str]) -> (Option<i32>, String, String) {
    reprise_with(words, &[])
}

/// Runs the program in this environment.
pub(crate) fn reprise_with(
    words: &[&str],
    environment: &[(&str, &str)],
) -> (Option<i32>, String, String) {
    let mut command = Command::new(BINARY);
    command.args(words).envs(environment.iter().copied());
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// A folder of one test, which goes with it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let name = format!("reprise-gateway-{:016x}", rand::random::<u64>());
        let path = env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file, and says where.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.path(name)
    }

    /// Whether this is in one of its files.
    pub(crate) fn holds(&self, text: &str) -> bool {
        let files = std::fs::read_dir(&self.0).unwrap();
        let mut files = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
        files.any(|bytes| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Leaves dead letters of a queue `mails` in the store of a folder.
pub(crate) async fn bury<P: Into<Bytes>>(folder: &Folder, payloads: impl IntoIterator<Item = P>) {
    let store = SqliteStore::open(folder.0.join("gateway.db")).unwrap();
    let keep = Duration::from_secs(3600);
    let mut burying = tokio::task::JoinSet::new();
    for payload in payloads {
        let entry = NewEntry {
            owner: "<img src=x onerror='window.hacked = 1'>".to_owned(),
            label: "POST /mails".to_owned(),
            ..NewEntry::new("mails", payload)
        };
        let settlement = Settlement::failed("no such account", keep).cause("no_account");
        let store = store.clone();
        burying.spawn(async move { store.bury(entry, 3, settlement).await.unwrap() });
        // The first ones come first.
        if burying.len() == 256 || burying.len() < 3 {
            while burying.join_next().await.is_some() {}
        }
    }
    while burying.join_next().await.is_some() {}
}

/// A policy that does not wait long.
pub(crate) fn policy(retries: u32) -> String {
    format!(
        "service = 'test'\n[default]\nprofile = 'synchronous'\nmax_retries = {retries}\n\
         backoff = {{ base = '10ms', cap = '20ms' }}\n"
    )
}

pub(crate) type Caller = Client<HttpConnector, Body>;

pub(crate) fn caller() -> Caller {
    Client::builder(TokioExecutor::new()).build_http()
}

/// A gateway on ports of the system's choice. It is killed when dropped.
pub(crate) struct Gateway {
    child: Child,
    url: String,
    admin: String,
    said: Arc<Mutex<String>>,
    readers: Vec<thread::JoinHandle<()>>,
    caller: Caller,
}

/// A reply with its whole body.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) async fn of(
        response: Response<impl http_body::Body<Data = Bytes, Error: std::fmt::Debug>>,
    ) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status,
            headers: head.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Gateway {
    pub(crate) async fn start(upstream: &str, flags: &[&str]) -> Self {
        Self::start_by(&["env"], upstream, flags).await
    }

    /// Starts it by another program, which becomes it.
    pub(crate) async fn start_by(by: &[&str], upstream: &str, flags: &[&str]) -> Self {
        let listen = ["--listen", "127.0.0.1:0", "--upstream", upstream];
        Self::run_by(by, &[&listen, flags].concat()).await
    }

    /// Starts it by a file that says where to.
    pub(crate) async fn start_from(config: &str, flags: &[&str]) -> Self {
        let config = ["--listen", "127.0.0.1:0", "--config", config];
        Self::run_by(&["env"], &[&config, flags].concat()).await
    }

    /// Starts it by another program with no more than these flags.
    pub(crate) async fn run_by(by: &[&str], flags: &[&str]) -> Self {
        let first = ["--admin", "127.0.0.1:0", "--scope-header", "x-tenant"];
        let mut child = Command::new(by[0])
            .args(&by[1..])
            .args([BINARY, "gateway"])
            .args(first)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let pipes: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        let read = |pipe| {
            let said = Arc::clone(&said);
            // Ends with the child.
            thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    *said.lock().unwrap() += &(line + "\n");
                }
            })
        };
        let readers = pipes.into_iter().map(read).collect();
        let mut gateway = Self {
            child,
            url: String::new(),
            admin: String::new(),
            said,
            readers,
            caller: caller(),
        };
        gateway.says("listening on ").await;
        gateway.url = gateway.address("listening on ");
        gateway.admin = gateway.address("admin on ");
        gateway
    }

    /// Waits until it says this, on stdout or stderr.
    pub(crate) async fn says(&self, text: &str) {
        eventually(&format!("it says {text:?}"), async || {
            self.said.lock().unwrap().contains(text)
        })
        .await;
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    fn address(&self, start: &str) -> String {
        let said = self.said();
        let line = said.lines().find_map(|line| line.strip_prefix(start));
        line.unwrap_or_else(|| panic!("{said}")).to_owned()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) async fn send(
        &self,
        request: http::request::Builder,
        body: impl Into<Body>,
    ) -> Reply {
        let request = request.body(body.into()).unwrap();
        Reply::of(self.caller.request(request).await.unwrap()).await
    }

    /// Sends bytes that no client would send, and returns the reply.
    pub(crate) async fn raw(&self, said: &str) -> String {
        let address = self.url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.unwrap();
        String::from_utf8(heard).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(self.url(path)), Body::empty()).await
    }

    /// A POST with a key, by a tenant.
    pub(crate) fn order(&self, key: &str) -> http::request::Builder {
        Request::post(self.url("/orders"))
            .header("x-tenant", "ada")
            .header("idempotency-key", key)
    }

    /// Gets a path of the admin port.
    pub(crate) async fn look(&self, path: &str) -> Reply {
        let request = Request::get(format!("{}{path}", self.admin));
        self.send(request, Body::empty()).await
    }

    /// Posts to a path of the admin port.
    pub(crate) async fn do_(&self, path: &str) -> Reply {
        let request = Request::post(format!("{}{path}", self.admin));
        self.send(request, Body::empty()).await
    }

    pub(crate) fn admin(&self, path: &str) -> String {
        format!("{}{path}", self.admin)
    }

    /// Returns the number of replays in this state.
    pub(crate) async fn replays(&self, status: &str) -> u64 {
        let replays = self.look("/replays").await.json();
        replays["counts"][status].as_u64().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.pid());
        let sent = Command::new("sh").args(["-c", &kill]).status();
        assert!(sent.unwrap().success(), "{kill}");
    }

    /// SIGKILL; it is gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end. All it ever said was heard then.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        self.hear_out();
        status.unwrap()
    }

    fn hear_out(&mut self) {
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            self.hear_out();
            eprintln!("{}", self.said());
        }
    }
}
