use tokio_postgres::NoTls;
use tower_reprise::store::PostgresStore;

use crate::{drain::measure, report::Report, wake};

pub(crate) fn run(report: &mut Report, quick: bool) {
    let Ok(url) = std::env::var("REPRISE_TEST_POSTGRES") else {
        println!("left out: PostgreSQL (REPRISE_TEST_POSTGRES is not set)");
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let schema = format!("bench_{}", std::process::id());
        let builder = PostgresStore::builder(&url).schema(&schema);
        let store = builder.connect().await.expect("a store");
        measure("postgres", store, report, quick).await;
        wake::measure(&url, &schema, report, quick).await;
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connect");
        tokio::spawn(connection);
        let drop = format!("DROP SCHEMA {schema} CASCADE");
        client.batch_execute(&drop).await.expect("drop");
    });
}
