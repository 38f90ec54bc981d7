//! The functions of the guide's page on transactions.

#[path = "../../../src/guide/drivers/diesel.rs"]
pub mod diesel;
#[path = "../../../src/guide/drivers/sea_orm.rs"]
pub mod sea_orm;
#[path = "../../../src/guide/drivers/sqlx.rs"]
pub mod sqlx;
