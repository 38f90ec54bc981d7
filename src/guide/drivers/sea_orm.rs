use sea_orm::{DbBackend, Statement, Value};
use tower_reprise::store::{SqlParameter, SqlStatement};

/// Makes a statement of SeaORM, to run as `transaction.query_one_raw(bound(statement))`.
pub fn bound(statement: SqlStatement) -> Statement {
    let (sql, parameters) = statement.into_parts();
    let values = parameters.into_iter().map(|parameter| match parameter {
        SqlParameter::SmallInt(number) => Value::from(number),
        SqlParameter::BigInt(number) => Value::from(number),
        SqlParameter::Text(text) => Value::from(text),
        SqlParameter::Bytea(bytes) => Value::from(bytes.map(Vec::<u8>::from)),
    });
    Statement::from_sql_and_values(DbBackend::Postgres, sql, values)
}
