//! The store on a machine of its own, that servers reach over the network, with a clock of its own.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_reprise::store::{
    Claim, Claimed, FencingToken, IdempotencyStore, MemoryStore, Ownership, RecordKey, StoreError,
    StoreErrorKind, Stored,
};
use turmoil::net::{TcpListener, TcpStream};

use crate::{ledger::Witness, schedule::STORE};

const PORT: u16 = 5432;

#[derive(Debug)]
enum Verb {
    Claim(Claim),
    Renew(RecordKey, FencingToken, Duration, Duration),
    Complete(RecordKey, FencingToken, Stored, Duration),
    Release(RecordKey, FencingToken),
}

#[derive(Debug)]
enum Answer {
    Claimed(Claimed),
    Owned(Ownership),
}

/// A store that is reached over the network. What is on the wire is a number; what it stands for
/// is beside it, so that nothing has to be encoded.
#[derive(Clone)]
pub(crate) struct Remote(Arc<Mutex<Letters>>, Witness);

#[derive(Debug, Default)]
struct Letters {
    forgetful: bool,
    last: u64,
    asked: HashMap<u64, Verb>,
    answered: HashMap<u64, Result<Answer, StoreError>>,
}

impl Remote {
    pub(crate) fn new(forgetful: bool, witness: Witness) -> Self {
        let letters = Letters {
            forgetful,
            ..Letters::default()
        };
        Self(Arc::new(Mutex::new(letters)), witness)
    }

    /// Serves what is asked.
    pub(crate) async fn serve(self) -> turmoil::Result {
        let store = MemoryStore::new();
        let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            let (store, remote) = (store.clone(), self.clone());
            // A connection that breaks is the business of who opened it.
            tokio::spawn(async move { remote.answer(&store, stream).await });
        }
    }

    async fn answer(&self, store: &MemoryStore, mut stream: TcpStream) -> io::Result<()> {
        let number = stream.read_u64().await?;
        let verb = self.0.lock().unwrap().asked.remove(&number);
        let answer = match verb.ok_or(io::ErrorKind::InvalidData)? {
            Verb::Claim(claim) => store.claim(claim).await.map(Answer::Claimed),
            Verb::Renew(key, token, lease, retention) => {
                let renewed = store.renew(key, token, lease, retention).await;
                renewed.map(Answer::Owned)
            }
            Verb::Complete(key, token, stored, retention) => {
                let completed = store.complete(key, token, stored, retention).await;
                if let Ok(Ownership::Held) = completed {
                    self.1.look().settled.insert((key, token.get()));
                }
                completed.map(Answer::Owned)
            }
            Verb::Release(key, token) => store.release(key, token).await.map(Answer::Owned),
        };
        self.0.lock().unwrap().answered.insert(number, answer);
        stream.write_u64(number).await
    }

    async fn ask(&self, mut verb: Verb) -> Result<Answer, StoreError> {
        let number = {
            let mut letters = self.0.lock().unwrap();
            letters.last += 1;
            let number = letters.last;
            if let (true, Verb::Claim(claim)) = (letters.forgetful, &mut verb) {
                let mut key = [0; 32];
                key[..8].copy_from_slice(&number.to_be_bytes());
                claim.key = RecordKey::new(key);
            }
            letters.asked.insert(number, verb);
            number
        };
        let exchange = async {
            let mut stream = TcpStream::connect((STORE, PORT)).await?;
            stream.write_u64(number).await?;
            stream.read_u64().await
        };
        let answer = match exchange.await {
            Ok(number) => self.0.lock().unwrap().answered.remove(&number),
            Err(_) => None,
        };
        answer.unwrap_or_else(|| {
            Err(StoreError::new(StoreErrorKind::Unavailable, "connection lost").in_doubt())
        })
    }

    async fn own(&self, verb: Verb) -> Result<Ownership, StoreError> {
        if self.0.lock().unwrap().forgetful {
            return Ok(Ownership::Held);
        }
        match self.ask(verb).await? {
            Answer::Owned(ownership) => Ok(ownership),
            Answer::Claimed(_) => unreachable!("it did not ask for that"),
        }
    }
}

impl IdempotencyStore for Remote {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        match self.ask(Verb::Claim(claim)).await? {
            Answer::Claimed(claimed) => Ok(claimed),
            Answer::Owned(_) => unreachable!("it did not ask for that"),
        }
    }

    async fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        self.own(Verb::Renew(key, token, lease, retention)).await
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let verb = Verb::Complete(key, token, stored, retention);
        self.own(verb).await
    }

    async fn release(&self, key: RecordKey, token: FencingToken) -> Result<Ownership, StoreError> {
        self.own(Verb::Release(key, token)).await
    }
}
