use tower_reprise::store::RedisStore;

use crate::{
    backend::{self, Backend},
    disturbed, killed, order, outage, poison, stopped,
    support::{database::left_out, process, redis::Own},
};

struct Redis;

/// The address holds the name of a prefix, too.
impl Backend for Redis {
    type Store = RedisStore;

    const CHILD: &'static str = "on_redis::child";

    async fn open(address: &str) -> RedisStore {
        let (url, prefix) = address.split_once(' ').expect("a prefix");
        let builder = RedisStore::builder(url).prefix(prefix);
        builder.connect().await.expect("connect")
    }
}

/// A prefix of a test's own on the server that is there for all, gone with the server.
fn address(test: &str) -> Option<String> {
    match std::env::var("REPRISE_TEST_REDIS") {
        Ok(url) => Some(format!("{url} crash-{:016x}", rand::random::<u64>())),
        Err(_) => {
            let what = format!("{test} on Redis");
            left_out(&what, "REPRISE_TEST_REDIS is not set");
            None
        }
    }
}

#[test]
#[ignore = "the others run it, in processes of their own"]
fn child() {
    process::child(backend::live::<Redis>);
}

#[tokio::test]
async fn j_14_w_8_every_202_ends_once_whoever_is_killed() {
    if let Some(address) = address("killed") {
        killed::killed::<Redis>(&address, 20).await;
    }
}

#[tokio::test]
async fn j_5_j_7_two_processes_work_in_order() {
    if let Some(address) = address("two processes") {
        order::in_order::<Redis>(&address, 2).await;
    }
}

#[tokio::test]
async fn j_5_j_7_four_processes_work_in_order() {
    if let Some(address) = address("four processes") {
        order::in_order::<Redis>(&address, 4).await;
    }
}

#[tokio::test]
async fn j_11_j_12_what_kills_its_worker_is_given_up() {
    if let Some(address) = address("poison") {
        poison::poison::<Redis>(&address).await;
    }
}

#[tokio::test]
async fn j_14_w_8_who_was_stopped_is_too_late() {
    if let Some(address) = address("stopped") {
        stopped::too_late::<Redis>(&address).await;
    }
}

#[tokio::test]
async fn j_14_w_8_a_worker_that_was_stopped_is_too_late() {
    if let Some(address) = address("a stopped worker") {
        stopped::taken_over::<Redis>(&address).await;
    }
}

#[tokio::test]
async fn j_2_a_server_that_is_gone_is_a_503() {
    let arguments = &["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = Own::new(arguments).await else {
        left_out("Redis gone", "there is no redis-server to start");
        return;
    };
    let address = format!("{} gone", server.url());
    outage::server_gone::<Redis>(&address, &mut server).await;
}

#[tokio::test]
async fn j_14_i_22_nothing_is_lost_or_done_twice_by_a_server_that_crashes() {
    let arguments = &["--appendonly", "yes", "--appendfsync", "always"];
    if let Some(mut server) = Own::new(arguments).await {
        let address = format!("{} restarted", server.url());
        disturbed::restarted::<Redis>(&address, &mut server).await;
    }
}

/// T-9: new requests are refused, and what runs comes to its end.
#[tokio::test]
async fn j_14_t_9_nothing_is_lost_or_done_twice_by_a_server_that_is_full() {
    let Some(server) = Own::new(&[]).await else {
        return;
    };
    let address = format!("{} full", server.url());
    let client = redis::Client::open(server.url()).unwrap();
    let limit = async |bytes: &str| {
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxmemory").arg(bytes);
        command.exec_async(&mut connection).await.unwrap();
    };
    disturbed::disturbed::<Redis>(&address, async || {
        for _ in 0..3 {
            limit("1").await;
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            limit("0").await;
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await;
}
