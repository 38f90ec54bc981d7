use diesel::{
    pg::Pg,
    query_builder::{BoxedSqlQuery, SqlQuery},
    sql_query,
    sql_types::{BigInt, Binary, Nullable, SmallInt, Text},
};
use tower_reprise::store::{SqlParameter, SqlStatement};

/// Makes a query of a statement, to run as `query(statement).execute(connection)`.
pub fn query(statement: SqlStatement) -> BoxedSqlQuery<'static, Pg, SqlQuery> {
    let (sql, parameters) = statement.into_parts();
    let mut query = sql_query(sql).into_boxed::<Pg>();
    for parameter in parameters {
        query = match parameter {
            SqlParameter::SmallInt(number) => query.bind::<SmallInt, _>(number),
            SqlParameter::BigInt(number) => query.bind::<BigInt, _>(number),
            SqlParameter::Text(text) => query.bind::<Nullable<Text>, _>(text),
            SqlParameter::Bytea(bytes) => {
                query.bind::<Nullable<Binary>, _>(bytes.map(Vec::<u8>::from))
            }
        };
    }
    query
}

/// The row of an `enqueue_statement`, for `query(statement).get_result::<Row>(connection)`.
#[derive(diesel::QueryableByName)]
pub struct Row {
    #[diesel(sql_type = Text)]
    pub enqueued: String,
}
