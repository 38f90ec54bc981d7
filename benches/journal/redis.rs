use redis::AsyncCommands;
use tower_reprise::store::RedisStore;

use crate::{drain::measure, report::Report};

pub(crate) fn run(report: &mut Report, quick: bool) {
    let Ok(url) = std::env::var("REPRISE_TEST_REDIS") else {
        println!("left out: Redis (REPRISE_TEST_REDIS is not set)");
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let prefix = format!("bench-{}", std::process::id());
        let builder = RedisStore::builder(&*url).prefix(&prefix);
        let store = builder.connect().await.expect("a store");
        measure("redis", store, report, quick).await;
        clear(&url, &prefix).await;
    });
}

async fn clear(url: &str, prefix: &str) {
    let client = redis::Client::open(url).expect("an address");
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("connect");
    let keys: Vec<Vec<u8>> = connection.keys(format!("{prefix}*")).await.expect("keys");
    for keys in keys.chunks(1_000) {
        let _: () = connection.unlink(keys).await.expect("unlink");
    }
}
