use tower_reprise::store::PostgresStore;

use crate::{
    backend::{self, Backend},
    disturbed, killed, order, outage, poison, stopped,
    support::{
        database::{left_out, run},
        postgres::Own,
        process,
    },
};

struct Postgres;

/// The address holds the name of a schema, too.
impl Backend for Postgres {
    type Store = PostgresStore;

    const CHILD: &'static str = "on_postgres::child";

    async fn open(address: &str) -> PostgresStore {
        let (url, schema) = address.split_once(' ').expect("a schema");
        let builder = PostgresStore::builder(url).schema(schema);
        builder.connect().await.expect("connect")
    }
}

/// A schema of a test's own on the server that is there for all, dropped with the server.
fn address(test: &str) -> Option<String> {
    match std::env::var("REPRISE_TEST_POSTGRES") {
        Ok(url) => Some(format!("{url} crash_{:016x}", rand::random::<u64>())),
        Err(_) => {
            let what = format!("{test} on PostgreSQL");
            left_out(&what, "REPRISE_TEST_POSTGRES is not set");
            None
        }
    }
}

#[test]
#[ignore = "the others run it, in processes of their own"]
fn child() {
    process::child(backend::live::<Postgres>);
}

#[tokio::test]
async fn j_14_w_8_every_202_ends_once_whoever_is_killed() {
    if let Some(address) = address("killed") {
        killed::killed::<Postgres>(&address, 20).await;
    }
}

#[tokio::test]
async fn j_5_j_7_two_processes_work_in_order() {
    if let Some(address) = address("two processes") {
        order::in_order::<Postgres>(&address, 2).await;
    }
}

#[tokio::test]
async fn j_5_j_7_four_processes_work_in_order() {
    if let Some(address) = address("four processes") {
        order::in_order::<Postgres>(&address, 4).await;
    }
}

#[tokio::test]
async fn j_11_j_12_what_kills_its_worker_is_given_up() {
    if let Some(address) = address("poison") {
        poison::poison::<Postgres>(&address).await;
    }
}

#[tokio::test]
async fn j_14_w_8_who_was_stopped_is_too_late() {
    if let Some(address) = address("stopped") {
        stopped::too_late::<Postgres>(&address).await;
    }
}

#[tokio::test]
async fn j_14_w_8_a_worker_that_was_stopped_is_too_late() {
    if let Some(address) = address("a stopped worker") {
        stopped::taken_over::<Postgres>(&address).await;
    }
}

#[tokio::test]
async fn j_2_a_server_that_is_gone_is_a_503() {
    let Some(mut server) = Own::new().await else {
        left_out(
            "PostgreSQL gone",
            "there is no initdb to make a server with",
        );
        return;
    };
    let address = format!("{} public", server.url());
    outage::server_gone::<Postgres>(&address, &mut server).await;
}

#[tokio::test]
async fn j_14_i_22_nothing_is_lost_or_done_twice_by_a_server_that_crashes() {
    if let Some(mut server) = Own::new().await {
        let address = format!("{} public", server.url());
        disturbed::restarted::<Postgres>(&address, &mut server).await;
    }
}

/// A standby takes over for a while, say, or an administrator wants it so.
#[tokio::test]
async fn j_14_i_22_nothing_is_lost_or_done_twice_by_a_read_only_server() {
    let Some(server) = Own::new().await else {
        return;
    };
    let address = format!("{} public", server.url());
    let set = |value: &str| {
        let mut psql = std::process::Command::new("psql");
        psql.arg(server.url());
        // Sessions that are there learn of it with the next transaction.
        for sql in [
            &*format!("ALTER SYSTEM SET default_transaction_read_only = {value}"),
            "SELECT pg_reload_conf()",
        ] {
            psql.args(["-c", "SET default_transaction_read_only = off", "-c", sql]);
        }
        run(&mut psql);
    };
    disturbed::disturbed::<Postgres>(&address, async || {
        for _ in 0..2 {
            set("on");
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            set("off");
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    })
    .await;
}
