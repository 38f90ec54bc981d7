use tower_reprise::store::SqliteStore;

fn main() {
    let _ = SqliteStore::open("idempotency.db");
}
