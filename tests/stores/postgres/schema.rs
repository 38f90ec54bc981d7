//! The version of the schema, and the rights that it needs.

use tokio::task::JoinSet;
use tower_reprise::store::{Claim, Note, StoreErrorKind};

use super::Postgres;
use crate::support::records::{claim, complete, own, reply};

#[tokio::test]
async fn t_5_many_who_come_first_make_one_table() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let mut stores = JoinSet::new();
    for _ in 0..8 {
        let builder = postgres.builder().connections(1);
        stores.spawn(async move { builder.connect().await.expect("connect") });
    }
    let stores = stores.join_all().await;
    let token = own(&stores[0], claim(1)).await;
    complete(&stores[7], 1, token, reply("paid")).await;
    let versions = "SELECT count(*) FROM {schema}.reprise_idempotency_version";
    let known = postgres.builder().migrations().unwrap().len();
    assert_eq!(postgres.count(versions).await, known as i64);
    postgres.drop().await;
}

/// T-5: during an update of many machines the tables are newer than some of them.
#[tokio::test]
async fn t_5_a_table_one_version_newer_is_served_and_two_are_refused() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    drop(postgres.store().await);
    let known = postgres.builder().migrations().unwrap().len();
    let add = async |version: usize| {
        let sql = "INSERT INTO {schema}.reprise_idempotency_version VALUES";
        postgres.execute(&format!("{sql} ({version})")).await;
    };
    add(known + 1).await;
    let store = postgres.store().await;
    let token = own(&store, claim(1)).await;
    complete(&store, 1, token, reply("paid")).await;
    add(known + 2).await;
    let error = postgres.builder().connect().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NewerSchema);
    let message = error.to_string();
    let expected = format!("is of version {}, and this version", known + 2);
    assert!(message.contains(&expected), "{message}");
    // Another table is another matter.
    let other = postgres.builder().table("other");
    own(&other.connect().await.unwrap(), claim(1)).await;
    postgres.drop().await;
}

/// Tables were changed before they were released.
#[tokio::test]
async fn t_5_a_table_of_before_the_release_is_refused_when_it_is_opened() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    for (table, column) in [("records", "orphaned"), ("journals", "turn")] {
        let builder = || postgres.builder().table(table);
        drop(builder().connect().await.unwrap());
        let suffix = if table == "records" { "" } else { "_journal" };
        let drop = format!("ALTER TABLE {{schema}}.{table}{suffix} DROP COLUMN {column}");
        postgres.execute(&drop).await;
        let error = builder().connect().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other);
        let message = error.to_string();
        assert!(
            message.contains("before its version was released"),
            "{message}"
        );
        assert!(format!("{error:?}").contains(column), "{error:?}");
    }
    postgres.drop().await;
}

#[tokio::test]
async fn t_5_a_table_that_is_there_needs_no_right_to_create() {
    let Some(mut postgres) = Postgres::new().await else {
        return;
    };
    drop(postgres.store().await);
    let app = format!("app_{}", postgres.schema);
    for sql in [
        format!("CREATE ROLE {app} LOGIN"),
        format!("GRANT USAGE ON SCHEMA {{schema}} TO {app}"),
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {{schema}} TO {app}"),
    ] {
        postgres.execute(&sql).await;
    }
    let owner = postgres.url.clone();
    postgres.url = owner.replace("reprise@", &format!("{app}@"));
    let store = postgres.store().await;
    let token = own(&store, claim(1)).await;
    complete(&store, 1, token, reply("paid")).await;

    let elsewhere = postgres.builder().table("elsewhere");
    let error = elsewhere.connect().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other, "{error}");
    postgres.execute(&format!("DROP OWNED BY {app}")).await;
    postgres.execute(&format!("DROP ROLE {app}")).await;
    postgres.drop().await;
}

/// A tool applies the migrations, and a user who may only read and write finds all tables.
#[tokio::test]
async fn t_10_migrations_exported_as_sql_leave_nothing_to_do() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let scripts = postgres.builder().migrations().unwrap();
    for script in &scripts {
        let applied = postgres.admin.batch_execute(script).await;
        applied.expect("a script");
    }
    let columns = "SELECT count(*) FROM information_schema.columns WHERE table_schema = '{schema}'";
    let applied = postgres.count(columns).await;
    let store = postgres.store().await;
    let token = own(&store, claim(1)).await;
    complete(&store, 1, token, reply("paid")).await;
    let versions = "SELECT count(*) FROM {schema}.reprise_idempotency_version";
    assert_eq!(postgres.count(versions).await, scripts.len() as i64);
    assert_eq!(postgres.count(columns).await, applied);
    let error = postgres.builder().table("no-name").migrations();
    assert!(
        error
            .unwrap_err()
            .to_string()
            .starts_with("postgres.table is")
    );
    postgres.drop().await;
}

/// T-5: 002 and 003 recommend columns for the function and the version of a call.
#[cfg(all(feature = "forrst", feature = "delivery"))]
#[tokio::test]
async fn t_5_function_and_version_of_a_call_are_columns() {
    use crate::calls::{CALLS, make};

    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    make(store.clone()).await;
    own(&store, claim(1)).await; // of plain HTTP
    let same = |version: Option<&str>| match version {
        Some(version) => format!("version = '{version}'"),
        None => "version IS NULL".to_owned(),
    };
    let calls = "SELECT count(*) FROM {schema}.reprise_idempotency_calls WHERE";
    let journal = "SELECT count(*) FROM {schema}.reprise_idempotency_journal WHERE";
    for (function, version) in CALLS {
        let version = same(version);
        let sql = format!("{calls} function = '{function}' AND {version} AND status = 'completed'");
        assert_eq!(postgres.count(&sql).await, 1, "{function}");
        let sql = format!("{journal} label = '{function}!' AND {version}");
        assert_eq!(postgres.count(&sql).await, 1, "{function}");
    }
    let sql = format!("{calls} function IS NULL AND expires_at > now() AND status = 'processing'");
    assert_eq!(postgres.count(&sql).await, 1);
    postgres.drop().await;
}

/// T-5: text has no NUL in PostgreSQL, and a note of an earlier version may have one.
#[tokio::test]
async fn t_5_a_note_with_a_nul_hides_no_other_call() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let store = postgres.store().await;
    for (key, note) in [
        (1, "\u{1f}pay\u{1f}1\u{1f}a\0"),
        (2, "\u{1f}pay\u{1f}1\u{1f}b"),
    ] {
        let claim = Claim {
            note: Note::new(note).unwrap(),
            ..claim(key)
        };
        own(&store, claim).await;
    }
    let calls = "SELECT count(*) FROM {schema}.reprise_idempotency_calls WHERE function";
    assert_eq!(postgres.count(&format!("{calls} = 'pay'")).await, 1);
    assert_eq!(postgres.count(&format!("{calls} IS NULL")).await, 1);
    postgres.drop().await;
}
