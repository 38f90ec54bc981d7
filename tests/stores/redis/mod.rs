//! Records in Redis, on a real server: REPRISE_TEST_REDIS says where (`tests/run` starts one).

mod batches;
mod contract;
mod disks;
mod families;
mod journal;
mod journal_servers;
mod lossy;
mod replicas;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tower_reprise::store::{RecordKey, RedisStore, conformance::Backend};

use crate::support::crash;

pub(crate) fn address() -> Option<String> {
    std::env::var("REPRISE_TEST_REDIS").ok()
}

/// A prefix of its own for each test.
pub(crate) struct Redis {
    pub(crate) url: String,
    pub(crate) prefix: String,
    pub(crate) admin: MultiplexedConnection,
}

impl Redis {
    /// `None` if there is no server to test with.
    pub(crate) async fn new() -> Option<Self> {
        Some(Self::at(&address()?).await)
    }

    pub(crate) async fn at(url: &str) -> Self {
        let prefix = format!("test-{:016x}", rand::random::<u64>());
        Self {
            url: url.to_owned(),
            prefix,
            admin: connection(url).await,
        }
    }

    pub(crate) fn key(&self, key: RecordKey) -> String {
        format!("{}:{{{key}}}", self.prefix)
    }

    pub(crate) async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let mut admin = self.admin.clone();
        command.query_async(&mut admin).await.expect("command")
    }
}

pub(crate) async fn connection(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("an address");
    let connection = client.get_multiplexed_async_connection().await;
    connection.expect("connect")
}

impl Backend for Redis {
    type Store = RedisStore;

    async fn open(&self) -> RedisStore {
        let builder = RedisStore::builder(&self.url).prefix(&self.prefix);
        builder.connect().await.expect("connect")
    }

    /// The server's clock can't be moved, but the records can: backwards.
    async fn pass(&self, time: Duration) {
        journal::shift(self, time).await;
        let shift = redis::Script::new(
            "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
                local lease = redis.call('GETRANGE', key, 19, 34) - ARGV[2]
                redis.call('SETRANGE', key, 19, string.format('%016.0f', lease))
                redis.call('PEXPIRE', key, redis.call('PTTL', key) - ARGV[2] / 1000)
            end
            for _, member in ipairs(redis.call('ZRANGE', ARGV[3], 0, -1)) do
                redis.call('ZINCRBY', ARGV[3], '-' .. ARGV[2], member)
            end",
        );
        let mut admin = self.admin.clone();
        let shifted = shift
            .arg(format!("{}:*", self.prefix))
            .arg(time.as_micros().to_string())
            .arg(format!("{{{}:watched}}", self.prefix))
            .invoke_async::<()>(&mut admin)
            .await;
        shifted.expect("shift");
    }
}

impl crash::Shared for Redis {
    type Store = RedisStore;

    const CHILD: &'static str = "redis::contract::child";

    async fn open(address: &str) -> RedisStore {
        RedisStore::connect(address).await.expect("connect")
    }
}
