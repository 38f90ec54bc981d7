use sqlx::{AssertSqlSafe, PgConnection, postgres::PgRow};
use tower_reprise::store::{SqlParameter, SqlStatement};

/// Runs a statement in a transaction, as `run(&mut transaction, statement)`.
pub async fn run(
    transaction: &mut PgConnection,
    statement: SqlStatement,
) -> Result<PgRow, sqlx::Error> {
    let (sql, parameters) = statement.into_parts();
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for parameter in parameters {
        query = match parameter {
            SqlParameter::SmallInt(number) => query.bind(number),
            SqlParameter::BigInt(number) => query.bind(number),
            SqlParameter::Text(text) => query.bind(text),
            SqlParameter::Bytea(bytes) => query.bind(bytes.map(Vec::from)),
        };
    }
    query.fetch_one(transaction).await
}
