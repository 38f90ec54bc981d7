//! The Redis store at 64 concurrent requests, next to the bare client that makes the same two round
//! trips: the same scripts with the same arguments, on one connection for all tasks. And next to
//! what a server can do that is not asked to decide anything: two plain `SET`s of as many bytes.

use std::{ops::Range, sync::Arc};

use redis::{AsyncConnectionConfig, Script, aio::MultiplexedConnection};
use tokio::{task::JoinSet, time::Instant};
use tower_reprise::store::RedisStore;

use crate::{
    middle::median,
    report::Report,
    work::{RETENTION, claim, reply, throughput},
};

const TASKS: u64 = 64;
const OPERATIONS: u64 = 200 * TASKS;
const ROUNDS: u64 = 9;
const REPLY: usize = 1024;

pub(crate) fn run(report: &mut Report) {
    let Ok(url) = std::env::var("REPRISE_TEST_REDIS") else {
        println!("left out: Redis (REPRISE_TEST_REDIS is not set)");
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(compare(&url, report));
}

async fn compare(url: &str, report: &mut Report) {
    let prefix = format!("bench-{}", std::process::id());
    let builder = RedisStore::builder(url).prefix(&prefix);
    let store = Arc::new(builder.connect().await.expect("a store"));
    let client = redis::Client::open(url).expect("an address");
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let bare = Arc::new(Bare {
        connection: connection.await.expect("connect"),
        prefix: format!("{prefix}-bare"),
        reply: vec![7; REPLY],
        kept: RETENTION.as_millis().to_string(),
        claim: Script::new(include_str!("../../src/store/redis/scripts/claim.lua")),
        complete: Script::new(include_str!("../../src/store/redis/scripts/complete.lua")),
    });

    let reply = reply(REPLY);
    let (mut rates, mut ratios, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let operations = round * OPERATIONS..(round + 1) * OPERATIONS;
        let scripts = bare_throughput(&bare, operations.clone(), How::Scripts).await;
        let ours = throughput(&store, TASKS, operations.clone(), &reply).await;
        let sets = bare_throughput(&bare, operations.clone(), How::Sets).await;
        println!("redis: {ours:.0} transitions/s, bare client {scripts:.0}/s, SET {sets:.0}/s");
        rates.push(ours);
        ratios.push(ours / scripts);
        plain.push(ours / sets);
        bare.clear(&prefix, operations).await;
    }
    report.note("redis_transitions_per_second", median(rates));
    report.note("redis_ratio_to_plain_sets", median(plain));
    report.at_least("redis_ratio", median(ratios), 0.7);
}

#[derive(Clone, Copy)]
enum How {
    Scripts,
    Sets,
}

struct Bare {
    connection: MultiplexedConnection,
    prefix: String,
    reply: Vec<u8>,
    kept: String,
    claim: Script,
    complete: Script,
}

/// Transitions a second.
async fn bare_throughput(bare: &Arc<Bare>, operations: Range<u64>, how: How) -> f64 {
    let count = operations.end - operations.start;
    let started = Instant::now();
    let mut running = JoinSet::new();
    for first in operations.start..operations.start + TASKS {
        let step = usize::try_from(TASKS).expect("a number");
        let operations = (first..operations.end).step_by(step);
        let bare = Arc::clone(bare);
        running.spawn(async move {
            let mut connection = bare.connection.clone();
            for n in operations {
                match how {
                    How::Scripts => bare.scripts(&mut connection, n).await,
                    How::Sets => bare.sets(&mut connection, n).await,
                }
            }
        });
    }
    running.join_all().await;
    2.0 * count as f64 / started.elapsed().as_secs_f64()
}

impl Bare {
    async fn scripts(&self, connection: &mut MultiplexedConnection, n: u64) {
        let claim = claim(n);
        let key = format!("{}:{{{}}}", self.prefix, claim.key);
        let claimed = self
            .claim
            .key(&key)
            .arg(claim.fingerprint.as_bytes())
            .arg(claim.id.as_bytes())
            .arg("30000000")
            .arg(&self.kept)
            .arg(&self.kept)
            .arg("0")
            .arg("")
            .arg("")
            .invoke_async::<[(u8, u64, u8); 1]>(connection)
            .await;
        let [(_, token, _)] = claimed.expect("claim");
        let completed = self
            .complete
            .key(&key)
            .arg(format!("{token:016}"))
            .arg("1")
            .arg(&self.reply)
            .arg(&self.kept)
            .invoke_async::<[u8; 1]>(connection)
            .await;
        assert_eq!(completed.expect("complete"), [1]);
    }

    async fn sets(&self, connection: &mut MultiplexedConnection, n: u64) {
        let key = format!("{}-set:{{{}}}", self.prefix, claim(n).key);
        let mut record = vec![7; 83];
        self.set(connection, &key, &record, "NX").await;
        record.extend_from_slice(&self.reply);
        self.set(connection, &key, &record, "XX").await;
    }

    async fn set(
        &self,
        connection: &mut MultiplexedConnection,
        key: &str,
        record: &[u8],
        only_if: &str,
    ) {
        let mut command = redis::cmd("SET");
        command.arg(key).arg(record).arg(only_if);
        command.arg("PX").arg(&self.kept);
        let set: redis::RedisResult<String> = command.query_async(connection).await;
        assert_eq!(set.expect("a round trip"), "OK");
    }

    async fn clear(&self, prefix: &str, operations: Range<u64>) {
        let mut pipe = redis::pipe();
        for n in operations {
            let key = claim(n).key;
            pipe.cmd("UNLINK").ignore();
            for prefix in [prefix, &self.prefix, &format!("{}-set", self.prefix)] {
                pipe.arg(format!("{prefix}:{{{key}}}"));
            }
        }
        let mut connection = self.connection.clone();
        pipe.exec_async(&mut connection).await.expect("unlink");
    }
}
