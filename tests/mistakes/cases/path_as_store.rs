use tower_reprise::{IdempotencyLayer, store::CrashPolicy};

fn main() {
    let _ = IdempotencyLayer::builder("idempotency.db")
        .scope(|_| Some("shop"))
        .orphans(CrashPolicy::Reexecute)
        .build();
}
