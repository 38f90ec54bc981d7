use tower_reprise::{IdempotencyLayer, store::Orphans};

fn main() {
    let _ = IdempotencyLayer::builder("idempotency.db")
        .scope(|_| Some("shop"))
        .orphans(Orphans::Reexecute)
        .build();
}
