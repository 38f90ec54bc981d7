use tower_reprise::{IdempotencyLayer, store::MemoryStore};

fn main() {
    let _ = IdempotencyLayer::builder(MemoryStore::new()).build();
}
