use tower_reprise::server::dialect::Scope;
use tower_reprise::{IdempotencyLayer, store::MemoryStore};

fn main() {
    let _ = IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::anonymous("everybody"))
        .build();
}
