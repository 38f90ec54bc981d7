//! The interface of a store under test, and the arguments of a process.

use std::{future::Future, time::Duration};

use tokio::process::Command;
use tower_reprise::store::{IdempotencyStore, journal::Journal};

use crate::{
    killed, order, shop, stopped,
    support::{database::Folder, process::Process},
};

/// A store that processes share.
pub(crate) trait Backend: 'static {
    type Store: IdempotencyStore + Journal + Clone;

    /// The ignored test that is its processes.
    const CHILD: &'static str;

    /// Opens the store at that address, in a test or in one of its children.
    fn open(address: &str) -> impl Future<Output = Self::Store> + Send;
}

/// Where everything is that the processes of one test share.
pub(crate) struct Site {
    pub(crate) address: String,
    /// The ledger, see [`Ledger`](crate::ledger::Ledger).
    pub(crate) ledger: String,
    /// Where callbacks go.
    pub(crate) hook: String,
    /// The time that a process may be gone before another takes over.
    pub(crate) lease: Duration,
    _folder: Option<Folder>,
}

impl Site {
    pub(crate) fn new(address: &str, hook: &str, lease: Duration) -> Self {
        let folder = Folder::new();
        Self {
            address: address.to_owned(),
            ledger: folder.path().join("ledger").to_str().unwrap().to_owned(),
            hook: hook.to_owned(),
            lease,
            _folder: Some(folder),
        }
    }

    /// Parses the arguments that [`start`](Self::start) gave to a process.
    pub(crate) fn of<'a>(words: &[&'a str]) -> (Self, &'a str, &'a str) {
        let [address, ledger, hook, lease, life, more] = *words else {
            panic!("not {words:?}");
        };
        let site = Self {
            address: address.to_owned(),
            ledger: ledger.to_owned(),
            hook: hook.to_owned(),
            lease: Duration::from_millis(lease.parse().unwrap()),
            _folder: None,
        };
        (site, life, more)
    }

    /// Starts a process. The name of its life tells it from all others; `more` is for its role.
    pub(crate) fn start<B: Backend>(&self, role: &str, life: &str, more: &str) -> Process {
        let binary = std::env::current_exe().expect("this binary");
        self.start_by::<B>(Command::new(binary), role, life, more)
    }

    /// The same by a command that ends with this binary's name.
    pub(crate) fn start_by<B: Backend>(
        &self,
        command: Command,
        role: &str,
        life: &str,
        more: &str,
    ) -> Process {
        let lease = self.lease.as_millis().to_string();
        let words = [
            &*self.address,
            &*self.ledger,
            &*self.hook,
            &*lease,
            life,
            more,
        ];
        Process::run(command, B::CHILD, role, &words)
    }
}

/// The whole life of a child, see `process`.
pub(crate) async fn live<B: Backend>(role: &str, words: &[&str]) {
    let (site, life, more) = Site::of(words);
    match role {
        "accept" => killed::accept::<B>(&site, life, more).await,
        "work" => shop::work::<B>(&site, life).await,
        "drain" => order::drain::<B>(&site, life).await,
        "stall" => stopped::stall::<B>(&site).await,
        other => panic!("no role {other}"),
    }
}
